/*
The part "training": live training first (live.js); then recorded runs of one small network, trained without and with
batch norm at several learning rates; what its loss does, what its hidden layer looks like at each moment, and where it
ends.

What is shown of recorded runs is from runs.json, which tools/recordings.py records with the lab, and every sentence
with a number in it is made from that file: record it anew, and the texts follow.

State of the recorded runs: training.lr, training.step (the moment), training.runs (those in the chart), training.scale
and training.steps (how the chart's axes run).
*/
import { chooser } from "#lib/controls.js";
import { copyButtons } from "#lib/copy.js";
import { html, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { questions } from "#lib/question.js";
import { choice } from "#lib/state.js";
import { defineLive, liveTraining } from "#training/live.js";
import { insideView } from "#training/hidden_layer.js";
import { lossChart, runSwitches } from "#training/losses.js";
import { trainingQuestions } from "#training/questions.js";
import {
    NORM_WORDS, bestRun, commandFor, compareLosses, meanInWords, momentCodec, pairAt, percentOf, rangeInWords,
    readRuns, someOf, mostDifferentRate,
} from "#training/runs.js";

/** @type {(root: HTMLElement, state: State) => void} */
export function mountTraining(root, state) {
    const recorded = readRuns(document.getElementById("runs").textContent);
    defineTraining(state, recorded);
    defineLive(state);
    root.append(
        html("h2", {}, "Train the network"),
        html("p", { class: "training-lead" }, "It learns which letter comes next in a name, by a ",
            html("em", {}, "hidden layer"), `: ${recorded.hidden} units, each of which adds up what it gets and `,
            "bends the sum by ",
            html("em", {}, "tanh"), ", a curve from −1 to 1. Runs ", html("b", {}, "A"), " and ", html("b", {}, "B"),
            " start from the same numbers and see the same examples."),
        liveTraining(state),
        recordedRuns(state, recorded),
        questions(state, [], trainingQuestions),
    );
}

/** @type {(state: State, recorded: Recorded) => HTMLElement} */
function recordedRuns(state, recorded) {
    return html(
        "div", { class: "training" },
        html("h2", {}, "Recorded: with and without batch norm"),
        html(
            "p", {}, "The lab trained the same network on 5,163 first names. For each learning rate it ",
            "is trained twice, from the same start and on the same examples: without batch norm, and with it, right ",
            "before tanh. The ", html("em", {}, "learning rate"), " says how far each step moves the ",
            "weights. The ", html("em", {}, "loss"), " says how surprised the network is by the right letter: blind ",
            `guessing costs ${formatNumber(recorded.guessing, 3)}, and lower is better.`,
        ),
        trainingChoices(state, recorded),
        // On a phone the histograms follow the slider that moves them; where there is room, the switches stand beside.
        html(
            "div", { class: "recorded" },
            lossChart(state, recorded), insideView(state, recorded), runSwitches(state, recorded),
        ),
        whatToLookAt(state, recorded),
        endView(state, recorded),
        whatNotToConclude(recorded),
    );
}

/**
 * At first: the learning rate at which the two differ most, and the last moment.
 * @type {(state: State, recorded: Recorded) => void}
 */
export function defineTraining(state, recorded) {
    const { rates, moments, runs } = recorded;
    state.field("training.lr", choice(...rates.map(String)), String(mostDifferentRate(recorded)));
    state.field("training.step", momentCodec(moments), moments.at(-1));
    state.field("training.scale", choice("log", "linear"), "log");
    state.field("training.steps", choice("early", "even"), "early");
    state.field("training.runs", someOf([...runs.keys()]), null);
}

/** @type {(state: State, recorded: Recorded) => HTMLElement} */
function trainingChoices(state, { rates, runs }) {
    // A list, because an object would put the key "1" before "0.01".
    const options = rates.map((one) => /** @type {[string, string]} */ ([String(one), String(one)]));
    const rate = chooser(state, "training.lr", "Learning rate", options);
    // Choosing a learning rate adds its runs to the chart; runs that were ticked by hand stay.
    rate.addEventListener("change", () => {
        const shown = state.get("training.runs");
        if (shown === null) return;
        /** @type {(run: [string, Run]) => boolean} */
        const wanted = ([key, run]) => shown.includes(key) || String(run.rate) === state.get("training.lr");
        state.set({ "training.runs": [...runs].filter(wanted).map(([key]) => key) });
    });
    const scale = chooser(state, "training.scale", "Loss axis", { log: "logarithmic", linear: "even" });
    const steps = chooser(state, "training.steps", "Step axis", { early: "early steps wide", even: "even" });
    return html("div", { class: "controls" }, rate, scale, steps);
}

/** @type {(state: State, recorded: Recorded) => HTMLElement} */
function whatToLookAt(state, recorded) {
    const silent = html("span");
    state.watch(["training.lr"], () => {
        const rate = state.get("training.lr");
        const [without, withNorm] = pairAt(recorded, rate).map((run) => percentOf(run.silent.at(-1)));
        silent.textContent = `At the end, at learning rate ${rate}, ${without} of the outputs are silent without batch `
            + `norm, and ${withNorm} with it.`;
    });
    return html(
        "section", {}, html("h3", {}, "What to look at"),
        html(
            "ul", {},
            html("li", {}, "Tanh is steep around 0 and flat far from it. A unit whose input is far out says 1 or −1 ",
                "whatever it sees, and hardly any gradient gets back through it: it is ",
                html("em", {}, "saturated"), ", and hardly learns."),
            html("li", {}, "With batch norm, what goes in begins with mean 0 and standard deviation 1 (the usual ",
                "distance from the mean). γ and β are learned, so it does not have to stay there."),
            html("li", {}, "A unit that stays near 0 says nothing either: it is ", html("em", {}, "silent"), ". ",
                silent),
            html("li", {}, "Go through the first steps with the arrow keys: what goes wrong goes wrong early."),
        ),
    );
}

/**
 * Held-out losses over seeds: what can be said, the numbers, and how to check them.
 * @type {(state: State, recorded: Recorded) => HTMLElement}
 */
function endView(state, recorded) {
    const { rates, seeds, steps } = recorded;
    /** @type {(rate: number | string) => (number | null)[][]} */
    const lossesAt = (rate) => pairAt(recorded, rate).map((run) => run.held_out);
    const verdict = html("p", { class: "verdict" });
    /** @type {Map<string, HTMLElement>} */
    const rows = new Map(rates.map((rate) => [String(rate), html(
        "tr", {}, html("th", { scope: "row" }, String(rate)),
        lossesAt(rate).map((losses) =>
            html("td", {}, meanInWords(losses), html("span", {}, ` ${rangeInWords(losses)}`))),
    )]));
    state.watch(["training.lr"], () => {
        const rate = state.get("training.lr");
        const [without, withNorm] = lossesAt(rate);
        verdict.textContent = `Learning rate ${rate}: ${compareLosses(without, withNorm, recorded.guessing)}`;
        for (const [one, row] of rows) row.classList.toggle("chosen", one === rate);
    });
    const commands = () => pairAt(recorded, state.get("training.lr")).map((run) => commandFor(run, steps)).join("\n");
    const heads = ["learning rate", "without", "with batch norm"].map((name) => html("th", { scope: "col" }, name));
    return html(
        "section", {}, html("h3", {}, "Where it ends"),
        html("p", {}, `The loss after ${formatNumber(steps)} steps on names that were `, html("em", {}, "held out"),
            `: kept out of training. ${seeds} runs each, from ${seeds} random starts (“seeds”); curves and bars show `,
            "the first."),
        verdict,
        scrollBox("Held-out loss", html(
            "table", { class: "numbers ends" }, html("caption", {}, "Held-out loss: mean (lowest to highest)"),
            html("thead", {}, html("tr", {}, heads)), html("tbody", {}, [...rows.values()]),
        )),
        copyButtons({ "two commands": commands }),
        html("p", { class: "note" }, "They train the chosen pair on your machine; each prints the held-out loss of ",
            "the first seed."),
    );
}

/** @type {(recorded: Recorded) => HTMLElement} */
function whatNotToConclude(recorded) {
    const best = bestRun(recorded);
    const lowest = `${meanInWords(best.held_out)}, is at learning rate ${best.rate} ${NORM_WORDS[best.norm]}`;
    return html(
        "section", {}, html("h3", {}, "What not to conclude"),
        html(
            "ul", {},
            html("li", {}, "“Batch norm is always better.” ", `The lowest held-out loss of all, ${lowest}. `,
                "Batch norm allows higher learning rates here: some that are too high without it still work with it."),
            html("li", {}, "“A higher learning rate is better as long as it learns.” Compare the final losses."),
            html("li", {}, "Anything about large networks. This one has a single hidden layer of ",
                `${recorded.hidden} units, ${recorded.batch} examples a step and a constant learning rate. Deeper `,
                "ones, other data and other ways of training may behave otherwise."),
            html("li", {}, "Anything from one curve. Another seed gives another one; that is what the ranges are for."),
        ),
    );
}
