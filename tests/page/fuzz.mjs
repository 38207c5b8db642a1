// Random addresses, pasted texts and typed texts for everything of the page that needs no document. Each case must give
// a valid state or a refusal in words, the same state again from the address that is written, and all of it in less than
// a second of the processor. The same seed gives the same cases.
//
//     node tests/page/fuzz.mjs [seed] [seconds]       runs until the time is up and prints what it met
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";

import { compareGradients } from "../../src/truenorm/page/backward/differences.js";
import { defineBackward, readModel } from "../../src/truenorm/page/backward/part.js";
import { backwardConventions, reasonInWords, verdictInWords } from "../../src/truenorm/page/backward/reasons.js";
import { inNumbers, numbersInGraph } from "../../src/truenorm/page/backward/steps.js";
import { forward } from "../../src/truenorm/page/maths/normalization.js";
import {
    METHODS, columnSums, defineSentences, driftCurve, fillNow, normalizeWatched, readSentences, respell,
} from "../../src/truenorm/page/padding/model.js";
import { parseBlock } from "../../src/truenorm/page/lib/blocks.js";
import { ticks } from "../../src/truenorm/page/lib/chart.js";
import { codesFor } from "../../src/truenorm/page/lib/code.js";
import { MOST_CELLS, MOST_LETTERS, attempt } from "../../src/truenorm/page/lib/limits.js";
import { formatNumber, readNumber } from "../../src/truenorm/page/lib/numbers.js";
import { defineProblem, readProblem } from "../../src/truenorm/page/lib/problem.js";
import { choice, createState } from "../../src/truenorm/page/lib/state.js";
import { quoted } from "../../src/truenorm/page/lib/text.js";
import { defineRunning } from "../../src/truenorm/page/running/part.js";
import { boxesOf } from "../../src/truenorm/page/table/boxes.js";
import {
    describeCell, describeEmptyCells, describeNoSpread, describeParameters, describeProblems,
} from "../../src/truenorm/page/table/formulas.js";
import { networkReader } from "../../src/truenorm/page/network/model.js";
import { inNumbers as networkNumbers } from "../../src/truenorm/page/network/numbers.js";
import { defineNetwork } from "../../src/truenorm/page/network/part.js";
import { readWords } from "../../src/truenorm/page/network/words.js";
import { defineTable } from "../../src/truenorm/page/table/part.js";
import { defineTraining } from "../../src/truenorm/page/training/part.js";
import { readRuns } from "../../src/truenorm/page/training/runs.js";
import { defineWhy } from "../../src/truenorm/page/why/part.js";

const CORPUS = JSON.parse(readFileSync(new URL("corpus.json", import.meta.url), "utf8"));
const RUNS = readRuns(readFileSync(new URL("../../src/truenorm/page/runs.json", import.meta.url), "utf8"));
const PARTS = ["overview", "why", "table", "padding", "backward", "network", "running", "training"];
const SIGNS = [..."&=;,#%_+-.eE\t\n\r \"[]\u0000\u202e", "%00", "%ED%A0%80", "\ud800", "\udfff", "1e999", "__proto__"];

/** Every field of the page, as main.js defines them, and their names. */
function pageState(hash) {
    const names = [];
    const state = createState({ hash });
    const noted = { ...state, field: (name, ...rest) => names.push(name) && state.field(name, ...rest) };
    noted.field("part", choice(...PARTS), "table");
    noted.field("theme", choice("auto", "light", "dark"), "auto");
    defineProblem(noted);
    defineTable(noted);
    defineBackward(noted);
    defineSentences(noted);
    defineNetwork(noted);
    defineTraining(noted, RUNS);
    defineWhy(noted, RUNS);
    defineRunning(noted);
    return { state, names };
}

// ---- what must hold ----

/** An address is read, or said to be unreadable; what is written for it is read as the same, without a complaint. */
export function checkAddress(hash) {
    const { state, names } = pageState(hash);
    const said = checkWords(state.complaints());
    checkState(state, names);
    const taken = pageState("").state;
    taken.apply(hash);
    assert.equal(taken.fragment(), state.fragment());
    checkNumbers(state);
    return said.includes("at most") ? "refused" : said ? "partly read" : "read";
}

