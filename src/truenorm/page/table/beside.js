/*
Batch norm and layer norm side by side: the same table twice, and one cell lit in both. Under batch norm the cells of
its column share μ and σ², under layer norm those of its row.
*/
import { html, putText, scrollBox } from "#lib/elements.js";
import { formulaLine } from "#lib/formula.js";
import { formatNumber } from "#lib/numbers.js";
import { columnName } from "#lib/symbols.js";
import { normalisedLine } from "#table/formulas.js";
import { describe, forward } from "#maths/normalization.js";

const SIDES = { batch: "Batch norm: along the column", layer: "Layer norm: along the row" };
const MOST_SIDE = { rows: 8, columns: 8 };

/**
 * `onpoint(row, column)` when a cell is pointed at, `onpoint(null)` when none is, `onchoose(row, column)` on a click.
 * @type {(options: { onpoint: (at: Place | null) => void; onchoose: (at: Place) => void }) => { element: HTMLElement;
 *     update(problem: Problem, at: Place | null): void }}
 */
export function createBeside({ onpoint, onchoose }) {
    const sides = Object.entries(SIDES).map(([name, title]) => {
        const caption = html("caption", {}, title);
        const [head, body] = [html("thead"), html("tbody")];
        const line = html("div", { class: "line" });
        const element = html("div", { class: "side", "data-norm": name },
            scrollBox(title, html("table", { class: "numbers" }, caption, head, body)), line);
        return { name: /** @type {NormName} */ (name), element, head, body, line };
    });
    const note = html("p", { class: "note" });
    const element = html("div", { class: "beside" }, html("div", { class: "columns" }, sides.map((one) => one.element)),
        note);
    let built = "";
    /** @type {(event: Event) => Place | null} */
    const placeOf = ({ target }) => {
        const cell = /** @type {Element} */ (target).closest("td");
        return cell ? { row: Number(cell.dataset.row), column: Number(cell.dataset.column) } : null;
    };
    /** @type {EventTarget | null} */
    let under = null;
    element.addEventListener("pointermove", (event) => {
        if (event.target !== under) onpoint(placeOf(event));
        under = event.target;
    });
    element.addEventListener("pointerleave", () => {
        under = null;
        onpoint(null);
    });
    element.addEventListener("click", (event) => placeOf(event) && onchoose(placeOf(event)));

    /** @type {(problem: Problem, at: Place | null) => void} */
    function update(problem, at) {
        element.hidden = at === null;
        if (at === null) return;
        const { x, cells, valid, rows, columns, norm } = problem;
        // Of a large table, the part around the cell.
        const top = Math.max(Math.min(at.row - MOST_SIDE.rows + 3, rows - MOST_SIDE.rows), 0);
        const left = Math.max(Math.min(at.column - MOST_SIDE.columns + 3, columns - MOST_SIDE.columns), 0);
        const shownRows = cells.slice(top, top + MOST_SIDE.rows).map((_, i) => top + i);
        const shownColumns = cells[0].slice(left, left + MOST_SIDE.columns).map((_, j) => left + j);
        const shown = shownRows.map((i) => shownColumns.map((j) => cells[i][j]));
        const key = JSON.stringify([shownRows, shownColumns, shown]);
        for (const { name, head, body, line } of sides) {
            const out = forward(x, describe(name, { eps: norm.eps, ddof: norm.ddof, eps_at: norm.eps_at }), { valid });
            /** @type {(i: number, j: number) => string} */
            const classOf = (i, j) => [
                valid[i][j] ? "" : "pad", (name === "batch" ? j === at.column : i === at.row) ? "shared" : "",
                i === at.row && j === at.column ? "chosen" : "",
            ].join(" ").trim();
            if (key !== built) { // or a cell would be gone between the press and the release of a button on it
                head.replaceChildren(html("tr", {}, html("td"),
                    shownColumns.map((j) => html("th", { scope: "col" }, columnName(j)))));
                body.replaceChildren(...shownRows.map((i) => html("tr", {}, html("th", { scope: "row" }, i + 1),
                    shownColumns.map((j) => html("td", { "data-row": i, "data-column": j },
                        valid[i][j] ? formatNumber(x[i][j]) : "–")))));
            }
            for (const cell of body.querySelectorAll("td")) {
                cell.className = classOf(Number(cell.dataset.row), Number(cell.dataset.column));
            }
            line.replaceChildren(...(valid[at.row][at.column] ? [formulaLine(normalisedLine(out, at.row, at.column))]
                : [html("p", { class: "note" }, "This cell holds no number.")]));
        }
        built = key;
        const isCut = rows > shownRows.length || columns > shownColumns.length;
        putText(note, isCut ? "Only the cells around the chosen one are shown." : "");
        note.hidden = !isCut;
    }
    return { element, update };
}
