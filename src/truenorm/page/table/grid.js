/*
A sheet: a grid of numbers that scrolls in its box, is walked by arrow keys, and can show which cells belong together.

    const sheet = createSheet({ sheet: "xhat", caption, label, onpoint, onfocus });
    sheet.shape({ rowStarts, columnStarts, rows, columns });      // where its cells begin
    sheet.write((row, column) => ({ value, state }));
    sheet.drawBoxes(boxes);                                       // lines between boxes
    sheet.light(box, at);                                         // the box that is lit, and one cell in it

All sheets of a part measure in the cells of x. A cell of `mean` covers all cells of x that share this mean: its rows
and columns begin at `rowStarts` and `columnStarts`. So the same lines and the same light fit every sheet.

Made for 64 x 64: elements are kept and only what changed is written; cells have a size of their own, so that a new
number moves nothing else; boxes and light are a few elements on top, not a class on thousands of cells.
*/
import { html, putText, scrollBox, setVariable } from "#lib/elements.js";
import { formatNumber, readNumber } from "#lib/numbers.js";
import { SYMBOLS, columnName } from "#lib/symbols.js";
import { rangeOf } from "#table/formulas.js";

const NARROWEST = 4; // characters of a cell
const WIDEST = 14;

/**
 * onpoint({ sheet, row, column } or null)     the mouse is on a cell, or on none
 * onfocus({ sheet, row, column })             a cell has the focus
 * onedit(row, column, text)                   only for sheets that are typed into
 * onkey(event, at)                            a key that does not walk; true if it was used
 * @type {(options: SheetOptions) => Sheet}
 */
