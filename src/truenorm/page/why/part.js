/*
The part "why".
*/
import { html } from "#lib/elements.js";

/** @type {(root: HTMLElement, state: State) => void} */
export function mountWhy(root, state) {
    root.classList.add("why");
    root.append(html("h2", {}, "Why normalize?"));
    state.watch([], () => {});
}
