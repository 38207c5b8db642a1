/*
The stack of all rows as batch norm sees it, and the mean of each of its columns.
*/
import { measure, varianceOf } from "#maths/normalization.js";
import { ORDINALS, numberCell, showProblem, showWordRow, unreadable } from "#padding/editor.js";
import { METHODS, columnSums, lengthFor, paddingOfEach, paddingRows, stackRows } from "#padding/model.js";
import { uniqueId } from "#lib/controls.js";
import { dotStrip } from "#lib/dots.js";
import { html, scrollBox, setVariable } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";

const PADS_IN_FULL = 3; // of more padding rows, the first two are shown and the rest is one row that says how many
const AS_MUCH = 2108 / 1092; // rows of padding a word, in the batch of 32

/**
 * All rows, one above the other, as batch norm sees them; below, what it makes of the columns.
 * @type {(state: State, fill: () => number) => { element: HTMLElement; draw(model: SentencesModel): void }}
 */
export function stackTable(state, fill) {
    const id = uniqueId();
    const bodies = ORDINALS.map(() => html("tbody"));
    const foot = html("tfoot");
    const problem = html("p", { class: "problem", id, hidden: true });
    const bars = [html("span"), html("span", { class: "pad" })];
    const share = html("div", { class: "share", role: "img" }, bars);
    const counts = html("p", { class: "note" });
    const real = html("p", { class: "note" }, "In a mini-batch of 32, with 31 sentences of 32 words and one of 100, ",
        "2,108 of 3,200 rows are padding: 66 %. ", html("button", {
            type: "button", onclick: () => {
                const words = lengthsNow.reduce((a, b) => a + b, 0);
                state.set({ "padding.length": lengthFor(lengthsNow, AS_MUCH * words) });
            },
        }, "About as much here"));
    const head = html("thead", {}, html(
        "tr", {}, html("td", {}, "word"), [1, 2, 3].map((column) => html("th", { scope: "col" }, column)),
    ));
    const table = html("table", { class: "numbers stack" }, html("caption", {}, "The stack"), head, bodies, foot);
    const element = html("div", { class: "rows" }, scrollBox("The stack of rows", table), problem, share, counts, real);
    let built = "";
    /** @type {number[]} */
    let lengthsNow = [];

    /** @type {(model: SentencesModel) => void} */
    function build({ words, lengths, computed }) {
        const now = JSON.stringify([computed, lengths, fill()]);
        if (now === built) return;
        built = now;
        paddingOfEach(lengths, fill()).forEach((padding, sentence) => bodies[sentence].replaceChildren(
            ...words.filter((one) => one.sentence === sentence).map((one) => html(
                "tr", { class: "word" }, html("th", { scope: "row" }),
                one.given.map((_, column) => html("td", {}, computed ? null : numberCell(state, one, 4 + column))),
            )),
            ...shownPads(padding).map((text) => html(
                "tr", { class: "pad" }, html("th", { scope: "row" }, text),
                [0, 0, 0].map((zero) => html("td", { class: "pad" }, zero)),
            )),
        ));
    }

    /** @type {(model: SentencesModel) => void} */
    function draw(model) {
        const { words, lengths, computed, watched } = model;
        build(model);
        lengthsNow = lengths;
        const rows = bodies.flatMap((body) => [...body.rows]).filter((row) => row.matches(".word"));
        rows.forEach((row, i) => showWordRow(row, words[i], words[i].given, "row", i === watched, id));
        showProblem(problem, computed ? "" : unreadable("No number, so left out: ", words, ({ given }) => given));
        foot.replaceChildren(
            ...statisticRows(model, METHODS.all, fill(), "all rows", "pad"),
            ...statisticRows(model, METHODS.valid, fill(), "words only", "words"),
        );
        const padding = paddingRows(lengths, fill());
        const percent = Math.round((100 * padding) / (padding + words.length));
        const out = words.filter(({ valid }) => !valid.some(Boolean)).length;
        const many = `${words.length} rows of words${out ? ` (${out} left out)` : ""}`;
        const said = padding === 0 ? `${many} and no padding, so “all rows” are the words.`
            : `${many} and ${padding} of padding: ${percent} % of the stack is padding.`;
        share.setAttribute("aria-label", said);
        setVariable(bars[0], "flex-grow", words.length);
        setVariable(bars[1], "flex-grow", padding);
        counts.textContent = said;
    }
    return { element, draw };
}

/**
 * Mean and deviation of each column, with padding or without.
 * @type {(model: SentencesModel, method: Method, fill: number, of: string, kind: string) => HTMLElement[]}
 */
function statisticRows(model, method, fill, of, kind) {
    const { x, valid } = stackRows(model, method, fill);
    const moments = measure(x, method.norm, { valid });
    const rows = { "mean μ": moments.mean, "deviation σ": varianceOf(moments, 0).map(Math.sqrt) };
    return Object.entries(rows).map(([name, values]) => html(
        "tr", { class: `statistic ${kind}`, "data-values": JSON.stringify(values) },
        html("th", { scope: "row" }, `${name}, ${of}`), values.map((value) => html("td", {}, formatNumber(value))),
    ));
}

/**
 * For each column: the same sum, divided by how many rows there are, and by how many of them are words.
 * @type {(fill: () => number) => { element: HTMLElement; draw(model: SentencesModel): void }}
 */
export function columnMeans(fill) {
    const body = html("tbody");
    const head = html("thead", {}, html(
        "tr", {}, html("td", {}, html("span", {}, "column")), html("th", { scope: "col" }, "words only"),
        html("th", { scope: "col" }, "zeros included"),
    ));
    const how = html("p");
    const element = html("div", {}, how, scrollBox("The mean of each column", html(
        "table", { class: "numbers means" },
        html("caption", { class: "unseen" }, "The mean of each column"), head, body,
    )));
    /** @type {(sums: { values: number[]; padding: number; sum: number }, column: number) => HTMLElement} */
    const row = ({ values, padding, sum }, column) => {
        const domain = [Math.min(0, ...values), Math.max(0, ...values)];
        /** @type {(label: string, all: number[]) => HTMLElement} */
        const strip = (label, all) => {
            const mean = all.length ? sum / all.length : 0;
            const std = Math.sqrt(all.reduce((total, value) => total + (value - mean) ** 2, 0) / (all.length || 1));
            const said = `${formatNumber(sum, 6)} / ${all.length} = `;
            const drawable = Number.isFinite(domain[1] - domain[0]) && Number.isFinite(mean);
            const picture = drawable ? dotStrip({ label, values: all, mean, std, domain }) : null;
            return html("td", {}, picture, said, html("b", {}, formatNumber(mean)));
        };
        return html(
            "tr", {}, html("th", { scope: "row" }, column + 1), strip(`Column ${column + 1}, words only`, values),
            strip(`Column ${column + 1}, zeros included`, [...values, ...new Array(padding).fill(0)]),
        );
    };
    /** @type {(model: SentencesModel) => void} */
    const draw = (model) => {
        how.textContent = paddingRows(model.lengths, fill()) === 0
            ? "No padding yet, so both means are the same. Move the slider."
            : "Zeros add nothing to the sum of a column. But they are counted when the sum is divided:";
        body.replaceChildren(...columnSums(model, fill()).map(row));
    };
    return { element, draw };
}

/**
 * So many padding rows: each alone while they are few.
 * @type {(count: number) => string[]}
 */
export function shownPads(count) {
    if (count <= PADS_IN_FULL) return new Array(count).fill("<pad>");
    return ["<pad>", "<pad>", `<pad> × ${count - 2}`];
}
