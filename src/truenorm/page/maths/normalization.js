/*
Normalization, forward and backward: the twin of norm.py, moments.py and reference.py, in the same words.

    y = (x - mean) / sqrt(var + eps) * weight + bias

x is a table: an array of rows, a row is an array of numbers, one column for each channel. Rows that follow each other
may belong to one sample: `offsets` [0, 3, 5] says that rows 0 to 2 are the first sample and rows 3 and 4 the second.
Two padded sentences are such a table too, with `valid` false at the padding. One mechanism makes all normalizations:
`partition` says for each cell which statistic it belongs to, and nothing below it knows one norm from another.

    const norm = describe("batch", { eps: 1e-5, ddof: 0, eps_at: "var" });
    const out = forward(x, norm, { weight, bias, valid, offsets });   // out.y, out.xhat, out.moments, out.var, out.rstd
    const { dx, dweight, dbias } = backward(dy, out);

Conventions: what there is one of for each statistic (count, mean, m2, var, rstd) is a flat array, indexed by
`out.partition.index[row][column]`. `valid` is booleans: one a row, or rows of one a cell; rank decides. Cells that are
not valid are never read into arithmetic: NaN there changes nothing; y, xhat and dx are 0 there. Rows of xhat, y and dx
are of the kind of x's rows: arrays, or the Float64Arrays of a network's layers. The loops are plain, as a network runs
them thousands of times a second.
*/

/**
 * What a normalization is: axes b (samples), t (rows of a sample), c (columns); brackets mark those averaged over.
 * @type {Record<NormName, { title: string; pattern: string; center: boolean; each: string }>}
 */
export const NORMS = {
    batch: { title: "Batch", pattern: "[b t] c", center: true, each: "column" },
    layer: { title: "Layer", pattern: "b t [c]", center: true, each: "row" },
    instance: { title: "Instance", pattern: "b [t] c", center: true, each: "sample and column" },
    group: { title: "Group", pattern: "b [t] (g [c])", center: true, each: "sample and group of columns" },
    rms: { title: "RMS", pattern: "b t [c]", center: false, each: "row" },
};

/**
 * A normalization with its conventions; `groups` matters to group norm alone. RMS has ddof 0: it estimates no mean.
 * @type {(name: NormName, options?: Partial<Norm>) => Norm}
 */
export function describe(name, { eps = 1e-5, ddof = 0, eps_at = "var", groups = 1 } = {}) {
    const { pattern, center } = NORMS[name];
    return { name, pattern, center, eps, ddof: center ? ddof : 0, eps_at, groups };
}

/**
 * Which cells share a statistic: a normalization is a set of axes.
 * Returns { size, index }: how many statistics there are, and for each cell which one is its own.
 * @type {(norm: Norm, rows: number, columns: number, offsets?: number[]) => Partition}
 */
export function partition(norm, rows, columns, offsets = [0, rows]) {
    const width = columns / norm.groups;
    /** @type {Record<NormName, { size: number; of: (sample: number, row: number, column: number) => number }>} */
    const rules = {
        batch: { size: columns, of: (sample, row, column) => column },
        layer: { size: rows, of: (sample, row) => row },
        rms: { size: rows, of: (sample, row) => row },
        instance: { size: (offsets.length - 1) * columns, of: (sample, row, column) => sample * columns + column },
        group: {
            size: (offsets.length - 1) * norm.groups,
            of: (sample, row, column) => sample * norm.groups + Math.floor(column / width),
        },
    };
    if (norm.name === "group" && !Number.isInteger(width)) {
        throw new RangeError(`group: columns that ${norm.groups} groups share equally, got ${columns}.`);
    }
    const { size, of } = rules[norm.name];
    /** @type {number[][]} */
    const index = [];
    for (let row = 0, sample = 0; row < rows; row++) {
        while (row >= offsets[sample + 1]) sample++;
        index.push(Array.from({ length: columns }, (_, column) => of(sample, row, column)));
    }
    return { size, index };
}

/**
 * Moments { count, mean, m2 } of the valid cells, for each statistic. Nothing valid: 0, 0 and 0.
 * `part` is what `partition` returns, for those who have it.
 * @type {(x: number[][], norm: Norm, options?: Masking & { part?: Partition }) => Moments}
 */
export function measure(x, norm, { valid, offsets, part = partition(norm, x.length, columnsOf(x), offsets) } = {}) {
    const isValid = validCells(x, valid);
    // The valid cells, statistic after statistic: where each begins, then their values.
    const starts = new Int32Array(part.size + 1);
    for (let i = 0; i < x.length; i++) {
        const valids = isValid[i], index = part.index[i];
        for (let j = 0; j < index.length; j++) if (valids[j]) starts[index[j] + 1] += 1;
    }
    for (let s = 0; s < part.size; s++) starts[s + 1] += starts[s];
    const values = new Float64Array(starts[part.size]);
    const next = starts.slice();
    for (let i = 0; i < x.length; i++) {
        const row = x[i], valids = isValid[i], index = part.index[i];
        for (let j = 0; j < index.length; j++) if (valids[j]) values[next[index[j]]++] = row[j];
    }
    return weigh(values, new Float64Array(values.length).fill(1), starts, norm.center);
}