/** A pasted text is a table within the limits, or too large. */
export function checkBlock(text) {
    let block = null;
    let reason = "";
    if (!attempt(() => (block = parseBlock(text)), (said) => (reason = said))) {
        assert.match(checkWords(reason), /at most \d+ .*got \d+/);
        return "refused";
    }
    assert.ok(block.length * (block[0]?.length ?? 0) <= MOST_CELLS);
    assert.ok(block.every((row) => row.length === block[0].length && row.every((cell) => cell.length <= MOST_LETTERS)));
    const { state, names } = pageState("");
    attempt(() => state.set({ x: block, "backward.dy": block }), checkWords);
    checkState(state, names);
    checkNumbers(state);
    return "read";
}

/** A text that somebody types is kept, but for halves of characters, or refused. */
export function checkText(text) {
    const value = readNumber(text);
    assert.ok(Number.isFinite(value) || Number.isNaN(value));
    checkWords(formatNumber(value));
    checkWords(quoted(text));
    const typed = readWords(text);
    checkWords(typed.problem);
    const { state, names } = pageState("");
    if (!typed.problem) state.set({ "network.words": typed.words });
    const isKept = attempt(() => {
        const first = respell(state.get("padding.first"), text.split(/\s+/).filter(Boolean).slice(0, 12));
        state.set({ x: [[text, "1"], ["2", text]], weight: [text], "backward.dy": [[text]] });
        if (first.length) state.set({ "padding.first": first, "padding.watched": 0 });
    }, checkWords);
    checkState(state, names);
    checkNumbers(state);
    return isKept ? "read" : "refused";
}

