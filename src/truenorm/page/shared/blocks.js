/*
Blocks of cells as text: what a spreadsheet, a file or Python puts on the clipboard.
*/

/**
 * A text from a spreadsheet, a file or Python as rows of cells. The first that occurs separates: tab, semicolon, comma,
 * space. Then a comma inside a cell is a decimal one; and 1,5 alone is one number, not two.
 * @type {(text: string) => string[][]}
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

/**
 * As spreadsheets like it.
 * @type {(table: string[][]) => string}
 */
export function asTabbedText(table) {
    return table.map((row) => row.join("\t")).join("\n");
}
