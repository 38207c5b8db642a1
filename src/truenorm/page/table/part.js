/*
The part "table": one table of numbers, and which of its cells share a mean.

Five sheets show x, mean, var, xhat and y. They measure in the same cells (tablegrid.js), so the box that lights up is
the same in all of them. What is pointed at is `hovered`, as long as the mouse is there, and else the cell of the state,
which follows the focus. Edits go through tableactions.js, which can take them back; `update` shows what is.
*/
import { NORMS, forward } from "#maths/normalization.js";
import { codesFor } from "#lib/code.js";
import { chooser, setInactive, uniqueId } from "#lib/controls.js";
import { copyButtons } from "#lib/copy.js";
import { html, putText } from "#lib/elements.js";
import { formula, formulaLine } from "#lib/formula.js";
import { readNumber } from "#lib/numbers.js";
import { PROBLEM, divisorChooser, fitCell, readProblem } from "#lib/problem.js";
import { questions } from "#lib/question.js";
import { PARAMETERS, PARAMETER_NAMES, createActions } from "#table/actions.js";
import { createBeside } from "#table/beside.js";
import { boxAround, boxesOf, groupNames, indicesUpTo, sampleNames } from "#table/boxes.js";
import { axesLegend, epsSlider, sheetButton, sheetStepper, sheetToolbar, wholeTable } from "#table/controls.js";
import {
    countOf, describeCell, describeEmptyCells, describeNoSpread, describeParameters, describeProblems, generalFormula,
} from "#table/formulas.js";
import { createSheet } from "#table/grid.js";
import { tableQuestions } from "#table/questions.js";
import { createStrips } from "#table/strips.js";

const SHEETS = ["x", "mean", "var", "xhat", "y"];
const MOST_BARS = 300; // cells that get a bar: in larger tables they cost more than they show
const MERGED = ["mean", "var"]; // one cell for each box, the others have all the cells of x

/**
 * A cell of a sheet, in the address: xhat,0,2.
 * @type {Codec<SheetCell>}
 */
const cellCodec = {
    encode: ({ sheet, row, column }) => `${sheet},${row},${column}`,
    decode: (text) => {
        const [, sheet, row, column] = text.match(/^([a-z]+),(\d{1,4}),(\d{1,4})$/);
        if (!SHEETS.includes(sheet)) throw new RangeError(`table: one of ${SHEETS}, got ${sheet}.`);
        return { sheet, row: Number(row), column: Number(column) };
    },
};

/** @type {(state: State) => void} */
export function defineTable(state) {
    state.field("table.cell", cellCodec, { sheet: "xhat", row: 0, column: 0 });
    fitCell(state, "table.cell", () => {
        const { row, column } = state.get("table.cell");
        return [row + 1, column + 1];
    });
}

