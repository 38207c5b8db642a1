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
    const [small, large] = [1, 10].map((growth) => formatNumber(sidesOf("hidden", growth)[0].bowl.condition, 3));
    const moved = judge(20);
    return [
        {
            ask: "iq is given in tenths, 1003 instead of 100.3, and not standardised. The largest learning rate?",
            answers: ["stays", "is 10 times smaller", "is about 100 times smaller"], right: 2,
            because: `λ max is nearly the variance of iq, ${formatNumber(raw.std[1] ** 2, 3)}: 10 times the values `
                + `have 100 times the variance, so 2 / λ max = ${formatNumber(below(raw.largestRate))} falls to a `
                + `hundredth. Standardised, it stays ${formatNumber(below(normal.largestRate))}.`,
        },
        {
            ask: "The inputs are standardised. Can a hidden layer still have the narrow valley?",
            answers: ["no, its inputs are fine", "yes"], right: 1,
            because: "H depends on its weights, too. If those of one unit grow 10 times, the condition number goes "
                + `from ${small} to ${large}: try “a hidden layer H” above.`,
        },
        {
            ask: "All iq scores of the test set are 20 points higher. Which statistics give more right answers?",
            answers: ["those of training", "those of the new students"], right: 1,
            because: `${formatNumber(100 * moved.withOwn, 3)}% against ${formatNumber(100 * moved.withGiven, 3)}%: `
                + "with the statistics of training all points lie too high, and the model says “placed” too often.",
        },
    ];
}