/**
 * The moments of all parts together, whatever the partition and the order; empty parts change no bit.
 * @type {(...parts: Moments[]) => Moments}
 */
export function merge(...parts) {
    const size = parts[0].count.length;
    const full = Array.from({ length: size }, (_, s) => parts.filter(({ count }) => count[s] > 0));
    const starts = new Int32Array(size + 1);
    full.forEach((some, s) => (starts[s + 1] = starts[s] + some.length));
    const merged = weigh(
        Float64Array.from(full.flatMap((some, s) => some.map(({ mean }) => mean[s]))),
        Float64Array.from(full.flatMap((some, s) => some.map(({ count }) => count[s]))), starts, true,
    );
    parts.forEach((part) => part.m2.forEach((m2, s) => part.count[s] > 0 && (merged.m2[s] += m2)));
    return merged;
}

/**
 * var = m2 / (count - ddof); 0 where count <= ddof.
 * @type {(moments: Moments, ddof: number) => number[]}
 */
export function varianceOf(moments, ddof) {
    return moments.m2.map((m2, s) => ratio(m2, moments.count[s] - ddof));
}

/**
 * rstd: the one place where eps and ddof are applied. 0 where there is no variance to divide by.
 * @type {(moments: Moments, norm: Norm) => number[]}
 */
export function inverseDeviation(moments, norm) {
    return varianceOf(moments, norm.ddof).map((variance, s) => {
        const deviation = norm.eps_at === "var" ? Math.sqrt(variance + norm.eps) : Math.sqrt(variance) + norm.eps;
        return moments.count[s] > norm.ddof && deviation !== 0 ? 1 / deviation : 0;
    });
}

/**
 * y = (x - mean) * rstd * weight + bias, with the statistics of the valid cells alone.
 * Moments that are given are used instead of x's own, and are constants to `backward`.
 * @type {(x: number[][], norm: Norm, options?: Affine & Masking & { moments?: Moments; part?: Partition }) =>
 *     ForwardResult}
 */
export function forward(x, norm, options = {}) {
    const { weight = null, bias = null, offsets, part = partition(norm, x.length, columnsOf(x), offsets) } = options;
    const given = options.moments ?? null;
    const valid = validCells(x, options.valid);
    const used = given ?? measure(x, norm, { valid, part });
    /** @type {ForwardResult} */
    const out = {
        x, norm, weight, bias, offsets, given,
        moments: used,
        partition: part,
        valid,
        var: varianceOf(used, norm.ddof),
        rstd: inverseDeviation(used, norm),
        xhat: tableLike(x),
        y: tableLike(x),
    };
    const { xhat, y, rstd, moments: { mean } } = out;
    for (let i = 0; i < x.length; i++) {
        const row = x[i], index = part.index[i], valids = valid[i], xhats = xhat[i], ys = y[i];
        for (let j = 0; j < row.length; j++) {
            const s = index[j];
            xhats[j] = valids[j] ? (row[j] - mean[s]) * rstd[s] : 0;
            ys[j] = valids[j] ? xhats[j] * (weight ? weight[j] : 1) + (bias ? bias[j] : 0) : 0;
        }
    }
    return out;
}

/**
 * The sums that the gradient needs: of this part alone, to be added to those of other parts.
 * @type {(dy: number[][], out: ForwardResult) => BackwardSums}
 */
export function backwardSums(dy, out) {
    const { xhat, weight, partition: { size, index }, valid } = out;
    const [dxhat, dxhat_xhat] = [new Float64Array(size), new Float64Array(size)];
    const [dweight, dbias] = [new Float64Array(columnsOf(dy)), new Float64Array(columnsOf(dy))];
    for (let i = 0; i < dy.length; i++) {
        const row = dy[i], xhats = xhat[i], statistics = index[i], valids = valid[i];
        for (let j = 0; j < row.length; j++) {
            if (!valids[j]) continue;
            const s = statistics[j];
            const gradient = row[j] * (weight ? weight[j] : 1);
            dxhat[s] += gradient;
            dxhat_xhat[s] += gradient * xhats[j];
            dweight[j] += row[j] * xhats[j];
            dbias[j] += row[j];
        }
    }
    return {
        dxhat: Array.from(dxhat), dxhat_xhat: Array.from(dxhat_xhat),
        dweight: weight && Array.from(dweight), dbias: out.bias && Array.from(dbias),
    };
}

/**
 * { dx, dweight, dbias }. With `sums`, x is a part of a whole whose moments were given and whose sums these are.
 * @type {(dy: number[][], out: ForwardResult, options?: { sums?: BackwardSums | null }) => Gradients}
 */
