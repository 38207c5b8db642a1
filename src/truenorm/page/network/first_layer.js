/*
A first layer of three nodes: two features, weights and biases that can be moved, z, and the norm of z.

    z₁ = w₁ f₁ + w₂ f₂ + b₁      z₂ = w₃ f₁ + w₄ f₂ + b₂      z₃ = w₅ f₁ + w₆ f₂ + b₃
*/
import { chooser } from "#lib/controls.js";
import { html, putText, svg } from "#lib/elements.js";
import { formulaPieces } from "#lib/formula.js";
import { bracketedNumber, formatNumber, isBeyondNumbers, readNumber } from "#lib/numbers.js";
import { EXAMPLE } from "#lib/problem.js";
import { choice, textRow } from "#lib/state.js";
import { choiceTable, valueTable } from "#lib/tables.js";
import { quoted } from "#lib/text.js";
import { describe, forward } from "#maths/normalization.js";
import { markWrong } from "#network/entries.js";

const FEATURES = [[2, 3], [1, 1], [5, 4], [6, 1], [7, 1]];
const Z = ["z₁", "z₂", "z₃"];
const NAMES = ["w₁", "w₂", "b₁", "w₃", "w₄", "b₂", "w₅", "w₆", "b₃"];
// The one layer that gives the z of the lecture notes for rows 1, 2 and 4. None gives all five rows.
const START = ["1", "2", "-1", "0.4", "0.8", "1.8", "0.4", "-0.2", "3.8"];
const LARGEST = 1e100; // its square can be computed
const NO_FIT = "No weights give all five: from row 2 to 4 to 5 only f₁ changes, 1 to 6 to 7, and a z₁ that is w₁ f₁ + "
    + "w₂ f₂ + b₁ would follow it in a straight line. The notes’ z₁ goes from 2 to 7 to 3.";

/** @type {Codec<string[]>} */
const nineTexts = {
    ...textRow,
    decode: (text) => {
        const row = textRow.decode(text);
        if (row.length !== NAMES.length) throw new RangeError("network: nine numbers.");
        return row;
    },
};

/** @type {(state: State) => void} */
export function defineFirstLayer(state) {
    state.field("network.layer", nineTexts, START);
    state.field("network.norm", choice("batch", "layer"), "batch");
    state.field("network.z", choice(...FEATURES.flatMap((_, i) => Z.map((_, j) => `${i + 1},${j + 1}`))), "1,1");
}

/**
 * z of every row.
 * @type {(parameters: number[]) => number[][]}
 */
export function firstLayer(parameters) {
    return FEATURES.map(([f1, f2]) => Z.map((_, j) =>
        parameters[3 * j] * f1 + parameters[3 * j + 1] * f2 + parameters[3 * j + 2]));
}

/**
 * NaN where a text is not a number, or one that is too large.
 * @type {(text: string) => number}
 */
function readParameter(text) {
    const value = readNumber(text);
    return Math.abs(value) <= LARGEST ? value : NaN;
}

/** @type {(name: string, text: string) => string} */
function problemWith(name, text) {
    if (!Number.isNaN(readParameter(text))) return "";
    const isLarge = isBeyondNumbers(text) || !Number.isNaN(readNumber(text));
    const problem = isLarge ? "too large to compute with" : "not a number";
    return `${name} is ${problem}: ${quoted(text)}. It counts as 0 until that changes.`;
}

