/*
The part "training": recorded runs, from the page's own data.
*/
import { html } from "./drawing.js";

export function mountTraining(root) {
    const runs = JSON.parse(document.getElementById("runs").textContent);
    root.append(
        html("h2", {}, "Training"),
        html("p", {}, `Recorded runs of a small network, with and without normalization: ${runs.length}.`),
    );
}
