/*
Blocks of cells as text: what a spreadsheet, a file or Python puts on the clipboard.
*/
import { MOST_LETTERS, MOST_PASTED, checkLetters, checkSize } from "#lib/limits.js";

/**
 * A text from a spreadsheet, a file or Python as rows of cells. The first that occurs separates: tab, semicolon, comma,
 * space. Then a comma inside a cell is a decimal one; and 1,5 alone is one number, not two. What is too large throws.
 * @type {(text: string) => string[][]}
 */
export function parseBlock(text) {
    checkLetters("A pasted text", MOST_PASTED, text.length);
    const all = text.replace(/\][\s,]*\[/g, "\n").replace(/\r\n?/g, "\n").replace(/[[\]]/g, "").split("\n")
        .map((line) => trimSpaces(line).replace(/,$/, ""));
    const lines = all.slice(all.findIndex((line) => line !== ""), all.findLastIndex((line) => line !== "") + 1);
    const lone = lines.length === 1 && /^[^\s;,]*,[^\s;,]*$/.test(lines[0]);
    const separator = lone ? null : ["\t", ";", ",", " "].find((one) => lines.some((line) => line.includes(one)));
    const rows = lines.map((line) => (separator ? line.split(separator === " " ? / +/ : separator) : [line])
        .map((cell) => cell.trim().replace(/^"(.*)"$/, "$1")));
    const columns = rows.reduce((most, row) => Math.max(most, row.length), 0);
    checkSize(rows.length, columns);
    for (const cell of rows.flat()) checkLetters("A cell", MOST_LETTERS, cell.length);
    return rows.map((row) => [...row, ...new Array(columns - row.length).fill("")]);
}

/**
 * Tabs stay, as they stand between cells. To look for / +$/ would take quadratic time.
 * @type {(line: string) => string}
 */
function trimSpaces(line) {
    let [from, to] = [0, line.length];
    while (from < to && line[from] === " ") from++;
    while (to > from && line[to - 1] === " ") to--;
    return line.slice(from, to);
}

/**
 * As spreadsheets like it.
 * @type {(table: string[][]) => string}
 */
export function asTabbedText(table) {
    return table.map((row) => row.join("\t")).join("\n");
}
