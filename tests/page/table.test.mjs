// What can be done to a table of texts, and what is said about a cell.
import assert from "node:assert/strict";
import test from "node:test";

import { describe, forward } from "../../src/truenorm/page/maths/normalization.js";
import { asTabbedText, parseBlock } from "../../src/truenorm/page/lib/blocks.js";
import {
    createHistory, withBlock, withCell, withColumn, withRow, withoutColumn, withoutRow,
} from "../../src/truenorm/page/table/edits.js";
import {
    axesOf, describeCell, describeEmptyCells, describeNoSpread, describeParameters, describeProblems, generalFormula,
    nameOfBox,
} from "../../src/truenorm/page/table/formulas.js";

const TABLE = [["1", "2"], ["3", "4"]];

test("a block is read as spreadsheets, files and Python write it", () => {
    const numbers = [["1", "2.5"], ["-3", "4e2"]];
    assert.deepEqual(parseBlock("1\t2.5\n-3\t4e2\n"), numbers);
    assert.deepEqual(parseBlock("1\t2.5\r\n-3\t4e2\r\n"), numbers);
    assert.deepEqual(parseBlock("1;2.5\n-3;4e2"), numbers);
    assert.deepEqual(parseBlock("1, 2.5\n-3, 4e2"), numbers);
    assert.deepEqual(parseBlock("1 2.5\n -3  4e2"), numbers);
    assert.deepEqual(parseBlock("[[1, 2.5], [-3, 4e2]]"), numbers);
    assert.deepEqual(parseBlock("[[1, 2.5],\n [-3, 4e2],\n]"), numbers);
    assert.deepEqual(parseBlock("[[ 1.  2.5]\n [-3.  4. ]]"), [["1.", "2.5"], ["-3.", "4."]]);
    assert.deepEqual(parseBlock('"a"\t"b c"'), [["a", "b c"]]);
});

test("a decimal comma stays in its cell where something else separates, or where it is alone", () => {
    assert.deepEqual(parseBlock("1,5\t2\n3\t4,25"), [["1,5", "2"], ["3", "4,25"]]);
    assert.deepEqual(parseBlock("1,5;2"), [["1,5", "2"]]);
    assert.deepEqual(parseBlock("1,5"), [["1,5"]]);
});

test("empty cells keep their place, short rows are filled, nothing is nothing", () => {
    assert.deepEqual(parseBlock("1\t\t3\n\t5"), [["1", "", "3"], ["", "5", ""]]);
    assert.deepEqual(parseBlock(""), []);
    assert.deepEqual(parseBlock("\n\n"), []);
    assert.deepEqual(parseBlock("7"), [["7"]]);
});

test("what is copied is what is pasted", () => {
    for (const table of [TABLE, [["", "a"], ["1,5", ""]], [["x"]]]) assert.deepEqual(parseBlock(asTabbedText(table)), table);
});

test("a table grows where a block reaches beyond it, and is never changed in place", () => {
    const before = structuredClone(TABLE);
    assert.deepEqual(withBlock(TABLE, 1, 1, [["a", "b"], ["c", "d"]]), [["1", "2", ""], ["3", "a", "b"], ["", "c", "d"]]);
    assert.deepEqual(withBlock([], 0, 0, [["a", "b"]]), [["a", "b"]]);
    assert.deepEqual(withCell(TABLE, 0, 1, "x"), [["1", "x"], ["3", "4"]]);
    assert.equal(withCell(TABLE, 0, 1, "x")[1], TABLE[1]);
    assert.deepEqual(withRow(TABLE, 1), [["1", "2"], ["", ""], ["3", "4"]]);
    assert.deepEqual(withRow([], 0), [[""]]);
    assert.deepEqual(withColumn(TABLE, 2), [["1", "2", ""], ["3", "4", ""]]);
    assert.deepEqual(withColumn([], 0), [[""]]);
    assert.deepEqual(withoutRow(TABLE, 0), [["3", "4"]]);
    assert.deepEqual(withoutColumn(TABLE, 0), [["2"], ["4"]]);
    assert.deepEqual(withoutColumn([["1"], ["2"]], 0), []);
    assert.deepEqual(TABLE, before);
});

test("a history goes back and forth, letters of one cell are one step", () => {
    const history = createHistory(3);
    assert.equal(history.undo("now"), null);
    history.record("a", "cell 1");
    history.record("ab", "cell 1");
    history.record("abc", "cell 2");
    assert.equal(history.undo("abcd"), "abc");
    assert.equal(history.undo("abc"), "a");
    assert.equal(history.canUndo(), false);
    assert.equal(history.redo("a"), "abc");
    history.record("new", null);
    assert.equal(history.canRedo(), false);
    history.record("typed", "cell 1");
    history.record("from an address", "cell 1", false);
    assert.deepEqual([history.undo("now"), history.undo("now")], ["from an address", "typed"]);
    for (const one of [1, 2, 3, 4, 5]) history.record(one);
    assert.deepEqual([history.undo(6), history.undo(5), history.undo(4), history.undo(3)], [5, 4, 3, null]);
});

const X = [[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]];
const CELLS = X.map((row) => row.map(String));
const see = (name, sheet, row, column, { options, ...more } = {}) => {
    const out = forward(X, describe(name, options), { weight: [2, 1, 1], bias: [-1, 0, 0], ...more });
    return describeCell(out, CELLS, { sheet, row, column });
};

