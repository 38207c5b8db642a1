// Self-attention, what typing does to a sentence, and what padding does to a word.
import assert from "node:assert/strict";
import { test } from "node:test";

import { attentionWeights, selfAttention } from "../../src/truenorm/page/maths/attention.js";
import {
    METHODS, MOST_FILL, MOST_WORDS, SENTENCES_START, SENTENCE_FIELDS, defineSentences, changeSentences, driftCurve,
    fillNow, lengthFor, normalizeWatched, paddedLength, paddingOfEach, paddingRows, readSentences, respell,
} from "../../src/truenorm/page/padding/model.js";
import { createState } from "../../src/truenorm/page/lib/state.js";

const [HI, HOW] = Object.values(SENTENCE_FIELDS);

function sentences(hash = "") {
    const state = createState({ hash });
    defineSentences(state);
    return state;
}

test("attention weights sum to 1, and a word alone attends to itself", () => {
    for (const weights of attentionWeights([[1, 2, 3], [-1, 0, 4], [800, 900, -1000]])) {
        assert.ok(Math.abs(weights.reduce((a, b) => a + b) - 1) < 1e-12);
    }
    assert.deepEqual(selfAttention([[0.3, 0.5, 0.34]]), [[0.3, 0.5, 0.34]]);
    assert.deepEqual(selfAttention([]), []);
    assert.deepEqual(selfAttention([[0, 0], [2, 4]])[0], [1, 2]); // all words are equally like a row of zeros
});

test("padding fills up to the longest sentence, then both", () => {
    assert.deepEqual([0, 1, 2, 50].map((fill) => paddingOfEach([2, 4], fill)), [[0, 0], [2, 0], [3, 1], [51, 49]]);
    assert.deepEqual([0, 1, 2, 50].map((fill) => paddingRows([2, 4], fill)), [0, 2, 4, 100]);
    assert.deepEqual([0, 1, 2].map((fill) => paddingRows([3, 3], fill)), [0, 0, 2]);
    for (let fill = 0; fill <= MOST_FILL; fill++) {
        assert.equal(lengthFor([2, 4], paddingRows([2, 4], fill)), paddedLength([2, 4], fill));
    }
});

test("the address holds the length that sentences are filled up to", () => {
    for (const [length, fill] of [[0, 0], [4, 1], [9, 6], [53, 50]]) {
        const state = sentences(`#padding.length=${length}`);
        assert.equal(fillNow(state), fill);
        assert.equal(paddedLength([2, 4], fill), length);
        assert.equal(state.complaints(), "");
    }
    for (const [length, fill] of [[1, 1], [3, 1], [54, 50], [61, 50]]) { // too short or too long for these sentences
        const state = sentences(`#padding.length=${length}`);
        assert.equal(fillNow(state), fill);
        assert.ok(state.complaints().includes(`padding.length: ${length} given, but these sentences can be filled up to `
            + `4 words at least and 49 more; ${fill + 3} is used.`), state.complaints());
    }
});

test("other sentences are filled up as far as those before", () => {
    for (const [length, after] of [[0, 0], [4, 5], [9, 10]]) {
        const state = sentences(`#padding.length=${length}`);
        const fill = fillNow(state);
        changeSentences(state, { "padding.second": respell(HOW, ["How", "are", "you", "all", "today"]) });
        assert.deepEqual([state.get("padding.length"), fillNow(state)], [after, fill]);
        changeSentences(state, { "padding.second": HOW.slice(0, 2), "padding.watched": 0 });
        assert.deepEqual([state.get("padding.length"), fillNow(state)], [after && after - 3, fill]);
    }
});

test("layer norm and words only do not move to the last bit, whatever the numbers", () => {
    const model = readSentences(sentences("#padding.first=a,1,2,3,1e9,-0.1,0.3&padding.watched=0"));
    for (const [name, method] of Object.entries(METHODS)) {
        const moved = driftCurve(model, method).map(([, one]) => one);
        if (name === "all") assert.ok(moved.slice(1).every((one) => one > 0));
        else assert.ok(moved.every((one) => Object.is(one, 0)), name);
    }
});

test("words keep their numbers where the text around them changes", () => {
    const words = (...texts) => respell(HOW, texts);
    assert.deepEqual(words("How", "you", "today"), [HOW[0], HOW[2], HOW[3]]);
    assert.equal(words("How", "you", "today")[1], HOW[2]);
    assert.deepEqual(words("Where", "are", "you", "today")[0], ["Where", ...HOW[0].slice(1)]);
    const [, added] = words("How", "old", "are", "you", "today");
    assert.equal(added[0], "old");
    assert.ok(added.slice(1).every((text) => Number(text) >= 0 && Number(text) < 10));
    assert.notDeepEqual(added.slice(1), HOW[1].slice(1));
});

test("a word that was deleted letter by letter and typed again has its numbers back", () => {
    let rows = HI;
    for (const text of ["Hi Niti", "Hi N", "Hi", "Hi N", "Hi Nit", "Hi Nitish"]) rows = respell(rows, text.split(" "));
    assert.deepEqual(rows, HI);
});

test("a cell that is no number is left out, and costs its neighbours nothing", () => {
    const state = sentences();
    state.set({ "padding.second": HOW.map((row, i) => (i ? row : row.with(4, "x"))) });
    const model = readSentences(state);
    assert.deepEqual(model.words[2].valid, [false, true, true]);
    const { moved, y } = normalizeWatched(model, METHODS.all, 1);
    assert.ok(moved > 0);
    assert.equal(y[0], 0);
    state.set({ "padding.rows": "computed", "padding.second": HOW.map((row, i) => (i ? row : row.with(1, ""))) });
    const computed = readSentences(state);
    assert.deepEqual(computed.words[2].valid, [false, false, false]);
    assert.ok(Number.isNaN(normalizeWatched(computed, METHODS.all, 1).moved));
    assert.deepEqual(computed.words.slice(3).map(({ row }) => row), selfAttention(HOW.slice(1).map(
        (row) => row.slice(1, 4).map(Number))));
});

test("an address that makes no sense changes nothing", () => {
    const many = Array.from({ length: MOST_WORDS + 1 }, () => "a,1,2,3,4,5,6").join(";");
    for (const text of ["", "a", "a,1,2,3,4,5", "a%20b,1,2,3,4,5,6", "_,1,2,3,4,5,6", many]) {
        const state = sentences(`#padding.first=${text}&padding.length=62&padding.watched=-1`);
        for (const [name, value] of Object.entries(SENTENCES_START)) assert.equal(state.get(name), value);
        assert.match(state.complaints(), /padding\.first/);
    }
    assert.equal(readSentences(sentences("#padding.watched=23")).watched, 5);
});
