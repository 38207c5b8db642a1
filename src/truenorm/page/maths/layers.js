/*
Layers with forward and backward side by side: the twin of the lab's layers.py, in the same words.

    const y = layer.forward(x, { training: true });        // layer.x and layer.y are the last input and output
    const dx = layer.backward(dy);                         // layer.dy and layer.dx are the last gradients
    layer.parameters.weight; layer.gradients.weight        // updated in place; written in place by backward

A matrix is an array of rows, each a Float64Array; one row for each example. Arrays are used again by the next pass over
as many rows, so copy what must stay.
*/
import { backward, describe, forward, partition } from "#maths/normalization.js";
import { momentsOf, startRunning, updateRunning } from "#maths/running.js";

/**
 * A matrix of zeros, whose rows lie one after the other in `flat`.
 * @type {(rows: number, columns: number, flat?: Float64Array) => Matrix}
 */
export function matrix(rows, columns, flat = new Float64Array(rows * columns)) {
    return Array.from({ length: rows }, (_, i) => flat.subarray(i * columns, (i + 1) * columns));
}

/**
 * The matrix itself if it has this shape; else a new one.
 * @type {(old: Matrix | null, rows: number, columns: number) => Matrix}
 */
function reuse(old, rows, columns) {
    return old?.length === rows && (rows === 0 || old[0].length === columns) ? old : matrix(rows, columns);
}

/**
 * All numbers of a matrix as one array, row after row: loops over it take a third of the time of loops over rows.
 * @type {(rows: Matrix) => Float64Array}
 */
export function flatOf(rows) {
    if (rows.length === 0) return new Float64Array(0);
    const { buffer, byteOffset, length } = rows[0];
    return new Float64Array(buffer, byteOffset, rows.length * length);
}

/** What all layers have. */
class BaseLayer {
    /** @param {Record<string, Parameter>} parameters */
    constructor(parameters = {}) {
        this.parameters = parameters;
        /** @type {Record<string, Parameter>} */
        this.gradients = Object.fromEntries(Object.entries(parameters).map(([name, value]) =>
            [name, Array.isArray(value) ? matrix(value.length, value[0].length) : new Float64Array(value.length)]));
        /** @type {any} */
        this.x = null;
        /** @type {Matrix} */
        this.y = null;
        /** @type {Matrix} */
        this.dy = null;
        /** @type {Matrix} */
        this.dx = null;
    }
}

/** y = the rows table[x] beside each other. The gradients of a row that is used twice are added. */
export class Embedding extends BaseLayer {
    /** @param {Matrix} table */
    constructor(table) {
        super({ table });
    }

    /**
     * @param {number[][]} x
     * @returns {Matrix}
     */
    forward(x) {
        const table = /** @type {Matrix} */ (this.parameters.table);
        const width = table[0].length;
        const y = reuse(this.y, x.length, (x[0]?.length ?? 0) * width);
        for (let i = 0; i < x.length; i++) {
            for (let t = 0; t < x[i].length; t++) {
                const row = table[x[i][t]];
                for (let j = 0; j < width; j++) y[i][t * width + j] = row[j];
            }
        }
        [this.x, this.y] = [x, y];
        return y;
    }

    /**
     * Indices have no gradient.
     * @param {Matrix} dy
     * @returns {null}
     */
    backward(dy) {
        const gradient = /** @type {Matrix} */ (this.gradients.table);
        const width = gradient[0].length;
        for (const row of gradient) row.fill(0);
        for (let i = 0; i < dy.length; i++) {
            for (let t = 0; t < this.x[i].length; t++) {
                const row = gradient[this.x[i][t]];
                for (let j = 0; j < width; j++) row[j] += dy[i][t * width + j];
            }
        }
        this.dy = dy;
        return null;
    }
}

/** y = x W + b. */
export class Linear extends BaseLayer {
    /** @param {Matrix} weight @param {Float64Array} bias */
    constructor(weight, bias) {
        super({ weight, bias });
    }