export function backward(dy, out, { sums = null } = {}) {
    const { moments, norm, rstd, xhat, weight, partition: { index }, valid } = out;
    const constant = out.given !== null && sums === null;
    const { dxhat, dxhat_xhat, dweight, dbias } = sums ?? backwardSums(dy, out);
    const throughMean = dxhat.map((sum, s) => (norm.center && !constant ? ratio(sum, moments.count[s]) : 0));
    const throughVar = dxhat_xhat.map((sum, s) =>
        (constant ? 0 : ratio(sum, moments.count[s] - norm.ddof) * epsOutside(out, s)));
    const dx = tableLike(out.x);
    for (let i = 0; i < dy.length; i++) {
        const row = dy[i], xhats = xhat[i], statistics = index[i], valids = valid[i], dxs = dx[i];
        for (let j = 0; j < row.length; j++) {
            const s = statistics[j];
            const shared = constant ? 0 : throughMean[s] + xhats[j] * throughVar[s];
            dxs[j] = valids[j] ? (row[j] * (weight ? weight[j] : 1) - shared) * rstd[s] : 0;
        }
    }
    return { dx, dweight, dbias };
}

/**
 * Σ w, Σ w v / Σ w and Σ w (v - mean)² for each statistic s: its values are those from starts[s] on.
 * The mean starts at the largest value and twice takes up the mean of what is left over: equal values leave nothing
 * over, so their mean is exactly their value. Never E[x²] - E[x]², which loses everything when the mean is large.
 * @type {(values: Float64Array, weights: Float64Array, starts: Int32Array, center: boolean) => Moments}
 */
function weigh(values, weights, starts, center) {
    /** @type {Moments} */
    const moments = { count: [], mean: [], m2: [] };
    for (let s = 0; s + 1 < starts.length; s++) {
        const first = starts[s], end = starts[s + 1];
        let count = 0, mean = center && first < end ? -Infinity : 0, m2 = 0;
        for (let k = first; k < end; k++) count += weights[k];
        if (center) for (let k = first; k < end; k++) mean = Math.max(mean, values[k]);
        for (let pass = 0; center && pass < 2; pass++) {
            let rest = 0;
            for (let k = first; k < end; k++) rest += weights[k] * (values[k] - mean);
            mean += ratio(rest, count);
        }
        for (let k = first; k < end; k++) m2 += weights[k] * (values[k] - mean) * (values[k] - mean);
        moments.count.push(count);
        moments.mean.push(mean);
        moments.m2.push(m2);
    }
    return moments;
}

/**
 * -2 drstd/dvar / rstd³: 1 for sqrt(var + eps), 1 + eps / std for std + eps; 0 where m2 is 0.
 * @type {(out: ForwardResult, s: number) => number}
 */
function epsOutside(out, s) {
    if (out.norm.eps_at === "var") return 1;
    return out.var[s] > 0 ? 1 + out.norm.eps / Math.sqrt(out.var[s]) : 0;
}

/**
 * The gradient at xhat: dy * weight.
 * @type {(dy: number[][], out: ForwardResult) => number[][]}
 */
export function dxhatOf(dy, out) {
    return cellsOf(out, (i, j) => dy[i][j] * (out.weight?.[j] ?? 1));
}

/**
 * A table of `of(row, column, statistic)` at the valid cells, 0 elsewhere.
 * @type {(out: ForwardResult, of: (row: number, column: number, statistic: number) => number) => number[][]}
 */
export function cellsOf(out, of) {
    return out.partition.index.map((row, i) => row.map((s, j) => (out.valid[i][j] ? of(i, j, s) : 0)));
}

/**
 * The sum of a table's cells for each statistic.
 * @type {(out: ForwardResult, table: number[][]) => number[]}
 */
export function sumStatistics(out, table) {
    const sums = new Array(out.partition.size).fill(0);
    out.partition.index.forEach((row, i) => row.forEach((s, j) => (sums[s] += table[i][j])));
    return sums;
}

/**
 * `valid` as rows of booleans, one a cell.
 * @type {(x: number[][], valid?: Valid) => boolean[][]}
 */
function validCells(x, valid) {
    if (typeof valid?.[0] === "object") return /** @type {boolean[][]} */ (valid);
    return x.map((row, i) => new Array(row.length).fill(Boolean(valid?.[i] ?? true)));
}

/**
 * A table of the same shape and kind. The rows of a network's layers lie in one buffer: many small ones take longer.
 * @type {(x: number[][]) => number[][]}
 */
function tableLike(x) {
    if (Array.isArray(x[0])) return x.map((row) => row.slice());
    const columns = columnsOf(x);
    const flat = new Float64Array(x.length * columns);
    return /** @type {any} */ (x.map((_, i) => flat.subarray(i * columns, (i + 1) * columns)));
}

/** @type {(x: number[][]) => number} */
function columnsOf(x) {
    return x[0]?.length ?? 0;
}

/**
 * above / below, 0 where below is not positive.
 * @type {(above: number, below: number) => number}
 */
export function ratio(above, below) {
    return below > 0 ? above / below : 0;
}
