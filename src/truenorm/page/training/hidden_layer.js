/*
The hidden layer of a pair of runs at one moment: what goes into tanh and what comes out of it, without and with batch
norm side by side, as histograms and in numbers.
*/
import { lineSample } from "#lib/chart.js";
import { html, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { histogram } from "#training/histogram.js";
import { NORM_HUES, lookOfRun } from "#training/losses.js";
import { NORM_WORDS, RECORDED_NORMS, pairAt, percentOf } from "#training/runs.js";

/** @type {(state: State, recorded: Recorded) => HTMLElement} */
export function insideView(state, recorded) {
    const { batch, hidden, flat, reach, moments } = recorded;
    const sides = RECORDED_NORMS.map((norm) => ({
        norm,
        title: html("p", { class: "side" }),
        into: histogram({ hue: NORM_HUES[norm], reach, open: true, flat: Math.atanh(flat) }),
        out: histogram({ hue: NORM_HUES[norm], reach: 1 }),
    }));
    const heading = html("h3", {});
    const sentence = html("p", { class: "moment" });
    const facts = insideFacts(recorded);
    state.watch(["training.lr", "training.step"], () => {
        const [rate, step] = [state.get("training.lr"), state.get("training.step")];
        const [pair, moment] = [pairAt(recorded, rate), moments.indexOf(step)];
        const [without, withNorm] = pair.map((run) => percentOf(run.saturated[moment]));
        heading.textContent = `Inside the hidden layer: learning rate ${rate}, step ${formatNumber(step)}`;
        sentence.textContent = `Saturated: ${without} of the outputs without batch norm, ${withNorm} with it.`;
        sides.forEach(({ title, norm }, i) =>
            title.replaceChildren(lineSample(lookOfRun(recorded, pair[i])), ` ${NORM_WORDS[norm]}`));
        for (const kind of /** @type {const} */ (["into", "out"])) {
            const most = highestShare(pair.flatMap((run) => run[kind]));
            sides.forEach((side, i) => {
                const counts = pair[i][kind][moment];
                const zones = kind === "into" ? zonesInWords(counts, counts.length - 2, reach, 2)
                    : zonesInWords(counts, counts.length, 1, 0.9);
                side[kind].update({ counts, most, label: `${TANH_SIDES[kind]} ${NORM_WORDS[side.norm]}: ${zones}` });
            });
        }
        facts.update(pair, moment);
    });
    return html(
        "section", { class: "hidden-layer" }, heading, sentence,
        html(
            "div", { class: "inside" },
            sides.map(({ title }) => title),
            html(
                "p", { class: "kind" }, `${TANH_SIDES.into} (${batch} examples × ${hidden} units)`,
                html("span", { class: "note" }, ` Shaded: where tanh is flat. Hollow: all beyond ±${reach}.`),
            ),
            sides.map(({ into }) => into.element),
            html("p", { class: "kind" }, TANH_SIDES.out),
            sides.map(({ out }) => out.element),
        ),
        facts.element,
    );
}

/** @type {Record<"into" | "out", string>} */
const TANH_SIDES = { into: "What goes into tanh", out: "What comes out of tanh" };

/**
 * The scale of all moments of a pair, so that it stays while they pass: up to the next whole tenth.
 * @type {(histograms: number[][]) => number}
 */
function highestShare(histograms) {
    return Math.ceil(Math.max(...histograms.map((counts) => Math.max(...counts) / sumOf(counts))) * 10 - 1e-9) / 10;
}

/**
 * A histogram in three numbers, for those who hear it. `inner`: how many bins lie between -reach and reach.
 * @type {(counts: number[], inner: number, reach: number, limit: number) => string}
 */
function zonesInWords(counts, inner, reach, limit) {
    const cut = (counts.length - inner) / 2 + Math.round(((reach - limit) / (2 * reach)) * inner);
    /** @type {(part: number[]) => string} */
    const share = (part) => percentOf(sumOf(part) / sumOf(counts));
    const [below, between, above] = [counts.slice(0, cut), counts.slice(cut, -cut), counts.slice(-cut)].map(share);
    return `${below} below ${formatNumber(-limit)}, ${between} between, ${above} above ${limit}.`;
}

/** @type {(counts: number[]) => number} */
function sumOf(counts) {
    return counts.reduce((sum, count) => sum + count, 0);
}

/**
 * The moment in numbers.
 * @type {(recorded: Recorded) => { element: HTMLElement; update(pair: Run[], moment: number): void }}
 */
function insideFacts({ flat, silent }) {
    /** @type {Record<string, (run: Run, moment: number) => string>} */
    const facts = {
        [`saturated: output beyond ±${flat}`]: (run, moment) => percentOf(run.saturated[moment]),
        [`silent: output within ±${silent}`]: (run, moment) => percentOf(run.silent[moment]),
        "standard deviation of what goes in": (run, moment) => formatNumber(run.std[moment] ?? NaN),
        "of a gradient, tanh lets through (mean of 1 − output²)": (run, moment) => percentOf(run.slope[moment]),
    };
    const body = html("tbody", {});
    const heads = ["", "without", "with"].map((name) => (name ? html("th", { scope: "col" }, name) : html("td", {})));
    const element = scrollBox("The hidden layer in numbers", html(
        "table", { class: "numbers facts" }, html("caption", {}, "In numbers"),
        html("thead", {}, html("tr", {}, heads)), body,
    ));
    /** @type {(pair: Run[], moment: number) => void} */
    function update(pair, moment) {
        body.replaceChildren(...Object.entries(facts).map(([name, read]) => html(
            "tr", {}, html("th", { scope: "row" }, name), pair.map((run) => html("td", {}, read(run, moment))),
        )));
    }
    return { element, update };
}
