/*
Losses, and gradients by finite differences, which the part "backward" compares dx with.

    LOSSES.squares.gradient(y)         // dy of one cell, for one of the losses to choose from
    const terms = lossTerms(out, loss);             // what each cell adds to the loss
    compareGradients({ problem, out, loss, dx, paths, row, column });      // dx, and measured

A loss is { kind, given, row, column }: which of LOSSES, the numbers that were typed for dy, and the chosen cell. It is
a sum over cells, so `term` says what one cell adds to it, and `gradient` how that changes with the cell's y.
*/
import { placesWhere } from "#backward/cells.js";
import { cellsOf, forward } from "#maths/normalization.js";

/** @type {Record<LossKind, { title: string; formula: string; term: LossRule; gradient: LossRule }>} */
export const LOSSES = {
    given: {
        title: "My own dy", formula: "loss = Σ dy · y",
        term: (y, given) => given * y, gradient: (y, given) => given,
    },
    cell: {
        title: "One cell of y", formula: 'loss = y "of the chosen cell"',
        term: (y, given, chosen) => (chosen ? y : 0), gradient: (y, given, chosen) => (chosen ? 1 : 0),
    },
    squares: { title: "Half of all y²", formula: "loss = Σ y² / 2", term: (y) => (y * y) / 2, gradient: (y) => y },
    sum: { title: "Sum of all y", formula: "loss = Σ y", term: (y) => y, gradient: () => 1 },
};

// Every cell is measured in tables of up to so many; in larger ones those of a statistic, if it has up to so many.
const MOST_MEASURED = 144;
const MOST_SHARED = 256;

/**
 * What each cell adds to the loss.
 * @type {(out: ForwardResult, loss: Loss) => number[][]}
 */
export function lossTerms(out, loss) {
    return lossCells(out, loss, LOSSES[loss.kind].term);
}

/**
 * dy: how the loss changes with each cell of y.
 * @type {(out: ForwardResult, loss: Loss) => number[][]}
 */
export function lossGradients(out, loss) {
    return lossCells(out, loss, LOSSES[loss.kind].gradient);
}

/** @type {(out: ForwardResult, loss: Loss, of: LossRule) => number[][]} */
function lossCells(out, { given, row, column }, of) {
    return cellsOf(out, (i, j) => of(out.y[i][j], given[i][j], i === row && j === column));
}

/** @type {(table: number[][]) => number} */
export function sumCells(table) {
    return table.flat().reduce((sum, value) => sum + value, 0);
}

/**
 * Measured gradients against dx, for the chosen cell and for as many others as is quick:
 * { chosen, worst, cells, jumps, reach }. A difference is relative to the largest of the paths that add up to dx: they
 * may cancel, and then leave nothing but rounding.
 * @type {(model: ComparedModel) => Comparison}
 */
export function compareGradients(model) {
    const { problem, out, dx, paths, row, column } = model;
    const { reach, places } = measuredPlaces(out, problem, row, column);
    const scales = new Array(out.partition.size).fill(0);
    paths.forEach((table) => out.partition.index.forEach((cells, i) => cells.forEach((s, j) => {
        scales[s] = Math.max(scales[s], Math.abs(table[i][j]));
    })));
    /** @type {Map<number, StatisticAlone>} */
    const alone = new Map(); // each statistic is cut out once
    /** @type {(place: Point) => MeasuredGradient & { dx: number; relative: number }} */
    const compare = ([i, j]) => {
        const s = out.partition.index[i][j];
        if (!alone.has(s)) alone.set(s, cutOut(model, s));
        const measured = measureGradient(alone.get(s), i, j);
        const difference = Math.abs(measured.gradient - dx[i][j]);
        return { ...measured, dx: dx[i][j], relative: difference === 0 ? 0 : difference / scales[s] };
    };
    const smooth = places.filter(([i, j]) => !jumpsAt(out, i, j));
    const worst = smooth.reduce((most, place) => Math.max(most, compare(place).relative), 0);
    return { chosen: compare([row, column]), worst, cells: smooth.length, jumps: places.length - smooth.length, reach };
}

