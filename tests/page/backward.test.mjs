// The backward pass: measured gradients agree with dx, and formulas with numbers in them come to the numbers that they show.
import assert from "node:assert/strict";
import { test } from "node:test";

import { LOSSES, compareGradients, lossGradients, lossTerms, sumCells } from "../../src/truenorm/page/backward/differences.js";
import { explain } from "../../src/truenorm/page/maths/explanation.js";
import { describe, forward } from "../../src/truenorm/page/maths/normalization.js";
import { STEP_KEYS, inNumbers, numbersInGraph, stepsBack } from "../../src/truenorm/page/backward/steps.js";

const X = [[7, 5.5, 4, 1], [2, NaN, 4, -3], [1, 2, 3, 8], [7, 5, 6.25, 0.5], [3, 3, 4, 2]];
const GIVEN = [[1, 0, 0.5, 2], [0, -1, 0, 1], [-1, 0, 1, 0], [0, 0.5, 0, -2], [1, 2, -1, 0.25]];

function modelOf(norm, kind, { x = X, row = 3, column = 1 } = {}) {
    const problem = {
        x, norm, rows: x.length, columns: x[0].length, weight: [2, 1, 0.5, -1.5].slice(0, x[0].length),
        bias: [0, 1, -1, 3].slice(0, x[0].length), valid: x.map((cells) => cells.map(Number.isFinite)),
        offsets: [0, Math.ceil(x.length / 2), x.length],
    };
    const out = forward(x, norm, problem);
    const loss = { kind, given: x.map((cells, i) => cells.map((_, j) => GIVEN[i % 5][j % 4])), row, column };
    const dy = lossGradients(out, loss);
    const explained = new Map(explain(x, norm, { ...problem, dy }).map((step) => [step.name, step]));
    const values = (name) => explained.get(name)?.values;
    const paths = ["dx (through xhat)", "dx (through var)", "dx (through mean)"].map(values).filter(Boolean);
    const total = sumCells(lossTerms(out, loss));
    return { problem, out, loss, total, dy, row, column, explained, dx: values("dx"), paths };
}

const CONVENTIONS = ["batch", "layer", "instance", "group", "rms"].flatMap((name) => [0, 1].flatMap((ddof) =>
    ["var", "std"].map((eps_at) => describe(name, { ddof, eps_at, eps: 0.01, groups: 2 }))));

test("measured gradients agree with dx, for every norm, convention and loss", () => {
    for (const norm of CONVENTIONS) {
        for (const kind of Object.keys(LOSSES)) {
            const { worst, cells, jumps } = compareGradients(modelOf(norm, kind));
            assert.ok(worst < 1e-7, `${norm.name} ${norm.eps_at} ${norm.ddof} ${kind}: ${worst}`);
            assert.deepEqual([cells, jumps], [19, 0]);
        }
    }
});

test("a wrong dx would be noticed", () => {
    const model = modelOf(describe("batch"), "given");
    const dx = model.dx.map((cells) => cells.map((value) => value * 1.0001));
    assert.ok(compareGradients({ ...model, dx }).worst > 1e-5);
});

test("the losses at both sides are those of the whole table", () => {
    const model = modelOf(describe("layer"), "squares");
    const { chosen } = compareGradients(model);
    const x = model.problem.x.with(3, model.problem.x[3].with(1, 5 + chosen.h));
    const up = sumCells(lossTerms(forward(x, model.problem.norm, model.problem), model.loss));
    assert.ok(Math.abs(chosen.up - up) < 1e-12 * Math.abs(up));
    assert.ok(Math.abs((chosen.up + chosen.down) / 2 - model.total) < 1e-8);
});

test("far from 0, and very close together, there is still something to measure", () => {
    const far = X.map((cells) => cells.map((value) => value + 1e6));
    assert.ok(compareGradients(modelOf(describe("batch"), "given", { x: far })).worst < 1e-4);
    const close = X.map((cells) => cells.map((value) => value * 1e-9));
    assert.ok(compareGradients(modelOf(describe("batch"), "given", { x: close })).worst < 1e-7);
});

