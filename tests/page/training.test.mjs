// What the page says about recorded runs, and how they stand in an address.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import {
    bestRun, commandFor, compareLosses, momentCodec, pairAt, percentOf, rangeInWords, readRuns, shownRuns, someOf,
    mostDifferentRate,
} from "../../src/truenorm/page/training/runs.js";

const recorded = readRuns(readFileSync(new URL("../../src/truenorm/page/runs.json", import.meta.url), "utf8"));

test("shares are 0% and 100% only when they are", () => {
    assert.deepEqual(
        [0, 0.0001, 0.0005, 0.0312, 0.5, 0.9994, 0.9995, 0.9997, 1].map(percentOf),
        ["0%", "under 0.1%", "0.1%", "3.1%", "50%", "99.9%", "over 99.9%", "over 99.9%", "100%"],
    );
});

test("a verdict says no more than the seeds do", () => {
    const guessing = 3.3;
    assert.match(compareLosses([20, 18], [2.4, 2.5], guessing), /^without .* worse than blind guessing\. With it, it learns/);
    assert.match(compareLosses([2.4, 2.5], [20, null], guessing), /^with batch norm .* worse than blind guessing/);
    assert.match(compareLosses([null, null], [9, 9], guessing), /^neither learns/);
    assert.equal(compareLosses([2.0, 2.2], [2.1, 2.3], guessing),
        "without batch norm all 2 seeds end lower, by 0.1 on average.");
    assert.equal(compareLosses([2.1, 2.3], [2.0, 2.2], guessing),
        "with batch norm all 2 seeds end lower, by 0.1 on average.");
    assert.equal(compareLosses([2.1, 2.2], [2.0, 2.25], guessing),
        "no clear difference. Without batch norm 1 of 2 seeds end lower; means are 0.025 apart.");
    assert.equal(compareLosses([2, 2], [2, 2], guessing).startsWith("no clear difference"), true);
});

test("a range of losses that were not finite is shown as it is", () => {
    assert.equal(rangeInWords([2.5, null, 2.25]), "(2.25 to ∞)");
});

test("a step in an address is the nearest moment, and nonsense is none", () => {
    const { encode, decode } = momentCodec([0, 1, 10, 100]);
    assert.deepEqual(["0", "3", "7", "99", "100"].map(decode), [0, 1, 10, 100, 100]);
    assert.equal(decode(encode(10)), 10);
    for (const text of ["", "101", "-1", "1e1", "NaN", "ten", "1.5"]) assert.throws(() => decode(text), text);
});

test("runs in an address are in order and once", () => {
    const { encode, decode } = someOf(["none-1", "batch-1", "none-3"]);
    assert.deepEqual(decode("none-3,none-1,none-3"), ["none-1", "none-3"]);
    for (const chosen of [[], null]) assert.deepEqual(decode(encode(chosen)), chosen);
    for (const text of ["none-2", "none-1,", ",", "none-1;none-3", "%E0%A4%A"]) assert.throws(() => decode(text), text);
});

test("the recorded runs hold what the texts say of them", () => {
    const saturated = (rate) => pairAt(recorded, rate).map((run) => run.saturated.at(-1));
    const [without, withNorm] = saturated(mostDifferentRate(recorded));
    assert.ok(without > 0.9 && withNorm < 0.1); // "a unit ... is saturated"
    // "with batch norm, what goes in begins with mean 0 and standard deviation 1": divided by n - 1, a little less.
    for (const rate of recorded.rates) assert.ok(Math.abs(pairAt(recorded, rate)[1].std[0] - 1) < 0.02);
    // "not: batch norm is always better"; "not: a higher learning rate is better as long as it learns"
    assert.equal(bestRun(recorded).norm, "none");
    assert.ok(bestRun(recorded).rate < mostDifferentRate(recorded));
    const verdicts = recorded.rates.map((rate) =>
        compareLosses(...pairAt(recorded, rate).map((run) => run.held_out), recorded.guessing));
    assert.ok(verdicts.some((one) => one.startsWith("no clear difference")));
    assert.ok(verdicts.some((one) => one.startsWith("neither learns")));
});

test("the chart shows the pair of the rate until runs are ticked", () => {
    const shown = (runs) => shownRuns({ get: (name) => ({ "training.lr": "0.1", "training.runs": runs }[name]) }, recorded);
    assert.deepEqual(shown(null), ["none-0.1", "batch-0.1"]);
    assert.deepEqual([[], ["none-3"]].map(shown), [[], ["none-3"]]);
});

test("commands name the run", () => {
    assert.equal(
        commandFor({ norm: "batch", rate: 0.1 }, 4000),
        "truenorm train --norm batch --ddof 1 --lr 0.1 --schedule constant --steps 4000 --out runs/batch-0.1",
    );
    assert.doesNotMatch(commandFor({ norm: "none", rate: 3 }, 10), /ddof/);
});