function checkState(state, names) {
    const fragment = state.fragment();
    assert.match(fragment, /^(#[!-~]+)?$/); // what an address may hold
    const again = pageState(fragment).state;
    assert.doesNotMatch(checkWords(again.complaints()), /ignored/i); // what does not fit may be said
    assert.equal(again.fragment(), fragment);
    for (const name of names) {
        const kept = JSON.parse(JSON.stringify(state.get(name)).replace(/\\ud[89a-f][0-9a-f]{2}/g, "\ufffd"));
        assert.deepEqual(again.get(name), kept, name);
    }
}

/** Sentences for people: whole characters, nothing that is not defined. */
function checkWords(text) {
    assert.equal(typeof text, "string");
    assert.doesNotMatch(text, /\p{Cs}|undefined|\[object/u);
    assert.ok(text.length < 3000, `${text.length} characters are too many to say`);
    return text;
}

/** All numbers, formulas, sentences and code that the parts make of a state. */
function checkNumbers(state) {
    const problem = readProblem(state);
    const { rows, columns, norm, weight } = problem;
    const out = forward(problem.x, norm, problem);
    const parameters = ["weight", "bias"].map((name) => ({ name, initial: "1", texts: state.get(name) }));
    for (const text of [...describeProblems(problem), ...describeParameters(problem, parameters)]) checkWords(text);
    const model = readModel(state);
    assert.equal(model === null, rows * columns === 0);
    if (model) {
        checkWords([describeEmptyCells(problem), describeNoSpread(out)].filter(Boolean).join(" "));
        boxesOf(out.partition, problem);
        for (const sheet of ["x", "mean", "var", "xhat", "y"]) {
            const { title, lines } = describeCell(out, problem.cells, { sheet, row: rows - 1, column: columns >> 1 });
            for (const text of [title, ...lines]) checkWords(text);
        }
        for (const step of model.steps) for (const text of inNumbers(step, model)) checkWords(text);
        numbersInGraph(model, model.steps, model.steps.length);
        checkWords(reasonInWords(model).text);
        checkWords(backwardConventions(model));
        const dx = model.explained.get("dx").values;
        if (out.valid[model.row][model.column]) {
            checkWords(verdictInWords(model, compareGradients({ ...model, dx, paths: [dx] })));
        }
        const codes = codesFor(() => ({ ...problem, dy: model.dy }));
        for (const make of Object.values(codes)) assert.doesNotMatch(make(), /undefined|NaN|Infinity/);
        assert.equal(weight.length, columns);
    }
    if (state.fragment().includes("network.") && state.get("network.size") === "small") {
        const network = networkReader(state)();
        for (const step of network.steps) for (const text of networkNumbers(network, step, [0, 0])) checkWords(text);
    }
    if (!state.fragment().includes("padding.")) return; // always the same
    const sentences = readSentences(state);
    for (const method of Object.values(METHODS)) {
        normalizeWatched(sentences, method, fillNow(state));
        const heights = driftCurve(sentences, method).map(([, moved]) => moved).filter(Number.isFinite);
        assert.ok(ticks(Math.min(...heights), Math.max(...heights)).length < 20);
    }
    columnSums(sentences, fillNow(state));
}

// ---- cases ----

/** Random numbers from 0 to 1 (mulberry32). */
function randomFrom(seed) {
    let a = seed >>> 0;
    return () => {
        a = (a + 0x6d2b79f5) >>> 0;
        let t = Math.imul(a ^ (a >>> 15), a | 1);
        t ^= t + Math.imul(t ^ (t >>> 7), t | 61);
        return ((t ^ (t >>> 14)) >>> 0) / 4294967296;
    };
}

function mutatorOf(random) {
    const below = (most) => Math.floor(random() * most);
    const one = (list) => list[below(list.length)];

    /** One change somewhere in a text, or a piece of another one in it. */
    function mutate(text, seeds) {
        const [at, long] = [below(text.length + 1), below(8)];
        const [head, piece, tail] = [text.slice(0, at), text.slice(at, at + long), text.slice(at + long)];
        const other = one(seeds);
        return one([
            () => head, // cut off
            () => head + tail,
            () => head + piece + piece + tail,
            () => head + one(SIGNS) + piece + tail,
            () => head + one(CORPUS.texts) + tail,
            () => head + encodeURIComponent(one(CORPUS.texts).toWellFormed()) + tail,
            () => head + String.fromCharCode(below(random() < 0.5 ? 128 : 65536)) + tail,
            () => head + other.slice(below(other.length + 1)) + tail,
            () => head + (piece || "1,").repeat(below(random() < 0.02 ? 20_000 : 30)) + tail,
            () => [...text].reverse().join(""),
        ])();
    }

    /** Fields that other addresses have, fields twice, tables of any size, numbers of any kind. */
    function restructure(text) {
        const words = text.replace("#", "").split("&");
        const table = (cell) => Array.from({ length: below(one([4, 4, 70])) }, () =>
            Array.from({ length: below(one([4, 4, 70, 300])) }, cell).join(",")).join(";");
        const value = () => encodeURIComponent(one(CORPUS.texts).toWellFormed());
        words.splice(below(words.length + 1), below(2), one([
            () => one(CORPUS.addresses).replace("#", ""),
            () => `${one(["x", "backward.dy", "weight", "padding.first"])}=${table(value)}`,
            () => `${one(["x", "backward.dy", "bias", "padding.second"])}=${table(() => String(random() * 10 ** below(9)))}`,
            () => `${one(["norm", "eps", "part", "samples", "table.cell", "training.runs", "__proto__"])}=${value()}`,
            () => `x=${`${one(["1,", ";", ",", "_,", "%"])}`.repeat(below(2000))}`,
        ])());
        return `#${words.join("&")}`;
    }

    return { below, one, mutate, restructure };
}

const KINDS = { addresses: checkAddress, blocks: checkBlock, texts: checkText };

/** Runs so many cases, or for so many seconds; returns how many of each kind, and how they ended. */
export function fuzz({ seed, cases = Infinity, seconds = Infinity }) {
    const random = randomFrom(seed);
    const { below, one, mutate, restructure } = mutatorOf(random);
    const counts = {};
    const end = performance.now() + seconds * 1000;
    let slowest = 0;
    for (let i = 0; i < cases && performance.now() < end; i++) {
        const kind = i % 4 < 2 ? "addresses" : i % 4 === 2 ? "blocks" : "texts";
        let text = one(CORPUS[kind]);
        for (let n = below(6); n > 0; n--) {
            text = kind === "addresses" && random() < 0.4 ? restructure(text) : mutate(text, CORPUS[kind]);
        }
        const before = process.cpuUsage();
        let ended = "";
        try {
            ended = KINDS[kind](text);
            const { user, system } = process.cpuUsage(before);
            assert.ok(user + system < 1e6, `${(user + system) / 1e6} seconds`);
            slowest = Math.max(slowest, (user + system) / 1e6);
        } catch (error) {
            throw new Error(`seed ${seed}, case ${i}, ${kind}: ${JSON.stringify(text).slice(0, 2000)}`, { cause: error });
        }
        const key = `${kind} ${ended}`;
        counts[key] = (counts[key] ?? 0) + 1;
    }
    return { seed, cases: Object.values(counts).reduce((a, b) => a + b, 0), slowest, counts };
}

if (process.argv[1] === fileURLToPath(import.meta.url)) {
    const [seed = "1", seconds = "10"] = process.argv.slice(2);
    console.log(JSON.stringify(fuzz({ seed: Number(seed), seconds: Number(seconds) })));
}
