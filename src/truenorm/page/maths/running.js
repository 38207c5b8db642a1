/*
Running mean and variance, statistics over many batches: the twin of running.py.

    let running = startRunning(3);                         // as in PyTorch: momentum 0.1, variance with n - 1
    running = updateRunning(running, measure(x, norm));    // a new value; the old one stays as it was
    forward(x, norm, { moments: momentsOf(running, norm) })

A batch with a column that is not finite changes nothing and is counted in `skipped`. A column without a valid element,
or with too few for a variance, stays as it was.
*/
import { merge, varianceOf } from "#maths/normalization.js";

/**
 * Mean 0, variance 1: a normalization with these leaves its input (almost) as it is.
 * @type {(size: number, convention?: Partial<RunningConvention>) => Running}
 */
export function startRunning(size, { momentum = 0.1, ddof = 1 } = {}) {
    const all = (/** @type {number} */ value) => new Array(size).fill(value);
    return { mean: all(0), var: all(1), count: all(0), momentum, ddof, batches: 0, skipped: 0 };
}

/**
 * These statistics after one more batch.
 * @type {(running: Running, batch: Moments) => Running}
 */
export function updateRunning(running, batch) {
    const { momentum, ddof } = running;
    const skipped = { ...running, skipped: running.skipped + 1 };
    const pooled = momentum === "pooled";
    const finite = batch.count.every((n, s) => n === 0 || Number.isFinite(batch.mean[s] + batch.m2[s]));
    if (!finite) return skipped;
    const least = pooled ? 0 : ddof;
    if (!batch.count.some((n) => n > least)) return running;
    const count = running.count.map((n, s) => n + batch.count[s]);
    const later = { ...running, count, batches: running.batches + 1 };
    if (pooled) {
        const before = running.var.map((variance, s) => variance * Math.max(running.count[s] - ddof, 0));
        const total = merge({ count: running.count, mean: running.mean, m2: before }, batch);
        const variances = varianceOf(total, ddof);
        if (!total.mean.every((mean, s) => Number.isFinite(mean + variances[s]))) return skipped;
        later.mean = total.mean.map((mean, s) => (count[s] > 0 ? mean : running.mean[s]));
        later.var = variances.map((variance, s) => (count[s] > 0 ? variance : running.var[s]));
        return later;
    }
    const weight = momentum ?? 1 / (running.batches + 1);
    const variances = varianceOf(batch, ddof);
    /** @type {(old: number[], now: number[]) => number[]} */
    const moved = (old, now) => old.map((value, s) =>
        (batch.count[s] > least ? value + weight * (now[s] - value) : value));
    later.mean = moved(running.mean, batch.mean);
    later.var = moved(running.var, variances);
    return later;
}

/**
 * These statistics as the constants of `forward(x, norm, { moments })`.
 * @type {(running: Running, norm: Norm) => Moments}
 */
export function momentsOf(running, norm) {
    return { count: running.mean.map(() => 1 + norm.ddof), mean: running.mean, m2: running.var };
}
