/*
Where the page begins: the state is read from the address, the parts are mounted into their panels, and the tabs
and the theme are connected.

A part is one file with `export function mountName(root, state)`. `root` is its empty panel. It defines its fields, puts
its elements into root, and draws in `state.watch`; see state.js for when that runs. It never reaches outside of root.
*/
import { mountBackward } from "#backward/part.js";
import { fade, html, refuse } from "#lib/elements.js";
import { guardEntry } from "#lib/entry.js";
import { PROBLEM, defineProblem } from "#lib/problem.js";
import { choice, createState } from "#lib/state.js";
import { explain } from "#maths/explanation.js";
import { backward, backwardSums, describe, forward, measure, merge, partition } from "#maths/normalization.js";
import { mountNetwork } from "#network/part.js";
import { ABOUT, mountOverview } from "#overview/part.js";
import { mountPadding } from "#padding/part.js";
import { mountRunning } from "#running/part.js";
import { mountTable } from "#table/part.js";
import { mountTraining } from "#training/part.js";
import { mountWhy } from "#why/part.js";

/** @type {Record<string, (root: HTMLElement, state: State) => void>} */
const PARTS = {
    overview: mountOverview, why: mountWhy, table: mountTable, padding: mountPadding, backward: mountBackward,
    network: mountNetwork, running: mountRunning, training: mountTraining,
};
const THEMES = ["auto", "light", "dark"];

function start() {
    let known = location.hash;
    const state = createState({
        hash: withPart(location.hash),
        write: (fragment) => {
            if (location.hash !== known) return; // somebody has just typed it: the event comes later, and must find it
            // A part of its own is an entry of its own in the history: the browser's Back leads to the part before.
            const keep = partIn(fragment) === partIn(withPart(known));
            history[keep ? "replaceState" : "pushState"](null, "", location.href.split("#")[0] + fragment);
            known = location.hash;
        },
        fail: (error) => {
            refuse(`This part of the page failed: ${/** @type {Error} */ (error).message}`);
            reportError(error);
        },
    });
    state.field("part", choice(...Object.keys(PARTS)), "overview");
    state.field("theme", choice(...THEMES), "auto");
    defineProblem(state);
    for (const [name, mount] of Object.entries(PARTS)) mountSafely(name, mount, state.part(name));
    connectTabs(state);
    connectStory(state);
    connectTheme(state);
    connectLeaving(state);
    guardEntry(document, refuse);

    const complain = () => {
        const notice = document.getElementById("notice");
        notice.textContent = state.complaints();
        notice.hidden = notice.textContent === "";
    };
    complain();
    addEventListener("hashchange", () => {
        known = location.hash;
        state.apply(withPart(location.hash));
        complain();
    });
    document.getElementById("failed").remove();

    // For the curious: the maths, in the browser's console.
    const maths = { describe, partition, measure, merge, forward, backwardSums, backward, explain };
    Object.assign(globalThis, { truenorm: maths });
}

