// What the network part computes beside the maths: formulas with numbers, words, paths, the first layer.
import assert from "node:assert/strict";
import { test } from "node:test";

import { createState } from "../../src/truenorm/page/lib/state.js";
import { STEP_NAMES } from "../../src/truenorm/page/maths/network_explanation.js";
import { longerPath, pathCodec } from "../../src/truenorm/page/network/descent.js";
import { firstLayer } from "../../src/truenorm/page/network/first_layer.js";
import { networkReader } from "../../src/truenorm/page/network/model.js";
import { inNumbers } from "../../src/truenorm/page/network/numbers.js";
import { defineNetwork } from "../../src/truenorm/page/network/part.js";
import { charactersOf, readWords, wordsCodec } from "../../src/truenorm/page/network/words.js";

function start(hash = "") {
    const state = createState({ hash });
    defineNetwork(state);
    return { state, read: networkReader(state) };
}

/** What a formula in numbers comes to. */
function evaluate(text) {
    const digits = "⁰¹²³⁴⁵⁶⁷⁸⁹";
    const code = text.replaceAll('"', "").replaceAll("−", "-").replaceAll("·", "*")
        .replace(/×10(⁻?)([⁰¹²³⁴⁵⁶⁷⁸⁹]+)/g, (_, sign, power) =>
            `e${sign ? "-" : ""}${[...power].map((one) => digits.indexOf(one)).join("")}`)
        .replaceAll("²", "**2").replaceAll("³", "**3").replace(/sqrt|√/g, "Math.sqrt").replace(/tanh|exp/g, "Math.$&")
        .replace(/log ([\d.]+)/g, "Math.log($1)").replace(/-(Math\.sqrt\([^)]*\)|\([^()]*\))\*\*/g, "-1*$1**");
    return Function(`return ${code}`)();
}

test("the formulas with numbers come to the number behind them", () => {
    const { read } = start("#network.path=3x1&network.seed=4");
    const model = read();
    const skipped = new Set(["C", "X", "Y", "W1", "b1", "γ", "β", "W2", "b2", "uses", "E"]); // given, or words
    let compared = 0;
    for (const step of model.steps.filter(({ name }) => !skipped.has(name))) {
        const scale = Math.max(...step.values.map(Math.abs));
        for (let i = 0; i < step.rows; i++) {
            for (let j = 0; j < step.columns; j++) {
                const text = inNumbers(model, step, [i, j]).join(" ");
                if (text.includes("…")) continue; // cut
                const [, formula, result] = text.split("=");
                const wanted = step.values[i * step.columns + j];
                assert.ok(Math.abs(evaluate(result) - wanted) <= 1e-3 * Math.abs(wanted), text);
                // Numbers are shown to four digits, and what cancels leaves their rounding.
                const cancels = { db1: "dH0", "dμ (through σ²)": "dμ" }[step.name];
                const room = 2e-3 * (cancels ? Math.max(...model.get(cancels).values.map(Math.abs)) : scale);
                assert.ok(Math.abs(evaluate(formula) - wanted) <= room, `${step.name}: ${text}`);
                compared += 1;
            }
        }
    }
    assert.ok(compared > 500, `${compared}`);
});

test("long sums are cut, and say so", () => {
    const { read } = start("#network.size=notes");
    const model = read();
    assert.equal(model.headline, "32 examples of 3 characters, 27 characters with 2 numbers each, 100 hidden units, "
        + "3,681 parameters.");
    for (const name of ["logits", "μ", "σ²", "Ŷ", "L", "dW1", "dHA", "dσ²"]) {
        const pieces = inNumbers(model, model.get(name), [0, 0]);
        assert.ok(pieces.join(" ").includes("…") && pieces.length <= 9, `${name}: ${pieces.join(" ")}`);
    }
});

test("the rows of C that are not used have no gradient, and those used get the sum of their uses", () => {
    const model = start().read();
    const [uses, gradient] = [model.get("uses"), model.get("dC")];
    assert.deepEqual([...uses.values], [6, 0, 0, 4, 1, 4]);
    uses.values.forEach((count, row) => {
        assert.equal(inNumbers(model, gradient, [row, 0]).length, Math.max(count, 1) + 1);
        if (count === 0) assert.equal(gradient.values[row * 2], 0);
    });
});

test("a path leads to the same numbers whether it is taken at once or step by step", () => {
    const { state, read } = start();
    for (const [lr, steps] of [[0.5, 1], [0.5, 10], [2, 3]]) {
        state.set({ "network.path": longerPath(state.get("network.path"), lr, steps) });
        read();
    }
    const [slow, fast] = [read(), start(`#network.path=${pathCodec.encode(state.get("network.path"))}`).read()];
    assert.equal(pathCodec.encode(state.get("network.path")), "11x0.5,3x2");
    assert.deepEqual(slow.losses, fast.losses);
    assert.deepEqual(slow.get("dC"), fast.get("dC"));
    assert.equal(slow.losses.length, 15);
    slow.losses.slice(1).forEach((loss, k) => assert.ok(loss < slow.losses[k]));
    state.set({ "network.path": [[0.5, 2]] });
    assert.deepEqual(read().losses, slow.losses.slice(0, 3)); // back again
});

test("a learning rate that is far too large is survived", () => {
    const { losses, steps } = start("#network.path=999x1000").read();
    assert.ok(losses.every(Number.isFinite));
    assert.ok(steps.every(({ values }) => values.every(Number.isFinite)));
});

test("words are read, or refused in a sentence", () => {
    assert.deepEqual(readWords(" anna,emma\nian ;o'neil"), { words: ["anna", "emma", "ian", "o'neil"], problem: "" });
    for (const text of ["", " , ", "a.b", "a1", "a\u0000b", "a".repeat(25), "ab ".repeat(61), "<b>"]) {
        assert.match(readWords(text).problem, /\.$/, text);
        assert.deepEqual(readWords(text).words, []);
    }
    assert.match(readWords(String.fromCodePoint(...Array.from({ length: 24 }, (_, k) => 0x4e00 + k))).problem, /^$/);
    const many = Array.from({ length: 60 }, (_, k) => String.fromCodePoint(0x4e00 + k)).join(",");
    assert.match(readWords(many).problem, /60 different characters, there is room for 59/);
    assert.deepEqual(charactersOf(["ba", "ç"]), [".", "a", "b", "ç"]);
    assert.deepEqual(wordsCodec.decode(wordsCodec.encode(["ça", "o'n"])), ["ça", "o'n"]);
});

test("no layer gives the z of the notes in all rows; the default gives three", () => {
    const z = firstLayer([1, 2, -1, 0.4, 0.8, 1.8, 0.4, -0.2, 3.8]);
    const noted = [[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]];
    const same = noted.map((row, i) => row.every((value, j) => Math.abs(value - z[i][j]) < 1e-9));
    assert.deepEqual(same, [true, true, false, true, false]);
});

test("every step is in the order of the terminal", () => {
    assert.equal(STEP_NAMES.length, 40);
    assert.deepEqual([STEP_NAMES[0], STEP_NAMES[18], STEP_NAMES[19], STEP_NAMES[39]], ["C", "L", "dlogits", "dC"]);
});