/** @type {(state: State) => HTMLElement} */
export function firstLayerView(state) {
    const controls = NAMES.map((name, k) => parameterControl(state, name, k));
    /** @type {OnChoose} */
    const onchoose = (row, column) => state.set({ "network.z": `${row + 1},${column + 1}` });
    const [features, z, normalized] = [valueTable({ onchoose }), choiceTable({ onchoose }), valueTable({ onchoose })];
    const [drawing, numbers] = [html("div", { class: "network-nodes" }), html("div")];
    const problem = html("p", { class: "problem", role: "status" });
    const fit = html("p", { class: "note" });

    state.watch(["network.layer", "network.norm", "network.z"], () => {
        const texts = state.get("network.layer");
        controls.forEach(({ update }, k) => update(texts[k]));
        const problems = NAMES.map((name, k) => problemWith(name, texts[k])).filter(Boolean);
        problem.hidden = problems.length === 0;
        putText(problem, problems.join(" "));
        const parameters = texts.map((text) => readParameter(text) || 0);
        const [row, column] = state.get("network.z").split(",").map((one) => Number(one) - 1);
        const x = firstLayer(parameters);
        const out = forward(x, describe(state.get("network.norm")));
        const { index } = out.partition;
        const s = index[row][column];
        /** @type {(caption: string, columnNames: string[], values: number[][]) => TableUpdate} */
        const shown = (caption, columnNames, values) => ({
            caption, columnNames, rowNames: values.map((_, i) => String(i + 1)),
            texts: values.map((cells) => cells.map((value) => formatNumber(value))),
            classes: (i, j) => (values !== FEATURES && index[i][j] === s ? "shared" : ""),
            chosen: (i, j) => i === row && (values === FEATURES || j === column),
        });
        features.update(shown("features", ["f₁", "f₂"], FEATURES));
        z.update(shown("z: choose one", Z, x));
        normalized.update(shown(`${state.get("network.norm")} norm of z`, Z, out.y));
        drawing.replaceChildren(drawnLayer(parameters, column));
        const [first, second, bias] = parameters.slice(3 * column).map((one) => bracketedNumber(one));
        const [f1, f2] = FEATURES[row];
        const value = formatNumber(x[row][column]);
        numbers.replaceChildren(
            formulaPieces([`z_${column + 1} = ${first} · ${f1} + ${second} · ${f2} + ${bias}`, `= ${value}`]),
            formulaPieces([`xhat = (${value} - ${bracketedNumber(out.moments.mean[s])}) / `
                + `sqrt(${formatNumber(out.var[s])} + 1×10⁻⁵)`, `= ${formatNumber(out.y[row][column])}`]),
        );
        const same = EXAMPLE.flatMap((noted, i) => (noted.every((one, j) => Math.abs(Number(one) - x[i][j]) < 1e-9)
            ? [i + 1] : []));
        putText(fit, `Rows with the notes’ z: ${same.join(", ") || "none"}. ${NO_FIT}`);
    });
    return html(
        "section", { class: "network-layer" }, html("h3", {}, "A first layer, small enough to compute by hand"),
        html("p", {}, "Two features, three nodes. Move a weight: z changes, and the norm of z with it. Dashed lines ",
            "are negative weights; thicker is larger."),
        html("div", { class: "columns" }, drawing,
            html("div", { class: "network-parameters" }, controls.map(({ element }) => element))),
        problem,
        chooser(state, "network.norm", "Norm of z",
            { batch: "Batch: a mean for each column", layer: "Layer: a mean for each row" }),
        html("div", { class: "columns" }, features.element, z.element, normalized.element), numbers, fit,
        html("button", { type: "button", onclick: () => state.set({ "network.layer": START }) }, "Reset the weights"),
    );
}

/** @type {(state: State, name: string, k: number) => View<string>} */
function parameterControl(state, name, k) {
    /** @type {(event: Event) => void} */
    const oninput = ({ target }) => state.set({
        "network.layer": state.get("network.layer").with(k, /** @type {HTMLInputElement} */ (target).value),
    });
    const label = `${name}, slider`;
    const range = html("input", { type: "range", min: -4, max: 4, step: 0.1, "aria-label": label, oninput });
    const text = html("input", { type: "text", autocomplete: "off", maxlength: 20, "aria-label": name, oninput });
    /** @type {(now: string) => void} */
    function update(now) {
        if (text.value !== now) text.value = now;
        const value = readParameter(now);
        markWrong(text, Number.isNaN(value));
        range.value = String(value || 0);
    }
    return { element: html("div", {}, html("span", { "aria-hidden": "true" }, name), range, text), update };
}

/** @type {(parameters: number[], chosen: number) => SVGElement} */
function drawnLayer(parameters, chosen) {
    /** @type {(x: number, y: number, name: string, isChosen?: boolean) => SVGElement} */
    const node = (x, y, name, isChosen = false) => svg("g", { class: `node${isChosen ? " chosen" : ""}` },
        svg("circle", { cx: x, cy: y, r: 20 }), svg("text", { x, y: y + 5, "text-anchor": "middle" }, name));
    return svg(
        "svg", { viewBox: "0 0 250 156", role: "img", "aria-label": "Two features lead into three nodes." },
        parameters.map((weight, k) => (k % 3 === 2 ? null : svg("line", { // a bias has no line
            class: "weight", x1: 42, y1: 52 + 52 * (k % 3), x2: 206, y2: 26 + 52 * Math.floor(k / 3),
            "stroke-width": Math.min(0.5 + 2 * Math.abs(weight), 9), "stroke-dasharray": weight < 0 ? "7 5" : "none",
        }))),
        node(22, 52, "f₁"), node(22, 104, "f₂"), Z.map((name, j) => node(226, 26 + 52 * j, name, j === chosen)),
    );
}
