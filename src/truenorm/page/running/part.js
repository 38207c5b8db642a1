/*
The part "running": which mean and variance a batch norm layer uses, in training and in use.

State: running.batches (how many have come), running.size, running.momentum, running.x (the text of one iq),
running.shift (of the test set).
*/
import { lineChart } from "#lib/chart.js";
import { slider } from "#lib/controls.js";
import { html } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { createPlayer } from "#lib/player.js";
import { questions } from "#lib/question.js";
import { numberBetween, textRow, wholeBetween } from "#lib/state.js";
import { measure, varianceOf } from "#maths/normalization.js";
import { oneStudentView, shiftedSetView } from "#running/evaluation.js";
import { runningQuestions } from "#running/questions.js";
import { IQ, LAST, MOMENTA, NORM, SIZES, SLOW, arrivals, column } from "#running/stream.js";

const LOOKS = {
    own: { hue: 4, dash: 0, shape: 5, thin: true }, chosen: { hue: 0, dash: 0, shape: 0 },
    slow: { hue: 1, dash: 1, shape: 1 }, all: { hue: 3, dash: 2, shape: 3, thin: true },
};
/** @type {FieldName[]} */
const ARRIVED = ["running.batches", "running.size", "running.momentum"];

/** @type {(root: HTMLElement, state: State) => void} */
export function mountRunning(root, state) {
    defineRunning(state);
    root.classList.add("running");
    root.append(
        html("h2", { class: "unseen" }, "Statistics in training and in use"),
        html("p", { class: "short" }, "In training, batch norm uses μ and σ² of the batch. For later it keeps a ",
            "running μ and σ², which each batch moves towards its own, by the ", html("em", {}, "momentum"), ". ",
            "Those of a mini-batch are noisy: the same student gets another x̂ in each. That makes it a little harder ",
            "to learn the students by heart, which is a slight regularization."),
        arrivalView(state),
        html("div", { class: "panes" }, oneStudentView(state), shiftedSetView(state)),
        questions(state, ARRIVED, () => runningQuestions(state)),
    );
}

/** @type {(state: State) => void} */
export function defineRunning(state) {
    state.field("running.batches", wholeBetween(0, LAST), 40);
    state.field("running.size", wholeBetween(1, SIZES.at(-1)), 8);
    state.field("running.momentum", numberBetween(MOMENTA[0], 1), 0.1);
    state.field("running.x", textRow, ["120"]);
    state.field("running.shift", wholeBetween(-30, 30), 15);
}

/** @type {(state: State) => HTMLElement} */
function arrivalView(state) {
    const all = measure(column(IQ), NORM);
    const truth = { mean: all.mean[0], var: varianceOf(all, 0)[0] };
    /** @type {(by: number) => boolean} */
    const move = (by) => {
        const next = (state.get("running.batches") + by) % (LAST + 1);
        state.set({ "running.batches": next });
        return next < LAST;
    };
    const player = createPlayer({
        shown: () => state.get("part") === "running", advance: () => move(1), step: "Next batch", beat: 200,
    });
    /** @type {(batches: number) => void} */
    const goTo = (batches) => {
        player.stop();
        state.set({ "running.batches": batches });
    };
    const charts = /** @type {const} */ (["mean", "var"]).map((of) => ({ of, chart: lineChart({
        title: of === "mean" ? "Running mean μ of iq" : "Running variance σ² of iq",
        xLabel: "batches", yLabel: of === "mean" ? "μ" : "σ²", height: 230, onscrub: goTo,
    }) }));
    const everywhere = Array.from({ length: LAST + 1 }, (_, i) => i);
    const said = html("p", { class: "said" });
    state.watch(ARRIVED, () => {
        const [now, momentum] = [state.get("running.batches"), state.get("running.momentum")];
        const { own, states } = arrivals(state.get("running.size"), momentum);
        const slow = arrivals(state.get("running.size"), SLOW).states;
        for (const { of, chart } of charts) {
            /** @type {(read: (i: number) => number) => Point[]} */
            const upTo = (read) => everywhere.slice(0, now + 1).map((i) => [i, read(i)]);
            chart.update({
                at: now, places: everywhere,
                series: [
                    { ...LOOKS.own, name: "this batch", points: upTo((i) => own[i - 1]?.[of] ?? NaN) },
                    { ...LOOKS.chosen, name: `momentum ${momentum}`, points: upTo((i) => states[i][of][0]) },
                    { ...LOOKS.slow, name: `momentum ${SLOW}`, points: upTo((i) => slow[i][of][0]) },
                    { ...LOOKS.all, name: "all students", points: everywhere.map((i) => [i, truth[of]]) },
                ],
            });
        }
        const left = (1 - momentum) ** states[now].batches;
        said.textContent = state.get("running.size") === 1
            ? "A batch of one has no variance: the running statistics stay as they began. PyTorch refuses it."
            : `After ${now} batches ${formatNumber(100 * left, 3)}% of the running statistics is still the start, μ = `
                + `0 and σ² = 1; with momentum ${SLOW} it is ${formatNumber(100 * (1 - SLOW) ** now, 3)}%.`;
    });
    return html(
        "section", {},
        html("div", { class: "controls" },
            html("div", { class: "buttons" }, player.button,
                html("button", { type: "button", class: "one", onclick: () => move(1) }, "One batch"),
                html("button", { type: "button", onclick: () => goTo(0) }, "Start again")),
            slider(state, "running.momentum", "Momentum", { stops: () => MOMENTA }),
            slider(state, "running.size", "Batch size", { stops: () => SIZES })),
        html("div", { class: "panes" }, charts.map(({ chart }) => chart.element)),
        said,
        html("p", { class: "note" }, "Momentum is the share of the new batch, 0.1 in PyTorch. Keras gives that of ",
            "the old statistics, 0.99, which is 0.01 here. σ² of a batch divides by n − 1 here, as PyTorch’s running ",
            "variance does; x̂ in training uses n."),
    );
}
