/*
The part "table": one table of numbers, and which of its cells share a mean.
*/
import { codesFor } from "./code.js";
import { chooser } from "./controls.js";
import { copyButtons, formatNumber, html, scrollBox } from "./drawing.js";
import { formula } from "./formula.js";
import { NORMS, forward } from "./maths.js";
import { PROBLEM, readProblem } from "./problem.js";

export function mountTable(root, state) {
    const titles = Object.fromEntries(Object.entries(NORMS).map(([name, { title }]) => [name, title]));
    const body = html("tbody");
    root.append(
        html("h2", {}, "One table"),
        chooser(state, "norm", "Norm", titles),
        formula("y = (x - mean) / sqrt(var + eps) · weight + bias", { display: true }),
        scrollBox("Normalised values", html("table", { class: "numbers" }, html("caption", {}, "y"), body)),
        copyButtons(codesFor(() => readProblem(state))),
    );
    state.watch(PROBLEM, () => {
        const problem = readProblem(state);
        const out = forward(problem.x, problem.norm, problem);
        body.replaceChildren(...out.y.map((row) => html("tr", {}, row.map((y) => html("td", {}, formatNumber(y))))));
    });
}
