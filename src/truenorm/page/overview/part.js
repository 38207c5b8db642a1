/*
The part "overview": a layer of a network as one drawing, from the inputs to the loss, with the numbers of the table
that all parts share. Every place of it opens the part that looks inside.
*/
import { html, putText, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { EXAMPLE, PROBLEM, readProblem } from "#lib/problem.js";
import { questions } from "#lib/question.js";
import { columnName } from "#lib/symbols.js";
import { NORMS, describe, forward } from "#maths/normalization.js";

/**
 * What each part is about, in a line.
 * @type {Record<string, string>}
 */
export const ABOUT = {
    overview: "One layer of a network, from the inputs to the loss.",
    why: "Features on different scales, learning rates, and inputs that shift.",
    table: "Which numbers share μ and σ², and what γ and β do.",
    padding: "Rows of zeros, and why they spoil batch norm.",
    backward: "From the loss back to the input, in twelve steps.",
    network: "A whole network with all its gradients, and a step of learning.",
    running: "Running statistics: one example alone, and a shifted test set.",
    training: "Does it help? Losses, with and without a norm.",
};

/** The features of the notes: five examples, from which the numbers z of the example table come. */
const FEATURES = [[2, 3], [1, 1], [5, 4], [6, 1], [7, 1]];
const MOST = { rows: 5, columns: 3 };

/** @type {(root: HTMLElement, state: State) => void} */
export function mountOverview(root, state) {
    const tables = { z: miniTable(), xhat: miniTable(), a: miniTable() };
    const inputs = miniTable();
    const normTitle = html("b");
    const normWords = html("small");
    const noted = html("p", { class: "note" });
    /**
     * At its top, or where `goal` is.
     * @type {(part: string, more?: Partial<Fields>, goal?: string) => () => void}
     */
    const open = (part, more = {}, goal = "header") => () => {
        state.set({ part, ...more });
        document.getElementById(`tab-${part}`).focus({ preventScroll: true });
        setTimeout(() => document.querySelector(goal).scrollIntoView()); // once the part is shown
    };
    /** @type {(part: string, content: Child[], more?: Partial<Fields>, goal?: string) => HTMLElement} */
    const place = (part, content, more, goal) => html(
        "button", { type: "button", class: "place", "data-part": part, onclick: open(part, more, goal) },
        content, html("span", { class: "goal" }, titleOf(part)),
    );
    /** @type {(part: string, words: string) => HTMLElement} */
    const aside = (part, words) => html(
        "button", { type: "button", class: "aside", "data-part": part, onclick: open(part) },
        words, " ", html("span", { class: "goal" }, titleOf(part)),
    );
    /** @type {(title: string, words: string) => Child[]} */
    const heading = (title, words) => [html("b", {}, title), html("small", {}, words)];
    root.classList.add("overview");
    root.append(
        html("h2", { class: "unseen" }, "Overview"),
        html(
            "p", { class: "lead" }, "A layer computes numbers z. They are easier to learn from near 0 and with a ",
            "similar spread, so normalization subtracts a mean μ and divides by a standard deviation σ. The question ",
            "is ",
            html("em", {}, "which"), " mean: of a column, of a row, and only of numbers that are not padding. ",
            html("strong", {}, "Click a place to look inside."),
        ),
        html(
            "ol", { class: "flow" },
            html("li", {}, place("why", [...heading("f", "inputs"), inputs.element])),
            html("li", {}, place("network", [...heading("z = w·f + b", "three nodes"), layerDrawing()], {},
                ".network-layer")),
            html("li", {}, place("table", [...heading("z", "a row an example"), tables.z.element]),
                aside("padding", "Rows of zeros?")),
            html("li", { class: "norm" }, place("table", [normTitle, normWords, tables.xhat.element],
                { "table.cell": { sheet: "xhat", row: 0, column: 0 } }), aside("running", "No batch, in use?")),
            html("li", {}, place("network", [...heading("tanh(γ·x̂ + β)", "the activation"), tables.a.element])),
            html("li", {}, place("training", [...heading("L", "the loss"), lossDrawing()])),
        ),
        noted,
        html("button", { type: "button", class: "back", "data-part": "backward", onclick: open("backward") },
            "Gradients go back the same way: how does the loss L change with each of these numbers? ",
            html("span", { class: "goal" }, titleOf("backward"))),
        questions(state, PROBLEM, () => questionsNow(readProblem(state))),
    );

    state.watch(PROBLEM, () => {
        const { x, norm, valid, weight, bias, offsets, cells } = readProblem(state);
        const out = forward(x, norm, { weight, bias, valid, offsets });
        const isExample = JSON.stringify(cells) === JSON.stringify(EXAMPLE);
        putText(noted, isExample ? "f and z are the example of the lecture notes: no w and b give all five rows of z."
            : cells.length ? "" : "The table is empty, so there are no numbers here. Fill it in “One table”.");
        noted.hidden = noted.textContent === "";
        inputs.show(isExample ? FEATURES : FEATURES.map(() => [NaN, NaN]), (j) => ["f₁", "f₂"][j]);
        tables.z.show(x, columnName);
        tables.xhat.show(out.xhat.map((row, i) => row.map((value, j) => (valid[i][j] ? value : NaN))), columnName);
        tables.a.show(out.y.map((row, i) => row.map((value, j) => (valid[i][j] ? Math.tanh(value) : NaN))), columnName);
        normTitle.textContent = norm.center ? "x̂ = (z − μ) / σ" : "x̂ = z / r";
        normWords.textContent = `${NORMS[norm.name].title} norm`;
    });
}

/** @type {(part: string) => string} */
function titleOf(part) {
    return document.getElementById(`tab-${part}`).textContent;
}

/**
 * The first rows and columns of a table, as phrasing: it stands in a button. A bar from the middle of its cell to the
 * right is a positive number, one to the left a negative.
 * @type {() => { element: HTMLElement; show(values: number[][], name: (column: number) => string): void }}
 */
function miniTable() {
    const element = html("span", { class: "mini", "aria-hidden": "true" });
    /** @type {(values: number[][], name: (column: number) => string) => void} */
    function show(values, name) {
        const rows = values.slice(0, MOST.rows).map((row) => row.slice(0, MOST.columns));
        const wide = rows[0]?.length ?? 0;
        const largest = Math.max(...rows.flat().filter(Number.isFinite).map(Math.abs), 1e-300);
        element.style.setProperty("--wide", String(wide));
        const heads = Array.from({ length: wide }, (_, j) => html("i", {}, name(j)));
        const cut = values.length > MOST.rows || (values[0]?.length ?? 0) > MOST.columns;
        element.replaceChildren(...heads, ...rows.flat().map((value) => {
            const cell = html("span", { class: value < 0 ? "minus" : "plus" },
                Number.isFinite(value) ? shortNumber(value) : "–");
            cell.style.setProperty("--bar", String(Number.isFinite(value) ? value / largest : 0));
            return cell;
        }), ...(cut ? [html("i", {}, "…")] : []));
    }
    return { element, show };
}

/**
 * Two digits, in at most seven characters: −1e−300.
 * @type {(value: number) => string}
 */
function shortNumber(value) {
    const text = formatNumber(value, 2);
    return text.length <= 6 ? text : value.toExponential(0).replace("+", "").replaceAll("-", "−");
}

/** Two inputs, three nodes, and a line for each of the six weights w. */
function layerDrawing() {
    const [left, right] = [[38, 92], [20, 65, 110]];
    return svg(
        "svg", { class: "layer", viewBox: "0 0 110 130", "aria-hidden": "true" },
        left.flatMap((from) => right.map((to) => svg("line", { x1: 22, y1: from, x2: 88, y2: to }))),
        left.map((y, i) => [svg("circle", { cx: 18, cy: y, r: 13 }), label(18, y, ["f₁", "f₂"][i])]),
        right.map((y, j) => [svg("circle", { cx: 90, cy: y, r: 16 }), label(90, y, columnName(j))]),
    );
}

/** @type {(x: number, y: number, text: string) => SVGElement} */
function label(x, y, text) {
    return svg("text", { x, y: y + 4, "text-anchor": "middle" }, text);
}

/** Two falling losses: the shape, not a measurement. */
function lossDrawing() {
    return svg(
        "svg", { class: "losses", viewBox: "0 0 110 130", "aria-hidden": "true" },
        svg("path", { class: "axis", d: "M10 12 V112 H104" }),
        svg("path", { class: "without", d: "M12 22 C40 40 60 66 102 76" }),
        svg("path", { class: "with", d: "M12 22 C24 74 48 96 102 102" }),
    );
}

/**
 * About the table as it is now, under batch and layer norm.
 * @type {(problem: Problem) => Question[]}
 */
function questionsNow({ x, valid, columns, rows }) {
    if (!rows || !columns) return [];
    const [batch, layer] = [describe("batch"), describe("layer")].map((norm) => forward(x, norm, { valid }));
    return [{
        ask: "Batch norm: which numbers share one μ and one σ²?",
        answers: ["a row", "a column", "the whole table"], right: 1,
        because: `One node over all examples. The column z₁ has μ = ${formatNumber(batch.moments.mean[0])} and `
            + `σ² = ${formatNumber(batch.var[0])}.`,
    }, {
        ask: "And layer norm?",
        answers: ["a row", "a column", "the whole table"], right: 0,
        because: `All nodes of one example. Row 1 has μ = ${formatNumber(layer.moments.mean[0])} and `
            + `σ² = ${formatNumber(layer.var[0])}. No other example takes part, so no batch is needed.`,
    }, {
        ask: "x̂ has mean 0 and σ = 1. What are γ and β for?",
        answers: ["to avoid a division by 0", "to let the network choose another mean and spread"], right: 1,
        because: "y = γ·x̂ + β has mean β and standard deviation |γ|. Both are learned, and start at 1 and 0. "
            + "A division by 0 is what ε avoids.",
    }];
}