export function createSheet({ sheet, caption, label, onpoint, onfocus, onkey, onedit = null, rowNames = null }) {
    const head = html("div", { class: "row heads", role: onedit ? false : "row" }, headCell("", "corner"));
    const grid = html("div", { class: "grid", role: onedit ? "group" : "grid", "aria-label": label }, head);
    const light = html("div", { class: "lit", "aria-hidden": "true" });
    const ring = html("div", { class: "ring", "aria-hidden": "true" });
    const spot = html("div", { class: "spot", "aria-hidden": "true" });
    const boxes = html("div", { class: "boxes", "aria-hidden": "true" });
    const plane = html("div", { class: "plane" }, light, grid, boxes, ring, spot);
    const box = scrollBox(`${label}, scrolls`, plane);
    const title = html("figcaption", {}, caption);
    const element = html("figure", { class: `sheet ${sheet}` }, title, box);
    /** @type {SheetLine[]} */
    const lines = []; // of { element, head, cells: [{ element, place, shown }] }
    /** @type {SheetShape} */
    let starts = { rowStarts: [], columnStarts: [], rows: 0, columns: 0 };
    /** @type {HTMLElement | null} */
    let current = null; // the one cell that takes the focus
    let width = 0;
    let shaped = ""; // as it was drawn, to draw only what changed
    let drawn = "";

    /** @type {(text: string, role: string) => HTMLElement} */
    function headCell(text, role) {
        const spoken = onedit ? { "aria-hidden": "true" } : { role: role === "corner" ? "gridcell" : role };
        return html("div", { class: "head", ...spoken }, text);
    }

    /** @type {() => DrawnCell} */
    function newCell() {
        // Not an input: each brings a scroller of its own, and a thousand of them in sight cost 60 ms a frame.
        const kind = onedit ? { role: "textbox", contenteditable: "plaintext-only", spellcheck: "false" }
            : { role: "gridcell" };
        const cell = html("div", { class: "cell", tabindex: -1, ...kind }, document.createTextNode(""));
        return { element: cell, shown: undefined, state: "", length: 0 };
    }

    /**
     * As many rows and cells as wanted, and their places; what is there stays.
     * @type {(wanted: SheetShape) => void}
     */
    function shape(wanted) {
        const key = JSON.stringify(wanted);
        if (key === shaped) return;
        shaped = key;
        starts = wanted;
        const { rowStarts, columnStarts, rows, columns } = wanted;
        while (lines.length > rowStarts.length) lines.pop().element.remove();
        while (lines.length < rowStarts.length) {
            const headed = headCell("", "rowheader");
            const row = html("div", { class: "row", role: onedit ? false : "row" }, headed);
            lines.push({ element: row, head: headed, cells: [] });
            grid.append(row);
        }
        while (head.children.length > columnStarts.length + 1) head.lastChild.remove();
        while (head.children.length < columnStarts.length + 1) head.append(headCell("", "columnheader"));
        columnStarts.forEach((start, j) => {
            const stop = columnStarts[j + 1] ?? columns;
            putText(head.children[j + 1], [...new Set([start, stop - 1])].map(columnName).join("–"));
            setVariable(/** @type {HTMLElement} */ (head.children[j + 1]), "--wide", stop - start);
        });
        lines.forEach((line, i) => {
            const start = rowStarts[i];
            const stop = rowStarts[i + 1] ?? rows;
            setVariable(line.element, "--high", stop - start);
            putText(line.head, rowNames ? SYMBOLS[rowNames[i]] : rangeOf(start, stop - 1));
            while (line.cells.length > columnStarts.length) line.cells.pop().element.remove();
            /** @type {HTMLElement[]} */
            const added = [];
            while (line.cells.length < columnStarts.length) {
                line.cells.push(newCell());
                added.push(line.cells.at(-1).element);
            }
            line.element.append(...added);
            line.cells.forEach((cell, j) => {
                place(cell, start, columnStarts[j], (columnStarts[j + 1] ?? columns) - columnStarts[j]);
            });
        });
        setVariable(plane, "--rows", rows);
        setVariable(plane, "--columns", columns);
        plane.classList.toggle("many", rows > 9);
        plane.classList.toggle("tall", rows > 20);
        keepCurrent();
    }

    /** @type {(cell: DrawnCell, row: number, column: number, wide: number) => void} */
    function place(cell, row, column, wide) {
        if (cell.row === row && cell.column === column && cell.wide === wide) return;
        Object.assign(cell, { row, column, wide });
        cell.element.dataset.row = String(row);
        cell.element.dataset.column = String(column);
        setVariable(cell.element, "--wide", wide);
            const name = rowNames ? rowNames[row] : `row ${row + 1}`;
        if (onedit) cell.element.setAttribute("aria-label", `${label}, ${name}, column ${column + 1}`);
    }

    /**
     * `read(row, column)` is { value, state }: a text, a number or null, and "", "missing" or "wrong".
     * With `largest`, each number is a bar too, from the middle of its cell, on the scale of this largest number.
     * @type {(read: (row: number, column: number) => CellContent, largest?: number | null) => void}
     */
    function write(read, largest = null) {
        let longest = 0;
        for (const line of lines) {
            for (const cell of line.cells) {
                const { value, state } = read(cell.row, cell.column);
                if (onedit || !Object.is(cell.shown, value)) show(cell, value);
                if (cell.state !== state) mark(cell, state);
                if (largest !== null) drawBar(cell, largest);
                longest = Math.max(longest, cell.length / cell.wide);
            }
        }
        const wanted = Math.min(Math.max(Math.ceil(longest), NARROWEST), WIDEST);
        if (wanted !== width) setVariable(plane, "--letters", (width = wanted));
    }

    /** @type {(cell: DrawnCell, value: any) => void} */
    function show(cell, value) {
        cell.shown = value;
        const text = onedit ? value : value === null ? "–" : formatNumber(value);
        cell.length = text.length;
        if (!onedit) cell.element.firstChild.nodeValue = text;
        else if (typedIn(cell.element) !== text) cell.element.textContent = text; // where it was typed, the caret stays
        if (onedit) cell.element.classList.toggle("long", text.length > WIDEST);
    }

    /** @type {(cell: DrawnCell, largest: number) => void} */
    function drawBar(cell, largest) {
        const value = cell.state === "" && largest > 0 ? readNumber(String(cell.shown)) / largest : 0;
        const bar = Number.isFinite(value) ? Math.round(value * 1000) / 1000 : 0;
        if (bar === cell.bar) return;
        cell.bar = bar;
        cell.element.classList.toggle("plus", bar >= 0);
        cell.element.classList.toggle("minus", bar < 0);
        setVariable(cell.element, "--bar", bar);
    }

    /** @type {(cell: DrawnCell, state: string) => void} */
    function mark(cell, state) {
        cell.state = state;
        cell.element.classList.toggle("pad", state !== "");
        cell.element.classList.toggle("wrong", state === "wrong");
        if (onedit) cell.element.setAttribute("aria-invalid", String(state === "wrong"));
    }

    /**
     * Lines where one box ends and the next begins, and their names at the edges.
     * @type {(wanted: BoxLines) => void}
     */
    function drawBoxes(wanted) {
        const key = `${shaped} ${JSON.stringify(wanted)}`;
        if (key === drawn) return;
        drawn = key;
        const { rowStarts, columnStarts, beside = null, above = null } = wanted;
        const { rows, columns } = starts;
        /** @type {(text: string, side: string, from: number, to: number) => HTMLElement} */
        const name = (text, side, from, to) => placeInSheet(html("div", { class: `name ${side}` }, text), from, to);
        boxes.replaceChildren(
            placeInSheet(html("div", { class: "frame" }), 0, 0),
            ...rowStarts.slice(1).map((start) => placeInSheet(html("div", { class: "across" }), start, 0)),
            ...columnStarts.slice(1).map((start) => placeInSheet(html("div", { class: "down" }), 0, start)),
            ...(beside ?? []).map((text, i) => {
                const one = name(text, "beside", rowStarts[i], 0);
                setVariable(one, "--high", (rowStarts[i + 1] ?? rows) - rowStarts[i]);
                return one;
            }),
            ...(above ?? []).map((text, j) => {
                const one = name(text, "above", 0, columnStarts[j]);
                setVariable(one, "--wide", (columnStarts[j + 1] ?? columns) - columnStarts[j]);
                return one;
            }),
        );
        plane.classList.toggle("named-rows", beside !== null);
        plane.classList.toggle("named-columns", above !== null);
    }

    /**
     * Light up a box { row, column, high, wide }, and in it one cell; null puts it out.
     * @type {(lit: Area | null, at: Place | null) => void}
     */
    function lightUp(lit, at) {
        spot.hidden = at === null;
        for (const one of [light, ring]) { // the tint lies under the numbers, the line around it above
            one.hidden = lit === null;
            if (!lit) continue;
            placeInSheet(one, lit.row, lit.column);
            setVariable(one, "--high", lit.high);
            setVariable(one, "--wide", lit.wide);
        }
        if (at) placeInSheet(spot, at.row, at.column);
    }

    /** @type {(row: number, column: number) => HTMLElement | null} */
    function find(row, column) {
        const i = starts.rowStarts.findLastIndex((start) => start <= row);
        const j = starts.columnStarts.findLastIndex((start) => start <= column);
        return lines[i]?.cells[j]?.element ?? null;
    }

    /**
     * Tab comes to this cell.
     * @type {(row: number, column: number) => void}
     */
    function choose(row, column) {
        const cell = find(row, column);
        if (cell === current) return;
        if (current) current.tabIndex = -1;
        current = cell;
        if (cell) cell.tabIndex = 0;
    }

    function keepCurrent() {
        if (current?.isConnected) return;
        current = null;
        choose(0, 0);
    }

    /** @type {(row: number, column: number) => void} */
    function focus(row, column) {
        const cell = find(row, column);
        cell?.focus();
        if (cell && onedit) getSelection().selectAllChildren(cell);
    }

    function cellWidth() {
        return (plane.offsetWidth - headWidth()) / Math.max(starts.columns, 1);
    }

    function headWidth() {
        return lines[0]?.head.offsetWidth ?? 0;
    }

    /**
     * How far the box must be scrolled to show this column: as it is, if it shows it already.
     * @type {(column: number) => number}
     */
    function offsetOf(column) {
        const wide = cellWidth();
        const room = box.clientWidth - headWidth();
        return Math.min(Math.max(box.scrollLeft, (column + 1) * wide - room), column * wide);
    }

    /** @type {(target: EventTarget) => SheetCell | null} */
    const placeOf = (target) => {
        const cell = /** @type {Element} */ (target).closest?.(".cell");
        return cell instanceof HTMLElement && grid.contains(cell)
            ? { sheet, row: Number(cell.dataset.row), column: Number(cell.dataset.column) } : null;
    };

    /** @type {EventTarget | null} */
    let under = null;
    grid.addEventListener("pointermove", ({ target }) => { // not pointerover: a page that scrolls is no pointing
        if (target !== under) onpoint(placeOf(target));
        under = target;
    });
    grid.addEventListener("pointerleave", () => {
        under = null;
        onpoint(null);
    });
    let pressed = false;
    /** @type {HTMLElement | null} */
    let fresh = null; // who comes to a cell replaces it by typing; a second click puts the caret
    grid.addEventListener("pointerdown", () => (pressed = true));
    grid.addEventListener("click", () => {
        if (fresh && getSelection().isCollapsed) getSelection().selectAllChildren(fresh);
        fresh = null;
    });
    grid.addEventListener("focusin", ({ target }) => {
        const at = placeOf(target);
        if (!at || !(target instanceof HTMLElement)) return;
        choose(at.row, at.column);
        if (onedit && !pressed) getSelection().selectAllChildren(target);
        fresh = onedit && pressed ? target : null;
        pressed = false;
        onfocus(at);
    });
    grid.addEventListener("keydown", (event) => {
        const at = placeOf(event.target);
        if (!at) return;
        const goal = walkSheet(event, at, starts, onedit !== null);
        if (goal) focus(goal.row, goal.column);
        if (goal || onkey(event, at)) event.preventDefault();
    });
    if (onedit) {
        grid.addEventListener("input", ({ target }) => {
            const at = placeOf(target);
            onedit(at.row, at.column, typedIn(/** @type {Element} */ (target)));
        });
    }

    return {
        element, grid, box, shape, write, drawBoxes, focus,
        light: lightUp,
        setCaption: (words) => title.replaceChildren(...words),
        tall: () => rowNames === null,
        cellWidth,
        offsetOf,
    };
}

