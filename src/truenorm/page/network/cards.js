/*
The two cards of a node: its value, and its gradient with finite differences beside it.
*/
import { html } from "#lib/elements.js";
import { formulaPieces } from "#lib/formula.js";
import { formatNumber } from "#lib/numbers.js";
import { formulaWords } from "#network/cells.js";
import { nodeOf } from "#network/graph.js";
import { cellInWords, matrixView } from "#network/matrix.js";
import { inNumbers } from "#network/numbers.js";

/**
 * Why some nodes have no gradient of their own.
 * @type {Record<string, string>}
 */
const WITHOUT = {
    X: "X names rows of C. A row number cannot be a little larger, so X has no gradient.",
    Y: "Y names the right characters. They are given, so Y has no gradient.",
    "Ŷ": "Softmax and the logarithm of the loss are differentiated together, as that is simpler: see dlogits.",
    L: "How much does L change with L? dL/dL = 1. The backward pass begins here.",
};

/** @type {(state: State) => View<NetworkModel>} */
export function valueCard(state) {
    const { element, matrix, heading, details } = card(state, "Value");

    /** @type {(model: NetworkModel) => void} */
    function update(model) {
        const at = state.get("network.step");
        const step = model.get(nodeOf(at));
        const chosen = chosenIn(state, step);
        element.classList.toggle("primary", model.get(at).part === "forward");
        heading.replaceChildren(html("b", {}, step.name), formulaWords(step));
        const isTokens = step.name === "X" || step.name === "Y";
        matrix.update({
            step, labels: model.labels, chosen,
            texts: isTokens ? (token) => `${model.labels.character[token]} (${token})` : null,
            marked: step.name === "C" ? (row) => usesInWords(model, row) : null,
        });
        details.replaceChildren(...calculation(model, step, chosen),
            ...(step.name === "C" ? [html("p", { class: "note" }, "● rows that this batch uses")] : []));
    }
    return { element, update };
}

/** @type {(state: State) => View<NetworkModel>} */
export function gradientCard(state) {
    const { element, matrix, heading, details } = card(state, "Gradient");

    /** @type {(model: NetworkModel) => void} */
    function update(model) {
        const at = state.get("network.step");
        const node = nodeOf(at);
        const name = model.get(at).part === "backward" ? at : `d${node}`;
        element.classList.toggle("primary", name === at);
        const none = WITHOUT[node] && name !== "uses";
        matrix.element.hidden = Boolean(none);
        if (none) {
            heading.replaceChildren();
            return details.replaceChildren(html("p", {}, WITHOUT[node]));
        }
        const step = model.get(name);
        const chosen = chosenIn(state, step);
        heading.replaceChildren(html("b", { class: "grad" }, step.name), formulaWords(step));
        matrix.update({
            step, labels: model.labels, chosen, texts: null,
            marked: step.name === "dC" ? (row) => usesInWords(model, row) : null,
        });
        details.replaceChildren(
            ...calculation(model, step, chosen), ...checked(model, step, chosen),
            ...(name === "dC" ? [html("p", { class: "note" }, scatterInWords(model, chosen[0]))] : []),
            ...updated(model, node, chosen),
        );
    }
    return { element, update };
}

/**
 * @type {(state: State, title: string) => Record<"element" | "heading" | "details", HTMLElement> & { matrix:
 *     View<MatrixUpdate> }}
 */
function card(state, title) {
    const matrix = matrixView({ onchoose: (row, column) => state.set({ "network.cell": `${row + 1},${column + 1}` }) });
    const [heading, details] = [html("p", { class: "formula" }), html("div", { class: "details" })];
    const element = html("section", { class: `network-card ${title.toLowerCase()}` }, html("h3", {}, title), heading,
        matrix.element, details);
    return { element, matrix, heading, details };
}

/**
 * The chosen cell, or the last one of a matrix that is smaller.
 * @type {(state: State, step: NetworkStep) => Point}
 */
function chosenIn(state, { rows, columns }) {
    const [row, column] = state.get("network.cell").split(",").map(Number);
    return [Math.min(row, rows) - 1, Math.min(column, columns) - 1];
}

/** @type {(model: NetworkModel, step: NetworkStep, chosen: Point) => HTMLElement[]} */
function calculation(model, step, chosen) {
    return [html("p", { class: "where" }, `${cellInWords(step, model.labels, chosen)}:`),
        formulaPieces(inNumbers(model, step, chosen))];
}

/** @type {(model: NetworkModel, step: NetworkStep, chosen: Point) => HTMLElement[]} */
function checked(model, step, chosen) {
    const found = model.check(step.name, chosen[0] * step.columns + chosen[1]);
    if (!found) return [];
    const { h, up, down, slope, difference, largest, tried, elements } = found;
    return [html(
        "p", { class: "network-check" }, html("b", {}, "Finite differences: "),
        `L is ${down.toFixed(13)} with this number ${formatNumber(h)} smaller, and ${up.toFixed(13)} with it as much `
        + `larger. That is a slope of ${formatNumber(slope)}, off by ${formatNumber(difference, 1)}. `,
        html("span", { class: largest < 1e-6 ? "right" : "wrong" }, largest < 1e-6 ? "✓ " : "✗ ",
            tried === elements ? `All ${elements} agree` : `${tried} of ${elements} agree`,
            ` to ${formatNumber(largest, 1)}.`),
    )];
}

/** @type {(model: NetworkModel, node: string, chosen: Point) => HTMLElement[]} */
function updated(model, node, chosen) {
    const step = model.steps.find(({ name }) => name === `new ${node}`);
    return step ? [html("p", { class: "where" }, "The next step of gradient descent:"),
        formulaPieces(inNumbers(model, step, chosen))] : [];
}

/** @type {(model: NetworkModel, row: number) => string} */
function usesInWords(model, row) {
    const uses = model.get("uses").values[row];
    return uses ? ` ● ${uses}×` : "";
}

/** @type {(model: NetworkModel, row: number) => string} */
function scatterInWords({ x, labels }, row) {
    const places = x.flatMap((tokens, b) =>
        tokens.flatMap((token, t) => (token === row ? [`${labels.b[b]} t${t}`] : [])));
    const name = `Row “${labels.character[row]}” of C was`;
    const shown = places.length > 12 ? [...places.slice(0, 12), "…"] : places;
    return places.length === 0 ? `${name} not used by this batch.`
        : `${name} used ${places.length}×: ${shown.join(", ")}. Each use adds its part of dE.`;
}
