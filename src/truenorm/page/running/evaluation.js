/*
Statistics in use: one student in training mode, in evaluation and alone in a batch; and a test set whose iq is shifted,
with the running statistics and with others that are estimated again from it.
*/
import { slider } from "#lib/controls.js";
import { copyButtons } from "#lib/copy.js";
import { dotStrip } from "#lib/dots.js";
import { html, putText, scrollBox } from "#lib/elements.js";
import { formula } from "#lib/formula.js";
import { bracketedNumber, formatNumber, readNumber } from "#lib/numbers.js";
import { quoted } from "#lib/text.js";
import { measure, varianceOf } from "#maths/normalization.js";
import {
    IQ, LAST, NORM, arrivals, column, commandFor, estimateAgain, inEvaluation, inTraining,
} from "#running/stream.js";

const COMPANY = 24; // batches that the student is put into
const MOST_IQ = 1e100; // the squares of larger ones are beyond what a computer can hold

/** @type {(state: State) => HTMLElement} */
export function oneStudentView(state) {
    const problem = html("p", { class: "problem", role: "alert", hidden: true });
    /** @type {HTMLInputElement} */
    const input = html("input", {
        type: "text", inputmode: "decimal", size: 8, maxlength: 200, id: "running-x",
        oninput: () => state.set({ "running.x": [input.value] }),
    });
    const caption = html("caption", {});
    const body = html("tbody", {});
    state.watch(["running.x", "running.batches", "running.size", "running.momentum"], () => {
        const text = state.get("running.x")[0] ?? "";
        const x = readNumber(text);
        if (input.value !== text) input.value = text;
        problem.hidden = Math.abs(x) <= MOST_IQ;
        input.setAttribute("aria-invalid", String(!problem.hidden));
        const rule = Number.isFinite(x) ? "iq is too large to compute with" : "iq needs a number such as 120";
        putText(problem, problem.hidden ? "" : `${rule}, got ${quoted(text)}.`);
        const shown = problem.hidden ? rowsFor(state, x) : { domain: [-3, 3], rows: [] };
        putText(caption, `x̂, on a line from ${shown.domain.map((end) => formatNumber(end, 2)).join(" to ")}`);
        body.replaceChildren(...shown.rows);
    });
    return html(
        "section", {}, html("h3", {}, "One student, three ways"),
        html("div", { class: "slider" }, html("label", { for: "running-x" }, "iq of the student"), input), problem,
        scrollBox("One student, three ways", html("table", { class: "numbers" }, caption, body)),
        html("p", {}, "Left in training mode, a model's answer for one student depends on the others in the batch, ",
            "and alone it is always β. ", html("code", {}, "model.eval()"), " uses the running statistics."),
        copyButtons({ command: () => {
            const x = readNumber(state.get("running.x")[0] ?? "");
            return commandFor([Number.isFinite(x) ? x : 120], runningNow(state));
        } }),
    );
}

/** @type {(state: State) => Running} */
function runningNow(state) {
    return arrivals(state.get("running.size"), state.get("running.momentum")).states[state.get("running.batches")];
}

/** @type {(state: State, x: number) => { domain: number[]; rows: HTMLElement[] }} */
function rowsFor(state, x) {
    const running = runningNow(state);
    const size = state.get("running.size");
    const { batches } = arrivals(size, 0.1);
    const company = batches.slice(LAST - COMPANY).map((batch) => inTraining(x, batch.slice(1)));
    const [used] = inEvaluation([x], running);
    const [least, most] = [Math.min(...company), Math.max(...company)];
    const domain = [Math.min(-3, least, used), Math.max(3, most, used)];
    const [mean, variance] = [running.mean[0], running.var[0]];
    const alone = inTraining(x, []);
    /** @type {(mean: number, variance: number, xhat: number) => Child} */
    const written = (mean, variance, xhat) => formula(`xhat = (${formatNumber(x)} - ${bracketedNumber(mean)}) / `
        + `sqrt(${formatNumber(variance)} + ${formatNumber(NORM.eps)}) = ${formatNumber(xhat)}`);
    /** @type {(name: string, words: Child, values: number[]) => HTMLElement} */
    const row = (name, words, values) => html(
        "tr", {}, html("th", { scope: "row" }, name),
        html("td", {}, words, dotStrip({ label: name, values, domain, width: 220 })),
    );
    const rows = [
        row(`training, in ${COMPANY} batches of ${size}`,
            `x̂ from ${formatNumber(least)} to ${formatNumber(most)}`, company),
        row("evaluation", written(mean, variance, used), [used]),
        row("training, alone in a batch", written(x, 0, alone), [alone]),
    ];
    return { domain, rows };
}

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
        html("p", {}, "Running statistics do not include the shift: x̂ is not centred, and the next layers get values ",
            "that they never had in training. To estimate them again, pass the new data through the layer in training ",
            "mode, without a gradient step. Here they are pooled: every student counts the same."),
    );
}

/**
 * 0 where only a rounding error is left.
 * @type {(value: number) => number}
 */
function settled(value) {
    return Math.abs(value) < 1e-12 ? 0 : value;
}