    /**
     * @param {Matrix} x
     * @returns {Matrix}
     */
    forward(x) {
        const { weight, bias } = /** @type {{ weight: Matrix; bias: Float64Array }} */ (this.parameters);
        const y = reuse(this.y, x.length, bias.length);
        for (const row of y) row.set(bias);
        addProduct(flatOf(y), flatOf(x), flatOf(weight), x.length, weight.length, bias.length);
        [this.x, this.y] = [x, y];
        return y;
    }

    /**
     * @param {Matrix} dy
     * @returns {Matrix}
     */
    backward(dy) {
        const weight = /** @type {Matrix} */ (this.parameters.weight);
        const { weight: dweight, bias: dbias } = /** @type {{ weight: Matrix; bias: Float64Array }} */ (this.gradients);
        const dx = reuse(this.dx, dy.length, weight.length);
        const sizes = /** @type {const} */ ([dy.length, weight.length, dbias.length]);
        putOuter(flatOf(dweight), flatOf(this.x), flatOf(dy), ...sizes);
        putTransposed(flatOf(dx), flatOf(dy), flatOf(weight), ...sizes);
        dbias.fill(0);
        for (const row of dy) for (let j = 0; j < row.length; j++) dbias[j] += row[j];
        [this.dy, this.dx] = [dy, dx];
        return dx;
    }
}

// The three products of a linear layer take most of the time of a training step. x is n x k, W k x m, y n x m, all
// row after row. Four terms of a sum at a time, so that each sum is read and written a quarter as often.

/**
 * y += x W
 * @type {(y: Float64Array, x: Float64Array, weight: Float64Array, n: number, k: number, m: number) => void}
 */
function addProduct(y, x, weight, n, k, m) {
    for (let i = 0; i < n; i++) {
        const at = i * m;
        let p = 0;
        for (; p + 3 < k; p += 4) {
            const x0 = x[i * k + p], x1 = x[i * k + p + 1], x2 = x[i * k + p + 2], x3 = x[i * k + p + 3];
            const w0 = p * m, w1 = w0 + m, w2 = w1 + m, w3 = w2 + m;
            for (let j = 0; j < m; j++) {
                y[at + j] += x0 * weight[w0 + j] + x1 * weight[w1 + j] + x2 * weight[w2 + j] + x3 * weight[w3 + j];
            }
        }
        for (; p < k; p++) for (let j = 0; j < m; j++) y[at + j] += x[i * k + p] * weight[p * m + j];
    }
}

/**
 * W = xᵀ y
 * @type {(weight: Float64Array, x: Float64Array, y: Float64Array, n: number, k: number, m: number) => void}
 */
function putOuter(weight, x, y, n, k, m) {
    weight.fill(0);
    let i = 0;
    for (; i + 3 < n; i += 4) {
        const y0 = i * m, y1 = y0 + m, y2 = y1 + m, y3 = y2 + m;
        for (let p = 0; p < k; p++) {
            const first = i * k + p, at = p * m;
            const x0 = x[first], x1 = x[first + k], x2 = x[first + 2 * k], x3 = x[first + 3 * k];
            for (let j = 0; j < m; j++) {
                weight[at + j] += x0 * y[y0 + j] + x1 * y[y1 + j] + x2 * y[y2 + j] + x3 * y[y3 + j];
            }
        }
    }
    for (; i < n; i++) {
        for (let p = 0; p < k; p++) for (let j = 0; j < m; j++) weight[p * m + j] += x[i * k + p] * y[i * m + j];
    }
}

/**
 * x = y Wᵀ
 * @type {(x: Float64Array, y: Float64Array, weight: Float64Array, n: number, k: number, m: number) => void}
 */
