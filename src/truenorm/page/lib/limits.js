/*
How much the page takes in. What is typed, pasted or in the address is measured before anything is made of it: a larger
table takes seconds to draw, and browsers refuse addresses of more than two million characters.

    checkTable(rows)                       // throws TooLarge, with a sentence for people
    attempt(() => state.set(values), say)  // does it, or says that sentence; returns whether it was done
*/
import { encodeText } from "#lib/text.js";

export const MOST_ROWS = 1000;
export const MOST_COLUMNS = 128;
export const MOST_CELLS = 4096;
export const MOST_LETTERS = 200; // of a cell or a word
export const MOST_PASTED = 1_000_000;
export const MOST_ADDRESS = 2_000_000;
export const MOST_WRITTEN = 250_000; // of one table in the address, which holds up to six

export class TooLarge extends RangeError {}

/** @type {(run: () => void, say: (reason: string) => void) => boolean} */
export function attempt(run, say) {
    try {
        run();
        return true;
    } catch (error) {
        if (!(error instanceof TooLarge)) throw error;
        say(error.message);
        return false;
    }
}

/** @type {(what: string, most: number, got: number) => void} */
export function checkLetters(what, most, got) {
    if (got > most) throw new TooLarge(`${what} has at most ${most} characters, got ${got}.`);
}

/** @type {(rows: number, columns: number) => void} */
export function checkSize(rows, columns) {
    if (rows <= MOST_ROWS && columns <= MOST_COLUMNS && rows * columns <= MOST_CELLS) return;
    throw new TooLarge(`A table has at most ${MOST_ROWS} rows, ${MOST_COLUMNS} columns and ${MOST_CELLS} cells, got `
        + `${rows} × ${columns}.`);
}

/** @type {(table: string[][]) => void} */
export function checkTable(table) {
    checkSize(table.length, table[0]?.length ?? 0);
    let written = 0;
    for (const text of table.flat()) {
        checkLetters("A cell", MOST_LETTERS, text.length);
        written += encodeText(text).length + 1;
    }
    checkWritten(written);
}

/** @type {(length: number) => void} */
export function checkWritten(length) {
    checkLetters("A table in the address", MOST_WRITTEN, length);
}
