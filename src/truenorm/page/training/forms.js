/*
What the reader of live training may change: the settings of both runs, side by side, the seed, and the words.

What cannot be used stays as it was typed, with one sentence below it; the run goes on with what it had. It is tried
again when another setting of its run changes: batch norm that was refused for a batch of one.
*/
import { uniqueId } from "#lib/controls.js";
import { html, putText } from "#lib/elements.js";
import { attempt } from "#lib/limits.js";
import { SETTINGS, readSeed, readSetting, readWordList } from "#training/settings.js";

const SIDES = /** @type {const} */ ([["A", "training.a"], ["B", "training.b"]]);

/** @type {(state: State) => HTMLElement} */
export function settingsForm(state) {
    /** @type {Map<HTMLElement, () => void>[]} */
    const refused = SIDES.map(() => new Map()); // controls that hold what cannot be used
    const rows = /** @type {(keyof Setting)[]} */ (Object.keys(SETTINGS)).map((name) => {
        const problem = sentence();
        const fields = SIDES.map(([side, field], i) => {
            const { label, choices } = SETTINGS[name];
            const use = () => {
                const { value, reason } = readSetting(name, control.value, state.get(field));
                problem.say(control, reason);
                if (reason) refused[i].set(control, use);
                else refused[i].delete(control);
                if (reason || value === state.get(field)[name]) return;
                state.set({ [field]: { ...state.get(field), [name]: value } });
                for (const tryAgain of [...refused[i].values()]) tryAgain();
            };
            const words = { "aria-label": `${label}, ${side}`, "aria-describedby": problem.id, onchange: use };
            /** @type {HTMLInputElement | HTMLSelectElement} */
            const control = choices
                ? html("select", words, Object.entries(choices).map(([value, text]) => html("option", { value }, text)))
                : html("input", { type: "text", inputmode: "decimal", ...words });
            let last = "";
            state.watch([field], () => {
                const now = String(state.get(field)[name]);
                const isWrong = readSetting(name, control.value, state.get(field)).reason !== undefined;
                if (now === last && isWrong && refused[i].has(control)) return;
                last = control.value = now;
                refused[i].delete(control);
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
    state.watch(["training.seed"], () => {
        control.value = String(state.get("training.seed"));
        problem.say(control, "");
    });
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
 * A place for a sentence about each of the controls beside it.
 * @returns {{ id: string; element: HTMLElement; say(control: HTMLElement, reason?: string): void }}
 */
function sentence() {
    const id = uniqueId();
    const element = html("p", { id, class: "problem", role: "alert", hidden: true });
    /** @type {Map<HTMLElement, string>} */
    const reasons = new Map();
    return {
        id, element,
        say(control, reason = "") {
            if (reason) control.setAttribute("aria-invalid", "true");
            else control.removeAttribute("aria-invalid");
            reasons.set(control, reason);
            putText(element, [...new Set(reasons.values())].filter(Boolean).join(" "));
            element.hidden = element.textContent === "";
        },
    };
}
