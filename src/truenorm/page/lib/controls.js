/*
Controls that are bound to the state: what a person changes is set at once, and what changes elsewhere is shown.

    chooser(state, "norm", "Norm", { batch: "Batch", layer: "Layer" })          // radio buttons
    slider(state, "running.size", "Batch size", { least: 1, most: 64 })         // a range with its number

Each returns an element with a label; give the element to html(...). Values are those of the field: words or numbers.
*/
import { html, putText } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";

let lastNumber = 0;

/** An id that nothing else on the page has. */
export function uniqueId() {
    lastNumber += 1;
    return `id${lastNumber}`;
}

/**
 * One of several, all in sight; `options` maps values to labels, or is a list of values and labels in their order.
 * @type {(state: State, name: FieldName, label: string, options: Record<string, string> | [string, string][]) =>
 *     HTMLFieldSetElement}
 */
export function chooser(state, name, label, options) {
    const group = uniqueId();
    const read = typeof state.get(name) === "number" ? Number : String;
    const pairs = Array.isArray(options) ? options : Object.entries(options);
    const radios = pairs.map(([key, text]) => {
        const radio = html("input", {
            type: "radio", name: group, value: key, onchange: () => state.set({ [name]: read(key) }),
        });
        return html("label", {}, radio, html("span", {}, text));
    });
    const element = html("fieldset", { class: "chooser" }, html("legend", {}, label), html("div", {}, radios));
    state.watch([name], () => {
        const chosen = String(state.get(name));
        for (const radio of element.querySelectorAll("input")) radio.checked = radio.value === chosen;
    });
    return element;
}

/**
 * A range; `show` turns its value into the words beside it, and may look at the fields `showing`, too. With `stops`, it
 * moves from one of these values to the next; they may depend on `showing`, but not how many there are.
 * @type {(state: State, name: NumberName, label: string, options: { least?: number; most?: number;
 *     stops?: (() => number[]) | null; show?: (value: number) => string; showing?: FieldName[] }) => HTMLElement}
 */
export function slider(state, name, label, { least, most, stops = null, show = formatNumber, showing = [] }) {
    const id = uniqueId();
    /** @type {HTMLInputElement} */
    const range = html("input", {
        type: "range", id, min: stops ? 0 : least, max: stops ? stops().length - 1 : most, step: 1,
        oninput: () => state.set({ [name]: stops ? stops()[range.valueAsNumber] : range.valueAsNumber }),
    });
    const value = html("output", { for: id, "aria-live": "off" }); // the range says it
    state.watch([name, ...showing], () => {
        const now = state.get(name);
        const place = stops ? stops().findLastIndex((one) => one <= now) : now;
        if (range.valueAsNumber !== place) range.value = String(place);
        putText(value, show(now));
        range.setAttribute("aria-valuetext", show(now));
    });
    return html("div", { class: "slider" }, html("label", { for: id }, label), range, value);
}

/**
 * A button that does nothing now. It keeps the focus, which a disabled one would lose in the middle of its use.
 * @type {(button: HTMLElement, inactive: boolean) => void}
 */
export function setInactive(button, inactive) {
    if (inactive) button.setAttribute("aria-disabled", "true");
    else button.removeAttribute("aria-disabled");
}
