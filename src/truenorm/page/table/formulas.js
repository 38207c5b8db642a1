/*
What the page says about a cell: its formula with the numbers in it, and sentences about numbers that need one.

Formulas are texts for formula.js, such as "xhat = (7 - 4) / sqrt(6.4 + 0.00001) ≈ 1.186", so that they can be read
aloud and tested as they are. = stands before a number that is shown whole, ≈ before one that is rounded.
*/
import { NORMS } from "#maths/normalization.js";
import { bracketedNumber, couldBeThousands, formatNumber, isBeyondNumbers, readNumber } from "#lib/numbers.js";
import { whyBeyond } from "#lib/problem.js";
import { SYMBOLS } from "#lib/symbols.js";
import { quoted } from "#lib/text.js";

const MOST_TERMS = 5;

/**
 * The formula of the chosen normalization, in names.
 * @type {(norm: Norm) => string}
 */
export function generalFormula(norm) {
    return `y = weight · ${normalisedInNames(norm)} + bias`;
}

/** @type {(norm: Norm) => string} */
function normalisedInNames(norm) {
    const above = norm.center ? "(x - mean)" : "x";
    const below = norm.eps_at === "var" ? "sqrt(var + eps)" : "(sqrt(var) + eps)";
    return `${above} / ${norm.center ? below : below.replace("var", '"mean of x²"')}`;
}

/**
 * { title, lines } for a cell of one of the sheets x, mean, var, xhat, y. `out` is what `forward` returns.
 * @type {(out: ForwardResult, cells: string[][], at: SheetCell) => { title: string; lines: string[] }}
 */
export function describeCell(out, cells, { sheet, row, column }) {
    const title = `Row ${row + 1}, column ${column + 1}`;
    const s = out.partition.index[row][column];
    const beyond = Number.isNaN(out.xhat[row][column]) ? whyBeyond(out, s) : "";
    if (beyond) return { title: `${title}: ${beyond}`, lines: [] };
    if (sheet === "mean" || sheet === "var") return describeStatistic(out, sheet, row, column);
    if (!out.valid[row][column]) return { title: `${title}: ${whyLeftOut(cells[row][column])}`, lines: [] };
    if (sheet === "y") return { title, lines: [outputLine(out, row, column)] };
    const line = normalisedLine(out, row, column).replace("=", `= ${normalisedInNames(out.norm)} =`);
    if (sheet === "xhat") return { title, lines: [line] };
    const count = out.moments.count[s];
    const what = out.norm.center ? "μ and σ²" : "mean of squares";
    return { title: `${title}, with the ${what} of the ${countOf(count, "cell")} in its box`, lines: [line] };
}

/**
 * Why a cell takes no part.
 * @type {(text: string) => string}
 */
export function whyLeftOut(text) {
    if (text.trim() === "") return "empty, so it is left out";
    const why = couldBeThousands(text) ? "could mean two numbers"
        : isBeyondNumbers(text) ? "is more than a computer can hold" : "is not a number";
    return `${quoted(text)} ${why}, so it is left out`;
}

/**
 * A sentence for each cell that is no number, for the first few one by one.
 * @type {(problem: Pick<Problem, "cells" | "valid">) => string[]}
 */
export function describeProblems({ cells, valid }) {
    const bad = leftOutCells(cells, valid).filter(({ text }) => text.trim() !== "");
    const said = bad.slice(0, 3).map(({ text, i, j }) => `Row ${i + 1}, column ${j + 1}: ${whyLeftOut(text)}.`);
    if (bad.length > 3) said.push(`And ${countOf(bad.length - 3, "more cell")} without a number, left out too.`);
    return said;
}

/**
 * A sentence if there are empty cells, or null.
 * @type {(problem: Pick<Problem, "cells" | "valid">) => string | null}
 */
export function describeEmptyCells({ cells, valid }) {
    const empty = leftOutCells(cells, valid).filter(({ text }) => text.trim() === "").length;
    return empty ? `${countOf(empty, "cell")} without a number, left out of every mean.` : null;
}

