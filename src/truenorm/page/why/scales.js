/*
What is compared: two features as they are, and the same two standardised. Each of the two is a table x, one row for
each student, and the bowl of its loss (descent.js).

"inputs": cgpa and iq. "hidden": two ReLU units over the standardised inputs; H, what they give, is the input of the
next layer. Weights and bias of the second are multiplied by `growth`, as training may do it.
*/
import { formatNumber } from "#lib/numbers.js";
import { bowlOf, standardize } from "#why/descent.js";
import { STUDENTS } from "#why/students.js";

export const TRAINED = 40; // students to learn from; the others are for the test
const UNITS = [[1, 0.8, 0.3], [1, -0.3, 0.9]]; // of the two hidden ones: bias, and the weights of cgpa and iq
export const TRAIN = STUDENTS.slice(0, TRAINED);
export const TEST = STUDENTS.slice(TRAINED);

/** @type {(rows: Student[]) => number[][]} */
export function featuresOf(rows) {
    return rows.map(([cgpa, iq]) => [cgpa, iq]);
}

/** @type {(rows: Student[]) => number[]} */
export function placedOf(rows) {
    return rows.map((row) => row[2]);
}

/** @type {(of: WhyData, growth: number) => Side[]} */
export function sidesOf(of, growth) {
    const raw = of === "inputs" ? featuresOf(TRAIN) : hiddenOf(standardize(featuresOf(TRAIN)), growth);
    const y = placedOf(TRAIN);
    /** @type {Record<WhyData, Omit<Side, "x" | "bowl">[]>} */
    const words = {
        inputs: [
            { title: "As they are: cgpa and iq", names: ["cgpa", "iq"], short: "as they are" },
            { title: "Standardised: (x − μ) / σ", names: ["cgpa", "iq"], short: "standardised" },
        ],
        hidden: [
            { title: "H without a norm", names: ["h₁", "h₂"], short: "without a norm" },
            { title: "H with batch norm", names: ["ĥ₁", "ĥ₂"], short: "with batch norm" },
        ],
    };
    return [raw, standardize(raw)].map((x, i) => ({ ...words[of][i], x, bowl: bowlOf(x, y) }));
}

/** @type {(x: number[][], growth: number) => number[][]} */
export function hiddenOf(x, growth) {
    return x.map(([a, b]) => UNITS.map(([bias, u, v], i) => Math.max(0, (i ? growth : 1) * (bias + u * a + v * b))));
}

/** @type {(growth: number) => string} */
export function hiddenInWords(growth) {
    const sums = UNITS.map(([bias, u, v]) => `${bias} ${signed(u)} cgpa ${signed(v)} iq`);
    return `h₁ = max(0, ${sums[0]}), h₂ = max(0, ${formatNumber(growth)} · (${sums[1]})), of standardised cgpa and iq.`;
}

/** @type {(weight: number) => string} */
function signed(weight) {
    return `${weight < 0 ? "−" : "+"} ${formatNumber(Math.abs(weight))}`;
}

/**
 * Both axes of the scatter: from 0, or from below it, to the largest value.
 * @type {(x: number[][]) => { low: number; high: number }}
 */
export function rangeOf(x) {
    const values = x.flat();
    const [least, most] = [Math.min(...values), Math.max(...values)];
    return least < 0 ? { low: -3.2, high: 3.2 } : { low: 0, high: Math.max(most * 1.05, 1) };
}
