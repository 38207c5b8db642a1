/*
One line for each column: its numbers as dots before and after, and sliders for its γ and β between them.

Of many columns, dots are drawn only for the lines in sight: 64 cost no more than the few that one sees.
*/
import { dotStrip } from "#lib/dots.js";
import { html, putText } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { SYMBOLS, columnName } from "#lib/symbols.js";

const FEW = 16;

/**
 * onparameter("weight" or "bias", column, text). Returns { element, update(problem, out, ranges) }.
 * @type {(options: { onparameter: OnParameter }) => { element: HTMLElement; update(problem: Problem, out:
 *     ForwardResult): void }}
 */
export function createStrips({ onparameter }) {
    const list = html("ol", { class: "strips" });
    /** @type {StripLine[]} */
    const lines = [];
    const seen = new IntersectionObserver((entries) => {
        for (const { target, isIntersecting } of entries) {
            /** @type {StripLine} */
            const line = lines.find(({ element }) => element === target);
            if (line) line.inSight = isIntersecting;
            if (line && isIntersecting) line.draw();
        }
    }, { rootMargin: "100px" });
    const drawAll = () => lines.forEach((line) => line.draw()); // paper has no sight
    addEventListener("beforeprint", drawAll);
    matchMedia("print").addEventListener("change", drawAll);
    /** @type {HTMLElement} */
    const ends = html("p", { class: "note" });
    /** @type {StripsNow} */
    let now = null;

    /** @type {(column: number) => StripLine} */
    function newLine(column) {
        const weight = parameterSlider("weight", column, onparameter);
        const bias = parameterSlider("bias", column, onparameter);
        const before = html("div", { class: "before" });
        const after = html("div", { class: "after" });
        const name = html("b", {}, columnName(column));
        const element = html("li", {}, name, before, weight.element, bias.element, after);
        const line = { element, inSight: false, drawn: "", weight, bias, draw: () => {} };
        line.draw = () => drawLine(line, column, before, after, now);
        seen.observe(element);
        return line;
    }

    /** @type {(problem: Problem, out: ForwardResult) => void} */
    function update(problem, out) {
        now = { problem, out, ...domainsOf(problem, out) };
        while (lines.length > problem.columns) {
            const { element } = lines.pop();
            seen.unobserve(element);
            element.remove();
        }
        while (lines.length < problem.columns) {
            lines.push(newLine(lines.length));
            list.append(lines.at(-1).element);
        }
        lines.forEach((line, j) => {
            line.weight.show(problem.weight[j], now.weights);
            line.bias.show(problem.bias[j], now.biases);
            if (line.inSight || lines.length <= FEW) line.draw();
        });
        ends.hidden = !now.axis.every(Number.isFinite); // then there are no dots
        ends.textContent = "A dot is a cell, the tick the column's mean, the bar one standard deviation to each side. "
            + `All lines reach from ${now.axis.map((end) => formatNumber(end)).join(" to ")}, with a thin line at 0.`;
    }

    return { element: html("div", {}, list, ends), update };
}

/**
 * Redraws the dots of a column if they moved.
 * @type {(line: StripLine, column: number, before: HTMLElement, after: HTMLElement, now: StripsNow) => void}
 */
function drawLine(line, column, before, after, { problem, out, axis }) {
    const isValid = problem.valid.map((row) => row[column]);
    const [x, y] = [problem.x, out.y].map((table) => table.map((row) => row[column]).filter((_, i) => isValid[i]));
    const key = [x, y, axis].join(" ");
    if (key === line.drawn) return;
    line.drawn = key;
    const name = `column ${column + 1}`;
    /** @type {(letter: string, values: number[]) => Element[]} */
    const strip = (letter, values) => [
        html("i", {}, letter), dotStrip({ label: `${letter}, ${name}`, values, ...spreadOf(values), domain: axis }),
    ];
    before.replaceChildren(...strip("x", x));
    after.replaceChildren(...strip("y", y));
}

/**
 * @type {(name: ParameterName, column: number, onparameter: OnParameter) => { element: HTMLElement; show(number:
 *     number, bound: number): void }}
 */
function parameterSlider(name, column, onparameter) {
    /** @type {HTMLInputElement} */
    const range = html("input", {
        type: "range", "aria-label": `${SYMBOLS[name]} (${name}) of column ${column + 1}`,
        oninput: () => onparameter(name, column, String(Number(range.valueAsNumber.toPrecision(4)))),
    });
    const value = html("output", { "aria-live": "off" });
    const symbol = html("span", { "aria-hidden": "true" }, SYMBOLS[name]);
    const element = html("div", { class: "slider" }, symbol, range, value);
    /** @type {number} */
    let ends = null;
    /** @type {(number: number, bound: number) => void} */
    function show(number, bound) {
        if (ends !== bound) {
            ends = bound;
            Object.assign(range, { min: -bound, max: bound, step: bound / 100 });
        }
        if (range.valueAsNumber !== number) range.value = String(number);
        putText(value, formatNumber(number, 3));
        range.setAttribute("aria-valuetext", formatNumber(number));
    }
    return { element, show };
}

/**
 * How far the drawings and sliders reach. x and y have one axis: the same numbers look the same.
 * @type {(problem: Problem, out: ForwardResult) => Ranges}
 */
function domainsOf({ x, valid }, out) {
    const xs = x.flatMap((row, i) => row.filter((_, j) => valid[i][j]));
    const ys = out.y.flat();
    /** @type {(values: number[]) => number} */
    const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 3);
    const reach = largest(ys); // 3 at least, so that y has room to move
    const [low, high] = [xs.reduce((a, b) => Math.min(a, b), -reach), xs.reduce((a, b) => Math.max(a, b), reach)];
    const step = 10 ** Math.floor(Math.log10(high - low > 0 ? high - low : 1));
    return {
        axis: [Math.floor(low / step) * step, Math.ceil(high / step) * step],
        weights: roundUp(largest(out.rstd.map((rstd) => (rstd > 0 ? 1 / rstd : 0)))),
        biases: roundUp(largest(xs)),
    };
}

/**
 * The next of 1, 2, 3, 5, 10, 20, 30, 50 ...
 * @type {(value: number) => number}
 */
function roundUp(value) {
    const power = 10 ** Math.floor(Math.log10(value));
    return power * ([1, 2, 3, 5, 10].find((one) => one * power >= value) ?? 10);
}

/** @type {(values: number[]) => { mean?: number; std?: number }} */
function spreadOf(values) {
    if (!values.length) return {};
    const mean = values.reduce((sum, value) => sum + value, 0) / values.length;
    return { mean, std: Math.sqrt(values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / values.length) };
}