/**
 * A sentence for each weight or bias that is no number; `parameters` is { name, initial, texts } of both.
 * @type {(problem: Pick<Problem, "columns">, parameters: { name: string; initial: string; texts: string[] }[]) =>
 *     string[]}
 */
export function describeParameters({ columns }, parameters) {
    return parameters.flatMap(({ name, initial, texts }) => texts.slice(0, columns).map((text, j) => {
        if (!Number.isNaN(readNumber(text))) return null;
        const what = text.trim() === "" ? "empty" : `${quoted(text)}, not a number`;
        return `${SYMBOLS[name]} (${name}) of column ${j + 1} is ${what}: ${initial} is used.`;
    })).filter((sentence) => sentence !== null);
}

/** @type {(cells: string[][], valid: boolean[][]) => { text: string; i: number; j: number }[]} */
function leftOutCells(cells, valid) {
    return cells.flatMap((row, i) => row.map((text, j) => ({ text, i, j }))).filter(({ i, j }) => !valid[i][j]);
}

/**
 * A sentence where numbers are too large, or there is nothing to divide by, or null.
 * @type {(out: ForwardResult) => string | null}
 */
export function describeNoSpread(out) {
    const { count } = out.moments;
    const far = out.rstd.map((_, s) => s).filter((s) => whyBeyond(out, s));
    if (far.length) {
        const where = far.length === 1 ? nameOfBox(out, far[0]) : `${far.length} of the boxes`;
        return `${where}: ${whyBeyond(out, far[0])}. So x̂ cannot be trusted there.`;
    }
    const flat = out.rstd.map((rstd, s) => s).filter((s) => out.rstd[s] === 0 && count[s] > 0);
    if (!flat.length) return null;
    const where = flat.length === 1 ? nameOfBox(out, flat[0]) : `${flat.length} of the boxes`;
    const [has, its] = flat.length === 1 ? ["has", "its"] : ["have", "their"];
    const single = flat.every((s) => count[s] <= out.norm.ddof);
    if (single) {
        return `${where} ${has} only one number, and n − 1 is 0: no variance can be estimated. `
            + "So x̂ is 0 there, and y is β.";
    }
    return `${where} ${has} no spread, and ε is 0: there is nothing to divide by. So ${its} x̂ is 0, and y is β. `
        + "This is what ε is for.";
}

/**
 * In words, which cells a statistic is of.
 * @type {(out: ForwardResult, s: number) => string}
 */
export function nameOfBox(out, s) {
    const rows = out.partition.index.flatMap((row, i) => (row.includes(s) ? [i] : []));
    const columns = out.partition.index[rows[0]].flatMap((one, j) => (one === s ? [j] : []));
    /** @type {(list: number[], length: number, word: string) => string | null} */
    const all = (list, length, word) => (list.length === length ? null
        : `${word}${list.length > 1 ? "s" : ""} ${rangeOf(list[0], list.at(-1))}`);
    const words = [
        all(rows, out.partition.index.length, "row"), all(columns, out.partition.index[0].length, "column"),
    ].filter((word) => word !== null);
    const text = words.join(", ") || "the whole table";
    return text[0].toUpperCase() + text.slice(1);
}

/**
 * 3 or 3–5, counted from 1.
 * @type {(first: number, last: number) => string}
 */
export function rangeOf(first, last) {
    return first === last ? `${first + 1}` : `${first + 1}–${last + 1}`;
}

