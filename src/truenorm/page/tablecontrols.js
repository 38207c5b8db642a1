/*
The controls of the part "table": small pieces around its sheets that know nothing of them.
*/
import { uniqueId } from "./controls.js";
import { announce, formatNumber, html } from "./drawing.js";
import { NORMS } from "./maths.js";
import { asTabbedText, parseBlock } from "./tableedits.js";
import { axesOf, countOf } from "./tableformulas.js";

/** 0, and 1, 2 and 5 times the powers of ten. */
const EPS = [0, ...Array.from({ length: 12 }, (_, i) => [1, 2, 5].map((digit) => Number(`${digit}e${i - 10}`))).flat()];

const KEYS = [
    "Arrow keys, Enter and Tab move from cell to cell; Escape leaves the table.",
    "Alt+R and Alt+C add a row or a column; with Shift they remove one.",
    "Ctrl+Z takes the last change back, Ctrl+Y makes it again.",
];

export function sheetButton(text, onclick, keys = null) {
    const title = keys?.replace("Control", "Ctrl");
    return html("button", { type: "button", onclick, "aria-keyshortcuts": keys, title }, text);
}

/** Rows and columns more and less, undo and redo. `refresh(at)` says on which row and column they act. */
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
    function refresh(at) {
        lessRows.textContent = at ? `− row ${at.row + 1}` : "− row";
        lessColumns.textContent = at ? `− column ${at.column + 1}` : "− column";
        lessRows.disabled = lessColumns.disabled = at === null;
        undo.disabled = !canUndo();
        redo.disabled = !canRedo();
    }
    return { element, refresh };
}

/** One more or one less of something, out of the numbers that are possible. */
export function sheetStepper(label, onpick) {
    const value = html("output", { "aria-live": "polite" });
    const hint = html("small", { class: "note" });
    let around = [];
    const stepButton = (text, name, place) => html(
        "button", { type: "button", "aria-label": `${label}: ${name}`, onclick: () => onpick(around[place]) }, text);
    const less = stepButton("−", "fewer", 0);
    const more = stepButton("+", "more", 1);
    const element = html(
        "div", { class: "stepper", role: "group", "aria-label": label },
        html("span", {}, label), less, value, more, hint,
    );
    function refresh(now, possible, words = "") {
        const place = possible.indexOf(now);
        around = [possible[place - 1], possible[place + 1]];
        value.textContent = now;
        less.disabled = around[0] === undefined;
        more.disabled = around[1] === undefined;
        hint.textContent = words;
    }
    return { element, refresh };
}

/** eps by powers of ten, and 0. */
export function epsSlider(state) {
    const id = uniqueId();
    const range = html("input", {
        type: "range", id, min: 0, max: EPS.length - 1, step: 1,
        oninput: () => state.set({ eps: EPS[range.valueAsNumber] }),
    });
    const value = html("output", { for: id });
    state.watch(["eps"], () => {
        const eps = state.get("eps");
        range.value = EPS.findLastIndex((one) => one <= eps);
        value.textContent = formatNumber(eps);
        range.setAttribute("aria-valuetext", formatNumber(eps));
    });
    return html("div", { class: "slider" }, html("label", { for: id }, "eps"), range, value);
}

/** The pattern with its brackets, each axis in words, and what it comes to: so many boxes. */
export function axesLegend(norm, boxes) {
    const { pattern, each, center } = NORMS[norm.name];
    const marked = pattern.split(/(\[[^\]]*\])/).filter(Boolean)
        .map((piece) => (piece.startsWith("[") ? html("b", {}, piece) : piece));
    const axes = axesOf(norm).map(({ axis, words, averaged }) => html(
        "li", { class: averaged ? "averaged" : "kept" },
        html("code", {}, averaged ? `[${axis}]` : axis), ` ${words}: ${averaged ? "averaged over" : "kept apart"}`,
    ));
    const what = center ? "One mean and one variance" : "No mean is taken away. One mean of squares";
    const many = boxes === 1 ? ": one box" : boxes ? `: ${boxes} boxes` : "";
    return [
        html("code", { class: "pattern" }, marked), html("ul", {}, axes),
        html("p", {}, `${what} for each ${each}${many}.`),
    ];
}

/** The table as text: to copy, to paste on a phone, to replace all of it at once. */
export function wholeTable(state, { setTable, showExample }) {
    const area = html("textarea", {
        class: "code", rows: 8, spellcheck: "false", "aria-label": "The whole table as text",
    });
    const fill = () => (area.value = asTabbedText(state.get("x")));
    const use = () => {
        const table = parseBlock(area.value);
        setTable(table, `The table has ${countOf(table.length, "row")} now. Undo brings the old one back.`);
    };
    const details = html(
        "details", { class: "whole", ontoggle: fill },
        html("summary", {}, "The whole table as text, and keys"),
        html("p", { class: "note" }, "To copy, or to replace. Each row is a line, with tabs, semicolons, commas or "
            + "spaces between its cells. A block that you paste into a cell goes there, and the table grows."),
        area,
        html(
            "div", { class: "controls" }, sheetButton("Use this table", use),
            sheetButton("Copy", () => copyText(area)), sheetButton("Back to the example", showExample),
        ),
        html("ul", { class: "note" }, KEYS.map((text) => html("li", {}, text))),
    );
    state.watch(["x"], () => {
        if (details.open && document.activeElement !== area) fill();
    });
    return details;
}

async function copyText(area) {
    area.select();
    try {
        await navigator.clipboard.writeText(area.value);
        announce("Copied.");
    } catch {
        announce("The browser does not let this page copy. The text is selected.");
    }
}
