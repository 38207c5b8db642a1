/*
Questions of the part "network", with numbers of the moment.
*/
import { formatNumber } from "#lib/numbers.js";

/** @type {(model: NetworkModel) => Question[]} */
export function networkQuestions({ get, x, labels }) {
    const tokens = x.flat();
    const counts = labels.character.map((_, token) => tokens.filter((one) => one === token).length);
    const uses = Math.max(...counts);
    const most = labels.character[counts.indexOf(uses)];
    const largest = Math.max(...get("db1").values.map(Math.abs));
    return [
        {
            ask: `The row “${most}” of C is used ${uses} times in this batch. What is its gradient?`,
            answers: ["that of its last use", "the mean over its uses", "the sum over its uses"], right: 2,
            because: "The loss changes through each use, and these changes add up. Choose C, and go to the gradients.",
        },
        {
            ask: "b1 is added to every row of H0, before batch norm. What is its gradient?",
            answers: ["0", "the sum of the rows of dHZ", "the same as dβ"], right: 0,
            because: "μ contains b1 too, and is subtracted: b1 has no effect, and β takes its place. Rounding leaves "
                + `${formatNumber(largest, 2)} of db1.`,
        },
        {
            ask: "All logits of an example grow by 10. What happens to its loss?",
            answers: ["it grows", "it falls", "nothing"], right: 2,
            because: "Softmax divides by the sum: the factor e¹⁰ stands above and below. Only differences count.",
        },
    ];
}
