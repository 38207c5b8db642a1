/*
One student in training mode, in evaluation and alone in a batch.
*/
import { copyButtons } from "#lib/copy.js";
import { dotStrip } from "#lib/dots.js";
import { html, putText, scrollBox } from "#lib/elements.js";
import { bracketedNumber, formatNumber, readNumber } from "#lib/numbers.js";
import { formula } from "#lib/formula.js";
import { LAST, NORM, arrivals, commandFor, inEvaluation, inTraining } from "#running/stream.js";

const COMPANY = 24; // batches that the student is put into

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
        problem.hidden = Number.isFinite(x);
        input.setAttribute("aria-invalid", String(!problem.hidden));
        putText(problem, problem.hidden ? "" : `iq needs a number such as 120, got “${text.slice(0, 40)}”.`);
        const shown = problem.hidden ? rowsFor(state, x) : { domain: [-3, 3], rows: [] };
        putText(caption, `x̂, on a line from ${shown.domain.map((end) => formatNumber(end, 2)).join(" to ")}`);
        body.replaceChildren(...shown.rows);
    });
    return html(
        "section", {}, html("h3", {}, "One student, three ways"),
        html("div", { class: "slider" }, html("label", { for: "running-x" }, "iq of the student"), input), problem,
        scrollBox("One student, three ways", html("table", { class: "numbers" }, caption, body)),
        html("p", {}, "A model that is left in training mode answers for one student depending on who else is in the batch, and ",
            "for a single student it always answers with β. ", html("code", {}, "model.eval()"), " uses the running statistics."),
        copyButtons({ command: () => {
            const x = readNumber(state.get("running.x")[0] ?? "");
            return commandFor([Number.isFinite(x) ? x : 120], runningNow(state));
        } }),
    );
}

/** @type {(state: State) => Running} */
export function runningNow(state) {
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
    const [mean, variance] = [running.mean[0], running.var[0]].map((value) => bracketedNumber(value));
    /** @type {(name: string, words: Child, values: number[]) => HTMLElement} */
    const row = (name, words, values) => html(
        "tr", {}, html("th", { scope: "row" }, name),
        html("td", {}, words, dotStrip({ label: name, values, domain, width: 220 })),
    );
    const rows = [
        row(`training, in ${COMPANY} batches of ${size}`,
            `x̂ from ${formatNumber(least)} to ${formatNumber(most)}`, company),
        row("evaluation",
            formula(`xhat = (${formatNumber(x)} - ${mean}) / sqrt(${variance} + ${formatNumber(NORM.eps)}) = ${formatNumber(used)}`),
            [used]),
        row("training, alone in a batch",
            formula(`xhat = (${formatNumber(x)} - ${bracketedNumber(x)}) / sqrt(0 + ${formatNumber(NORM.eps)}) = 0`),
            [inTraining(x, [])]),
    ];
    return { domain, rows };
}
