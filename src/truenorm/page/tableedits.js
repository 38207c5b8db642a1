/*
What can be done to a table of texts: change a cell, paste a block, add and remove rows and columns, and take it back.

Nothing here knows the page. A table is never changed: each function returns a new one that shares the rows it left
alone, so that a history of a hundred tables costs little more than one.
*/

export function withCell(table, row, column, text) {
    return table.with(row, table[row].with(column, text));
}

/** A new row of empty cells, before the row `at`. */
export function withRow(table, at) {
    return table.toSpliced(at, 0, new Array(table[0]?.length || 1).fill(""));
}

export function withoutRow(table, at) {
    return table.toSpliced(at, 1);
}

/** A new column of empty cells, before the column `at`; a table without rows gets its first. */
export function withColumn(table, at) {
    return table.length ? table.map((row) => row.toSpliced(at, 0, "")) : [[""]];
}

/** Without its last column, a table is empty: [], not rows of nothing. */
export function withoutColumn(table, at) {
    return table[0]?.length > 1 ? table.map((row) => row.toSpliced(at, 1)) : [];
}

/** The block written over the table from a cell on; the table grows where the block reaches beyond it. */
export function withBlock(table, row, column, block) {
    const rows = Math.max(table.length, row + block.length);
    const columns = Math.max(table[0]?.length ?? 0, column + block[0].length);
    return Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (__, j) =>
        block[i - row]?.[j - column] ?? table[i]?.[j] ?? ""));
}

/**
 * A text from a spreadsheet, a file or Python as rows of cells. The first that occurs separates: tab, semicolon, comma,
 * space. Then a comma inside a cell is a decimal one; and 1,5 alone is one number, not two.
 */
export function parseBlock(text) {
    const lines = text.replace(/\][\s,]*\[/g, "\n").replace(/\r\n?/g, "\n").replace(/[[\]]/g, "").split("\n")
        .map((line) => line.replace(/^ +| +$/g, "").replace(/,$/, ""));
    while (lines.length && lines.at(-1) === "") lines.pop();
    while (lines.length && lines[0] === "") lines.shift();
    const lone = lines.length === 1 && /^[^\s;,]*,[^\s;,]*$/.test(lines[0]);
    const separator = lone ? null : ["\t", ";", ",", " "].find((one) => lines.some((line) => line.includes(one)));
    const rows = lines.map((line) => (separator ? line.split(separator === " " ? / +/ : separator) : [line])
        .map((cell) => cell.trim().replace(/^"(.*)"$/, "$1")));
    const columns = Math.max(0, ...rows.map((row) => row.length));
    return rows.map((row) => [...row, ...new Array(columns - row.length).fill("")]);
}

/** As spreadsheets like it. */
export function asTabbedText(table) {
    return table.map((row) => row.join("\t")).join("\n");
}

/**
 * What was, to come back to. `record` keeps what is about to change; changes with the same key that follow each other,
 * such as the letters typed into one cell, are one step, unless something else happened in between (`goesOn` is false).
 */
export function createHistory(most = 200) {
    const past = [];
    const future = [];
    let lastKey = null;

    function record(before, key = null, goesOn = true) {
        future.length = 0;
        if (key === null || key !== lastKey || !goesOn) past.push(before);
        if (past.length > most) past.shift();
        lastKey = key;
    }

    function step(from, to, now) {
        lastKey = null;
        if (!from.length) return null;
        to.push(now);
        return from.pop();
    }

    return {
        record,
        undo: (now) => step(past, future, now),
        redo: (now) => step(future, past, now),
        canUndo: () => past.length > 0,
        canRedo: () => future.length > 0,
    };
}
