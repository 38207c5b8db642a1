/*
What can be done to a table of texts: change a cell, paste a block, add and remove rows and columns, and take it back.

Nothing here knows the page. A table is never changed: each function returns a new one that shares the rows it left
alone, so that a history of a hundred tables costs little more than one.
*/

/** @type {(table: string[][], row: number, column: number, text: string) => string[][]} */
export function withCell(table, row, column, text) {
    return table.with(row, table[row].with(column, text));
}

/**
 * A new row of empty cells, before the row `at`.
 * @type {(table: string[][], at: number) => string[][]}
 */
export function withRow(table, at) {
    return table.toSpliced(at, 0, new Array(table[0]?.length || 1).fill(""));
}

/** @type {(table: string[][], at: number) => string[][]} */
export function withoutRow(table, at) {
    return table.toSpliced(at, 1);
}

/**
 * A new column of empty cells, before the column `at`; a table without rows gets its first.
 * @type {(table: string[][], at: number) => string[][]}
 */
export function withColumn(table, at) {
    return table.length ? table.map((row) => row.toSpliced(at, 0, "")) : [[""]];
}

/**
 * Without its last column, a table is empty: [], not rows of nothing.
 * @type {(table: string[][], at: number) => string[][]}
 */
export function withoutColumn(table, at) {
    return table[0]?.length > 1 ? table.map((row) => row.toSpliced(at, 1)) : [];
}

/**
 * The block written over the table from a cell on; the table grows where the block reaches beyond it.
 * @type {(table: string[][], row: number, column: number, block: string[][]) => string[][]}
 */
export function withBlock(table, row, column, block) {
    const rows = Math.max(table.length, row + block.length);
    const columns = Math.max(table[0]?.length ?? 0, column + block[0].length);
    return Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (__, j) =>
        block[i - row]?.[j - column] ?? table[i]?.[j] ?? ""));
}

/**
 * What was, to come back to. `record` keeps what is about to change; changes with the same key that follow each other,
 * such as the letters typed into one cell, are one step, unless something else happened in between (`goesOn` is false).
 */
export function createHistory(most = 200) {
    /** @type {Partial<Fields>[]} */
    const past = [];
    /** @type {Partial<Fields>[]} */
    const future = [];
    /** @type {string | null} */
    let lastKey = null;

    /** @type {(before: Partial<Fields>, key?: string | null, goesOn?: boolean) => void} */
    function record(before, key = null, goesOn = true) {
        future.length = 0;
        if (key === null || key !== lastKey || !goesOn) past.push(before);
        if (past.length > most) past.shift();
        lastKey = key;
    }

    /** @type {(from: Partial<Fields>[], to: Partial<Fields>[], now: Partial<Fields>) => Partial<Fields> | null} */
    function step(from, to, now) {
        lastKey = null;
        if (!from.length) return null;
        to.push(now);
        return from.pop();
    }

    return {
        record,
        /** @type {(now: Partial<Fields>) => Partial<Fields> | null} */
        undo: (now) => step(past, future, now),
        /** @type {(now: Partial<Fields>) => Partial<Fields> | null} */
        redo: (now) => step(future, past, now),
        canUndo: () => past.length > 0,
        canRedo: () => future.length > 0,
    };
}
