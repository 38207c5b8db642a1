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
// row after row. Tiles of 4 x 2: what is read is used twice, and each sum is written once for four of its terms. The
// order of the terms is the same in a tile and at the end, where what is left over is a tile of its own.

/**
 * y += x W
 * @type {(y: Float64Array, x: Float64Array, weight: Float64Array, n: number, k: number, m: number) => void}
 */
function addProduct(y, x, weight, n, k, m) {
    for (let i = 0; i < n; i += 2) {
        const a = i * k, b = i + 1 < n ? a + k : a; // two rows, or the last one
        const ya = i * m, yb = i + 1 < n ? ya + m : ya;
        let p = 0;
        for (; p + 3 < k; p += 4) {
            const a0 = x[a + p], a1 = x[a + p + 1], a2 = x[a + p + 2], a3 = x[a + p + 3];
            const b0 = x[b + p], b1 = x[b + p + 1], b2 = x[b + p + 2], b3 = x[b + p + 3];
            const first = p * m, second = first + m, third = second + m, fourth = third + m;
            for (let j = 0; j < m; j++) {
                const w0 = weight[first + j], w1 = weight[second + j], w2 = weight[third + j], w3 = weight[fourth + j];
                const sum = y[ya + j] + (a0 * w0 + a1 * w1 + a2 * w2 + a3 * w3);
                y[yb + j] += b0 * w0 + b1 * w1 + b2 * w2 + b3 * w3;
                y[ya + j] = sum;
            }
        }
        for (; p < k; p++) {
            for (let j = 0; j < m; j++) {
                const sum = y[ya + j] + x[a + p] * weight[p * m + j];
                y[yb + j] += x[b + p] * weight[p * m + j];
                y[ya + j] = sum;
            }
        }
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
        const first = i * m, second = first + m, third = second + m, fourth = third + m;
        for (let p = 0; p < k; p += 2) {
            const a = i * k + p, b = p + 1 < k ? a + 1 : a; // two columns, or the last one
            const wa = p * m, wb = p + 1 < k ? wa + m : wa;
            const a0 = x[a], a1 = x[a + k], a2 = x[a + 2 * k], a3 = x[a + 3 * k];
            const b0 = x[b], b1 = x[b + k], b2 = x[b + 2 * k], b3 = x[b + 3 * k];
            for (let j = 0; j < m; j++) {
                const y0 = y[first + j], y1 = y[second + j], y2 = y[third + j], y3 = y[fourth + j];
                const sum = weight[wa + j] + (a0 * y0 + a1 * y1 + a2 * y2 + a3 * y3);
                weight[wb + j] += b0 * y0 + b1 * y1 + b2 * y2 + b3 * y3;
                weight[wa + j] = sum;
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
    for (let i = 0; i < n; i += 2) {
        const ya = i * m, yb = i + 1 < n ? ya + m : ya; // two rows, or the last one
        const xa = i * k, xb = i + 1 < n ? xa + k : xa;
        let p = 0;
        for (; p + 3 < k; p += 4) {
            const first = p * m, second = first + m, third = second + m, fourth = third + m;
            let a0 = 0, a1 = 0, a2 = 0, a3 = 0, b0 = 0, b1 = 0, b2 = 0, b3 = 0;
            for (let j = 0; j < m; j++) {
                const w0 = weight[first + j], w1 = weight[second + j], w2 = weight[third + j], w3 = weight[fourth + j];
                const a = y[ya + j], b = y[yb + j];
                a0 += a * w0;
                a1 += a * w1;
                a2 += a * w2;
                a3 += a * w3;
                b0 += b * w0;
                b1 += b * w1;
                b2 += b * w2;
                b3 += b * w3;
            }
            x[xa + p] = a0;
            x[xa + p + 1] = a1;
            x[xa + p + 2] = a2;
            x[xa + p + 3] = a3;
            x[xb + p] = b0;
            x[xb + p + 1] = b1;
            x[xb + p + 2] = b2;
            x[xb + p + 3] = b3;
        }
        for (; p < k; p++) {
            let a = 0, b = 0;
            for (let j = 0; j < m; j++) {
                a += y[ya + j] * weight[p * m + j];
                b += y[yb + j] * weight[p * m + j];
            }
            x[xa + p] = a;
            x[xb + p] = b;
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
