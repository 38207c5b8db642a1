/*
Three normalizations of the same rows, side by side, and how far each moves the watched word.
*/
import {
    METHODS, driftCurve, lengthFor, normalizeWatched, paddingRow, paddingRows, stackRows,
} from "#padding/model.js";
import { lineChart } from "#lib/chart.js";
import { codesFor } from "#lib/code.js";
import { uniqueId } from "#lib/controls.js";
import { copyButtons } from "#lib/copy.js";
import { html, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { quoted } from "#lib/text.js";

/** @type {Record<MethodName, { heading: string; unpadded?: string; how: string; still: string }>} */
const CARD_WORDS = {
    all: {
        heading: "4. So the mean shrinks, and every word moves",
        unpadded: "4. Without padding, nothing moves",
        how: "Each number minus the mean μ of its column, divided by its standard deviation σ. Both are of all rows, "
            + "padding included.",
        still: "No padding yet: move the slider.",
    },
    layer: {
        heading: "5. Layer norm goes along the row",
        how: "μ and σ of each row, over its own three numbers. A row of padding has its own, too, and no "
            + "other row ever sees it.",
        still: "It does not move: no other row is involved.",
    },
    valid: {
        heading: "6. Or use the words only",
        how: "μ and σ of each column, but over the words only. All that is needed is the length of each "
            + "sentence.",
        still: "It does not move: padding is ignored.",
    },
};

/**
 * One method: its statistics, the watched row without and with padding, and how far it moved.
 * @type {(name: MethodName, read: () => SentencesModel, fill: () => number) => { element: HTMLElement; draw(model:
 *     SentencesModel): void }}
 */
export function methodCard(name, read, fill) {
    const method = METHODS[name];
    const { heading, unpadded = heading, how, still } = CARD_WORDS[name];
    const body = html("tbody");
    const moved = html("p", { class: "moved" });
    const id = uniqueId();
    const table = html("table", { class: "numbers" }, html("caption", { class: "unseen" }, method.title), body);
    const title = html("h3", { id });
    const element = html(
        "section", { class: "card", "data-method": name, "aria-labelledby": id },
        html("p", { class: "note" }, method.title), title, html("p", {}, how), moved,
        scrollBox(heading, table),
        copyButtons(codesFor(() => ({ ...stackRows(read(), method, fill()), norm: method.norm }))),
    );
    /** @type {(model: SentencesModel) => void} */
    const draw = (model) => {
        const { word } = model.words[model.watched];
        const watched = normalizeWatched(model, method, fill());
        title.textContent = paddingRows(model.lengths, fill()) === 0 ? unpadded : heading;
        const padding = paddingRow(model, method, fill());
        const perRow = method.norm.name === "layer";
        /** @type {(values: number[], show?: (value: number) => string) => HTMLElement[]} */
        const cells = (values, show = formatNumber) =>
            values.map((value, j) => html("td", {}, watched.valid[j] ? show(value) : "–"));
        /** @type {(values: number[]) => Child} */
        const statistics = (values) =>
            (perRow ? html("td", { colspan: 3 }, formatNumber(values[0])) : cells(values));
        /** @type {(label: string, content: Child, kind?: string | false) => HTMLElement} */
        const line = (label, content, kind = false) =>
            html("tr", { class: kind }, html("th", { scope: "row" }, label), content);
        body.replaceChildren(
            line("mean μ", statistics(watched.mean)),
            line("deviation σ", statistics(watched.deviation)),
            line("no padding", cells(watched.alone)),
            line("now", cells(watched.y), "watched"),
            line("moved", cells(watched.difference, signedNumber)),
            line("a row of <pad>", padding ? padding.map((value) => html("td", { class: "pad" }, formatNumber(value)))
                : html("td", { colspan: 3 }, "–"), "pad"),
        );
        const shown = movedInWords(watched);
        moved.replaceChildren(
            html("b", { class: "number" }, shown),
            html("span", {}, shown === "–" ? `The row of ${quoted(word)} ${whyUnknown(watched)}.`
                : watched.moved === 0 ? still
                    : `is how far ${quoted(word)} moved: the largest change of its three numbers.`),
        );
        element.classList.toggle("drifts", watched.moved > 0);
        Object.assign(element.dataset, { // in full, for comparison by tests and users
            moved: watched.moved, y: JSON.stringify(watched.y), alone: JSON.stringify(watched.alone),
            mean: JSON.stringify(watched.mean), deviation: JSON.stringify(watched.deviation),
        });
    };
    return { element, draw };
}

/** @type {(value: number) => string} */
function signedNumber(value) {
    return value > 0 ? `+${formatNumber(value)}` : formatNumber(value);
}

/**
 * How far the watched word moves, against the padding.
 * @type {(state: State, read: () => SentencesModel, fill: () => number) => { element: HTMLElement; draw(model:
 *     SentencesModel): void }}
 */
export function driftChart(state, read, fill) {
    const chart = lineChart({
        title: "How far the watched word moves", xLabel: "rows of padding", yLabel: "moved by", height: 240,
        onscrub: (padding) => state.set({ "padding.length": lengthFor(read().lengths, padding) }),
    });
    const note = html("p", { class: "note" }, "Two of the three lines lie on 0, one upon the other.");
    let drawn = "";
    /** @type {Series[]} */
    let series = [];
    /** @type {(model: SentencesModel) => void} */
    const draw = (model) => {
        const now = JSON.stringify([model.words.map(({ row }) => row), model.lengths, model.watched]);
        if (now !== drawn) { // the curve does not depend on the slider
            series = Object.values(METHODS).map((method) =>
                ({ name: method.title, hue: method.hue, points: driftCurve(model, method) }));
        }
        drawn = now;
        note.hidden = !series.slice(1).every(({ points }) => points.every(([, y]) => y === 0));
        chart.update({ series, at: paddingRows(model.lengths, fill()) });
    };
    return { element: html("div", { class: "drift" }, chart.element, note), draw };
}

/** @type {(row: MovedRow) => string} */
export function movedInWords({ moved }) {
    return Number.isNaN(moved) ? "–" : formatNumber(moved);
}

/**
 * Why there is no saying how far a row moved.
 * @type {(row: WatchedRow) => string}
 */
export function whyUnknown({ valid }) {
    return valid.some(Boolean) ? "meets numbers too large to compute with" : "cannot be read yet";
}
