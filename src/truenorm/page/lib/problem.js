/*
The table that the parts "table" and "backward" share: its cells, the normalization and its conventions, as fields of
the state, and what they come to.

    defineProblem(state);                  // once, in main.js, before any part is mounted
    const problem = readProblem(state);    // { x, valid, norm, weight, bias, offsets, ... }: ready for maths.js
    state.watch(PROBLEM, draw);            // whenever any of it changes

Cells are kept as the text that was typed. A text that is no number is shown where it stands, and its cell is left out,
as `valid` leaves out padding. `weight` and `bias` are texts too, one a column; without one, weight is 1 and bias 0.
*/
import { NORMS, describe } from "#maths/normalization.js";
import { chooser } from "#lib/controls.js";
import { readNumber } from "#lib/numbers.js";
import { choice, numberBetween, textRow, textTable, wholeBetween } from "#lib/state.js";

/** Pre-activations of a layer with three nodes, for five examples. */
export const EXAMPLE = [["7", "5", "4"], ["2", "3", "4"], ["1", "2", "3"], ["7", "5", "6"], ["3", "3", "4"]];

/**
 * The names of all fields, for `state.watch`.
 * @type {FieldName[]}
 */
export const PROBLEM = ["x", "norm", "samples", "groups", "eps", "ddof", "eps_at", "weight", "bias"];

/** @type {(state: State) => void} */
export function defineProblem(state) {
    state.field("norm", choice(...Object.keys(NORMS)), "batch");
    state.field("samples", wholeBetween(1, 1000), 2); // rows are shared out among these, for instance and group norm
    state.field("groups", wholeBetween(1, 1000), 1); // columns are shared out among these, for group norm
    state.field("ddof", wholeBetween(0, 1), 0);
    state.field("eps_at", choice("var", "std"), "var");
    state.field("eps", numberBetween(0, 1e6), 1e-5);
    state.field("weight", textRow, []);
    state.field("bias", textRow, []);
    state.field("x", textTable, EXAMPLE);
    const [rows, columns] = [() => state.get("x").length, () => state.get("x")[0]?.length ?? 0];
    for (const [name, initial] of /** @type {const} */ ([["weight", 1], ["bias", 0]])) {
        state.fit(name, () => {
            const { length } = state.get(name);
            const rest = length < columns() ? `the others are ${initial}` : "the last are not used";
            return length === columns() ? "" : `${name}: ${length} given for ${columns()} columns; ${rest}.`;
        });
    }
    state.fit("samples", () => tooMany("samples", state.get("samples"), rows(), "rows"));
    state.fit("groups", () => {
        const [wanted, groups] = [state.get("groups"), equalGroups(columns(), state.get("groups"))];
        return wanted === groups ? "" : `groups: ${wanted} cannot share ${columns()} columns equally, ${groups} can.`;
    });
}

/**
 * Whether the variance divides by n or by n − 1, for the parts that show it; RMS norm has no variance.
 * @type {(state: State) => HTMLFieldSetElement}
 */
export function divisorChooser(state) {
    const element = chooser(state, "ddof", "Variance: divide by", { 0: "n", 1: "n − 1, Bessel’s correction" });
    state.watch(["norm"], () => (element.disabled = !NORMS[state.get("norm")].center));
    return element;
}

/** @type {(name: string, got: number, most: number, of: string) => string} */
export function tooMany(name, got, most, of) {
    return got > most ? `${name}: ${got} given, but there are ${most} ${of}; ${most} is used.` : "";
}

/**
 * A cell that the address names is in the table, or this is said. Places count from 1.
 * @type {(state: State, name: FieldName, place: () => number[]) => void}
 */
export function fitCell(state, name, place) {
    state.fit(name, () => {
        const [[row, column], cells] = [place(), state.get("x")];
        const size = [cells.length, cells[0]?.length ?? 0];
        if (row <= size[0] && column <= size[1]) return "";
        const where = `row ${row}, column ${column} in a table of ${size.join(" × ")}`;
        return `${name}: there is no ${where}; the nearest cell is shown.`;
    });
}

/**
 * cells           the texts                    x, valid       numbers; valid is false, and x NaN, where a text is none
 * rows, columns   how many                     weight, bias   numbers, one a column; those that are none are 1 and 0
 * norm            what `describe` returns      offsets        where samples begin and end
 * @type {(state: State) => Problem}
 */
export function readProblem(state) {
    const cells = state.get("x");
    const [rows, columns] = [cells.length, cells[0]?.length ?? 0];
    const x = cells.map((row) => row.map(readNumber));
    const samples = Math.min(state.get("samples"), Math.max(rows, 1));
    const norm = describe(state.get("norm"), {
        eps: state.get("eps"), ddof: state.get("ddof"), eps_at: state.get("eps_at"),
        groups: equalGroups(columns, state.get("groups")),
    });
    return {
        cells, rows, columns, x, norm,
        valid: x.map((row) => row.map(Number.isFinite)),
        weight: readParameters(state.get("weight"), columns, 1),
        bias: readParameters(state.get("bias"), columns, 0),
        offsets: Array.from({ length: samples + 1 }, (_, i) => Math.round((i * rows) / samples)),
    };
}

/**
 * The most groups, up to those wanted, that share the columns equally.
 * @type {(columns: number, wanted: number) => number}
 */
export function equalGroups(columns, wanted) {
    let groups = Math.min(wanted, Math.max(columns, 1));
    while (columns % groups) groups--;
    return groups;
}

/** @type {(texts: string[], columns: number, initial: number) => number[]} */
function readParameters(texts, columns, initial) {
    return Array.from({ length: columns }, (_, j) => {
        const value = readNumber(texts[j] ?? "");
        return Number.isNaN(value) ? initial : value;
    });
}

/**
 * Why the numbers of a statistic are beyond what a computer can hold, or "".
 * @type {(out: ForwardResult, s: number) => string}
 */
export function whyBeyond(out, s) {
    if (out.rstd[s] === Infinity) return "ε is too small to compute with: 1 / ε is more than a computer can hold";
    return Number.isFinite(out.moments.mean[s]) && Number.isFinite(out.var[s]) ? ""
        : "the numbers, or their squares, are too large to compute with";
}
