// What the part "running" computes: running statistics over batches, and one student in training and in evaluation.
import assert from "node:assert/strict";
import { test } from "node:test";

import { runningQuestions } from "../../src/truenorm/page/running/questions.js";
import {
    IQ, LAST, MOMENTA, NORM, SIZES, arrivals, batchesOf, commandFor, estimateAgain, inEvaluation, inTraining,
} from "../../src/truenorm/page/running/stream.js";

const close = (got, want, tolerance = 1e-12) =>
    assert.ok(Math.abs(got - want) <= tolerance * Math.max(1, Math.abs(want)), `${got} is not ${want}`);
const meanOf = (values) => values.reduce((sum, value) => sum + value, 0) / values.length;
const varianceOf = (values, ddof) => {
    const mean = meanOf(values);
    return values.reduce((sum, value) => sum + (value - mean) ** 2, 0) / (values.length - ddof);
};

test("running statistics are weighted sums of those of the batches, and the rest is the start", () => {
    for (const momentum of MOMENTA) {
        const { batches, own, states } = arrivals(8, momentum);
        assert.equal(states.length, LAST + 1);
        for (const now of [0, 1, 7, LAST]) {
            let [mean, variance] = [0, (1 - momentum) ** now];
            batches.slice(0, now).forEach((batch, i) => {
                const weight = momentum * (1 - momentum) ** (now - 1 - i);
                mean += weight * meanOf(batch);
                variance += weight * varianceOf(batch, 1);
            });
            close(states[now].mean[0], mean);
            close(states[now].var[0], variance);
        }
        close(own[5].mean, meanOf(batches[5]));
        close(own[5].var, varianceOf(batches[5], 1));
    }
});

test("a batch of one leaves the running statistics at their start", () => {
    const { states } = arrivals(1, 0.1);
    assert.deepEqual([states.at(-1).mean, states.at(-1).var], [[0], [1]]);
});

test("the same size brings the same students, and other sizes bring others", () => {
    for (const size of SIZES) {
        const batches = batchesOf(size);
        assert.deepEqual(batchesOf(size), batches);
        assert.ok(batches.every((batch) => batch.length === size && batch.every((iq) => IQ.includes(iq))));
    }
    assert.notDeepEqual(batchesOf(8).flat().slice(0, 40), batchesOf(4).flat().slice(0, 40));
});

test("in training the others matter, in evaluation they do not", () => {
    const [first, second] = batchesOf(8);
    assert.notEqual(inTraining(120, first), inTraining(120, second));
    const all = [120, ...first];
    close(inTraining(120, first), (120 - meanOf(all)) / Math.sqrt(varianceOf(all, 0) + NORM.eps));
    const running = arrivals(8, 0.1).states[40];
    const want = (120 - running.mean[0]) / Math.sqrt(running.var[0] + NORM.eps);
    close(inEvaluation([120], running)[0], want);
    close(inEvaluation([...first, 120], running).at(-1), want);
    for (const alone of [-5, 0, 120, 1e9]) assert.equal(inTraining(alone, []), 0);
});

test("statistics that are estimated again are those of all the values", () => {
    const values = IQ.map((iq) => iq + 15);
    const again = estimateAgain(values);
    close(again.mean[0], meanOf(values));
    close(again.var[0], varianceOf(values, 0));
    const xhat = inEvaluation(values, again);
    close(meanOf(xhat), 0);
    close(varianceOf(xhat, 0), 1, 1e-6); // but for eps
});

test("a command and the questions have numbers in them", () => {
    const running = { ...arrivals(8, 0.1).states[40], mean: [96.4321987], var: [161.6] };
    assert.equal(commandFor([120], running), "printf '120\\n' | truenorm explain - --mean 96.4322 --var 161.6");
    for (const batches of [0, 40, LAST]) {
        const state = { get: (name) => ({ "running.batches": batches, "running.size": 8 })[name] };
        for (const { answers, right, because } of runningQuestions(state)) {
            assert.ok(answers[right] && !/NaN|undefined/.test(because), because);
        }
    }
});
