/*
Tables of numbers that are updated in place: a new number changes one text, not the table, so that 64 x 64 stay quick.

    const table = valueTable({ onchoose: (row, column) => ... });        // numbers to read; a click chooses
    const table = choiceTable({ onchoose });                             // the same, and arrow keys choose
    const table = entryTable({ label: "dy", onchoose, onentry: (row, column, texts) => ... });   // numbers to type
    table.update({ caption, rowNames, columnNames, texts, classes: (i, j) => "pad", editable });

`onentry` is given rows of texts: one text where somebody types, more where a block from a spreadsheet is pasted.
*/
import { parseBlock } from "#lib/blocks.js";
import { html, putText, refuse, scrollBox, setVariable } from "#lib/elements.js";
import { MOST_LETTERS, attempt } from "#lib/limits.js";

const MOST_INPUTS = 400;
/** @type {Record<string, Point>} */
const CELL_ARROWS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1], Enter: [1, 0] };

/** @type {(options: { onchoose: OnChoose }) => View<TableUpdate>} */
export function valueTable({ onchoose }) {
    return updatedTable({ makeCell: () => html("td"), show: putText, onchoose });
}

/** @type {(options: { onchoose: OnChoose }) => View<TableUpdate>} */
export function choiceTable({ onchoose }) {
    const { element, update, cellByKey } = updatedTable({
        role: "grid",
        makeCell: () => html("td", { role: "gridcell", tabindex: "-1" }),
        show: (cell, text, { chosen }) => {
            putText(cell, text);
            cell.setAttribute("aria-selected", String(chosen));
            cell.tabIndex = chosen ? 0 : -1;
        },
        onchoose,
    });
    element.addEventListener("keydown", (event) => {
        const goal = cellByKey(event);
        if (!goal) return;
        event.preventDefault();
        onchoose(...goal.place);
        goal.cell.focus();
    });
    return { element, update };
}

/**
 * Every cell is an input, in large tables only the chosen one: thousands of them take a second to draw.
 * @type {(options: { label: string; onchoose: OnChoose; onentry: (row: number, column: number, texts: string[][]) =>
 *     void }) => View<TableUpdate>}
 */
export function entryTable({ label, onchoose, onentry }) {
    /** @type {WeakMap<HTMLElement, Point>} */
    const places = new WeakMap();
    let isLarge = false;
    let wantsFocus = false; // an arrow key led to a cell that has no input yet

    /** @type {(place: Point) => HTMLInputElement} */
    const newInput = ([i, j]) => html("input", {
        type: "text", inputmode: "text", autocomplete: "off", spellcheck: "false",
        "aria-label": `${label}, row ${i + 1}, column ${j + 1}`,
        maxlength: MOST_LETTERS,
        oninput: ({ target }) => attempt(() => onentry(i, j, [[target.value]]), refuse),
        onfocus: () => onchoose(i, j),
        onpaste: (event) => {
            if (event.target.readOnly) return;
            const isDone = attempt(() => {
                const block = parseBlock(event.clipboardData.getData("text/plain"));
                if (block.flat().length < 2) return; // one number goes where the caret is, as everywhere
                event.preventDefault();
                onentry(i, j, block);
            }, refuse);
            if (!isDone) event.preventDefault();
        },
    });
    const { element, update, cellByKey } = updatedTable({
        makeCell: (i, j) => {
            const cell = html("td");
            places.set(cell, [i, j]);
            return cell;
        },
        show: (cell, text, { chosen, editable, bad }) => {
            if (isLarge && !chosen) {
                cell.classList.toggle("wrong", bad);
                cell.textContent = text; // also where an input was
                return;
            }
            const input = cell.querySelector("input") ?? newInput(places.get(cell));
            if (!input.isConnected) cell.replaceChildren(input);
            if (input.value !== text) input.value = text;
            input.readOnly = !editable;
            if (bad) input.setAttribute("aria-invalid", "true");
            else input.removeAttribute("aria-invalid");
            if (chosen && wantsFocus) enter(input);
        },
        onchoose,
    });
    /** @type {(input: HTMLInputElement) => void} */
    function enter(input) {
        wantsFocus = false;
        input.focus();
        input.select();
    }
    element.addEventListener("click", (event) => {
        if (isLarge && !(event.target instanceof HTMLInputElement)) wantsFocus = true;
    }, { capture: true });
    element.addEventListener("keydown", (event) => {
        if (!(event.target instanceof HTMLInputElement)) return;
        const { selectionStart, selectionEnd, value } = event.target;
        // Left and right leave a cell only at the end of its text.
        if (event.key === "ArrowLeft" && !(selectionStart === 0 && selectionEnd === 0)) return;
        if (event.key === "ArrowRight" && selectionStart !== value.length) return;
        const goal = cellByKey(event);
        if (!goal) return;
        event.preventDefault();
        const input = goal.cell.querySelector("input");
        wantsFocus = input === null;
        if (input) enter(input);
        else onchoose(...goal.place);
    });
    return {
        element,
        update: (shown) => {
            const large = shown.texts.length * (shown.texts[0]?.length ?? 0) > MOST_INPUTS;
            isLarge = large;
            update(shown);
            wantsFocus = false;
        },
    };
}