/**
 * Where a key leads, or null. In a text the arrows first move the caret, unless all of its text is selected.
 * @type {(event: KeyboardEvent, at: Place, shape: SheetShape, typed: boolean) => Place | null}
 */
function walkSheet(event, { row, column }, { rowStarts, columnStarts }, typed) {
    const { key, shiftKey, target } = event;
    if (event.altKey || event.metaKey || (event.ctrlKey && key !== "Home" && key !== "End")) return null;
    const i = rowStarts.indexOf(row);
    const j = columnStarts.indexOf(column);
    const [lastRow, lastColumn] = [rowStarts.length - 1, columnStarts.length - 1];
    /** @type {(down: number, right: number) => Place} */
    const to = (down, right) => ({
        row: rowStarts[Math.min(Math.max(down, 0), lastRow)],
        column: columnStarts[Math.min(Math.max(right, 0), lastColumn)],
    });
    if (key === "ArrowUp") return to(i - 1, j);
    if (key === "ArrowDown") return to(i + 1, j);
    if (key === "Enter") return to(i + (shiftKey ? -1 : 1), j);
    if (key === "PageUp") return to(i - 10, j);
    if (key === "PageDown") return to(i + 10, j);
    if (key === "Home" && event.ctrlKey) return to(0, 0);
    if (key === "End" && event.ctrlKey) return to(lastRow, lastColumn);
    if (typed && key === "Tab") return walkByTab(i, j, shiftKey, to, lastRow, lastColumn);
    if (typed && (shiftKey || !caretAtEdge(/** @type {Element} */ (target), key))) return null;
    if (key === "ArrowLeft") return to(i, j - 1);
    if (key === "ArrowRight") return to(i, j + 1);
    if (!typed && key === "Home") return to(i, 0);
    if (!typed && key === "End") return to(i, lastColumn);
    return null;
}

