/*
The part "why": what scales do to learning. Two features of students, as they are and standardised; the same for a
hidden layer; data that shift after training; and layers whose inputs shift during it.

State: why.of, why.growth (the features), why.lr (0: the best of each), why.step, why.w1, why.w2 (the start), why.shift
(of the test set), why.run (the learning rate of the recorded runs).
*/
import { html } from "#lib/elements.js";
import { questions } from "#lib/question.js";
import { choice, numberBetween, wholeBetween } from "#lib/state.js";
import { mostDifferentRate, readRuns } from "#training/runs.js";
import { GROWTHS, STEPS, descentView } from "#why/descent_view.js";
import { layerInputsView } from "#why/layer_inputs.js";
import { whyQuestions } from "#why/questions.js";
import { SHIFTS, shiftView } from "#why/shift.js";

/** @type {(root: HTMLElement, state: State) => void} */
export function mountWhy(root, state) {
    const recorded = readRuns(document.getElementById("runs").textContent);
    defineWhy(state, recorded);
    root.classList.add("why");
    root.append(
        html("h2", { class: "unseen" }, "Why normalize?"),
        descentView(state),
        shiftView(state),
        layerInputsView(state, recorded),
        questions(state, [], whyQuestions),
    );
}

/** @type {(state: State, recorded: Recorded) => void} */
export function defineWhy(state, recorded) {
    state.field("why.of", choice("inputs", "hidden"), "inputs");
    state.field("why.growth", numberBetween(GROWTHS[0], GROWTHS.at(-1)), 10);
    state.field("why.lr", numberBetween(0, 10), 0);
    state.field("why.step", wholeBetween(0, STEPS), STEPS);
    state.field("why.w1", numberBetween(-1, 1), -0.8);
    state.field("why.w2", numberBetween(-1, 1), 0.8);
    state.field("why.shift", oneOf(SHIFTS), 20);
    state.field("why.run", choice(...recorded.rates.map(String)), String(mostDifferentRate(recorded)));
}

/**
 * One of these numbers.
 * @type {(numbers: number[]) => Codec<number>}
 */
function oneOf(numbers) {
    const { encode, decode } = choice(...numbers.map(String));
    return { encode: (value) => encode(String(value)), decode: (text) => Number(decode(text)) };
}