/** @type {(root: HTMLElement, state: State) => void} */
export function mountTable(root, state) {
    defineTable(state);
    /** @type {Problem} */
    let problem = null; // these three are of one moment
    /** @type {ForwardResult} */
    let out = null;
    /** @type {Boxes} */
    let boxes = null;
    /** @type {SheetCell | null} */
    let hovered = null;
    let said = ""; // about problems
    let wantsFocus = false; // the chosen cell of x gets the focus once it is there

    const actions = createActions(state, {
        see: () => ({ problem, out, at: selected() }), select,
        rewrite: () => isEmpty() || writeSheets(),
    });

    // ---- the sheets ----
    /** @type {Pick<SheetOptions, "onpoint" | "onfocus" | "onkey">} */
    const listeners = { onpoint: point, onfocus: select, onkey: useKey };
    /** @type {Record<string, Sheet>} */
    const sheets = {
        x: createSheet({
            sheet: "x", caption: captionOf("x", "your numbers"), label: "x", ...listeners,
            onedit: actions.setCell, onkey: (event, at) => useKey(event) || editByKey(event, at),
        }),
        mean: createSheet({ sheet: "mean", caption: captionOf("μ", "mean"), label: "mean", ...listeners }),
        var: createSheet({ sheet: "var", caption: [], label: "variance", ...listeners }),
        xhat: createSheet({
            sheet: "xhat", caption: captionOf(formula("xhat"), "normalised"), label: "normalised", ...listeners,
        }),
        y: createSheet({ sheet: "y", caption: captionOf("y", "the output"), label: "output", ...listeners }),
    };
    /** @type {(at: SheetCell | null) => SheetCell | null} */
    const outputOf = (at) => at && { sheet: "y", row: pointed().row, column: at.column };
    const parameters = createSheet({
        sheet: "parameters", label: "Parameters", rowNames: PARAMETER_NAMES, ...listeners,
        caption: html("small", {}, html("b", {}, "γ"), " (weight in PyTorch), ", html("b", {}, "β"), " (bias)"),
        onpoint: (at) => point(outputOf(at)), onfocus: (at) => select(outputOf(at)),
        onedit: (row, column, text) => actions.setParameter(PARAMETER_NAMES[row], column, text),
    });
    connectScrolling([...Object.values(sheets), parameters], selected);
    sheets.x.grid.addEventListener("paste", actions.paste);

    // ---- what stands around them ----
    const rowsAre = html("span");
    const axes = html("div", { class: "axes" });
    const samples = sheetStepper("Samples", (value) => actions.change({ samples: value }));
    const groups = sheetStepper("Groups", (value) => actions.change({ groups: value }));
    const counts = html("div", { class: "controls counts" }, samples.element, groups.element);
    const explained = html("div", { class: "explained", role: "group", "aria-label": "The formula, with numbers" });
    const spoken = html("p", { class: "unseen", id: uniqueId() }); // the same, for aria-describedby
    const toolbar = sheetToolbar(actions);
    const problems = html("div", { class: "problems", role: "status" });
    const before = sheetButton("what was there before", () => actions.travel("undo"));
    const empty = emptyTable(before, actions);
    empty.addEventListener("click", () => (wantsFocus = true), { capture: true });
    const work = html(
        "div", { class: "work" }, explained, spoken,
        html(
            "div", { class: "columns sheets" },
            html("div", { class: "stack" }, sheets.x.element, toolbar.element), sheets.mean.element, sheets.var.element,
            html("div", { class: "stack" }, sheets.xhat.element, parameters.element), sheets.y.element,
        ),
    );
    const general = html("div");
    const epsAt = chooser(state, "eps_at", "Put ε", { var: "under the root", std: "outside of it" });
    const identity = sheetButton("γ = σ, β = μ", actions.undoNormalization);
    const plain = sheetButton("γ = 1, β = 0", actions.clearParameters);
    const recovered = html("p", { class: "note", role: "status" });
    const beside = createBeside({
        onpoint: (at) => point(at && { sheet: "xhat", ...at }), onchoose: (at) => select({ sheet: "xhat", ...at }),
    });
    const strips = createStrips({ onparameter: actions.setParameter });
    const below = html(
        "div", {},
        html(
            "div", { class: "pair" },
            html("div", {}, html("h3", {}, "Batch norm and layer norm side by side"), beside.element),
            html("div", {}, html("h3", {}, "The formula"), general,
                html("div", { class: "controls" }, epsSlider(state), divisorChooser(state), epsAt)),
        ),
        html("h3", {}, "γ and β"),
        html("p", {}, "A network may not want its numbers around 0. So each column has a γ that stretches them and a "
            + "β that moves them; it learns both. They can even undo the normalization: try it."),
        html("div", { class: "controls" }, identity, plain), recovered, strips.element,
        copyButtons(codesFor(() => readProblem(state))),
    );
    /** @type {Record<string, string>} */
    const titles = Object.fromEntries(Object.entries(NORMS).map(([name, { title }]) => [name, title]));
    root.append(html(
        "div", { class: "table-part" },
        html("h2", { class: "unseen" }, "One table"),
        html(
            "p", { class: "intro" }, rowsAre, " ", html("b", {}, "Point at a cell"),
            ": the box around it holds the cells that share its μ and σ². Change a number: which others follow?",
        ),
        html("div", { class: "controls top" }, chooser(state, "norm", "Norm", titles), counts), axes,
        empty, work, problems, below, wholeTable(state, actions),
        questions(state, PROBLEM, () => tableQuestions(readProblem(state))),
    ));
    root.addEventListener("paste", (event) => {
        if (isEmpty() && !(event.target instanceof HTMLTextAreaElement)) actions.paste(event);
    });

    // ---- which cell ----
    function isEmpty() {
        return problem.rows === 0 || problem.columns === 0;
    }

    /**
     * The cell of the state, inside of the table as it is now: a row that it was in may be gone.
     * @type {() => SheetCell | null}
     */
    function selected() {
        return inside(state.get("table.cell"));
    }

    /** @type {() => SheetCell | null} */
    function pointed() {
        return inside(hovered ?? state.get("table.cell"));
    }

    /** @type {(at: SheetCell) => SheetCell | null} */
    function inside({ sheet, row, column }) {
        if (isEmpty()) return null;
        return { sheet, row: Math.min(row, problem.rows - 1), column: Math.min(column, problem.columns - 1) };
    }

    /** @type {(at: SheetCell | null) => void} */
    function point(at) {
        hovered = at;
        light();
    }

    /** @type {(at: SheetCell) => void} */
    function select(at) {
        hovered = null;
        if (cellCodec.encode(at) === cellCodec.encode(state.get("table.cell"))) light();
        else state.set({ "table.cell": at });
    }

    // ---- keys ----
    /** @type {(event: KeyboardEvent) => boolean} */
    function useKey(event) {
        const { key } = event;
        if ((event.ctrlKey || event.metaKey) && !event.altKey && /^[zy]$/i.test(key)) {
            actions.travel(key.toLowerCase() === "y" || event.shiftKey ? "redo" : "undo");
            return true;
        }
        if (key === "Escape") leaveSheet(/** @type {Element} */ (event.currentTarget), root);
        return key === "Escape";
    }

    /**
     * Alt with the key that bears R or C, whatever it types together with Alt.
     * @type {(event: KeyboardEvent, at: SheetCell) => boolean}
     */
    function editByKey(event, at) {
        const what = event.code === "KeyR" ? "row" : event.code === "KeyC" ? "column" : null;
        if (!event.altKey || event.ctrlKey || event.metaKey || !what) return false;
        select(at);
        (event.shiftKey ? actions.remove : actions.insert)(what);
        wantsFocus = true;
        return true;
    }

    // ---- what is shown ----
    function update() {
        const isFirst = problem === null;
        problem = readProblem(state);
        out = forward(problem.x, problem.norm, problem);
        boxes = boxesOf(out.partition, problem);
        work.hidden = below.hidden = isEmpty();
        empty.hidden = !isEmpty();
        setInactive(before, !actions.canUndo());
        if (!isEmpty()) {
            shapeSheets();
            writeSheets();
            strips.update(problem, out);
            showIdentity();
        }
        showChoices();
        showProblems();
        light();
        if (!isFirst) placeFocus();
    }

    function shapeSheets() {
        const { rows, columns, norm } = problem;
        const each = { rowStarts: indicesUpTo(rows), columnStarts: indicesUpTo(columns), rows, columns };
        const bySample = norm.name === "instance" || norm.name === "group";
        for (const [name, sheet] of Object.entries(sheets)) {
            sheet.shape(MERGED.includes(name) ? { ...boxes, rows, columns } : each);
            sheet.drawBoxes({
                ...boxes,
                beside: name === "x" && bySample ? sampleNames(boxes, rows) : null,
                above: norm.name !== "group" ? null : name === "x" ? groupNames(boxes, columns) : [], // [] keeps room
            });
        }
        parameters.shape({ ...each, rowStarts: [0, 1], rows: 2 });
        parameters.drawBoxes({ rowStarts: [0, 1], columnStarts: each.columnStarts });
        sheets.mean.element.hidden = !norm.center;
        sheets.var.setCaption(norm.center ? captionOf("σ²", "variance") : captionOf("mean of x²", ""));
    }

    function writeSheets() {
        const { cells, valid } = problem;
        const { index } = out.partition;
        const largest = cells.length * cells[0].length > MOST_BARS ? null : largestOf(problem, out);
        sheets.x.write((i, j) => {
            const text = cells[i][j];
            return { value: text, state: valid[i][j] ? "" : text.trim() === "" ? "missing" : "wrong" };
        }, largest);
        /** @type {Record<string, (i: number, j: number) => number | null>} */
        const numbers = {
            mean: (i, j) => (out.moments.count[index[i][j]] ? out.moments.mean[index[i][j]] : null),
            var: (i, j) => (out.moments.count[index[i][j]] ? out.var[index[i][j]] : null),
            xhat: (i, j) => (valid[i][j] ? out.xhat[i][j] : null),
            y: (i, j) => (valid[i][j] ? out.y[i][j] : null),
        };
        for (const [name, read] of Object.entries(numbers)) {
            sheets[name].write((i, j) => {
                const value = read(i, j);
                return { value, state: value === null ? "missing" : "" };
            }, name === "var" ? null : largest);
        }
        parameters.write((i, j) => {
            const name = PARAMETER_NAMES[i];
            const text = state.get(name)[j] ?? PARAMETERS[name];
            return { value: text, state: Number.isNaN(readNumber(text)) ? "wrong" : "" };
        });
    }

    function light() {
        const at = pointed();
        toolbar.refresh(selected());
        if (!at) return;
        beside.update(problem, at);
        const box = boxAround(boxes, at, problem);
        for (const [name, sheet] of Object.entries(sheets)) sheet.light(box, MERGED.includes(name) ? null : at);
        parameters.light({ row: 0, column: at.column, high: 2, wide: 1 }, null);
        const { title, lines } = describeCell(out, problem.cells, at);
        explained.replaceChildren(html("p", {}, title), ...lines.map(formulaLine));
        spoken.textContent = [title, ...lines.map((line) => line.replaceAll('"', ""))].join(". ");
        describeFocused(spoken.id);
    }

    /**
     * The cell with the focus is described by its formula.
     * @type {(id: string) => void}
     */
    function describeFocused(id) {
        const cell = document.activeElement;
        if (cell?.matches(".cell") && root.contains(cell)) cell.setAttribute("aria-describedby", id);
    }

    function showProblems() {
        const texts = PARAMETER_NAMES.map((name) => ({ name, initial: PARAMETERS[name], texts: state.get(name) }));
        const bad = [...describeProblems(problem), ...describeParameters(problem, texts)];
        const worth = isEmpty() ? [] : [describeEmptyCells(problem), describeNoSpread(out)].filter(Boolean);
        const key = JSON.stringify([bad, worth]);
        if (key === said) return; // or it would be read aloud again
        said = key;
        problems.replaceChildren(
            ...bad.map((text) => html("p", { class: "problem" }, text)),
            ...worth.map((text) => html("p", { class: "notice" }, text)),
        );
    }

    function showChoices() {
        const { norm, rows, columns, offsets } = problem;
        const bySample = norm.name === "instance" || norm.name === "group";
        putText(rowsAre, bySample ? "A sample may have several rows, as a text has words; each column is a node."
            : "Each row is an example, each column a node.");
        counts.hidden = !bySample || isEmpty();
        groups.element.hidden = norm.name !== "group";
        samples.refresh(offsets.length - 1, indicesUpTo(rows).map((i) => i + 1));
        const shares = indicesUpTo(columns).map((j) => j + 1).filter((count) => columns % count === 0);
        groups.refresh(norm.groups, shares, `${countOf(columns, "column")}: ${shares.join(" or ")} equal groups`);
        general.replaceChildren(formulaLine(generalFormula(norm)));
        axes.replaceChildren(...axesLegend(norm, boxes.rowStarts.length * boxes.columnStarts.length));
    }

    /** γ and β are one a column: they undo the norm where mean and deviation are one a column, too. */
    function showIdentity() {
        const perColumn = boxes.rowStarts.length === 1 && boxes.columnStarts.length === problem.columns;
        const isPlain = state.get("weight").length === 0 && state.get("bias").length === 0;
        setInactive(identity, !perColumn);
        setInactive(plain, isPlain);
        const words = !perColumn
            ? `Here each ${NORMS[problem.norm.name].each} has its own `
                + `${problem.norm.center ? "μ and σ" : "mean of squares"}, but γ and β belong `
                + "to a column: no choice of them brings the data back."
            : !isPlain && comesBack(problem, out)
                ? "✓ y is x again: the data came back. A network can learn to want exactly that." : "";
        putText(recovered, words);
        recovered.hidden = words === "";
    }

    /** Where a cell that had the focus is gone, the focus stays near. */
    function placeFocus() {
        const { activeElement } = document;
        const lost = activeElement === document.body || work.contains(activeElement);
        if (isEmpty() && lost) /** @type {HTMLElement} */ (empty.querySelector("button:not([aria-disabled])")).focus();
        else if (!isEmpty() && wantsFocus) sheets.x.focus(selected().row, selected().column);
        wantsFocus = false;
    }

    state.watch(PROBLEM, update);
    state.watch(["table.cell"], light);
}

