/*
Buttons that copy code: copyButtons({ NumPy: () => code, PyTorch: () => code, truenorm: () => code }).
*/
import { announce, html, scrollBox } from "#lib/elements.js";

/**
 * Buttons that copy code, and a place to read it; `codes` maps what it is for to a function that makes it. Where the
 * browser does not let a page copy, the code is shown instead, selected.
 * @type {(codes: Codes) => HTMLElement}
 */
export function copyButtons(codes) {
    const names = Object.keys(codes);
    const shown = codeView(codes, names);
    const buttons = names.map((name) => {
        /** @type {HTMLElement} */
        const button = html("button", { type: "button", "aria-label": name, onclick: () => copy(name, button, shown) },
            html("span", {}, name), html("span", { class: "done" }, "copied ✓"));
        return button;
    });
    return html("div", { class: "copy", role: "group", "aria-label": "Copy as code" },
        "Copy as ", buttons, shown.element);
}

/**
 * The code of one name at a time. While it is open, it follows what changes in its part of the page.
 * @type {(codes: Codes, names: string[]) => { element: HTMLElement; choose(name: string): string; select(): void }}
 */
function codeView(codes, names) {
    const code = html("pre");
    const choice = html("select", { "aria-label": "Code for", hidden: names.length === 1, onchange: write },
        names.map((name) => html("option", {}, name)));
    const element = html("details", { ontoggle: follow },
        html("summary", {}, names.length === 1 ? `Show the ${names[0]}` : "Show the code"),
        choice, scrollBox("Code", code));
    const changes = new MutationObserver(() => { // once they rest: a large table has long code
        clearTimeout(timer);
        timer = setTimeout(write, 150);
    });
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer = 0;

    function write() {
        const text = codes[choice.value]();
        if (code.textContent !== text) code.textContent = text;
        changes.takeRecords(); // not of itself
        return text;
    }

    function follow() {
        changes.disconnect();
        if (!element.open) return;
        write();
        changes.observe(element.closest("[role=tabpanel]"), { childList: true, characterData: true, subtree: true });
    }

    /** @type {(name: string) => string} */
    function choose(name) {
        choice.value = name;
        return write();
    }

    function select() {
        element.open = true;
        getSelection().selectAllChildren(code);
    }
    return { element, choose, select };
}

/** @type {WeakMap<HTMLElement, ReturnType<typeof setTimeout>>} */
const marked = new WeakMap(); // buttons that say "copied", and when they stop

/** @type {(name: string, button: HTMLElement, shown: ReturnType<typeof codeView>) => Promise<void>} */
async function copy(name, button, shown) {
    try {
        await navigator.clipboard.writeText(shown.choose(name));
        announce(`Copied as ${name}.`);
        clearTimeout(marked.get(button));
        button.classList.add("copied");
        marked.set(button, setTimeout(() => button.classList.remove("copied"), 2000));
    } catch {
        shown.select();
        announce("The browser does not let this page copy. The code is shown, and selected.");
    }
}
