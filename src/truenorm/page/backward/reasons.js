/*
What the part "backward" says in sentences: which cells are meant, why a gradient is 0, and whether dx is true.

`model` is what backward.js works with.
*/
import { jumpsAt } from "#backward/differences.js";
import { NORMS } from "#maths/normalization.js";
import { formatNumber } from "#lib/numbers.js";
import { whyBeyond } from "#lib/problem.js";

/** @type {(place: Place) => string} */
export function chosenInWords({ row, column }) {
    return `row ${row + 1}, column ${column + 1}`;
}

/** @type {(model: Pick<BackwardModel, "problem" | "row" | "column">) => string} */
export function chosenStatistic({ problem: { norm, offsets, columns }, row, column }) {
    const sample = `sample ${offsets.findIndex((start, k) => row >= start && row < offsets[k + 1]) + 1}`;
    return {
        batch: `column ${column + 1}`, layer: `row ${row + 1}`, rms: `row ${row + 1}`,
        instance: `${sample}, column ${column + 1}`,
        group: `${sample}, group ${Math.floor(column / (columns / norm.groups)) + 1}`,
    }[norm.name];
}

/**
 * Why gradients of the chosen cell are 0, { text, at }: `at` are the steps where a 0 would puzzle.
 * @type {(model: BackwardModel) => { text: string; at: string[] }}
 */
export function reasonInWords({ out, problem, row, column, loss, explained }) {
    const { norm } = problem;
    const s = out.partition.index[row][column];
    const count = out.moments.count[s];
    const group = chosenStatistic({ problem, row, column });
    if (count === 0) return { text: "", at: [] };
    const everywhere = ["dx-xhat", "dvar", "dmean-xhat", "dmean", "dx-var", "dx-mean", "dx"];
    const beyond = whyBeyond(out, s);
    if (beyond) return { text: `In ${group}, ${beyond}. No gradient can be trusted there.`, at: everywhere };
    if (count === 1 && norm.center) {
        const text = `There is only one number in ${group}, and it is its own mean: x − μ is 0 whatever x is. So x `
            + "cannot change the loss, and dx is 0.";
        return { text, at: ["dvar", "dx-var", "dx"] };
    }
    if (out.rstd[s] === 0) {
        const text = `All numbers in ${group} are ${norm.center ? "equal" : "0"}, and ε is 0: there is nothing to `
            + "divide by. y is β there, and dx is set to 0.";
        return { text, at: everywhere };
    }
    if (out.moments.m2[s] === 0) {
        const text = `All numbers in ${group} are ${norm.center ? "equal" : "0"}: there is no spread, so nothing comes `
            + "through σ², and dσ² is 0. The other paths are multiplied by an rstd that comes from ε alone.";
        return { text, at: ["dvar", "dx-var", "dx"] };
    }
    return { text: cancelInWords(loss, explained, norm), at: ["dx"] };
}

/**
 * Losses that no x can change are worth a word.
 * @type {(loss: Loss, explained: Map<string, ExplainedStep>, norm: Norm) => string}
 */
function cancelInWords({ kind }, explained, norm) {
    /** @type {(name: string) => number} */
    const largest = (name) => Math.max(...explained.get(name).values.flat().map(Math.abs));
    const direct = largest("dx (through xhat)");
    if (direct === 0) return "dy times γ is 0 everywhere, so all gradients are 0.";
    if (largest("dx") > 1e-3 * direct) return "";
    /** @type {Partial<Record<LossKind, string>>} */
    const reasons = {
        sum: norm.center ? " Normalised numbers add up to 0, whatever x is." : "",
        squares: " The squares of normalised numbers add up to how many there are (but for ε), whatever x is.",
    };
    const why = reasons[kind] ?? "";
    return `The paths cancel: dx is nearly 0 everywhere, so no x can change this loss.${why}`;
}

/**
 * What the numbers depend on and is not shown as a table.
 * @type {(model: BackwardModel) => string}
 */
export function backwardConventions({ problem: { norm, weight, bias } }) {
    /** @type {(values: number[]) => string} */
    const numbers = (values) => [
        ...values.slice(0, 8).map((one) => formatNumber(one)), ...(values.length > 8 ? ["…"] : []),
    ].join(", ");
    const under = norm.eps_at === "var" ? "under the root" : "outside the root";
    return `Lit up in x: the n cells that share one ${norm.center ? "mean and one spread" : "spread"}, here each `
        + `${NORMS[norm.name].each}. γ ${numbers(weight)}; β ${numbers(bias)}; ε ${formatNumber(norm.eps)} `
        + `${under}; the ${norm.center ? "variance" : "mean of the squares (σ²)"} divides by `
        + `${norm.ddof ? "n − 1" : "n"}.`;
}

/**
 * What the measured gradients say; the second argument is what `compareGradients` returns.
 * @type {(model: BackwardModel, comparison: Comparison) => string}
 */
export function verdictInWords({ out, row, column }, { worst, cells, jumps, reach }) {
    const jump = "Where there is nothing to divide by, y jumps as soon as one x moves: it has no gradient to measure";
    if (jumpsAt(out, row, column)) return `${jump}. dx is set to 0 there, so that nothing breaks.`;
    if (!Number.isFinite(worst)) {
        const why = whyBeyond(out, out.partition.index[row][column]);
        return `Nothing can be measured: ${why || "next to these numbers, some are too large to compute with"}.`;
    }
    const shared = out.norm.center ? "mean" : "spread";
    const over = {
        cell: "In this cell (the table is too large to measure all at once)",
        shared: `In the ${cells} cells that share one ${shared} with it (the table is too large for all)`,
        table: `In all ${cells} cells`,
    }[reach];
    const digits = Math.floor(-Math.log10(worst));
    const largest = worst === 0 ? "both are the same"
        : `the largest difference is ${formatNumber(worst, 2)} of the largest path of dx`;
    const quality = worst === 0 ? "." : digits >= 3 ? `: ${Math.min(digits, 15)} digits of it agree.`
        : ". Losses this close to each other lose their digits when they are subtracted: the measurement is at fault.";
    return `${over}, ${largest}${quality}${jumps ? ` ${jump}, which leaves out ${jumps} cells.` : ""}`;
}