function putTransposed(x, y, weight, n, k, m) {
    for (let i = 0; i < n; i++) {
        const at = i * m;
        let p = 0;
        for (; p + 3 < k; p += 4) {
            const w0 = p * m, w1 = w0 + m, w2 = w1 + m, w3 = w2 + m;
            let s0 = 0, s1 = 0, s2 = 0, s3 = 0;
            for (let j = 0; j < m; j++) {
                const value = y[at + j];
                s0 += value * weight[w0 + j];
                s1 += value * weight[w1 + j];
                s2 += value * weight[w2 + j];
                s3 += value * weight[w3 + j];
            }
            const to = i * k + p;
            x[to] = s0;
            x[to + 1] = s1;
            x[to + 2] = s2;
            x[to + 3] = s3;
        }
        for (; p < k; p++) {
            let sum = 0;
            for (let j = 0; j < m; j++) sum += y[at + j] * weight[p * m + j];
            x[i * k + p] = sum;
        }
    }
}

/** A normalization. Batch norm uses batch statistics in training, running statistics in evaluation. */
export class Normalize extends BaseLayer {
    /** @param {NormName} name @param {number} size @param {{ ddof?: number; momentum?: number }} [options] */
    constructor(name, size, { ddof = 0, momentum = 0.1 } = {}) {
        super({ weight: new Float64Array(size).fill(1), bias: new Float64Array(size) });
        this.norm = describe(name, { ddof });
        this.running = name === "batch" ? startRunning(size, { momentum }) : null;
        /** @type {ForwardResult} */
        this.out = null; // moments, var, rstd, xhat, y of the last forward
        /** @type {Moments | null} */
        this.batchMoments = null; // of the last training step
        /** @type {{ part: Partition; valid: boolean[][] }} */
        this.cells = null;
    }

    /**
     * @param {Matrix} x
     * @param {ForwardContext} context
     * @returns {Matrix}
     */
    forward(x, { training }) {
        const { weight, bias } = /** @type {Record<string, any>} */ (this.parameters);
        const moments = this.running && !training ? momentsOf(this.running, this.norm) : undefined;
        if (this.cells?.valid.length !== x.length) {
            // All valid. Typed arrays take half the time of arrays in the loops of normalization.js.
            const { size, index } = partition(this.norm, x.length, weight.length);
            this.cells = /** @type {any} */ ({
                part: { size, index: index.map((row) => Int32Array.from(row)) },
                valid: x.map((row) => new Uint8Array(row.length).fill(1)),
            });
        }
        this.out = forward(/** @type {any} */ (x), this.norm, { weight, bias, moments, ...this.cells });
        if (this.running && training) {
            this.batchMoments = this.out.moments;
            this.running = updateRunning(this.running, this.out.moments);
        }
        [this.x, this.y] = [x, /** @type {any} */ (this.out.y)];
        return this.y;
    }

    /**
     * @param {Matrix} dy
     * @returns {Matrix}
     */
    backward(dy) {
        const { dx, dweight, dbias } = backward(/** @type {any} */ (dy), this.out);
        /** @type {Float64Array} */ (this.gradients.weight).set(dweight);
        /** @type {Float64Array} */ (this.gradients.bias).set(dbias);
        [this.dy, this.dx] = [dy, /** @type {any} */ (dx)];
        return this.dx;
    }
}

/** A function of each value, with its derivative from x and y. */
class Activation extends BaseLayer {
    /** @param {(x: number) => number} value @param {(x: number, y: number) => number} derivative */
    constructor(value, derivative) {
        super();
        this.value = value;
        this.derivative = derivative;
    }

    /**
     * @param {Matrix} x
     * @returns {Matrix}
     */
    forward(x) {
        const { value } = this;
        const y = reuse(this.y, x.length, x[0]?.length ?? 0);
        const from = flatOf(x), to = flatOf(y);
        for (let i = 0; i < from.length; i++) to[i] = value(from[i]);
        [this.x, this.y] = [x, y];
        return y;
    }

    /**
     * @param {Matrix} dy
     * @returns {Matrix}
     */
    backward(dy) {
        const { x, y, derivative } = this;
        const dx = reuse(this.dx, dy.length, dy[0]?.length ?? 0);
        const gradients = flatOf(dy), xs = flatOf(x), ys = flatOf(y), to = flatOf(dx);
        for (let i = 0; i < to.length; i++) to[i] = gradients[i] * derivative(xs[i], ys[i]);
        [this.dy, this.dx] = [dy, dx];
        return dx;
    }
}