/**
 * The largest of all numbers that are drawn as bars: x, μ, x̂ and y have one scale.
 * @type {(problem: Problem, out: ForwardResult) => number}
 */
function largestOf({ x, valid }, { xhat, y }) {
    const sizes = [x, xhat, y].flatMap((table) => table.flatMap((row, i) => row.filter((_, j) => valid[i][j])));
    return sizes.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/**
 * Whether y is x, to rounding.
 * @type {(problem: Problem, out: ForwardResult) => boolean}
 */
function comesBack({ x, valid }, { y }) {
    const cells = x.flatMap((row, i) => row.map((value, j) => [value, y[i][j]]).filter((_, j) => valid[i][j]));
    const size = cells.reduce((most, [value]) => Math.max(most, Math.abs(value)), 0);
    return cells.every(([value, back]) => Math.abs(back - value) <= 1e-6 * size);
}

/** @type {(before: HTMLElement, actions: TableActions) => HTMLElement} */
function emptyTable(before, { showExample, change }) {
    return html(
        "div", { class: "empty", hidden: true },
        html("p", {}, "The table is empty: there is nothing to take a mean of. Paste numbers here, or go on with"),
        html(
            "div", { class: "controls" }, before, sheetButton("the example", showExample),
            sheetButton("one cell", () => change({ x: [[""]] })),
        ),
    );
}

/** @type {(name: Child, words: string) => HTMLElement[]} */
function captionOf(name, words) {
    return [html("span", { class: "symbol" }, name), html("small", {}, words)];
}

/**
 * The sheets show the same cells, the chosen one above all: where one is scrolled to, the others follow.
 * @type {(sheets: Sheet[], chosen: () => SheetCell | null) => void}
 */
function connectScrolling(sheets, chosen) {
    /** @type {Map<Sheet, string>} */
    const led = new Map(); // where a box was led to: it does not lead the others back from there
    /** @type {(sheet: Sheet) => string} */
    const placeOf = ({ box }) => `${box.scrollLeft} ${box.scrollTop}`;
    /** @type {(from: Sheet) => void} */
    const lead = (from) => {
        if (led.get(from) === placeOf(from)) return;
        const at = chosen();
        const isSeen = at !== null && from.offsetOf(at.column) === from.box.scrollLeft;
        const column = from.box.scrollLeft / from.cellWidth();
        for (const sheet of sheets) {
            if (sheet === from || sheet.element.hidden) continue;
            sheet.box.scrollLeft = column * sheet.cellWidth();
            if (isSeen) sheet.box.scrollLeft = sheet.offsetOf(at.column); // cells differ in width from sheet to sheet
            if (from.tall() && sheet.tall()) sheet.box.scrollTop = from.box.scrollTop;
            led.set(sheet, placeOf(sheet));
        }
    };
    for (const sheet of sheets) sheet.box.addEventListener("scroll", () => lead(sheet), { passive: true });
}

/**
 * The focus goes to what comes after this element.
 * @type {(element: Element, root: HTMLElement) => void}
 */
function leaveSheet(element, root) {
    /** @type {(one: Element) => boolean} */
    const follows = (one) => element.compareDocumentPosition(one) === Node.DOCUMENT_POSITION_FOLLOWING; // not inside
    /** @type {(one: HTMLElement) => boolean} */
    const takesFocus = (one) => !one.matches(":disabled") && one.tabIndex >= 0 && one.checkVisibility();
    /** @type {NodeListOf<HTMLElement>} */
    const candidates = root.querySelectorAll("button, input, summary, [tabindex='0']");
    [...candidates].find((one) => follows(one) && takesFocus(one))?.focus();
}