/**
 * The cells of one statistic as a table of their own: when one of them moves, no others change, and `rest` is what
 * those add to the loss. One group in one sample is one statistic, whatever the norm.
 * @type {(model: ComparedModel, statistic: number) => StatisticAlone}
 */
function cutOut({ problem, out, loss }, statistic) {
    const { index } = out.partition;
    const rows = [...index.keys()].filter((i) => index[i].includes(statistic));
    const columns = [...index[rows[0]].keys()].filter((j) => index[rows[0]][j] === statistic);
    /** @type {<Value>(table: Value[][]) => Value[][]} */
    const cut = (table) => rows.map((i) => columns.map((j) => table[i][j]));
    /** @type {Omit<StatisticAlone, "rest">} */
    const part = {
        rows, columns, x: cut(problem.x), norm: { ...problem.norm, name: "group", groups: 1 }, valid: cut(out.valid),
        weight: columns.map((j) => problem.weight[j]), bias: columns.map((j) => problem.bias[j]),
        rstd: out.rstd[statistic],
        loss: { ...loss, given: cut(loss.given), row: rows.indexOf(loss.row), column: columns.indexOf(loss.column) },
    };
    const rest = sumCells(lossTerms(out, loss)) - sumCells(termsWith(part, part.x));
    return { ...part, rest };
}

/** @type {(part: Omit<StatisticAlone, "rest">, x: number[][]) => number[][]} */
function termsWith({ norm, weight, bias, valid, loss }, x) {
    return lossTerms(forward(x, norm, { weight, bias, valid }), loss);
}

/**
 * The gradient of the loss at one cell of x by central differences; up and down are the losses.
 * h follows the spread, where the function bends, and grows where x is so large that rounding would hide the change.
 * @type {(part: StatisticAlone, row: number, column: number) => MeasuredGradient}
 */
function measureGradient(part, row, column) {
    const [i, j] = [part.rows.indexOf(row), part.columns.indexOf(column)];
    const value = part.x[i][j];
    const scale = part.rstd > 0 ? 1 / part.rstd : Math.max(Math.abs(value), 1);
    const h = scale * Math.cbrt(Number.EPSILON * Math.max(1, Math.abs(value) / scale));
    const [above, below] = [value + h, value - h];
    const [up, down] = [above, below].map((moved) => termsWith(part, part.x.with(i, part.x[i].with(j, moved))));
    // Cell by cell, as sums would round first. And h as it really was, once added to x.
    const change = sumCells(up.map((terms, k) => terms.map((term, l) => term - down[k][l])));
    return { h, up: part.rest + sumCells(up), down: part.rest + sumCells(down), gradient: change / (above - below) };
}

/**
 * Where equal numbers are divided by nothing, y is the bias, but leaves it as soon as one of them moves: no gradient.
 * @type {(out: ForwardResult, row: number, column: number) => boolean}
 */
export function jumpsAt(out, row, column) {
    const s = out.partition.index[row][column];
    const alone = out.norm.center && out.moments.count[s] === 1; // a number that is its own mean stays there
    return out.rstd[s] === 0 && out.moments.count[s] > out.norm.ddof && !alone && out.var[s] < Infinity;
}

/**
 * The whole table, or the cells that share a statistic with the chosen one, or that one alone: what is quick.
 * @type {(out: ForwardResult, shape: { rows: number; columns: number }, row: number, column: number) => { reach:
 *     "table" | "shared" | "cell"; places: Point[] }}
 */
function measuredPlaces(out, { rows, columns }, row, column) {
    const { index } = out.partition;
    const all = placesWhere(out.valid, (i, j) => out.valid[i][j]);
    if (rows * columns <= MOST_MEASURED) return { reach: "table", places: all };
    const shared = all.filter(([i, j]) => index[i][j] === index[row][column]);
    if (shared.length <= MOST_SHARED) return { reach: "shared", places: shared };
    return { reach: "cell", places: [[row, column]] };
}
