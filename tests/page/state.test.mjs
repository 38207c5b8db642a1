// The state in the address: what is written can be read, and what cannot be read harms nothing.
import assert from "node:assert/strict";
import { test } from "node:test";

import {
    choice, createState, numberBetween, textRow, textTable, wholeBetween,
} from "../../src/truenorm/page/lib/state.js";
import { readNumber } from "../../src/truenorm/page/lib/numbers.js";
import { defineProblem, equalGroups, readProblem } from "../../src/truenorm/page/lib/problem.js";

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

test("what stands twice, or does not fit, is said", () => {
    const state = example({ hash: "#norm=layer&norm=batch&part=two&part=two&eps=0.5" });
    assert.equal(state.get("norm"), "batch");
    state.fit("eps", () => (state.get("eps") > 0.1 ? "eps is large." : ""));
    state.fit("x", () => "x is not in the address, so this is not said.");
    assert.equal(state.complaints(), "norm stands in the address more than once: the last one counts. eps is large.");
    state.apply("#eps=0.01");
    assert.equal(state.complaints(), "");
    state.apply("#eps=2"); // cannot be read
    assert.equal(state.complaints(), "Ignored in the address, as it cannot be read: eps=2.");
});

test("a table in an address that is too large is refused in words", () => {
    const tableOf = (rows, columns) => new Array(rows).fill(new Array(columns).fill("1").join(",")).join(";");
    for (const [rows, columns] of [[200, 200], [1, 10_000], [10_000, 1], [1, 129], [1001, 1], [65, 64]]) {
        const state = example({ hash: `#eps=2&x=${tableOf(rows, columns)}` });
        assert.deepEqual(state.get("x"), [["1", "2"]]);
        assert.equal(
            state.complaints(),
            "Ignored in the address, as it cannot be read: eps=2. Ignored in the address: x. "
                + `A table has at most 1000 rows, 128 columns and 4096 cells, got ${rows} × ${columns}.`,
        );
    }
    for (const [rows, columns] of [[64, 64], [1, 128], [1000, 4]]) {
        const state = example({ hash: `#x=${tableOf(rows, columns)}` });
        assert.equal(state.complaints(), "");
        assert.equal(state.get("x").length, rows);
    }
    assert.equal(
        example({ hash: `#x=1,${"2".repeat(201)}` }).complaints(),
        "Ignored in the address: x. A cell has at most 200 characters, got 201.",
    );
    assert.equal(
        example({ hash: `#x=${"%41".repeat(100_000)}` }).complaints(),
        "Ignored in the address: x. A table in the address has at most 250000 characters, got 300000.",
    );
    const long = example({ hash: `#norm=layer&x=${"1".repeat(2_000_000)}` });
    assert.equal(long.get("norm"), "batch");
    assert.equal(long.complaints(), "The address was ignored. An address has at most 2000000 characters, got 2000014.");
    long.apply("#norm=layer");
    assert.equal(long.complaints(), "");
});

test("a value that is too large is not set, nor is anything beside it", () => {
    const state = example();
    assert.throws(() => state.set({ norm: "layer", x: [new Array(300).fill("1")] }), {
        message: "A table has at most 1000 rows, 128 columns and 4096 cells, got 1 × 300.",
    });
    assert.throws(() => state.set({ x: [["1".repeat(201)]] }), { message: "A cell has at most 200 characters, got 201." });
    assert.throws(() => state.set({ x: new Array(64).fill(new Array(64).fill("€".repeat(20))) }), {
        message: "A table in the address has at most 250000 characters, got 741376.",
    });
    assert.equal(state.fragment(), "");
});

test("half of a surrogate pair is written as the character that stands for what is missing", async () => {
    const state = example();
    let seen = null;
    state.watch(["x"], () => (seen = state.get("x")));
    state.set({ x: [["7\ud800", "\udc00"]] });
    await soon();
    assert.deepEqual(seen, [["7\ud800", "\udc00"]]);
    assert.equal(state.fragment(), "#x=7%EF%BF%BD,%EF%BF%BD");
    assert.deepEqual(example({ hash: state.fragment() }).get("x"), [["7\ufffd", "\ufffd"]]);
});

test("a watcher that fails stops no other one", async () => {
    const failures = [];
    const state = example({ fail: (error) => failures.push(error.message) });
    const seen = [];
    state.watch(["norm"], () => {
        if (state.get("norm") === "layer") throw new Error("broken");
    });
    state.watch(["norm"], () => seen.push(state.get("norm")));
    state.set({ norm: "layer" });
    await soon();
    state.set({ norm: "batch" });
    await soon();
    assert.deepEqual([seen, failures], [["batch", "layer", "batch"], ["broken"]]);
});

test("an address that the browser does not take for now is written later", async () => {
    const written = [];
    let refusals = 2;
    const write = (fragment) => {
        if (refusals-- > 0) throw new Error("more than 100 in 30 seconds");
        written.push(fragment);
    };
    const state = example({ write });
    const seen = [];
    state.watch(["norm"], () => seen.push(state.get("norm")));
    state.set({ norm: "layer" });
    await new Promise((resolve) => setTimeout(resolve, 30));
    assert.deepEqual([seen, written], [["batch", "layer"], ["#norm=layer"]]);
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
    for (const text of ["", " ", "abc", "1 2", "0x10", "Infinity", "1e999", "1,2,3", "--1", "１２", "٣", "1\u0000", "\ud800"]) {
        assert.ok(Number.isNaN(readNumber(text)), text);
    }
    const started = process.cpuUsage().user;
    assert.ok(Number.isNaN(readNumber(`${"1".repeat(1_000_000)}x`))); // in time that is linear in its length
    assert.ok(process.cpuUsage().user - started < 1e6);
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
