/*
Internal covariate shift: how the inputs of tanh are distributed at each moment of a recorded training run (runs.json),
without and with batch norm. One column for each moment, one row for each interval of values: the darker, the more
inputs. A sentence says it in numbers. The drawings are made anew when their width changes: text keeps its size.
*/
import { chooser } from "#lib/controls.js";
import { html, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { NORM_WORDS, RECORDED_NORMS, pairAt, percentOf } from "#training/runs.js";

const SIZE = { height: 250, left: 40, right: 6, top: 18, bottom: 34 };

/** @type {(state: State, recorded: Recorded) => HTMLElement} */
export function layerInputsView(state, recorded) {
    const { rates, reach } = recorded;
    const boxes = RECORDED_NORMS.map(() => html("div", { class: "shades" }));
    const sentence = html("p", { class: "said" });
    function draw() {
        pairAt(recorded, state.get("why.run")).forEach((run, i) => boxes[i].replaceChildren(
            html("p", { class: "said" }, html("b", {}, NORM_WORDS[run.norm])),
            shades(recorded, run, boxes[i].clientWidth || 420)));
    }
    new ResizeObserver(draw).observe(boxes[0]); // both have the same width
    state.watch(["why.run"], () => {
        draw();
        const pair = pairAt(recorded, state.get("why.run"));
        const [without, withNorm] = pair.map(({ std }) => endsOf(std).join(" to "));
        const [flat, flatToo] = pair.map(({ saturated }) => percentOf(saturated.at(-1)));
        sentence.textContent = `From the first step to the last the deviation goes from ${without} without batch norm, `
            + `and from ${withNorm} with it. At the end ${flat} and ${flatToo} of the outputs are saturated.`;
    });
    const options = rates.map((one) => /** @type {[string, string]} */ ([String(one), String(one)]));
    return html(
        "section", {}, html("h3", {}, "Internal covariate shift: the inputs of a layer change in training"),
        html("p", { class: "short" }, "Two recorded runs of the character network, from the same start. Each column ",
            `is the distribution of what goes into tanh at one step, between ±${formatNumber(reach)}; the outermost `,
            "rows hold all that lies beyond."),
        html("div", { class: "controls" }, chooser(state, "why.run", "Learning rate", options)),
        sentence,
        html("div", { class: "panes" }, boxes),
        html("p", { class: "note" }, "With batch norm the distribution moves only as far as γ and β move it. Whether ",
            "this is why batch norm works is disputed; that it keeps tanh out of its flat parts can be seen here. The ",
            "part Training has the losses of these runs."),
    );
}

/** @type {(values: (number | null)[]) => string[]} */
function endsOf(values) {
    return [values[0], values.at(-1)].map((value) => formatNumber(value ?? NaN, 3));
}

/** @type {(recorded: Recorded, run: Run, width: number) => SVGElement} */
function shades({ moments, reach }, { into, norm, std }, width) {
    const { height, left, right, top, bottom } = SIZE;
    const bins = into[0].length;
    const [wide, high] = [(width - left - right) / moments.length, (height - top - bottom) / bins];
    const inner = bins - 2; // without the two for all that lies beyond
    /** @type {(value: number) => number} */
    const down = (value) => top + high * (1 + ((reach - value) / (2 * reach)) * inner);
    const [first, last] = endsOf(std);
    const label = `Inputs of tanh over time, ${NORM_WORDS[norm]}: deviation ${first} at first, ${last} at the end.`;
    return svg(
        "svg", { role: "img", "aria-label": label, width, height, viewBox: `0 0 ${width} ${height}` },
        into.map((counts, i) => {
            const total = counts.reduce((sum, count) => sum + count, 0);
            return counts.map((count, k) => (count === 0 ? null : svg("rect", {
                class: "shade", x: left + i * wide, y: height - bottom - (k + 1) * high,
                width: wide + 0.3, height: high + 0.3, // no gaps
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
