/*
The part "running".
*/
import { html } from "#lib/elements.js";

/** @type {(root: HTMLElement, state: State) => void} */
export function mountRunning(root, state) {
    root.classList.add("running");
    root.append(html("h2", {}, "Statistics in training and in use"));
    state.watch([], () => {});
}
