/*
Questions of the part "why", with numbers from the same students.
*/
import { formatNumber } from "#lib/numbers.js";
import { below } from "#why/rate.js";
import { sidesOf } from "#why/scales.js";
import { judge } from "#why/shift.js";

/** @type {() => Question[]} */
export function whyQuestions() {
    const [raw, normal] = sidesOf("inputs", 1).map(({ bowl }) => bowl);
    const [small, large] = [1, 10].map((growth) => sidesOf("hidden", growth)[0].bowl);
    const moved = judge(20);
    return [
        {
            ask: "iq is written in tenths: 1003 instead of 100.3. What happens to the largest learning rate of the features "
                + "as they are?",
            answers: ["it stays", "it is 10 times smaller", "it is about 100 times smaller"], right: 2,
            because: `λ max is nearly the variance of iq, σ² = ${formatNumber(raw.std[1] ** 2, 3)}, and 10 times the values have `
                + `100 times the variance. 2 / λ max falls from ${formatNumber(below(raw.largestRate))} to about a hundredth of `
                + `it. The standardised features stay as they are, and so does their rate, ${formatNumber(below(normal.largestRate))}.`,
        },
        {
            ask: "The inputs are standardised. Can a hidden layer still have the narrow valley?",
            answers: ["no, its inputs are fine", "yes"], right: 1,
            because: "Its outputs H depend on its weights as well. Weights of one unit that are 10 times larger take the "
                + `condition number from ${formatNumber(small.condition, 3)} to ${formatNumber(large.condition, 3)}: choose `
                + "“a hidden layer H” above.",
        },
        {
            ask: "All iq scores of the test set are 20 points higher. Which statistics give more right answers?",
            answers: ["those of training", "those of the new students"], right: 1,
            because: `${formatNumber(100 * moved.withOwn, 3)}% against ${formatNumber(100 * moved.withGiven, 3)}%: with the `
                + "statistics of training all points lie too high, and the model says “placed” too often.",
        },
    ];
}