export class Tanh extends Activation {
    constructor() {
        super(Math.tanh, (x, y) => 1 - y * y);
    }
}

export class ReLU extends Activation {
    constructor() {
        super((x) => Math.max(x, 0), (x, y) => (y > 0 ? 1 : 0));
    }
}

/** 1 / (1 + exp(-x)), as tanh(x / 2) / 2 + 1/2, which cannot overflow. */
export class Sigmoid extends Activation {
    constructor() {
        super((x) => Math.tanh(x * 0.5) * 0.5 + 0.5, (x, y) => y * (1 - y));
    }
}

/** x · Φ(x) in the tanh approximation, x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³))). */
export class GELU extends Activation {
    constructor() {
        const scale = Math.sqrt(2 / Math.PI);
        const inner = (/** @type {number} */ x) => Math.tanh(scale * (x + 0.044715 * x ** 3));
        super((x) => 0.5 * x * (1 + inner(x)), (x) => {
            const t = inner(x);
            return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * scale * (1 + 3 * 0.044715 * x * x);
        });
    }
}

/** In training each value is set to 0 with this probability, and the others are scaled by 1 / (1 - probability). */
export class Dropout extends BaseLayer {
    /** @param {number} probability */
    constructor(probability) {
        super();
        this.probability = probability;
        /** @type {Matrix | null} */
        this.mask = null; // 0 or 1 / (1 - probability) for each value; null in evaluation
    }

    /**
     * @param {Matrix} x
     * @param {ForwardContext} context
     * @returns {Matrix}
     */
    forward(x, { training, rng = null }) {
        this.x = x;
        if (!training || !rng || this.probability === 0) {
            [this.mask, this.y] = [null, x];
            return x;
        }
        const [rows, columns] = [x.length, x[0].length];
        const kept = 1 / (1 - this.probability);
        this.mask = reuse(this.mask, rows, columns);
        this.y = reuse(this.y === x ? null : this.y, rows, columns);
        for (let i = 0; i < rows; i++) {
            for (let j = 0; j < columns; j++) {
                this.mask[i][j] = rng.random() >= this.probability ? kept : 0;
                this.y[i][j] = x[i][j] * this.mask[i][j];
            }
        }
        return this.y;
    }

    /**
     * @param {Matrix} dy
     * @returns {Matrix}
     */
    backward(dy) {
        this.dy = dy;
        if (this.mask === null) {
            this.dx = dy;
            return dy;
        }
        this.dx = reuse(this.dx === dy ? null : this.dx, dy.length, dy[0].length);
        for (let i = 0; i < dy.length; i++) {
            for (let j = 0; j < dy[i].length; j++) this.dx[i][j] = dy[i][j] * this.mask[i][j];
        }
        return this.dx;
    }
}

/**
 * The mean of -log softmax(logits)[target], the probabilities, and the gradient (probabilities - onehot) / n.
 * @type {(logits: Matrix, targets: ArrayLike<number>) => { loss: number; probabilities: Matrix; dlogits: Matrix }}
 */
export function crossEntropy(logits, targets) {
    const n = logits.length;
    const probabilities = matrix(n, logits[0].length);
    const dlogits = matrix(n, logits[0].length);
    let loss = 0;
    for (let i = 0; i < n; i++) {
        const row = logits[i], shares = probabilities[i], gradient = dlogits[i];
        let [most, total] = [-Infinity, 0];
        for (let j = 0; j < row.length; j++) most = Math.max(most, row[j]); // avoids overflow in exp
        for (let j = 0; j < row.length; j++) {
            shares[j] = Math.exp(row[j] - most);
            total += shares[j];
        }
        for (let j = 0; j < row.length; j++) {
            shares[j] /= total;
            gradient[j] = shares[j] / n;
        }
        gradient[targets[i]] -= 1 / n;
        loss += Math.log(total) - (row[targets[i]] - most);
    }
    return { loss: loss / n, probabilities, dlogits };
}
