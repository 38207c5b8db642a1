/*
A first layer of three nodes: two features, six weights and three biases that can be moved, z, and the norm of z.

    z₁ = w₁ f₁ + w₂ f₂ + b₁      z₂ = w₃ f₁ + w₄ f₂ + b₂      z₃ = w₅ f₁ + w₆ f₂ + b₃

State: network.layer, the nine numbers as they were typed, and network.norm.
*/
import { formulaPieces } from "#backward/cells.js";
import { choiceTable, valueTable } from "#backward/tables.js";
import { chooser } from "#lib/controls.js";
import { html, putText, svg } from "#lib/elements.js";
import { bracketedNumber, formatNumber, readNumber } from "#lib/numbers.js";
import { EXAMPLE } from "#lib/problem.js";
import { choice, textRow } from "#lib/state.js";
import { quoted } from "#lib/text.js";
import { describe, forward } from "#maths/normalization.js";

const FEATURES = [[2, 3], [1, 1], [5, 4], [6, 1], [7, 1]];
const NOTED = EXAMPLE.map((row) => row.map(Number));
const NAMES = ["w₁", "w₂", "b₁", "w₃", "w₄", "b₂", "w₅", "w₆", "b₃"];
// The one layer that gives the z of the lecture notes for rows 1, 2 and 4. None gives all five rows.
const START = ["1", "2", "-1", "0.4", "0.8", "1.8", "0.4", "-0.2", "3.8"];
const Z = ["z₁", "z₂", "z₃"];
const REACH = 4; // of the sliders
const HIGH = 52; // a node of the drawing takes this much

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
 * z of every row; `parameters` are w₁ w₂ b₁ w₃ w₄ b₂ w₅ w₆ b₃.
 * @type {(parameters: number[]) => number[][]}
 */
export function firstLayer(parameters) {
    return FEATURES.map(([f1, f2]) => Z.map((_, j) => {
        const [first, second, bias] = parameters.slice(3 * j);
        return first * f1 + second * f2 + bias;
    }));
}

/** @type {(state: State) => HTMLElement} */
export function firstLayerView(state) {
    const controls = NAMES.map((name, k) => parameterControl(state, name, k));
    const drawing = html("div", { class: "network-nodes" });
    const features = valueTable({ onchoose: (i) => choose(i, 0) });
    const z = choiceTable({ onchoose: choose });
    const normalized = valueTable({ onchoose: choose });
    const problem = html("p", { class: "problem", role: "status" });
    const numbers = html("div");
    const fit = html("p", { class: "note" });
    const rowNames = FEATURES.map((_, i) => String(i + 1));

    /** @type {(row: number, column: number) => void} */
    function choose(row, column) {
        state.set({ "network.z": `${row + 1},${column + 1}` });
    }

    state.watch(["network.layer", "network.norm", "network.z"], () => {
        const texts = state.get("network.layer");
        const wrong = texts.map((text, k) => (Number.isNaN(readNumber(text)) ? k : -1)).filter((k) => k >= 0);
        const parameters = texts.map((text) => readNumber(text) || 0);
        controls.forEach(({ update }, k) => update(texts[k]));
        problem.hidden = wrong.length === 0;
        putText(problem, wrong.map((k) => `${NAMES[k]} is not a number: ${quoted(texts[k])}. It counts as 0 until `
            + "that changes.").join(" "));
        const [row, column] = state.get("network.z").split(",").map((one) => Number(one) - 1);
        const x = firstLayer(parameters);
        const out = forward(x, describe(state.get("network.norm")));
        const { index } = out.partition;
        const shared = {
            rowNames, columnNames: Z, chosen: (/** @type {number} */ i, /** @type {number} */ j) =>
                i === row && j === column,
            classes: (/** @type {number} */ i, /** @type {number} */ j) =>
                (index[i][j] === index[row][column] ? "shared" : ""),
        };
        /** @type {(table: number[][]) => string[][]} */
        const shown = (table) => table.map((cells) => cells.map((value) => formatNumber(value)));
        features.update({
            caption: "features", rowNames, columnNames: ["f₁", "f₂"], texts: shown(FEATURES),
            classes: () => "", chosen: (i) => i === row,
        });
        z.update({ ...shared, caption: "z: choose one", texts: shown(x) });
        normalized.update({ ...shared, caption: `${state.get("network.norm")} norm of z`, texts: shown(out.y) });
        drawing.replaceChildren(drawnLayer(parameters, column));
        const [first, second, bias] = parameters.slice(3 * column).map((one) => bracketedNumber(one));
        const [f1, f2] = FEATURES[row];
        const s = index[row][column];
        const [mean, variance] = [bracketedNumber(out.moments.mean[s]), formatNumber(out.var[s])];
        numbers.replaceChildren(
            formulaPieces([`z_${column + 1} = ${first} · ${f1} + ${second} · ${f2} + ${bias}`,
                `= ${formatNumber(x[row][column])}`]),
            formulaPieces([`xhat = (${formatNumber(x[row][column])} - ${mean}) / sqrt(${variance} + 0.00001)`,
                `= ${formatNumber(out.y[row][column])}`]),
        );
        putText(fit, fitInWords(x));
    });
    return html(
        "section", { class: "network-layer" },
        html("h3", {}, "A first layer, small enough to compute by hand"),
        html("p", {}, "Two features, three nodes. Move a weight: z changes, and the norm of z with it. ",
            "Dashed lines are negative weights; thicker is larger."),
        html("div", { class: "columns" }, drawing, html("div", { class: "network-parameters" },
            controls.map(({ element }) => element))),
        problem, chooser(state, "network.norm", "Norm of z", { batch: "Batch: a mean for each column",
            layer: "Layer: a mean for each row" }),
        html("div", { class: "columns" }, features.element, z.element, normalized.element),
        numbers, fit,
        html("button", { type: "button", onclick: () => state.set({ "network.layer": START }) }, "Reset the weights"),
    );
}

