// The state in the address: what is written can be read, and what cannot be read harms nothing.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
    choice, createState, numberBetween, textRow, textTable, wholeBetween,
} from "../../src/truenorm/page/shared/state.js";
import { readNumber } from "../../src/truenorm/page/shared/numbers.js";
import { defineProblem, equalGroups, readProblem } from "../../src/truenorm/page/shared/problem.js";

const soon = () => new Promise((resolve) => setTimeout(resolve, 5));

function example(options) {
    const state = createState({ delay: 0, ...options });
    state.field("part", choice("one", "two"), "one");
    state.field("norm", choice("batch", "layer"), "batch");
    state.field("eps", numberBetween(0, 1), 1e-5);
    state.field("x", textTable, [["1", "2"]]);
    return state;
}

test("only what differs from its default is written", () => {
    const state = example();
    assert.equal(state.fragment(), "");
    state.set({ norm: "layer", x: [["7", "5"], ["2", "x"]] });
    assert.equal(state.fragment(), "#norm=layer&x=7,5;2,x");
    state.set({ norm: "batch" });
    assert.equal(state.fragment(), "#x=7,5;2,x");
});

test("every value comes back as it was", () => {
    const values = [
        [choice("a&b=c#d%", "“ü” ;,_"), ["a&b=c#d%", "“ü” ;,_"]],
        [wholeBetween(-5, 5), [-5, 0, 3]],
        [numberBetween(-Infinity, Infinity), [1e-5, 0.1, -1e300]],
        [textRow, [[], [""], ["_"], ["1,5", "a;b", ""], [" 7 "]]],
        [textTable, [[], [[]], [[""]], [["", ""]], [["a,b", "c;d"], ["_", "&=#"]], [[], []]]],
    ];
    for (const [codec, all] of values) {
        for (const value of all) {
            const text = codec.encode(value);
            assert.doesNotMatch(text, /[&=#\s]/);
            if (JSON.stringify(value) !== "[[]]") assert.deepEqual(codec.decode(text), value);
        }
    }
});

test("nonsense in an address is left out and said", () => {
    const state = example({ hash: "#norm=foo&eps=-1&x=1,2;3&colour=red&%E0%A4%A=1&part=two" });
    assert.equal(state.get("norm"), "batch");
    assert.equal(state.get("eps"), 1e-5);
    assert.deepEqual(state.get("x"), [["1", "2"]]);
    assert.equal(state.get("part"), "two");
    assert.equal(
        state.complaints(),
        "Ignored in the address, as it cannot be read: norm=foo, eps=-1, x=1,2;3, colour=red, %E0%A4%A=1.",
    );
    assert.equal(example({ hash: "#norm=%E0%A4%A" }).get("norm"), "batch");
    for (const text of ["", "%20", "0x1", "1_0", "Infinity", "e", "%E0%A4%A"]) {
        const { get, complaints } = example({ hash: `#eps=${text}` });
        assert.equal(get("eps"), 1e-5, text);
        assert.match(complaints(), /eps/);
    }
    assert.equal(example({ hash: "#" }).complaints(), "");
});

test("an enormous table in an address is refused", () => {
    const row = new Array(200).fill("1").join(",");
    const state = example({ hash: `#x=${new Array(200).fill(row).join(";")}` });
    assert.deepEqual(state.get("x"), [["1", "2"]]);
    assert.ok(state.complaints().length < 200);
});

test("watchers run once for several changes, and not without one", async () => {
    const state = example();
    let runs = 0;
    state.watch(["norm", "eps"], () => (runs += 1));
    assert.equal(runs, 1);
    state.set({ norm: "layer", eps: 0.5 });
    state.set({ norm: "layer" });
    state.set({ x: [["3"]] });
    await soon();
    assert.equal(runs, 2);
    state.set({ norm: "layer" });
    await soon();
    assert.equal(runs, 2);
});

test("a part's watchers wait until it is shown", async () => {
    const state = example();
    let runs = 0;
    state.part("two").watch(["norm"], () => (runs += 1));
    assert.equal(runs, 0);
    state.set({ norm: "layer" });
    await soon();
    assert.equal(runs, 0);
    state.set({ part: "two" });
    await soon();
    assert.equal(runs, 1);
    state.set({ part: "one" });
    await soon();
    state.set({ part: "two" });
    await soon();
    assert.equal(runs, 1);
    state.set({ norm: "batch", part: "one" });
    await soon();
    state.set({ part: "two" });
    await soon();
    assert.equal(runs, 2);
});

test("many changes at once are one writing of the address", async () => {
    const written = [];
    const state = example({ write: (fragment) => written.push(fragment) });
    for (let i = 1; i < 100; i++) state.set({ eps: i / 100 });
    await soon();
    assert.deepEqual(written, ["#eps=0.99"]);
});

test("a change is in the address at once, and many in a row are not too many writings", async () => {
    const written = [];
    const state = example({ write: (fragment) => written.push(fragment), delay: 20 });
    state.set({ norm: "layer" });
    await null;
    assert.deepEqual(written, ["#norm=layer"]);
    for (let i = 1; i < 100; i++) {
        state.set({ eps: i / 100 });
        await null;
    }
    assert.ok(written.length < 20, `${written.length} writings`);
    await new Promise((resolve) => setTimeout(resolve, 60));
    assert.equal(written.at(-1), "#norm=layer&eps=0.99");
    assert.ok(written.length < 25, `${written.length} writings`);
});

test("an address that was taken over is left alone, and gets nothing that was meant for another", async () => {
    const written = [];
    const state = example({ write: (fragment) => written.push(fragment) });
    state.set({ eps: 0.5 });
    state.apply("#norm=layer&colour=red");
    await soon();
    state.flush();
    assert.deepEqual(written, []);
});

test("an address that somebody types is taken over, and what it does not say is the default", async () => {
    const state = example({ hash: "#norm=layer&eps=0.5" });
    const seen = [];
    state.watch(["norm", "eps"], () => seen.push([state.get("norm"), state.get("eps")]));
    state.apply("#eps=0.25");
    await soon();
    assert.deepEqual(seen, [["layer", 0.5], ["batch", 0.25]]);
});

test("a cell that is no number keeps its text and is left out", () => {
    const state = createState({ hash: "#x=1,abc;2,3&samples=1" });
    defineProblem(state);
    const problem = readProblem(state);
    assert.deepEqual(problem.cells, [["1", "abc"], ["2", "3"]]);
    assert.deepEqual(problem.valid, [[true, false], [true, true]]);
    assert.deepEqual(problem.offsets, [0, 2]);
    assert.equal(state.complaints(), "");
});

test("numbers are read as people write them, and nothing else is", () => {
    const good = { " 7 ": 7, "-1.5": -1.5, "−2": -2, "1,5": 1.5, "1e-3": 0.001, ".5": 0.5, "3.": 3, "+4": 4 };
    for (const [text, value] of Object.entries(good)) assert.equal(readNumber(text), value);
    for (const text of ["", " ", "abc", "1 2", "0x10", "Infinity", "1e999", "1,2,3", "--1"]) {
        assert.ok(Number.isNaN(readNumber(text)), text);
    }
});

test("an empty table is no error", () => {
    for (const hash of ["#x=", "#x=;"]) {
        const state = createState({ hash });
        defineProblem(state);
        const problem = readProblem(state);
        assert.equal(problem.columns, 0);
        assert.deepEqual([problem.weight, problem.bias], [[], []]);
    }
    assert.deepEqual([equalGroups(0, 4), equalGroups(6, 4), equalGroups(7, 3)], [1, 3, 1]);
});
