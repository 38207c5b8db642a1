/*
Gradient descent on the squared error of a linear model with two weights, which is exactly computable: nothing here is
simulated or approximated but rounding.

    ŷ = w₁ x₁ + w₂ x₂ + b          L = ½ mean((ŷ − y)²)

    const bowl = bowlOf(x, y);                       // the loss as a function of the two weights
    bowl.hessian, bowl.best, bowl.lowest             // L(w) = lowest + ½ (w − best)ᵀ hessian (w − best)
    descend(bowl, [1, 0], 0.1, 40)                   // the points on the way, the start first

The bias is always at its best value, mean(y) − w · mean(x). Then the Hessian is the covariance matrix of x, and step by
step w − best is multiplied by 1 − lr · hessian: it shrinks if and only if lr < 2 / (largest eigenvalue).
*/
import { describe, forward, measure, varianceOf } from "#maths/normalization.js";

const COLUMNS = describe("batch", { eps: 0 });
const LOST = 1e6; // thousands of times any start: it will not come back
export const CLOSE = 1.01; // as a multiple of the lowest loss: there
export const MOST_STEPS = 100_000;

/**
 * Columns with mean 0 and standard deviation 1.
 * @type {(x: number[][]) => number[][]}
 */
export function standardize(x) {
    return forward(x, COLUMNS).xhat;
}

/** @type {(x: number[][]) => { mean: number[]; std: number[] }} */
export function meanAndStd(x) {
    const moments = measure(x, COLUMNS);
    return { mean: moments.mean, std: varianceOf(moments, 0).map(Math.sqrt) };
}

/** @type {(x: number[][], y: number[]) => Bowl} */
export function bowlOf(x, y) {
    const { mean, std } = meanAndStd(x);
    const targets = meanAndStd(y.map((value) => [value]));
    /** @type {(i: number, j: number) => number} */
    const covariance = (i, j) => averageOf(x.map((row) => (row[i] - mean[i]) * (row[j] - mean[j])));
    const hessian = [[covariance(0, 0), covariance(0, 1)], [covariance(1, 0), covariance(1, 1)]];
    const slope = mean.map((middle, j) => averageOf(x.map((row, i) => (row[j] - middle) * (y[i] - targets.mean[0]))));
    const best = solve(hessian, slope);
    const lowest = (targets.std[0] ** 2 - best[0] * slope[0] - best[1] * slope[1]) / 2;
    const [large, small] = eigenvalues(hessian);
    return {
        mean, std, hessian, best, lowest, large, small, targetMean: targets.mean[0],
        angle: Math.atan2(2 * hessian[0][1], hessian[0][0] - hessian[1][1]) / 2, // of the steepest direction
        largestRate: 2 / large, bestRate: 2 / (large + small), condition: large / small,
    };
}

/** @type {(values: number[]) => number} */
function averageOf(values) {
    return measure(values.map((value) => [value]), COLUMNS).mean[0];
}

/** @type {(matrix: number[][], right: number[]) => number[]} */
function solve([[a, b], [c, d]], [e, f]) {
    const determinant = a * d - b * c;
    return [(e * d - b * f) / determinant, (a * f - e * c) / determinant];
}

/** @type {(bowl: Bowl, w: Point) => number} */
export function lossAt({ hessian, best, lowest }, w) {
    const [u, v] = [w[0] - best[0], w[1] - best[1]];
    return lowest + (hessian[0][0] * u * u + 2 * hessian[0][1] * u * v + hessian[1][1] * v * v) / 2;
}

/** @type {(bowl: Bowl, w: Point, lr: number) => Point} */
function stepFrom({ hessian, best }, w, lr) {
    const [u, v] = [w[0] - best[0], w[1] - best[1]];
    return [
        w[0] - lr * (hessian[0][0] * u + hessian[0][1] * v), w[1] - lr * (hessian[1][0] * u + hessian[1][1] * v),
    ];
}

/**
 * The weights after 0, 1, 2 ... steps; it ends early where the loss is beyond all bounds.
 * @type {(bowl: Bowl, start: Point, lr: number, steps: number) => Point[]}
 */
export function descend(bowl, start, lr, steps) {
    const path = [start];
    while (path.length <= steps && lossAt(bowl, path.at(-1)) < LOST) path.push(stepFrom(bowl, path.at(-1), lr));
    return path;
}

/**
 * How many steps it takes until the loss is within 1% of the lowest; Infinity if never, or if it takes too long.
 * @type {(bowl: Bowl, start: Point, lr: number) => number}
 */
export function stepsToBest(bowl, start, lr) {
    let w = start;
    for (let steps = 0; steps <= MOST_STEPS; steps++) {
        const loss = lossAt(bowl, w);
        if (loss <= CLOSE * bowl.lowest) return steps;
        if (!(loss < LOST)) return Infinity;
        w = stepFrom(bowl, w, lr);
    }
    return Infinity;
}

/**
 * λ largest / λ smallest of the Hessian when the bias is learned by gradient descent as well: then means count, too.
 * @type {(bowl: Bowl) => number}
 */
export function conditionWithBias({ hessian, mean }) {
    const inputs = [1, ...mean]; // the bias has the constant input 1
    const found = eigenvalues(inputs.map((a, i) => inputs.map((b, j) => a * b + (i && j ? hessian[i - 1][j - 1] : 0))));
    return found[0] / found.at(-1);
}

/**
 * Of a symmetric matrix, the largest first: rotations take what is beside the diagonal to 0 (Jacobi's method).
 * @type {(matrix: number[][]) => number[]}
 */
export function eigenvalues(matrix) {
    const a = matrix.map((row) => [...row]);
    const n = a.length;
    for (let sweep = 0; sweep < 30; sweep++) {
        for (let p = 0; p < n; p++) for (let q = p + 1; q < n; q++) {
            if (a[p][q] === 0) continue;
            const theta = (a[q][q] - a[p][p]) / (2 * a[p][q]);
            const t = (theta < 0 ? -1 : 1) / (Math.abs(theta) + Math.hypot(theta, 1));
            const [c, s] = [1 / Math.hypot(t, 1), t / Math.hypot(t, 1)];
            for (let k = 0; k < n; k++) [a[k][p], a[k][q]] = [c * a[k][p] - s * a[k][q], s * a[k][p] + c * a[k][q]];
            for (let k = 0; k < n; k++) [a[p][k], a[q][k]] = [c * a[p][k] - s * a[q][k], s * a[p][k] + c * a[q][k]];
        }
    }
    return a.map((row, i) => row[i]).sort((one, other) => other - one);
}
