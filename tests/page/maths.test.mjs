// The page's maths agrees with the NumPy reference to 1e-12: `node --test tests/page`. Golden vectors: see golden.py.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { backwardSums, describe, forward, measure, merge } from "../../src/truenorm/page/maths/normalization.js";
import { explain } from "../../src/truenorm/page/maths/explanation.js";
import * as maths from "../../src/truenorm/page/maths/normalization.js";
import { disagreements } from "./golden.mjs";

const golden = JSON.parse(readFileSync(new URL("golden.json", import.meta.url), "utf8"));

for (const kind of Object.keys(golden)) {
    test(`${kind}: ${golden[kind].length} cases as in Python`, () => {
        assert.deepEqual(disagreements({ ...maths, explain }, { [kind]: golden[kind] }), []);
    });
}

test("a wrong number would be noticed", () => {
    const [first] = golden.conventions;
    const wrong = structuredClone(first);
    wrong.want.y[0][0] += 1e-10;
    const found = disagreements({ ...maths, explain }, { conventions: [wrong] });
    assert.equal(found.length, 1);
    assert.match(found[0], /^conventions 0: y /);
});

test("equal values are exact, however large or small", () => {
    for (const value of [0.1, 1e-300, 1e300, -7.3]) {
        const moments = measure([[value], [value], [value]], describe("batch"));
        assert.deepEqual(moments, { count: [3], mean: [value], m2: [0] });
    }
});

test("an empty part changes no bit", () => {
    const norm = describe("batch");
    const part = measure([[0.1], [0.7], [1e5]], norm);
    const nothing = measure([[NaN]], norm, { valid: [false] });
    assert.deepEqual(merge(nothing, part, nothing), part);
});

test("what is not valid is never read", () => {
    const norm = describe("batch");
    const outputs = [0, NaN, Infinity, 1e38].map((filling) => {
        const out = forward([[1], [filling], [4]], norm, { valid: [true, false, true], weight: [2], bias: [1] });
        return [out.y, backwardSums([[1], [filling], [2]], out)];
    });
    outputs.forEach((output) => assert.deepEqual(output, outputs[0]));
    assert.equal(outputs[0][0][1][0], 0);
});

test("mean reaches the loss through var only by rounding", () => {
    const steps = explain([[7, 5], [2, 3], [1, 2.2]], describe("batch"), { dy: [[1, 0], [0, 3], [0, 1]] });
    const { values } = steps.find(({ name }) => name === "dmean (through var)");
    values.forEach((value) => assert.ok(Math.abs(value) < 1e-15));
});

test("groups that columns do not fill are refused", () => {
    assert.throws(() => measure([[1, 2, 3]], describe("group", { groups: 2 })), {
        message: "group: columns that 2 groups share equally, got 3.",
    });
});
