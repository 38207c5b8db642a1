/*
The part "network".
*/
import { html } from "#lib/elements.js";
import { defineFirstLayer, firstLayerView } from "#network/first_layer.js";

/** @type {(root: HTMLElement, state: State) => void} */
export function mountNetwork(root, state) {
    defineFirstLayer(state);
    root.classList.add("network");
    root.append(html("h2", {}, "One network, forward and backward"), firstLayerView(state));
}
