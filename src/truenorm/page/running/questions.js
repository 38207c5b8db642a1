/*
Questions of the part "running", with numbers of the moment.
*/
import { formatNumber } from "#lib/numbers.js";
import { SLOW, arrivals, inEvaluation } from "#running/stream.js";

/** @type {(state: State) => Question[]} */
export function runningQuestions(state) {
    const [now, size] = [state.get("running.batches"), state.get("running.size")];
    const late = arrivals(size, SLOW).states[now];
    const [xhat] = inEvaluation([100], late);
    return [
        {
            ask: "Which momentum follows the data sooner, and which is noisier?",
            answers: ["0.1 sooner, 0.1 noisier", "0.1 sooner, 0.01 noisier", "0.01 sooner, 0.1 noisier"], right: 0,
            because: "With 0.1 the last ten batches are most of the average. With 0.01 it is the last hundred: that is "
                + "smoother, and later.",
        },
        {
            ask: "Evaluation after few batches, with momentum 0.01. What happens to an average student, iq 100?",
            answers: ["x̂ is near 0", "x̂ is much too large"], right: 1,
            because: `After ${now} batches the running mean is ${formatNumber(late.mean[0])} instead of about 98, so `
                + `x̂ = ${formatNumber(xhat)}.`,
        },
        {
            ask: "In training mode, what is the output for a batch of one?",
            answers: ["β, whatever the input", "the input", "γ times the input"], right: 0,
            because: "μ is the value itself, so x − μ = 0, x̂ = 0 and γ · 0 + β = β.",
        },
    ];
}
