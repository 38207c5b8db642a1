/*
One matrix of the network: a table of numbers, or a heat map with a scale where there are too many to read. A cell is
chosen by a click or with the arrow keys, the same in both.

    const view = matrixView({ onchoose: (row, column) => ... });
    view.update({ step, labels, chosen: [0, 2], texts: null, marked: (row) => "" });
*/
import { announceAtRest, html, putText, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { choiceTable } from "#lib/tables.js";
import { ROUNDING, drawCells, largest, shapeOf } from "#network/cells.js";

const MOST_READ = 200; // cells in a table
const SHADES = 5;
/** @type {Record<string, Point>} */
const ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** @type {(options: { onchoose: OnChoose }) => View<MatrixUpdate>} */
export function matrixView({ onchoose }) {
    const table = choiceTable({ onchoose });
    const map = heatMap({ onchoose });
    const element = html("div", { class: "network-matrix" }, table.element, map.element);

    /** @type {(shown: MatrixUpdate) => void} */
    function update(shown) {
        const { step, chosen, labels, texts, marked } = shown;
        const { rows, columns, values } = step;
        const isTable = rows * columns <= MOST_READ;
        table.element.hidden = !isTable;
        map.element.hidden = isTable;
        if (!isTable) return map.update(shown);
        const most = largest(values);
        const [rowNames, columnNames] = namesOf(step, labels);
        table.update({
            caption: captionOf(step), columnNames,
            rowNames: rowNames.map((name, i) => name + (marked?.(i) ?? "")),
            texts: rowNames.map((_, i) => columnNames.map((_, j) =>
                texts?.(values[i * columns + j]) ?? shownNumber(values[i * columns + j], most, columns > 4 ? 3 : 4))),
            chosen: (i, j) => i === chosen[0] && j === chosen[1],
            classes: (i, j) => {
                const value = texts ? 0 : values[i * columns + j];
                const shade = Math.round((Math.abs(value) / most) * SHADES);
                return `${shade ? `shade-${shade}` : ""}${value < 0 ? " negative" : ""}${marked?.(i) ? " used" : ""}`;
            },
        });
    }
    return { element, update };
}

/**
 * Where all numbers are what rounding left, they mean 0.
 * @type {(value: number, most: number, digits: number) => string}
 */
function shownNumber(value, most, digits) {
    return value && most === ROUNDING ? "≈ 0" : formatNumber(value, digits);
}

/** @type {(step: NetworkStep) => string} */
function captionOf(step) {
    const shape = shapeOf(step);
    return shape ? `${step.name}, ${shape}` : step.name;
}

/**
 * The names of rows and columns. A vector is one row, without a name.
 * @type {(step: NetworkStep, labels: NetworkLabels) => [string[], string[]]}
 */
export function namesOf({ axes, rows, columns }, labels) {
    /** @type {(axis: string | undefined, count: number) => string[]} */
    const named = (axis, count) => (axis === undefined ? [""]
        : labels[axis] ?? Array.from({ length: count }, (_, k) => `${axis}${k}`));
    return [named(axes.at(-2), rows), named(axes.at(-1), columns)];
}

/**
 * The value of a cell in words.
 * @type {(step: NetworkStep, labels: NetworkLabels, chosen: Point) => string}
 */
export function cellInWords(step, labels, [i, j]) {
    const [rowNames, columnNames] = namesOf(step, labels);
    return `${step.name}[${[rowNames[i], columnNames[j]].filter((name) => name !== "").join(", ")}]`;
}

/** @type {(options: { onchoose: OnChoose }) => View<MatrixUpdate>} */
function heatMap({ onchoose }) {
    const canvas = html("canvas");
    const frame = html("div", { class: "frame" });
    const plot = html("div", {
        class: "plot", role: "application", "aria-roledescription": "heat map", tabindex: 0, onclick: point,
        onkeydown: move,
    }, canvas, frame);
    const caption = html("p", { class: "caption" });
    const scale = html("canvas");
    const [low, high] = [html("span"), html("span")];
    const element = html("div", { class: "network-map" }, caption, scrollBox("Heat map", plot),
        html("p", { class: "scale" }, low, scale, high, " a dash marks a negative number"));
    /** @type {MatrixUpdate | null} */
    let shown = null;
    let words = "";
    let [wide, tall] = [8, 8]; // a cell

    /** @type {(event: MouseEvent) => void} */
    function point({ clientX, clientY }) {
        const { left, top } = canvas.getBoundingClientRect();
        choose(Math.floor((clientY - top) / tall), Math.floor((clientX - left) / wide));
    }

    /** @type {(event: KeyboardEvent) => void} */
    function move(event) {
        const way = ARROWS[event.key];
        if (!way || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        choose(shown.chosen[0] + way[0], shown.chosen[1] + way[1]);
        queueMicrotask(() => queueMicrotask(() => announceAtRest(words))); // once it is drawn
    }

    /** @type {(row: number, column: number) => void} */
    function choose(row, column) {
        const { rows, columns } = shown.step;
        if (row >= 0 && row < rows && column >= 0 && column < columns) onchoose(row, column);
    }

    function draw() {
        if (!shown || element.hidden) return;
        const { step, chosen, labels } = shown;
        const room = element.clientWidth - 8;
        wide = Math.max(Math.floor(Math.min(room / step.columns, 20)), 5);
        tall = Math.max(Math.floor(Math.min(400 / step.rows, wide)), 5);
        drawCells(canvas, step, wide * step.columns, tall * step.rows);
        frame.style.setProperty("transform", `translate(${chosen[1] * wide}px, ${chosen[0] * tall}px)`);
        frame.style.setProperty("width", `${wide}px`);
        frame.style.setProperty("height", `${tall}px`);
        const most = largest(step.values);
        const levels = Float64Array.from({ length: 11 }, (_, k) => (k - 5) / 5);
        drawCells(scale, { rows: 1, columns: levels.length, values: levels }, 132, 12);
        putText(low, formatNumber(-most, 3));
        putText(high, formatNumber(most, 3));
        putText(caption, captionOf(step));
        const value = formatNumber(step.values[chosen[0] * step.columns + chosen[1]]);
        words = `${cellInWords(step, labels, chosen)} = ${value}`;
        plot.setAttribute("aria-label", `${captionOf(step)}. ${words}. Arrow keys choose a cell.`);
    }

    /** @type {(news: MatrixUpdate) => void} */
    function update(news) {
        shown = news;
        draw();
    }
    new ResizeObserver(draw).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
    return { element, update };
}
