/*
The part "sentences": what padding does to the mean.
*/
import { html } from "./drawing.js";

export function mountSentences(root) {
    root.append(
        html("h2", {}, "Padded sentences"),
        html("p", {}, "Shorter sentences are filled up with rows of zeros. Averaged in, they move the mean."),
    );
}