test("where equal numbers are divided by nothing, nothing is compared", () => {
    const { worst, cells, jumps } = compareGradients(modelOf(describe("batch", { eps: 0 }), "given", {
        x: [[5, 1], [5, 2], [5, 4]], row: 1, column: 0,
    }));
    assert.deepEqual([cells, jumps], [3, 3]);
    assert.ok(worst < 1e-7);
});

test("large tables are measured where it is quick", () => {
    const table = (rows, columns) => Array.from({ length: rows }, (_, i) =>
        Array.from({ length: columns }, (_, j) => Math.sin(i * 7 + j * 13)));
    const reach = (name, rows, columns) => {
        const wide = modelOf(describe(name), "given", { x: table(rows, columns) });
        wide.problem.weight = wide.problem.bias = new Array(columns).fill(1);
        const { reach: how, cells } = compareGradients(wide);
        return [how, cells];
    };
    assert.deepEqual(reach("batch", 12, 4), ["table", 48]);
    assert.deepEqual(reach("batch", 37, 4), ["shared", 37]);
    assert.deepEqual(reach("group", 200, 4), ["cell", 1]);
});

/** What a formula comes to: as JavaScript reads it. */
function calculate(text) {
    const plain = text.replaceAll(/×10([⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)/g, (_, power) =>
        `e${[...power].map((digit) => "-0123456789"["⁻⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(digit)]).join("")}`);
    const signs = { "·": "*", "−": "-", "²": "**2", "³": "**3", "sqrt": "Math.sqrt" };
    return new Function(`return ${plain.replaceAll(/[·−²³]|sqrt/g, (sign) => signs[sign])}`)();
}

test("formulas with numbers come to what they show", () => {
    let checked = 0;
    for (const norm of CONVENTIONS) {
        for (const [row, column] of [[3, 1], [0, 3], [2, 0]]) {
            const model = modelOf(norm, "given", { row, column });
            for (const step of stepsBack(model)) {
                const [whole, result] = inNumbers(step, model);
                if (result === undefined || whole.includes("…")) continue;
                const [left, right] = whole.split(" = ");
                assert.equal(left, step.symbols.split(" = ")[0]);
                const [got, want] = [calculate(right), calculate(result.replace(/^"" [=≈] /, ""))];
                // Numbers are shown with four digits: what cancels keeps their rounding.
                const terms = right.match(/\d[\d.]*/g).map(Number);
                assert.ok(Math.abs(got - want) <= 5e-3 * Math.max(Math.abs(want), ...terms), `${whole} ${result}: ${got}`);
                if (result.includes("=")) assert.equal(got, want);
                checked += 1;
            }
        }
    }
    assert.ok(checked > 400, checked);
});

test("every step has its place in the address, and RMS has no mean", () => {
    const keys = (name) => stepsBack(modelOf(describe(name), "sum")).map(({ key }) => key);
    assert.deepEqual(keys("batch"), STEP_KEYS);
    assert.deepEqual(keys("rms"), STEP_KEYS.filter((key) => !key.includes("mean")));
    const edges = stepsBack(modelOf(describe("rms"), "sum")).flatMap((step) => step.edges);
    assert.ok(!edges.some((edge) => /mean|deviation/.test(edge)));
});

test("gradients add up in the graph as paths arrive", () => {
    const model = modelOf(describe("batch"), "given");
    const steps = stepsBack(model);
    const shown = (key) => numbersInGraph(model, steps, STEP_KEYS.indexOf(key)).x;
    const at = (name) => model.explained.get(name).values[3][1];
    assert.equal(shown("dxhat").gradient, undefined);
    assert.deepEqual([shown("dvar").gradient, shown("dvar").gradientName], [at("dx (through xhat)"), "dx so far"]);
    assert.equal(shown("dx-var").gradient, at("dx (through xhat)") + at("dx (through var)"));
    assert.deepEqual([shown("dx").gradient, shown("dx").gradientName], [at("dx"), "dx"]);
});
