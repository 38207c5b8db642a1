/*
The part "overview".
*/
import { html } from "#lib/elements.js";

/** @type {(root: HTMLElement, state: State) => void} */
export function mountOverview(root, state) {
    root.classList.add("overview");
    root.append(html("h2", {}, "Normalization, step by step"));
    state.watch([], () => {});
}
