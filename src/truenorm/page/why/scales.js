/*
What is compared: two features as they are, and the same two standardised. Each of the two is a table x, one row for
each student, and the bowl of its loss (descent.js).

"inputs": cgpa and iq. "hidden": two ReLU units over the standardised inputs; H, what they give, is the input of the
next layer. The weights of the second are multiplied by `growth`, as training may do it.
*/
import { bowlOf, standardize } from "#why/descent.js";
import { STUDENTS } from "#why/students.js";

export const TRAINED = 40; // students to learn from; the others are for the test
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
    return x.map(([a, b]) => [
        Math.max(0, 1 + 0.8 * a + 0.3 * b), Math.max(0, growth * (1 - 0.3 * a + 0.9 * b)),
    ]);
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
