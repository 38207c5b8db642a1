/*
Batches of students arrive at a batch norm layer with one column, iq, and running statistics follow them.

    const { batches, own, states } = arrivals(8, 0.1);
    batches[0]        // the iq of the 8 students of the first batch
    own[0]            // { mean, var } of that batch, the variance with n − 1
    states[1]         // the running statistics after it; states[0] is the start, mean 0 and variance 1

The same size always brings the same students, in Python too: numpy.random.default_rng([size]).integers(100, size=size).
*/
import { describe, forward, measure, varianceOf } from "#maths/normalization.js";
import { defaultRng } from "#maths/random.js";
import { momentsOf, startRunning, updateRunning } from "#maths/running.js";
import { STUDENTS } from "#why/students.js";

export const LAST = 120; // batches
export const SIZES = [1, 2, 4, 8, 16, 32, 64];
export const MOMENTA = [0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1];
export const SLOW = 0.01; // the momentum to compare with
export const NORM = describe("batch");
export const IQ = STUDENTS.map(([, iq]) => iq);

/** @type {(values: number[]) => number[][]} */
export function column(values) {
    return values.map((value) => [value]);
}

/** @type {(size: number) => number[][]} */
export function batchesOf(size) {
    const rng = defaultRng([size]);
    return Array.from({ length: LAST }, () => Array.from({ length: size }, () => IQ[rng.integer(IQ.length)]));
}

/**
 * Kept, as every view asks for them at every step.
 * @type {Map<number, { batches: number[][]; moments: Moments[] }>}
 */
const measured = new Map();

/** @type {(size: number, momentum: number) => Arrivals} */
export function arrivals(size, momentum) {
    if (!measured.has(size)) {
        const drawn = batchesOf(size);
        measured.set(size, { batches: drawn, moments: drawn.map((batch) => measure(column(batch), NORM)) });
    }
    const { batches, moments } = measured.get(size);
    const states = [startRunning(1, { momentum })];
    for (const one of moments) states.push(updateRunning(states.at(-1), one));
    return { batches, states, own: moments.map((one) => ({ mean: one.mean[0], var: varianceOf(one, 1)[0] })) };
}

/**
 * x̂ of one student in training mode: with the statistics of a batch that the others are in, too.
 * @type {(x: number, others: number[]) => number}
 */
export function inTraining(x, others) {
    return forward(column([x, ...others]), NORM).xhat[0][0];
}

/**
 * x̂ in evaluation: with the running statistics.
 * @type {(values: number[], running: Running) => number[]}
 */
export function inEvaluation(values, running) {
    return forward(column(values), NORM, { moments: momentsOf(running, NORM) }).xhat.map(([xhat]) => xhat);
}

/**
 * The statistics of these values, all with the same weight: from batches of 8, of which no trace is left in the result.
 * @type {(values: number[]) => Running}
 */
export function estimateAgain(values) {
    let running = startRunning(1, { momentum: "pooled", ddof: 0 });
    for (let i = 0; i < values.length; i += 8) {
        running = updateRunning(running, measure(column(values.slice(i, i + 8)), NORM));
    }
    return running;
}

/**
 * What shows the same in a terminal.
 * @type {(values: number[], running: Running) => string}
 */
export function commandFor(values, running) {
    const [mean, variance] = [running.mean[0], running.var[0]].map((value) => String(Number(value.toPrecision(6))));
    return `printf '${values.join("\\n")}\\n' | truenorm explain - --mean ${mean} --var ${variance}`;
}