/** @type {(state: State, name: string, k: number) => View<string>} */
function parameterControl(state, name, k) {
    /** @type {(text: string) => void} */
    const set = (text) => state.set({ "network.layer": state.get("network.layer").with(k, text) });
    /** @type {HTMLInputElement} */
    const range = html("input", {
        type: "range", min: -REACH, max: REACH, step: 0.1, "aria-label": `${name}, slider`,
        oninput: () => set(String(range.valueAsNumber)),
    });
    /** @type {HTMLInputElement} */
    const text = html("input", {
        type: "text", autocomplete: "off", maxlength: 20, "aria-label": name, oninput: () => set(text.value),
    });
    /** @type {(now: string) => void} */
    function update(now) {
        if (text.value !== now) text.value = now;
        const value = readNumber(now);
        if (Number.isNaN(value)) text.setAttribute("aria-invalid", "true");
        else text.removeAttribute("aria-invalid");
        range.value = String(value || 0);
    }
    return { element: html("div", {}, html("span", { "aria-hidden": "true" }, name), range, text), update };
}

/** @type {(parameters: number[], chosen: number) => SVGElement} */
function drawnLayer(parameters, chosen) {
    const middles = [1, 2].map((k) => k * HIGH);
    /** @type {(x: number, y: number, words: string, isChosen: boolean) => SVGElement} */
    const node = (x, y, words, isChosen) => svg("g", { class: `node${isChosen ? " chosen" : ""}` },
        svg("circle", { cx: x, cy: y, r: 20 }),
        svg("text", { x, y: y + 5, "text-anchor": "middle" }, words));
    return svg(
        "svg", { viewBox: `0 0 250 ${3 * HIGH}`, role: "img", "aria-label": "Two features lead into three nodes." },
        Z.map((_, j) => middles.map((y, k) => {
            const weight = parameters[3 * j + k];
            return svg("line", {
                class: "weight", x1: 42, y1: y, x2: 206, y2: (j + 0.5) * HIGH,
                "stroke-width": Math.min(0.5 + 2 * Math.abs(weight), 9), "stroke-dasharray": weight < 0 ? "7 5" : "none",
            });
        })),
        middles.map((y, k) => node(22, y, ["f₁", "f₂"][k], false)),
        Z.map((name, j) => node(226, (j + 0.5) * HIGH, name, j === chosen)),
    );
}

/** @type {(x: number[][]) => string} */
function fitInWords(x) {
    const same = NOTED.flatMap((row, i) => (row.every((value, j) => Math.abs(value - x[i][j]) < 1e-9) ? [i + 1] : []));
    const here = same.length === 0 ? "These weights give the notes’ z in no row."
        : `These weights give the notes’ z in ${same.length === 1 ? "row" : "rows"} ${same.join(", ")}.`;
    return `${here} No weights give all five: from row 2 to 4 to 5 only f₁ changes, 1 to 6 to 7, and a z that is `
        + "w₁ f₁ + w₂ f₂ + b₁ would follow it in a straight line. The notes’ z₁ goes from 2 to 7 to 3.";
}