/**
 * @type {(options: UpdatedTable) => View<TableUpdate> & { cellByKey(event: KeyboardEvent): { place: Point; cell:
 *     HTMLElement } | null }}
 */
function updatedTable({ role = null, makeCell, show, onchoose }) {
    const [caption, head, body] = [html("caption"), html("thead"), html("tbody")];
    const table = html("table", { class: "numbers", role }, caption, head, body);
    const element = scrollBox("", table);
    /** @type {WeakMap<HTMLElement, string>} */
    const drawn = new WeakMap();
    /** @type {HTMLElement[][]} */
    let cells = [];
    /** @type {string | null} */
    let built = null;
    /** @type {HTMLElement | null} */
    let revealed = null;

    body.addEventListener("click", (event) => {
        const place = placeOf(/** @type {Element} */ (event.target).closest("td"));
        if (place) onchoose(...place);
    });

    /** @type {(rowNames: string[], columnNames: string[]) => void} */
    function build(rowNames, columnNames) {
        cells = rowNames.map((_, i) => columnNames.map((_, j) => makeCell(i, j)));
        const corner = html("th", { scope: "col" }, html("span", { class: "unseen" }, "row"));
        head.replaceChildren(html("tr", {}, corner, columnNames.map((name) => html("th", { scope: "col" }, name))));
        body.replaceChildren(...rowNames.map((name, i) =>
            html("tr", {}, html("th", { scope: "row" }, name), cells[i])));
    }

    /** @type {(shown: TableUpdate) => void} */
    function update({ caption: words, rowNames, columnNames, texts, classes, chosen = () => false, bad = () => false,
        editable = false }) {
        const names = JSON.stringify([rowNames, columnNames]);
        if (names !== built) build(rowNames, columnNames);
        table.classList.toggle("many", rowNames.length * columnNames.length > MOST_INPUTS);
        setVariable(table, "--columns", columnNames.length);
        built = names;
        putText(caption, words);
        /** @type {HTMLElement | null} */
        let goal = null;
        element.setAttribute("aria-label", words);
        cells.forEach((row, i) => row.forEach((cell, j) => {
            const isChosen = chosen(i, j);
            const isBad = bad(i, j);
            const name = `${classes(i, j)}${isChosen ? " chosen" : ""}`.trim();
            if (isChosen) goal = cell;
            const news = `${name} ${isBad} ${editable} ${texts[i][j]}`;
            if (drawn.get(cell) === news) return; // an attribute that is set costs, even if it is the same
            drawn.set(cell, news);
            if (cell.className !== name) cell.className = name;
            show(cell, texts[i][j], { chosen: isChosen, bad: isBad, editable });
        }));
        if (goal && goal !== revealed) reveal(element, goal);
        revealed = goal;
    }

    /** @type {(cell: HTMLElement) => Point | null} */
    function placeOf(cell) {
        const i = cells.findIndex((row) => row.includes(cell));
        return i < 0 ? null : [i, cells[i].indexOf(cell)];
    }

    /**
     * The cell that a key leads to from the one that has the focus: { place, cell }, or null.
     * @type {(event: KeyboardEvent) => { place: Point; cell: HTMLElement } | null}
     */
    function cellByKey(event) {
        const way = CELL_ARROWS[event.key];
        const from = placeOf(/** @type {Element} */ (event.target).closest("td"));
        if (!way || !from || event.ctrlKey || event.metaKey || event.altKey) return null;
        /** @type {Point} */
        const place = [from[0] + way[0], from[1] + way[1]];
        const cell = cells[place[0]]?.[place[1]];
        return cell ? { place, cell } : null;
    }
    return { element, update, cellByKey };
}

/**
 * Scrolls the box, and never the page, as far as it takes to see the cell beside the names of rows and columns.
 * @type {(box: Element, cell: Element) => void}
 */
function reveal(box, cell) {
    const [outer, inner] = [box.getBoundingClientRect(), cell.getBoundingClientRect()];
    const [width, height] = [inner.width, inner.height];
    if (inner.right > outer.right) box.scrollLeft += inner.right - outer.right + width;
    if (inner.left - width < outer.left) box.scrollLeft += inner.left - 2 * width - outer.left;
    if (inner.bottom > outer.bottom) box.scrollTop += inner.bottom - outer.bottom + height;
    if (inner.top - height < outer.top) box.scrollTop += inner.top - 2 * height - outer.top;
}
