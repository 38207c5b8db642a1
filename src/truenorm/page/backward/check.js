/*
The check of dx by finite differences.
*/
import { compareGradients, jumpsAt } from "#backward/differences.js";
import { chosenInWords, verdictInWords } from "#backward/reasons.js";
import { html, scrollBox } from "#lib/elements.js";
import { formulaPieces } from "#lib/formula.js";
import { bracketedNumber, formatNumber } from "#lib/numbers.js";

/**
 * A second way to the same number, that knows nothing of the first.
 * @type {() => View<BackwardModel>}
 */
export function backwardCheck() {
    const result = html("div");
    const element = html(
        "div", { class: "backward-check" }, html("h3", {}, "Check dx by finite differences"),
        html(
            "p", {}, "A finite difference measures a gradient without any of these formulas: make one x larger by a "
            + "tiny h, then smaller by h, work out the loss both times, and divide the change by 2h. It must come out "
            + "as dx.",
        ),
        result,
    );

    /** @type {(model: BackwardModel) => void} */
    function update(model) {
        const { row, column } = model;
        if (!model.out.valid[row][column]) {
            const words = `There is no number in ${chosenInWords(model)} to move.`;
            result.replaceChildren(html("p", { class: "notice" }, words));
            return;
        }
        /** @type {(name: string) => number[][]} */
        const values = (name) => /** @type {number[][]} */ (model.explained.get(name)?.values);
        const paths = ["dx (through xhat)", "dx (through var)", "dx (through mean)"].map(values).filter(Boolean);
        const found = compareGradients({ ...model, dx: values("dx"), paths });
        const { chosen } = found;
        const verdict = html("p", { class: "backward-verdict" }, verdictInWords(model, found));
        if (!Number.isFinite(chosen.gradient) || !Number.isFinite(chosen.h)) {
            result.replaceChildren(verdict); // which says why there is no number
            return;
        }
        /** @type {(name: string, words: string, value: string) => HTMLElement} */
        const line = (name, words, value) => html(
            "tr", {}, html("th", { scope: "row" }, `${name}, ${words}`), html("td", { "data-check": name }, value),
        );
        const digits = 10;
        result.replaceChildren(
            formulaPieces([
                '("loss at x + h" - "loss at x − h") / (2 · h)',
                `"" = (${formatNumber(chosen.up, 13)} - ${bracketedNumber(chosen.down, 13)}) `
                + `/ (2 · ${formatNumber(chosen.h, 6)})`,
                `"" ≈ ${formatNumber(chosen.gradient)}`,
            ]),
            scrollBox("dx in two ways", html(
                "table", { class: "numbers" }, html("caption", {}, `dx of ${chosenInWords(model)}, in two ways`),
                line("measured", "by moving x", formatNumber(chosen.gradient, digits)),
                line("dx", "by the steps above", formatNumber(chosen.dx, digits)),
                jumpsAt(model.out, row, column) ? null
                    : line("difference", "relative to the largest path of dx", formatNumber(chosen.relative, 2)),
            )),
            verdict,
        );
    }
    return { element, update };
}