/**
 * Cell by cell, row by row; from the ends, Tab leaves the sheet.
 * @type {(i: number, j: number, back: boolean, to: (down: number, right: number) => Place, lastRow: number,
 *     lastColumn: number) => Place | null}
 */
function walkByTab(i, j, back, to, lastRow, lastColumn) {
    if (back) return j > 0 ? to(i, j - 1) : i > 0 ? to(i - 1, lastColumn) : null;
    return j < lastColumn ? to(i, j + 1) : i < lastRow ? to(i + 1, 0) : null;
}

/** @type {(cell: Element, key: string) => boolean} */
function caretAtEdge(cell, key) {
    const selection = getSelection();
    if (selection.rangeCount === 0) return true;
    const chosen = selection.getRangeAt(0);
    const before = new Range();
    before.selectNodeContents(cell);
    before.setEnd(chosen.startContainer, chosen.startOffset);
    const start = before.toString().length;
    const end = start + chosen.toString().length;
    const { length } = typedIn(cell);
    if (start === 0 && end === length) return true;
    return key === "ArrowLeft" ? end === 0 : start === length;
}

/**
 * What was typed into a cell, on one line.
 * @type {(cell: Element) => string}
 */
function typedIn(cell) {
    return cell.textContent.replace(/[\n\r]+/g, " ").replaceAll("\u00a0", " ");
}

/** @type {(element: HTMLElement, row: number, column: number) => HTMLElement} */
function placeInSheet(element, row, column) {
    setVariable(element, "--row", row);
    setVariable(element, "--column", column);
    return element;
}
