/*
The part "backwards": from dy back to dx, one step at a time.
*/
import { formula } from "./formula.js";
import { html } from "./drawing.js";

export function mountBackwards(root) {
    root.append(
        html("h2", {}, "Backwards"),
        html("p", {}, "A gradient says how the loss changes when a number does. It goes back through every line: "),
        formula("dx = dxhat · rstd + dvar · 2 · (x - mean) / count + dmean / count", { display: true }),
    );
}
