/*
Questions of the part "training".
*/
import { formatNumber } from "#lib/numbers.js";

/** @type {() => Question[]} */
export function trainingQuestions() {
    return [
        {
            ask: "How large is the loss of a network that gives each of 27 characters the same probability?",
            answers: ["1", "3.3", "27"], right: 1,
            because: `−ln(1/27) = ${formatNumber(Math.log(27))}. The loss is near that at the first step.`,
        },
        {
            ask: "With batch norm before tanh, all weights of a hidden layer are 10 times larger. What does tanh get?",
            answers: ["numbers 10 times larger", "the same numbers"], right: 1,
            because: "μ and σ are 10 times larger too, so x̂ is the same; only ε makes a tiny difference. Set the "
                + "initial scale to 10 for A and B, and compare.",
        },
        {
            ask: "Can the network learn from batches of one example?",
            answers: ["with batch norm", "with layer norm", "with no norm at all, only"], right: 1,
            because: "One example is its own mean: batch norm makes each x̂ 0. Layer norm needs no other example, and "
                + "no norm at all does not either.",
        },
    ];
}
