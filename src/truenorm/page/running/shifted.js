/*
A test set whose iq is shifted: x̂ with the running statistics, and with statistics that are estimated again from it.
*/
import { slider } from "#lib/controls.js";
import { dotStrip } from "#lib/dots.js";
import { html, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { measure, varianceOf } from "#maths/normalization.js";
import { runningNow } from "#running/evaluation.js";
import { IQ, NORM, column, estimateAgain, inEvaluation } from "#running/stream.js";

/** @type {(state: State) => HTMLElement} */
export function shiftedSetView(state) {
    const body = html("tbody", {});
    state.watch(["running.shift", "running.batches", "running.size", "running.momentum"], () => {
        const values = IQ.map((iq) => iq + state.get("running.shift"));
        /** @type {[string, Running][]} */
        const ways = [["running statistics", runningNow(state)], ["estimated again", estimateAgain(values)]];
        body.replaceChildren(...ways.map(([name, running]) => {
            const xhat = inEvaluation(values, running);
            const found = measure(column(xhat), NORM);
            const [mean, std] = [found.mean[0], Math.sqrt(varianceOf(found, 0)[0])];
            return html(
                "tr", {}, html("th", { scope: "row" }, name),
                html("td", {}, `μ = ${formatNumber(running.mean[0])}, σ² = ${formatNumber(running.var[0])}`, html("br"),
                    `x̂: mean ${formatNumber(settled(mean))}, deviation ${formatNumber(std)}`,
                    dotStrip({ label: `x̂ with ${name}`, values: xhat, mean, std, domain: [-4, 4], width: 220 })),
            );
        }));
    });
    return html(
        "section", {}, html("h3", {}, "A shifted test set"),
        html("div", { class: "controls" },
            slider(state, "running.shift", "All iq shifted by", { least: -30, most: 30 })),
        scrollBox("A shifted test set", html(
            "table", { class: "numbers" }, html("caption", {}, "x̂, on a line from −4 to 4"), body)),
        html("p", {}, "Running statistics know nothing of the shift: x̂ is not centred, and the layers behind it see what they never ",
            "saw in training. To estimate the statistics again, show the new data to the layer once more in training mode, without ",
            "a gradient step; here they are pooled, so that every student counts the same."),
    );
}

/**
 * 0 where only a rounding error is left.
 * @type {(value: number) => number}
 */
function settled(value) {
    return Math.abs(value) < 1e-12 ? 0 : value;
}
