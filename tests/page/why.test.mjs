// What the part "why" computes: the loss of a linear model over two weights, gradient descent on it, shifted data.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
    bowlOf, conditionWithBias, descend, eigenvalues, lossAt, standardize, stepsToBest,
} from "../../src/truenorm/page/why/descent.js";
import { below, rateOf } from "../../src/truenorm/page/why/rate.js";
import { TEST, TRAIN, featuresOf, hiddenOf, placedOf, rangeOf, sidesOf } from "../../src/truenorm/page/why/scales.js";
import { SHIFTS, judge } from "../../src/truenorm/page/why/shift.js";
import { whyQuestions } from "../../src/truenorm/page/why/questions.js";

const close = (got, want, tolerance = 1e-12) =>
    assert.ok(Math.abs(got - want) <= tolerance * Math.max(1, Math.abs(want)), `${got} is not ${want}`);

/** ½ mean((ŷ − y)²), written out, with the bias at its best value. */
function lossByLoops(x, y, [w1, w2]) {
    const rest = x.map(([a, b], i) => y[i] - w1 * a - w2 * b);
    const bias = rest.reduce((sum, one) => sum + one, 0) / rest.length;
    return rest.reduce((sum, one) => sum + (one - bias) ** 2, 0) / rest.length / 2;
}

const RAW = featuresOf(TRAIN);
const PLACED = placedOf(TRAIN);
const EVERY_SIDE = [...sidesOf("inputs", 1), ...sidesOf("hidden", 0.1), ...sidesOf("hidden", 50)];

test("the bowl is the squared error of the model, and its gradient is that of the loss", () => {
    for (const { x, bowl } of EVERY_SIDE) {
        for (const w of [[0, 0], [-0.8, 0.8], [0.3, -1]]) {
            close(lossAt(bowl, w), lossByLoops(x, PLACED, w), 1e-11);
            const [, after] = descend(bowl, w, 1e-3, 1);
            [0, 1].forEach((i) => {
                const moved = (h) => lossByLoops(x, PLACED, w.map((one, k) => one + (k === i) * h));
                const [up, down] = [moved(1e-4), moved(-1e-4)];
                close((w[i] - after[i]) / 1e-3, (up - down) / 2e-4, 1e-6);
            });
        }
        close(lossAt(bowl, bowl.best), bowl.lowest);
    }
});

test("2 / λ max is where convergence ends", () => {
    for (const { bowl } of EVERY_SIDE) {
        const start = [-0.8, 0.8];
        const [under, over] = [0.999, 1.001].map((part) => descend(bowl, start, part * bowl.largestRate, 20_000));
        assert.ok(lossAt(bowl, under.at(-1)) < lossAt(bowl, start));
        close(lossAt(bowl, descend(bowl, start, 0.999 * bowl.largestRate, 100_000).at(-1)), bowl.lowest, 1e-9);
        assert.ok(lossAt(bowl, over.at(-1)) > 100 * lossAt(bowl, start));
        assert.ok(below(bowl.largestRate) <= bowl.largestRate && below(bowl.largestRate) > 0.99 * bowl.largestRate);
        assert.equal(stepsToBest(bowl, start, 1.01 * bowl.largestRate), Infinity);
    }
});

test("the number of steps is that of the path", () => {
    for (const { bowl } of EVERY_SIDE) {
        const steps = stepsToBest(bowl, [-0.8, 0.8], rateOf(0, bowl));
        const path = descend(bowl, [-0.8, 0.8], bowl.bestRate, steps);
        assert.equal(path.length, steps + 1);
        assert.ok(lossAt(bowl, path.at(-1)) <= 1.01 * bowl.lowest);
        assert.ok(lossAt(bowl, path.at(-2)) > 1.01 * bowl.lowest);
        // The best rate: of the two directions, the slower one shrinks as quickly as possible.
        const slowest = (lr) => Math.max(...[bowl.large, bowl.small].map((one) => Math.abs(1 - lr * one)));
        for (const part of [0.99, 1.01]) assert.ok(slowest(part * bowl.bestRate) > slowest(bowl.bestRate));
    }
});

test("a path that diverges ends, and is finite", () => {
    const path = descend(sidesOf("inputs", 1)[0].bowl, [-1, 1], 10, 40);
    assert.ok(path.length < 10);
    assert.ok(path.flat().every(Number.isFinite));
});

test("eigenvalues of known matrices", () => {
    const near = (matrix, want) => eigenvalues(matrix).forEach((one, i) => close(one, want[i]));
    near([[2, 1], [1, 2]], [3, 1]);
    near([[5, 0], [0, 7]], [7, 5]);
    near([[2, -1, 0], [-1, 2, -1], [0, -1, 2]], [2 + Math.SQRT2, 2, 2 - Math.SQRT2]);
    for (const { bowl } of EVERY_SIDE) {
        close(bowl.large + bowl.small, bowl.hessian[0][0] + bowl.hessian[1][1]);
        close(bowl.large * bowl.small, bowl.hessian[0][0] * bowl.hessian[1][1] - bowl.hessian[0][1] ** 2, 1e-9);
        // The steepest direction: the Hessian only makes it longer.
        const [c, s] = [Math.cos(bowl.angle), Math.sin(bowl.angle)];
        close(bowl.hessian[0][0] * c + bowl.hessian[0][1] * s, bowl.large * c, 1e-9);
        close(bowl.hessian[1][0] * c + bowl.hessian[1][1] * s, bowl.large * s, 1e-9);
    }
});

test("the lowest loss is the same, and the condition number of standardised features is that of their correlation", () => {
    const [raw, normal] = sidesOf("inputs", 1).map(({ bowl }) => bowl);
    close(raw.lowest, normal.lowest);
    const correlation = raw.hessian[0][1] / (raw.std[0] * raw.std[1]);
    close(normal.condition, (1 + correlation) / (1 - correlation));
    close(conditionWithBias(normal), normal.condition);
    assert.ok(raw.condition > 100 && conditionWithBias(raw) > 1e5);
    const centred = bowlOf(RAW.map(([a, b]) => [a - raw.mean[0], b - raw.mean[1]]), PLACED);
    close(conditionWithBias(centred), raw.large / Math.min(raw.small, 1), 1e-9); // 1: the bias, on its own
});

test("a norm takes out how far the weights of a unit have grown", () => {
    const [one, ten] = [1, 10].map((growth) => sidesOf("hidden", growth).map(({ bowl }) => bowl));
    assert.ok(ten[0].condition > 20 * one[0].condition);
    close(ten[1].condition, one[1].condition, 1e-9);
    assert.ok(hiddenOf(standardize(RAW), 3).flat().every((h) => h >= 0));
    for (const { x } of EVERY_SIDE) {
        const { low, high } = rangeOf(x);
        assert.ok(x.flat().every((value) => value >= low && value <= high));
    }
});

test("a shift costs right answers by the statistics of training, and none by those of the new data", () => {
    const still = judge(0);
    assert.equal(still.placed.length, TEST.length);
    for (const shift of SHIFTS) {
        const found = judge(shift);
        close(found.withOwn, still.withOwn);
        if (Math.abs(shift) >= 12) assert.ok(found.withGiven < still.withGiven, String(shift));
    }
    assert.ok(judge(40).withGiven < 0.6 && still.withGiven > 0.9);
});

test("every question has its right answer", () => {
    for (const { ask, answers, right, because } of whyQuestions()) {
        assert.ok(ask.endsWith("?") && answers[right] && !/NaN|undefined|Infinity/.test(because), because);
    }
});
