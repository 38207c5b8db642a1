/*
What the reader of live training may change: the settings of both runs, side by side, the seed, and the words.

What cannot be used stays as it was typed, with one sentence below it; the run goes on with what it had.
*/
import { uniqueId } from "#lib/controls.js";
import { html, putText } from "#lib/elements.js";
import { attempt } from "#lib/limits.js";
import { SETTINGS, readSeed, readSetting, readWordList } from "#training/settings.js";

const SIDES = /** @type {const} */ ([["A", "training.a"], ["B", "training.b"]]);

/** @type {(state: State) => HTMLElement} */
export function settingsForm(state) {
    const rows = /** @type {(keyof Setting)[]} */ (Object.keys(SETTINGS)).map((name) => {
        const problem = sentence();
        const fields = SIDES.map(([side, field]) => {
            const { label, choices } = SETTINGS[name];
            const use = () => {
                const { value, reason } = readSetting(name, control.value, state.get(field));
                problem.say(control, reason);
                if (!reason && value !== state.get(field)[name]) {
                    state.set({ [field]: { ...state.get(field), [name]: value } });
                }
            };
            const words = { "aria-label": `${label}, ${side}`, "aria-describedby": problem.id, onchange: use };
            /** @type {HTMLInputElement | HTMLSelectElement} */
            const control = choices
                ? html("select", words, Object.entries(choices).map(([value, text]) => html("option", { value }, text)))
                : html("input", { type: "text", inputmode: "decimal", ...words });
            state.watch([field], () => {
                if (control.getAttribute("aria-invalid") && document.activeElement === control) return;
                control.value = String(state.get(field)[name]);
                problem.say(control, "");
            });
            return control;
        });
        return [html("span", { class: "name" }, SETTINGS[name].label), fields, problem.element];
    });
    return html(
        "div", { class: "settings", role: "group", "aria-label": "Settings of the two runs" },
        html("span", { class: "name" }, ""), SIDES.map(([side]) => html("b", {}, side)), rows, seedRow(state),
    );
}

/** @type {(state: State) => Child[]} */
function seedRow(state) {
    const problem = sentence();
    const control = html("input", {
        type: "text", inputmode: "numeric", "aria-label": "Seed, of both", class: "both", onchange: () => {
            const { value, reason } = readSeed(control.value);
            problem.say(control, reason);
            if (!reason) state.set({ "training.seed": value });
        },
    });
    state.watch(["training.seed"], () => (control.value = String(state.get("training.seed"))));
    return [html("span", { class: "name" }, "Seed"), control, problem.element];
}

/** @type {(state: State) => HTMLElement} */
export function wordsForm(state) {
    const id = uniqueId();
    const problem = sentence();
    const count = html("p", { class: "note" });
    const box = html("textarea", { id, class: "code", rows: 8, spellcheck: "false", onchange: () => {
        const { reason } = readWordList(box.value);
        problem.say(box, reason);
        if (!reason) attempt(() => state.set({ "training.words": box.value }), (large) => problem.say(box, large));
    } });
    state.watch(["training.words"], () => {
        box.value = state.get("training.words");
        problem.say(box, "");
        const words = readWordList(box.value).value;
        const characters = new Set(words.join("")).size;
        putText(count, `${words.length} words with ${characters} different characters. A tenth of the words is held `
            + "out: kept out of training, to see what the network makes of new ones.");
    });
    return html(
        "details", { class: "words" }, html("summary", {}, "The words it learns from"),
        html("label", { for: id }, "One word a line. A change starts both runs anew."), box, problem.element, count,
    );
}

/**
 * A place for one sentence about a control.
 * @returns {{ id: string; element: HTMLElement; say(control: HTMLElement, reason?: string): void }}
 */
function sentence() {
    const id = uniqueId();
    const element = html("p", { id, class: "problem", role: "alert", hidden: true });
    return {
        id, element,
        say(control, reason = "") {
            if (reason) control.setAttribute("aria-invalid", "true");
            else control.removeAttribute("aria-invalid");
            putText(element, reason);
            element.hidden = reason === "";
        },
    };
}
