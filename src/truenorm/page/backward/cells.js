/*
What the views of the backward pass share: which cell is chosen, and how cells look.
*/
import { columnName } from "#lib/symbols.js";

/** @type {(state: State) => (row: number, column: number) => void} */
export function cellChooser(state) {
    return (row, column) => state.set({ "backward.cell": `${row + 1},${column + 1}` });
}

/** @type {(model: BackwardModel, i: number, j: number) => string} */
export function stepCellClass({ out, row, column }, i, j) {
    const { index } = out.partition;
    if (!out.valid[i][j]) return "pad";
    return index[i][j] === index[row][column] ? "shared" : "";
}

/** @type {(count: number) => string[]} */
export function ordinalsTo(count) {
    return Array.from({ length: count }, (_, i) => String(i + 1));
}

/** @type {(count: number) => string[]} */
export function columnNamesTo(count) {
    return Array.from({ length: count }, (_, j) => columnName(j));
}

/** @type {(table: unknown[][], holds: (i: number, j: number) => boolean) => Point[]} */
export function placesWhere(table, holds) {
    /** @type {Point[]} */
    const found = [];
    table.forEach((cells, i) => cells.forEach((_, j) => holds(i, j) && found.push([i, j])));
    return found;
}
