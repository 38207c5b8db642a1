/*
What a person can do to the table of the state, each as one step that can be taken back.

`see()` says what is there now: { problem, out, at }, with `at` the chosen cell, or null in an empty table. `select(at)`
chooses another; `rewrite()` shows the table again where a cell holds what was refused.
*/
import { parseBlock } from "#lib/blocks.js";
import { announce, refuse } from "#lib/elements.js";
import { attempt } from "#lib/limits.js";
import { EXAMPLE } from "#lib/problem.js";
import { createHistory, withBlock, withCell, withColumn, withRow, withoutColumn, withoutRow } from "#table/edits.js";
import { countOf } from "#table/formulas.js";

/**
 * What weight and bias are until they are set.
 * @type {Record<ParameterName, string>}
 */
export const PARAMETERS = { weight: "1", bias: "0" };

export const PARAMETER_NAMES = /** @type {ParameterName[]} */ (Object.keys(PARAMETERS));

/** @type {FieldName[]} */
const KEPT_FIELDS = ["x", "weight", "bias", "samples", "groups"];

/**
 * @type {(state: State, table: { see: () => TableView; select: (at: SheetCell) => void; rewrite: () => void }) =>
 *     TableActions}
 */
export function createActions(state, { see, select, rewrite }) {
    const history = createHistory();
    /** @type {() => Partial<Fields>} */
    const now = () => Object.fromEntries(KEPT_FIELDS.map((name) => [name, state.get(name)]));
    let left = now(); // as the last change left it: an address that somebody types may bring another table

    /** @type {(reason: string) => void} */
    const refuseChange = (reason) => {
        rewrite();
        refuse(`${reason} The table was left as it is.`);
    };

    /**
     * Set these fields, and keep what was; changes in a row with the same key are one step. false if it was refused.
     * @type {(values: Partial<Fields>, key?: string | null) => boolean}
     */
    function change(values, key = null) {
        const before = now();
        if (!attempt(() => state.set(values), refuseChange)) return false;
        history.record(before, key, KEPT_FIELDS.every((name) => before[name] === left[name]));
        left = now();
        return true;
    }

    /** @type {(direction: "undo" | "redo") => void} */
    function travel(direction) {
        const goal = history[direction](now());
        if (goal) state.set(goal);
        announce(goal ? (direction === "undo" ? "Undone." : "Done again.") : `There is nothing to ${direction}.`);
    }

    /** @type {(row: number, column: number, text: string) => void} */
    function setCell(row, column, text) {
        change({ x: withCell(see().problem.cells, row, column, text) }, `x ${row} ${column}`);
    }

    /** @type {(table: string[][], words: string) => boolean} */
    function setTable(table, words) {
        const isDone = change({ x: table });
        if (isDone) announce(words);
        return isDone;
    }

    /** @type {(text: string) => void} */
    function setTableText(text) {
        attempt(() => {
            const table = parseBlock(text);
            setTable(table, `The table has ${countOf(table.length, "row")} now. Undo brings the old one back.`);
        }, refuseChange);
    }

    /**
     * A row below the chosen cell, or a column behind it; the choice moves into it.
     * @type {(what: "row" | "column") => void}
     */
    function insert(what) {
        const { problem, at } = see();
        const { row, column } = at ?? { row: -1, column: -1 };
        const { cells } = problem;
        const table = what === "row" ? withRow(cells, row + 1) : withColumn(cells, column + 1);
        if (!setTable(table, `A ${what} was added.`)) return;
        if (what === "column") state.set(editParameters((texts, initial) => texts.toSpliced(column + 1, 0, initial)));
        select({
            sheet: "x", row: Math.max(what === "row" ? row + 1 : row, 0),
            column: Math.max(what === "column" ? column + 1 : column, 0),
        });
    }

    /**
     * The row or the column of the chosen cell goes, with its weight and bias.
     * @type {(what: "row" | "column") => void}
     */
    function remove(what) {
        const { problem, at } = see();
        if (!at) return;
        if (what === "row") change({ x: withoutRow(problem.cells, at.row) });
        else {
            const without = editParameters((texts) => texts.toSpliced(at.column, 1));
            change({ x: withoutColumn(problem.cells, at.column), ...without });
        }
        const name = what === "row" ? `Row ${at.row + 1}` : `Column ${at.column + 1}`;
        announce(`${name} was removed. Undo brings it back.`);
    }

    /**
     * `edit` gets one text a column. Parameters that were never set stay so.
     * @type {(edit: (texts: string[], initial: string) => string[]) => Partial<Fields>}
     */
    function editParameters(edit) {
        /** @type {(name: ParameterName) => string[]} */
        const edited = (name) => (state.get(name).length ? edit(parameterTexts(name), PARAMETERS[name]) : []);
        return { weight: edited("weight"), bias: edited("bias") };
    }

    /** @type {(name: ParameterName) => string[]} */
    function parameterTexts(name) {
        return Array.from({ length: see().problem.columns }, (_, j) => state.get(name)[j] ?? PARAMETERS[name]);
    }

    /** @type {(name: ParameterName, column: number, text: string) => void} */
    function setParameter(name, column, text) {
        change({ [name]: parameterTexts(name).with(column, text) }, `${name} ${column}`);
    }

    /** Where each column has its own statistics: the weight and bias that give x back. */
    function undoNormalization() {
        const { rstd, moments } = see().out;
        /** @type {(value: number) => string} */
        const short = (value) => String(Number(value.toPrecision(8))); // enough for the eye, and it fits its cell
        change({ weight: rstd.map((one) => short(one > 0 ? 1 / one : 0)), bias: moments.mean.map(short) });
    }

    /**
     * A block goes where the chosen cell is. One number goes where the caret is, as everywhere.
     * @type {(event: ClipboardEvent) => void}
     */
    function paste(event) {
        const { problem, at } = see();
        const isRead = attempt(() => {
            const block = parseBlock(event.clipboardData.getData("text/plain"));
            if (block.flat().length < 2) return;
            event.preventDefault();
            const { row, column } = at ?? { row: 0, column: 0 };
            const size = `${countOf(block.length, "row")} of ${countOf(block[0].length, "cell")}`;
            setTable(withBlock(problem.cells, row, column, block), `Pasted: ${size}. Undo takes them out again.`);
        }, refuseChange);
        if (!isRead) event.preventDefault();
    }

    return {
        change, travel, setCell, setTableText, insert, remove, setParameter, undoNormalization, paste,
        clearParameters: () => change({ weight: [], bias: [] }),
        showExample: () => change({ x: EXAMPLE, weight: [], bias: [] }),
        canUndo: history.canUndo, canRedo: history.canRedo,
    };
}
