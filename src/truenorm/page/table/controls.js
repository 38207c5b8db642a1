/*
The controls of the part "table": small pieces around its sheets that know nothing of them.
*/
import { NORMS } from "#maths/normalization.js";
import { asTabbedText } from "#lib/blocks.js";
import { setInactive, slider } from "#lib/controls.js";
import { announce, html, putText } from "#lib/elements.js";
import { MOST_WRITTEN } from "#lib/limits.js";
import { axesOf } from "#table/formulas.js";

/** 0, and 1, 2 and 5 times the powers of ten. */
const EPS = [0, ...Array.from({ length: 12 }, (_, i) => [1, 2, 5].map((digit) => Number(`${digit}e${i - 10}`))).flat()];

const KEYS = [
    "Arrow keys, Enter and Tab move from cell to cell; Escape leaves the table.",
    "Alt+R and Alt+C add a row or a column; with Shift they remove one.",
    "Ctrl+Z takes the last change back, Ctrl+Y makes it again.",
];

/** @type {(text: string, run: () => void, keys?: string | null, label?: string | null) => HTMLElement} */
export function sheetButton(text, run, keys = null, label = null) {
    const title = keys?.replace("Control", "Ctrl");
    const onclick = () => button.hasAttribute("aria-disabled") || run();
    /** @type {HTMLElement} */
    const button = html(
        "button", { type: "button", onclick, "aria-keyshortcuts": keys, title, "aria-label": label }, text);
    return button;
}

/**
 * Rows and columns more and less, undo and redo. `refresh(at)` says on which row and column they act.
 * @type {(actions: TableActions) => { element: HTMLElement; refresh(at: SheetCell | null): void }}
 */
export function sheetToolbar({ insert, remove, travel, canUndo, canRedo }) {
    const undo = sheetButton("Undo", () => travel("undo"), "Control+Z");
    const redo = sheetButton("Redo", () => travel("redo"), "Control+Y");
    const lessRows = sheetButton("", () => remove("row"), "Alt+Shift+R");
    const lessColumns = sheetButton("", () => remove("column"), "Alt+Shift+C");
    const element = html(
        "div", { class: "toolbar", role: "group", "aria-label": "Change the table" },
        sheetButton("+ row", () => insert("row"), "Alt+R"), sheetButton("+ column", () => insert("column"), "Alt+C"),
        lessRows, lessColumns, undo, redo,
    );
    /** @type {(at: SheetCell | null) => void} */
    function refresh(at) {
        if (at) putText(lessRows, `− row ${at.row + 1}`);
        if (at) putText(lessColumns, `− column ${at.column + 1}`);
        setInactive(undo, !canUndo());
        setInactive(redo, !canRedo());
    }
    return { element, refresh };
}

/**
 * One more or one less of something, out of the numbers that are possible.
 * @type {(label: string, onpick: (value: number) => void) => { element: HTMLElement; refresh(now: number, possible:
 *     number[], words?: string): void }}
 */
export function sheetStepper(label, onpick) {
    const value = html("output", { "aria-live": "polite" });
    const hint = html("small", { class: "note" });
    /** @type {number[]} */
    let around = [];
    const less = sheetButton("−", () => onpick(around[0]), null, `${label}: fewer`);
    const more = sheetButton("+", () => onpick(around[1]), null, `${label}: more`);
    const element = html(
        "div", { class: "stepper", role: "group", "aria-label": label },
        html("span", {}, label), less, value, more, hint,
    );
    /** @type {(now: number, possible: number[], words?: string) => void} */
    function refresh(now, possible, words = "") {
        const place = possible.indexOf(now);
        around = [possible[place - 1], possible[place + 1]];
        putText(value, String(now));
        setInactive(less, around[0] === undefined);
        setInactive(more, around[1] === undefined);
        putText(hint, words);
    }
    return { element, refresh };
}

/**
 * eps by powers of ten, and 0.
 * @type {(state: State) => HTMLElement}
 */
export function epsSlider(state) {
    return slider(state, "eps", "ε", { stops: () => EPS });
}

/**
 * The pattern with its brackets, each axis in words, and what it comes to: so many boxes.
 * @type {(norm: Norm, boxes: number) => HTMLElement[]}
 */
export function axesLegend(norm, boxes) {
    const { pattern, each, center } = NORMS[norm.name];
    const marked = pattern.split(/(\[[^\]]*\])/).filter(Boolean)
        .map((piece) => (piece.startsWith("[") ? html("b", {}, piece) : piece));
    const axes = axesOf(norm).map(({ axis, words, averaged }) => html(
        "li", { class: averaged ? "averaged" : "kept" },
        html("code", {}, averaged ? `[${axis}]` : axis), ` ${words}: ${averaged ? "averaged over" : "kept apart"}`,
    ));
    const what = center ? "One mean μ and one variance σ²" : "No mean is subtracted. One mean of squares";
    const many = boxes === 1 ? ": one box" : boxes ? `: ${boxes} boxes` : "";
    return [
        html("code", { class: "pattern" }, marked), html("ul", {}, axes),
        html("p", {}, `${what} for each ${each}${many}.`),
    ];
}

/**
 * The table as text: to copy, to paste on a phone, to replace all of it at once.
 * @type {(state: State, actions: TableActions) => HTMLElement}
 */
export function wholeTable(state, { setTableText, showExample }) {
    const area = html("textarea", {
        class: "code", rows: 8, spellcheck: "false", maxlength: MOST_WRITTEN, "aria-label": "The whole table as text",
    });
    const fill = () => (area.value = asTabbedText(state.get("x")));
    const details = html(
        "details", { class: "whole", ontoggle: fill },
        html("summary", {}, "The whole table as text, and keys"),
        html("p", { class: "note" }, "To copy, or to replace. Each row is a line, with tabs, semicolons, commas or "
            + "spaces between its cells. A block that you paste into a cell goes there, and the table grows."),
        area,
        html(
            "div", { class: "controls" }, sheetButton("Use this table", () => setTableText(area.value)),
            sheetButton("Copy", () => copyText(area)), sheetButton("Back to the example", showExample),
        ),
        html("ul", { class: "note" }, KEYS.map((text) => html("li", {}, text))),
    );
    state.watch(["x"], () => {
        if (details.open && document.activeElement !== area) fill();
    });
    return details;
}

/** @type {(area: HTMLTextAreaElement) => Promise<void>} */
async function copyText(area) {
    area.select();
    try {
        await navigator.clipboard.writeText(area.value);
        announce("Copied.");
    } catch {
        announce("The browser does not let this page copy. The text is selected.");
    }
}
