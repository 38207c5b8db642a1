/*
Questions about the table as it is now.
*/
import { formatNumber } from "#lib/numbers.js";
import { columnName } from "#lib/symbols.js";
import { describe, forward } from "#maths/normalization.js";

const AREAS = ["none", "those of its row", "those of its column"];

/** @type {(problem: Problem) => Question[]} */
export function tableQuestions({ x, valid, rows, columns, norm }) {
    const [row, column] = firstNumber(valid);
    if (row < 0 || !columns) return [];
    const cell = `${columnName(column)} of row ${row + 1}`;
    /** @type {(name: NormName, table: number[][]) => number[]} */
    const before = (name, table) => {
        const out = forward(table, describe(name, { eps: norm.eps, ddof: norm.ddof, eps_at: norm.eps_at }), { valid });
        const s = out.partition.index[row][column];
        return [out.moments.mean[s], out.xhat[row][column]];
    };
    const grown = x.with(row, x[row].with(column, x[row][column] + 10));
    const hundredfold = x.map((line) => line.with(column, line[column] * 100));
    const show = formatNumber;
    const [batch, batchGrown] = [before("batch", x), before("batch", grown)];
    const [layer, layerGrown] = [before("layer", x), before("layer", grown)];
    const scaled = before("batch", hundredfold);
    return [{
        ask: `Batch norm: ${cell} grows by 10. Which other values of x̂ change?`, answers: AREAS,
        right: rows > 1 ? 2 : 0,
        because: `They share μ, which goes from ${show(batch[0])} to ${show(batchGrown[0])}, and σ² too.`,
    }, {
        ask: `Layer norm: ${cell} grows by 10. Which other values of x̂ change?`, answers: AREAS,
        right: columns > 1 ? 1 : 0,
        because: `The μ of its row goes from ${show(layer[0])} to ${show(layerGrown[0])}. No other example notices.`,
    }, {
        ask: `All of ${columnName(column)} is multiplied by 100. What does batch norm make of it?`,
        answers: ["x̂ is 100 times as large", "nearly the same x̂", "x̂ is 0"], right: 1,
        because: `μ and σ are 100 times as large, too: x̂ of row ${row + 1} is ${show(batch[1], 8)} before and `
            + `${show(scaled[1], 8)} after. ε makes the difference.`,
    }, {
        ask: "γ is set to σ, and β to μ, for each column. What is y under batch norm?",
        answers: ["0", "x̂", "x again"], right: 2,
        because: "y = γ·x̂ + β = σ·(x − μ)/σ + μ = x. A network that wants no normalization can learn this. The button "
            + "“γ = σ, β = μ” does it.",
    }];
}

/** @type {(valid: boolean[][]) => Point} */
function firstNumber(valid) {
    const row = valid.findIndex((line) => line.some(Boolean));
    return [row, row < 0 ? -1 : valid[row].indexOf(true)];
}
