/*
Internal covariate shift: how the inputs of tanh are distributed at each moment of a recorded training run (runs.json),
without and with batch norm. One column for each moment, one row for each interval of values; the darker, the more of the
inputs are there. Numbers below say the same without shades.
*/
import { chooser } from "#lib/controls.js";
import { html, scrollBox, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { NORM_WORDS, RECORDED_NORMS, pairAt, percentOf } from "#training/runs.js";

const SIZE = { width: 420, height: 220, left: 40, right: 6, top: 18, bottom: 34 };
const TOLD = [0, 10, 100, 1000, 4000]; // the steps in the table, as far as they were recorded

/** @type {(state: State, recorded: Recorded) => HTMLElement} */
export function layerInputsView(state, recorded) {
    const { rates, moments, reach } = recorded;
    const boxes = RECORDED_NORMS.map(() => html("div", { class: "shades" }));
    const body = html("tbody", {});
    const told = TOLD.filter((step) => moments.includes(step));
    const sentence = html("p", { class: "said" });
    state.watch(["why.run"], () => {
        const pair = pairAt(recorded, state.get("why.run"));
        pair.forEach((run, i) => boxes[i].replaceChildren(
            html("p", { class: "said" }, html("b", {}, NORM_WORDS[run.norm])), shades(recorded, run)));
        body.replaceChildren(...pair.map((run) => html(
            "tr", {}, html("th", { scope: "row" }, NORM_WORDS[run.norm]),
            told.map((step) => html("td", {}, formatNumber(run.std[moments.indexOf(step)] ?? NaN, 3))),
        )));
        const [without, withNorm] = pair.map(({ std }) => formatNumber(std.at(-1) ?? NaN, 3));
        const [flat, flatToo] = pair.map(({ saturated }) => percentOf(saturated.at(-1)));
        sentence.textContent = `At the end the standard deviation is ${without} without batch norm and ${withNorm} with it; `
            + `${flat} and ${flatToo} of the outputs are saturated.`;
    });
    const options = rates.map((one) => /** @type {[string, string]} */ ([String(one), String(one)]));
    return html(
        "section", {}, html("h3", {}, "Internal covariate shift: the inputs of a layer change in training"),
        html("p", { class: "short" }, "Two recorded runs of the character network, from the same start. Each column is the ",
            `distribution of what goes into tanh at one step, from −${formatNumber(reach)} to ${formatNumber(reach)}; the `,
            "outermost rows hold all that lies beyond."),
        html("div", { class: "controls" }, chooser(state, "why.run", "Learning rate", options)),
        sentence,
        html("div", { class: "panes" }, boxes),
        scrollBox("Standard deviation of the inputs of tanh", html(
            "table", { class: "numbers" }, html("caption", {}, "Standard deviation of what goes into tanh"),
            html("thead", {}, html("tr", {}, html("th", { scope: "col" }, "at step"),
                told.map((step) => html("th", { scope: "col" }, formatNumber(step))))),
            body,
        )),
        html("p", { class: "note" }, "γ and β are learned, so with batch norm the distribution may move, too, but only as far ",
            "as these two move it. Whether less of this shift is what makes batch norm work is disputed; that it keeps tanh ",
            "out of its flat parts can be seen here. The part Training has the losses of these runs."),
    );
}

/** @type {(recorded: Recorded, run: Run) => SVGElement} */
function shades({ moments, reach }, { into, norm, std }) {
    const { width, height, left, right, top, bottom } = SIZE;
    const bins = into[0].length;
    const [wide, high] = [(width - left - right) / moments.length, (height - top - bottom) / bins];
    const inner = bins - 2; // without the two for all that lies beyond
    /** @type {(value: number) => number} */
    const down = (value) => top + high * (1 + ((reach - value) / (2 * reach)) * inner);
    const label = `Inputs of tanh over time, ${NORM_WORDS[norm]}: standard deviation ${formatNumber(std[0] ?? NaN, 3)} at `
        + `first, ${formatNumber(std.at(-1) ?? NaN, 3)} at the end.`;
    return svg(
        "svg", { role: "img", "aria-label": label, viewBox: `0 0 ${width} ${height}` },
        into.map((counts, i) => {
            const total = counts.reduce((sum, count) => sum + count, 0);
            return counts.map((count, k) => (count === 0 ? null : svg("rect", {
                class: "shade", x: left + i * wide, y: height - bottom - (k + 1) * high, width: wide + 0.3, height: high + 0.3,
                "fill-opacity": Math.min(1, 0.06 + 3.2 * (count / total)).toFixed(2),
            }, svg("title", {}, `step ${moments[i]}: ${percentOf(count / total)}`))));
        }),
        svg("rect", { class: "frame", x: left, y: top, width: width - left - right, height: height - top - bottom }),
        [-reach, 0, reach].map((value) =>
            svg("text", { x: left - 6, y: down(value) + 4, "text-anchor": "end" }, formatNumber(value))),
        [0, 5, 8, 13, moments.length - 1].map((i) => svg("text", {
            x: left + (i + 0.5) * wide, y: height - bottom + 15, "text-anchor": "middle",
        }, formatNumber(moments[i]))),
        svg("text", { x: width - right, y: height - 4, "text-anchor": "end" }, "step →"),
        svg("text", { x: left, y: 12 }, "↑ into tanh"),
    );
}
