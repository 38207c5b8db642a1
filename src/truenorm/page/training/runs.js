/*
The recorded runs, and what may be said about them. Nothing here touches the document.

    const recorded = readRuns(text);        // runs.json, as tools/recordings.py writes it
    recorded.runs.get(runKey("batch", 0.1)) // norm, rate, loss, held_out, std, saturated, silent, slope, into, out

`loss` has one number for each of `points` (steps); what is inside the network, one for each of `moments` (steps, too,
all of them points); `into` and `out` are histograms, whose bins add up to `parts`. What was not finite is null.
`held_out` has one number for each seed.
*/
import { formatNumber } from "#lib/numbers.js";

/** @type {Record<RecordedNorm, string>} */
export const NORM_WORDS = { none: "without batch norm", batch: "with batch norm" };

export const RECORDED_NORMS = /** @type {RecordedNorm[]} */ (Object.keys(NORM_WORDS));

/**
 * The runs are in a map under their keys, in the order of the file.
 * @type {(text: string) => Recorded}
 */
export function readRuns(text) {
    /** @type {{ runs: Run[] } & Omit<Recorded, "runs">} */
    const recorded = JSON.parse(text);
    /** @type {Map<string, Run>} */
    const runs = new Map(recorded.runs.map((run) => [keyOfRun(run), run]));
    return { ...recorded, runs, rates: [...new Set(recorded.runs.map(({ rate }) => rate))] };
}

/** @type {(norm: string, rate: number | string) => string} */
export function runKey(norm, rate) {
    return `${norm}-${rate}`;
}

/** @type {(run: Pick<Run, "norm" | "rate">) => string} */
function keyOfRun({ norm, rate }) {
    return runKey(norm, rate);
}

/**
 * Without and with batch norm.
 * @type {(recorded: Recorded, rate: number | string) => Run[]}
 */
export function pairAt({ runs }, rate) {
    return RECORDED_NORMS.map((norm) => runs.get(runKey(norm, rate)));
}

/**
 * The keys of the runs in the chart: the pair of the chosen rate, until somebody ticks others.
 * @type {(state: Pick<State, "get">, recorded: Recorded) => string[]}
 */
export function shownRuns(state, recorded) {
    return state.get("training.runs") ?? pairAt(recorded, state.get("training.lr")).map(keyOfRun);
}

/**
 * The learning rate at which the final losses differ most: there is something to see.
 * @type {(recorded: Recorded) => number}
 */
export function mostDifferentRate(recorded) {
    /** @type {(rate: number) => number} */
    const gap = (rate) => {
        const [without, withNorm] = pairAt(recorded, rate).map(({ held_out: losses }) => meanOf(losses));
        return Math.abs(Math.log(without / withNorm));
    };
    return recorded.rates.reduce((best, rate) => (gap(rate) > gap(best) ? rate : best));
}

/**
 * The run with the lowest held-out loss, on average over seeds.
 * @type {(recorded: Recorded) => Run}
 */
export function bestRun({ runs }) {
    return [...runs.values()].reduce((best, run) => (meanOf(run.held_out) < meanOf(best.held_out) ? run : best));
}

/** @type {(values: (number | null)[]) => number} */
function meanOf(values) {
    return values.reduce((sum, value) => sum + (value ?? Infinity), 0) / values.length;
}

// ---- in the address ----

/**
 * A step is the recorded moment that is nearest to it.
 * @type {(moments: number[]) => Codec<number>}
 */
export function momentCodec(moments) {
    return {
        encode: String,
        decode: (text) => {
            const step = /^\d+$/.test(text) ? Number(text) : NaN;
            if (!(step <= moments.at(-1))) throw new RangeError("runs: a step of the run.");
            return moments.reduce((best, one) => (Math.abs(one - step) < Math.abs(best - step) ? one : best));
        },
    };
}

/**
 * Any of these keys, in their order; none of them is empty text. null, the pair of the chosen rate, is "pair".
 * @type {(keys: string[]) => Codec<string[] | null>}
 */
export function someOf(keys) {
    return {
        encode: (chosen) => chosen?.join(",") ?? "pair",
        decode: (text) => {
            if (text === "pair") return null;
            const chosen = text === "" ? [] : text.split(",").map(decodeURIComponent);
            if (!chosen.every((key) => keys.includes(key))) throw new RangeError("runs: keys of runs.");
            return keys.filter((key) => chosen.includes(key));
        },
    };
}

// ---- in words ----

/**
 * A share for people: never 0% or 100% unless it is.
 * @type {(share: number) => string}
 */
export function percentOf(share) {
    if (share > 0 && share < 0.0005) return "under 0.1%";
    if (share < 1 && share >= 0.9995) return "over 99.9%";
    return `${formatNumber(Number((100 * share).toFixed(1)))}%`;
}

/** @type {(losses: (number | null)[]) => string} */
export function meanInWords(losses) {
    return formatNumber(meanOf(losses));
}

/**
 * The lowest and the highest.
 * @type {(losses: (number | null)[]) => string}
 */
export function rangeInWords(losses) {
    const known = losses.map((loss) => loss ?? Infinity);
    return `(${formatNumber(Math.min(...known))} to ${formatNumber(Math.max(...known))})`;
}

/**
 * What the held-out losses of several seeds allow to say, and no more.
 * @type {(without: (number | null)[], withNorm: (number | null)[], guessing: number) => string}
 */
export function compareLosses(without, withNorm, guessing) {
    const [lost, lostToo] = [without, withNorm].map((losses) => meanOf(losses) > guessing);
    if (lost && lostToo) return "neither learns. Both end worse than blind guessing: batch norm does not fix this.";
    if (lost) return "without batch norm the network ends worse than blind guessing. With it, it learns.";
    if (lostToo) return "with batch norm the network ends worse than blind guessing. Without it, it learns.";
    // Runs of one seed share their start and their examples, so they are compared in pairs.
    const seeds = without.length;
    const lower = without.filter((loss, seed) => loss < withNorm[seed]).length;
    const higher = without.filter((loss, seed) => loss > withNorm[seed]).length;
    const apart = formatNumber(Math.abs(meanOf(without) - meanOf(withNorm)), 2);
    if (lower === seeds) return `without batch norm all ${seeds} seeds end lower, by ${apart} on average.`;
    if (higher === seeds) return `with batch norm all ${seeds} seeds end lower, by ${apart} on average.`;
    return `no clear difference. Without batch norm ${lower} of ${seeds} seeds end lower; means are ${apart} apart.`;
}

/**
 * What trains this run on a machine with truenorm.
 * @type {(run: Pick<Run, "norm" | "rate">, steps: number) => string}
 */
export function commandFor({ norm, rate }, steps) {
    const convention = norm === "batch" ? " --ddof 1" : "";
    return `truenorm train --norm ${norm}${convention} --lr ${rate} --schedule constant --steps ${steps} ` +
        `--out runs/${runKey(norm, rate)}`;
}