/** @type {(count: number, noun: string) => string} */
export function countOf(count, noun) {
    return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

/** @type {(out: ForwardResult, sheet: string, row: number, column: number) => { title: string; lines: string[] }} */
function describeStatistic(out, sheet, row, column) {
    const s = out.partition.index[row][column];
    const { norm } = out;
    const { index } = out.partition;
    const values = out.x.flatMap((line, i) => line.filter((_, j) => index[i][j] === s && out.valid[i][j]));
    const n = values.length;
    const title = `${nameOfBox(out, s)}: ${n ? countOf(n, "number") : "no numbers, so there is nothing to average"}`;
    if (!n) return { title, lines: [] };
    const mean = out.moments.mean[s];
    if (!norm.center) {
        const squares = termsOf(values, (x) => `${bracketedNumber(x)}²`);
        return { title, lines: [`"mean of x²" = ${squares} / ${n} ${shownResult(out.var[s])}`] };
    }
    if (sheet === "mean") {
        return { title, lines: [`mean = ${termsOf(values, (x) => bracketedNumber(x))} / ${n} ${shownResult(mean)}`] };
    }
    if (n <= norm.ddof) return { title: `${title}: n − 1 is 0, so there is no variance, and 0 is used`, lines: [] };
    const squares = termsOf(values, (x) => `(${formatNumber(x)} - ${bracketedNumber(mean)})²`);
    return { title, lines: [`var = ${squares} / ${norm.ddof ? `(${n} - 1)` : n} ${shownResult(out.var[s])}`] };
}

/** @type {(out: ForwardResult, row: number, column: number) => string} */
export function normalisedLine(out, row, column) {
    const s = out.partition.index[row][column];
    const { norm } = out;
    const eps = formatNumber(norm.eps);
    const x = out.x[row][column];
    const above = `(${formatNumber(x)}${norm.center ? ` - ${bracketedNumber(out.moments.mean[s])}` : ""})`;
    const variance = formatNumber(out.var[s]);
    if (out.rstd[s] === 0 && out.var[s] === 0) return `xhat = ${above} · 0 = 0, "as there is no spread to divide by"`;
    const below = norm.eps_at === "var" ? `sqrt(${variance} + ${eps})` : `(sqrt(${variance}) + ${eps})`;
    return `xhat = ${above} / ${below} ${shownResult(out.xhat[row][column])}`;
}

/** @type {(out: ForwardResult, row: number, column: number) => string} */
function outputLine(out, row, column) {
    const factors = [out.xhat[row][column], out.weight[column], out.bias[column]];
    const [xhat, weight, bias] = factors.map((one) => bracketedNumber(one));
    return `y = weight · xhat + bias = ${weight} · ${xhat} + ${bias} ${shownResult(out.y[row][column])}`;
}

/**
 * (a + b + … + z): all of a few terms, the ends of many.
 * @type {(values: number[], show: (value: number) => string) => string}
 */
function termsOf(values, show) {
    const terms = values.length <= MOST_TERMS ? values.map(show)
        : [...values.slice(0, MOST_TERMS - 2).map(show), '"…"', show(values.at(-1))];
    return `(${terms.join(" + ")})`;
}

/** @type {(value: number) => string} */
function shownResult(value) {
    return `${Number(value.toPrecision(4)) === value ? "=" : "≈"} ${formatNumber(value)}`;
}

/**
 * Of the pattern: { axis, words, averaged } for each of its axes; b and t together where one rule holds for both.
 * @type {(norm: Norm) => { axis: string; words: string; averaged: boolean }[]}
 */
export function axesOf(norm) {
    /** @type {Record<string, string>} */
    const words = { b: "samples", t: "rows of a sample", g: "groups of columns", c: "columns", "b t": "rows" };
    if (norm.name === "group") words.c = "columns of a group";
    /** @type {{ axis: string; averaged: boolean }[]} */
    const axes = [];
    let inside = false;
    for (const sign of NORMS[norm.name].pattern) {
        if (sign === "[" || sign === "]") inside = sign === "[";
        if (sign in words) axes.push({ axis: sign, averaged: inside });
    }
    const [first, second, ...rest] = axes;
    const whole = first.averaged === second.averaged ? [{ axis: "b t", averaged: first.averaged }, ...rest] : axes;
    return whole.map((one) => ({ ...one, words: words[one.axis] }));
}