test("a cell's formula has its numbers in it", () => {
    assert.deepEqual(see("batch", "xhat", 0, 0), {
        title: "Row 1, column 1", lines: ["xhat = (x - mean) / sqrt(var + eps) = (7 - 4) / sqrt(6.4 + 1×10⁻⁵) ≈ 1.186"],
    });
    assert.equal(see("batch", "x", 0, 0).title, "Row 1, column 1, with the μ and σ² of the 5 cells in its box");
    assert.deepEqual(see("batch", "mean", 3, 0), {
        title: "Column 1: 5 numbers", lines: ["mean = (7 + 2 + 1 + 7 + 3) / 5 = 4"],
    });
    assert.deepEqual(see("layer", "var", 1, 0, { options: { ddof: 1 } }), {
        title: "Row 2: 3 numbers", lines: ["var = ((2 - 3)² + (3 - 3)² + (4 - 3)²) / (3 - 1) = 1"],
    });
    assert.deepEqual(see("batch", "y", 0, 0).lines, ["y = weight · xhat + bias = 2 · 1.186 + (−1) ≈ 1.372"]);
    assert.deepEqual(see("rms", "var", 0, 0).lines, ['"mean of x²" = (7² + 5² + 4²) / 3 = 30']);
    assert.deepEqual(see("rms", "xhat", 0, 0).lines, [
        'xhat = x / sqrt("mean of x²" + eps) = (7) / sqrt(30 + 1×10⁻⁵) ≈ 1.278',
    ]);
    assert.deepEqual(see("batch", "xhat", 0, 0, { options: { eps: 0.5, eps_at: "std" } }).lines, [
        "xhat = (x - mean) / (sqrt(var) + eps) = (7 - 4) / (sqrt(6.4) + 0.5) ≈ 0.9902",
    ]);
});

test("long sums are shown by their ends", () => {
    assert.deepEqual(see("group", "mean", 0, 0).lines, ['mean = (7 + 5 + 4 + "…" + 4) / 15 ≈ 3.933']);
});

test("boxes have names", () => {
    const out = forward(X, describe("instance"), { offsets: [0, 3, 5] });
    assert.equal(nameOfBox(out, out.partition.index[4][1]), "Rows 4–5, column 2");
    const group = forward(X, describe("group"), {});
    assert.equal(nameOfBox(group, 0), "The whole table");
});

test("what is left out is said, the first few by name", () => {
    const cells = [["1", "two", ""], ["x", "y", "z"]];
    const valid = [[true, false, false], [false, false, false]];
    assert.deepEqual(describeProblems({ cells, valid }), [
        "Row 1, column 2: “two” is not a number, so it is left out.", "Row 2, column 1: “x” is not a number, so it is left out.",
        "Row 2, column 2: “y” is not a number, so it is left out.", "And 1 more cell without a number, left out too.",
    ]);
    assert.equal(describeEmptyCells({ cells, valid }), "1 cell without a number, left out of every mean.");
    assert.deepEqual(describeParameters({ columns: 2 }, [{ name: "weight", initial: "1", texts: ["2", "", "gone"] }]), [
        "γ (weight) of column 2 is empty: 1 is used.",
    ]);
});

test("nothing to divide by is said", () => {
    const flat = [[1, 2], [1, 3]];
    assert.equal(describeNoSpread(forward(flat, describe("batch"))), null);
    assert.match(describeNoSpread(forward(flat, describe("batch", { eps: 0 }))), /^Column 1 has no spread, and ε is 0/);
    assert.match(describeNoSpread(forward([[1e300], [-1e300]], describe("batch"))), /squares, are too large/);
    const far = [[1.7e308, -1.7e308], [-1.7e308, 1.7e308]];
    const out = forward(far, describe("batch"));
    assert.equal(
        describeNoSpread(out),
        "2 of the boxes: the numbers, or their squares, are too large to compute with. So x̂ cannot be trusted there.",
    );
    for (const sheet of ["x", "mean", "var", "xhat", "y"]) {
        assert.deepEqual(describeCell(out, far.map((row) => row.map(String)), { sheet, row: 0, column: 1 }), {
            title: "Row 1, column 2: the numbers, or their squares, are too large to compute with", lines: [],
        });
    }
    const tiny = forward([[1, 2]], describe("batch", { eps: 1e-320, eps_at: "std" }));
    assert.match(describeNoSpread(tiny), /^2 of the boxes: ε is too small to compute with/);
    assert.match(describeNoSpread(forward([[5, 6]], describe("batch", { ddof: 1 }))), /^2 of the boxes have only one number/);
});

test("axes and formulas follow the norm", () => {
    const axes = (name) => axesOf(describe(name)).map(({ axis, averaged }) => (averaged ? `[${axis}]` : axis)).join(" ");
    assert.deepEqual(["batch", "layer", "instance", "group", "rms"].map(axes), [
        "[b t] c", "b t [c]", "b [t] c", "b [t] g [c]", "b t [c]",
    ]);
    assert.equal(generalFormula(describe("batch")), "y = weight · (x - mean) / sqrt(var + eps) + bias");
    assert.equal(generalFormula(describe("rms", { eps_at: "std" })), 'y = weight · x / (sqrt("mean of x²") + eps) + bias');
});
