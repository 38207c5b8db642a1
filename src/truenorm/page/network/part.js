/*
The part "network".
*/
import { html } from "#lib/elements.js";

/** @type {(root: HTMLElement, state: State) => void} */
export function mountNetwork(root, state) {
    root.classList.add("network");
    root.append(html("h2", {}, "One network, forward and backward"));
    state.watch([], () => {});
}