/** @type {(hash: string) => string} */
function partIn(hash) {
    const words = hash.replace(/^#/, "").split("&").filter((word) => word.startsWith("part="));
    return words.at(-1)?.slice("part=".length) ?? "";
}

/**
 * Links from before there was an overview name no part, and mean the table: they hold one of its fields.
 * @type {(hash: string) => string}
 */
function withPart(hash) {
    const names = hash.replace(/^#/, "").split("&").map((word) => word.split("=")[0]);
    const isTable = !names.includes("part") && names.some((name) => name === "table.cell" || ofTable.includes(name));
    return isTable ? `${hash}&part=table` : hash;
}

/** @type {readonly string[]} */
const ofTable = PROBLEM;

/**
 * A part that fails says so in its panel; the others still work.
 * @type {(name: string, mount: (root: HTMLElement, state: State) => void, state: State) => void}
 */
function mountSafely(name, mount, state) {
    const panel = document.getElementById(`panel-${name}`);
    try {
        mount(panel, state);
    } catch (error) {
        const { message } = /** @type {Error} */ (error);
        panel.replaceChildren(html("p", { class: "problem" }, `This part of the page failed: ${message}`));
        reportError(error);
    }
}

/**
 * Tabs as in every desktop program: arrow keys, Home and End move, and what is moved to is shown.
 * @type {(state: State) => void}
 */
function connectTabs(state) {
    const names = Object.keys(PARTS);
    const tabs = names.map((name) => document.getElementById(`tab-${name}`));
    tabs.forEach((tab, place) => {
        tab.addEventListener("click", () => state.set({ part: names[place] }));
        tab.addEventListener("keydown", (event) => {
            const { length } = names;
            /** @type {Record<string, number>} */
            const goals = {
                ArrowRight: (place + 1) % length, ArrowLeft: (place - 1 + length) % length, Home: 0, End: length - 1,
            };
            const goal = goals[event.key];
            if (goal === undefined) return;
            event.preventDefault();
            state.set({ part: names[goal] });
            tabs[goal].focus();
        });
    });
    const list = tabs[0].parentElement;
    list.addEventListener("scroll", () => fade(list), { passive: true });
    new ResizeObserver(() => fade(list)).observe(list);
    state.watch(["part"], () => {
        names.forEach((name, place) => {
            const shown = name === state.get("part");
            tabs[place].setAttribute("aria-selected", String(shown));
            tabs[place].tabIndex = shown ? 0 : -1;
            document.getElementById(`panel-${name}`).hidden = !shown;
        });
        // On a phone, in sight. It is bold now, which makes it wider.
        const { offsetLeft, offsetWidth } = tabs[names.indexOf(state.get("part"))];
        list.scrollLeft = offsetLeft - list.offsetLeft - (list.clientWidth - offsetWidth) / 2;
    });
}

/**
 * Each part ends with the way to the one after it, and back.
 * @type {(state: State) => void}
 */
function connectStory(state) {
    const names = Object.keys(PARTS);
    /** @type {(name: string, kind: "back" | "next") => HTMLElement} */
    const button = (name, kind) => {
        const tab = document.getElementById(`tab-${name}`);
        const onclick = () => {
            state.set({ part: name });
            scrollTo(0, 0);
            tab.focus({ preventScroll: true });
        };
        const words = kind === "next" ? `next: ${tab.textContent} →` : `← back: ${tab.textContent}`;
        return html("button", { type: "button", class: kind, onclick }, words,
            kind === "next" ? html("small", {}, ABOUT[name]) : null);
    };
    names.forEach((name, i) => document.getElementById(`panel-${name}`).append(html(
        "nav", { class: "story", "aria-label": `From here: ${name}` },
        i > 0 ? button(names[i - 1], "back") : null, i < names.length - 1 ? button(names[i + 1], "next") : null,
    )));
}

/**
 * After many changes in a row the address is written later, but before anybody can leave: a reload reads it at once.
 * @type {(state: State) => void}
 */
function connectLeaving(state) {
    const flush = () => state.flush();
    for (const kind of ["pagehide", "blur", "pointerup"]) addEventListener(kind, flush);
    for (const kind of ["visibilitychange", "mouseleave"]) document.addEventListener(kind, flush);
    addEventListener("keydown", (event) => {
        const mayLeave = event.ctrlKey || event.metaKey || event.altKey || event.key === "F5";
        if (mayLeave && !event.repeat) flush();
    });
}

/** @type {(state: State) => void} */
function connectTheme(state) {
    /** @type {HTMLSelectElement} */
    const select = document.querySelector("select#theme");
    select.addEventListener("change", () => state.set({ theme: select.value }));
    state.watch(["theme"], () => {
        select.value = state.get("theme");
        document.documentElement.dataset.theme = state.get("theme");
    });
}

start();
