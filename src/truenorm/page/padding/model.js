/*
Two sentences of different lengths, filled up with rows of zeros, under three normalizations: the twin of examples.py.
What is typed is kept as fields of the state; here is what it comes to. part.js draws it.

    defineSentences(state);
    const model = readSentences(state);          // words, rows, lengths; what is no number is not valid
    paddingRows(model.lengths, fill);            // how many rows of zeros there are
    normalizeWatched(model, METHODS.all, fill);     // the watched word's row, with and without padding

A word is kept as a row of texts: the word, its embedding, and its row after self-attention as it is given. The state
keeps the length that sentences are filled up to, 0 for none. `fill` counts it from the longest: 0 is not at all, 1 to
the length of the longest, and each step more one row for each.
*/
import { attentionWeights, selfAttention } from "#maths/attention.js";
import { describe, forward, measure, partition } from "#maths/normalization.js";
import { readNumber } from "#lib/numbers.js";
import { tooMany } from "#lib/problem.js";
import { choice, textTable, wholeBetween } from "#lib/state.js";

export const MOST_WORDS = 12;
export const MOST_FILL = 50;
const FEATURES = 3;

/**
 * Texts to learn from, with their sentiment; two make a mini-batch, and the first two are the example.
 * @type {[review: string, sentiment: number][]}
 */
export const REVIEWS = [["Hi Nitish", 1], ["How are you today", 0], ["I am good", 0], ["You?", 1]];

const HI_NITISH = [
    ["Hi", "0.2", "0.45", "0.71", "6.5", "2.41", "3.21"],
    ["Nitish", "0.4", "0.3", "0.8", "2.21", "0.4", "3.6"],
];
const HOW_ARE_YOU = [
    ["How", "0.3", "0.5", "0.34", "7.5", "9.2", "1.5"],
    ["are", "0.1", "0.0", "0.25", "2.2", "1.1", "6.7"],
    ["you", "0.33", "0.56", "0.9", "2.9", "6", "9"],
    ["today", "0.11", "0.4", "0.54", "9.9", "2.3", "6.5"],
];

/**
 * The fields of the two sentences, and their values at the start.
 * @type {Record<SentenceField, string[][]>}
 */
export const SENTENCE_FIELDS = { "padding.first": HI_NITISH, "padding.second": HOW_ARE_YOU };

export const SENTENCE_NAMES = /** @type {SentenceField[]} */ (Object.keys(SENTENCE_FIELDS));

/**
 * Every field of this part, and its value at the start. "How" is word 2 of all.
 * @type {Partial<Fields>}
 */
export const SENTENCES_START = {
    ...SENTENCE_FIELDS, "padding.rows": "given", "padding.length": 4, "padding.watched": 2,
};

/**
 * What they differ in: which numbers share a mean, and whether padding is among them. `hue` is that of their curve.
 * @type {Record<MethodName, Method>}
 */
export const METHODS = {
    all: { title: "Batch norm, padding included", norm: describe("batch"), includesPadding: true, hue: 1 },
    layer: { title: "Layer norm", norm: describe("layer"), includesPadding: true, hue: 3 },
    valid: { title: "Batch norm, padding ignored", norm: describe("batch"), includesPadding: false, hue: 0 },
};

export const METHOD_NAMES = /** @type {MethodName[]} */ (Object.keys(METHODS));

/**
 * Words with all their numbers; at least one, and none with a space in it.
 * @type {Codec<string[][]>}
 */
const sentenceCodec = {
    encode: textTable.encode,
    decode: (text) => {
        const rows = textTable.decode(text);
        const sensible = rows.length >= 1 && rows.length <= MOST_WORDS && rows[0].length === 1 + 2 * FEATURES;
        if (!sensible || !rows.every(([word]) => /^\S+$/.test(word))) throw new RangeError("sentences: words.");
        return rows;
    },
    check: textTable.check,
};

/** @type {(state: State) => void} */
export function defineSentences(state) {
    for (const name of SENTENCE_NAMES) state.field(name, sentenceCodec, SENTENCE_FIELDS[name]);
    state.field("padding.rows", choice("given", "computed"), SENTENCES_START["padding.rows"]);
    state.field("padding.length", wholeBetween(0, MOST_WORDS + MOST_FILL - 1), SENTENCES_START["padding.length"]);
    state.field("padding.watched", wholeBetween(0, 2 * MOST_WORDS - 1), SENTENCES_START["padding.watched"]);
    state.fit("padding.watched", () => tooMany("padding.watched", state.get("padding.watched"),
        sentenceLengths(state).reduce((a, b) => a + b, -1), "words behind the first"));
    state.fit("padding.length", () => {
        const [given, used] = [state.get("padding.length"), paddedLength(sentenceLengths(state), fillNow(state))];
        return given === used ? "" : `padding.length: ${given} given, but these sentences can be filled up to `
            + `${paddedLength(sentenceLengths(state), 1)} words at least and ${MOST_FILL - 1} more; ${used} is used.`;
    });
}

/** @type {(state: State) => number[]} */
export function sentenceLengths(state) {
    return SENTENCE_NAMES.map((name) => state.get(name).length);
}

/**
 * How long sentences are that are filled up so far; 0 says that they are not.
 * @type {(lengths: number[], fill: number) => number}
 */
export function paddedLength(lengths, fill) {
    return fill === 0 ? 0 : Math.max(...lengths) + fill - 1;
}

/**
 * How far the state fills them up.
 * @type {(state: State) => number}
 */
export function fillNow(state) {
    const length = state.get("padding.length");
    const beyond = length - Math.max(...sentenceLengths(state)) + 1;
    return length === 0 ? 0 : Math.min(Math.max(beyond, 1), MOST_FILL);
}

/**
 * Other sentences, filled up as far as those before.
 * @type {(state: State, change: Partial<Fields>) => void}
 */
export function changeSentences(state, change) {
    const lengths = SENTENCE_NAMES.map((name) => (change[name] ?? state.get(name)).length);
    state.set({ ...change, "padding.length": paddedLength(lengths, fillNow(state)) });
}

/**
 * words      [{ word, sentence, position, embedding, given, row, valid, weights }], those of the first sentence first;
 *            embedding and given are texts, row is numbers, valid says which of them really are numbers
 * lengths    how many words each sentence has
 * computed   whether rows come from the embeddings by self-attention
 * watched    the place of the watched word among the words
 * @type {(state: State) => SentencesModel}
 */
export function readSentences(state) {
    const computed = state.get("padding.rows") === "computed";
    /** @type {Word[][]} */
    const sentences = SENTENCE_NAMES.map((name, sentence) =>
        state.get(name).map(([word, ...texts], position) => /** @type {Word} */ ({
            word, sentence, position, embedding: texts.slice(0, FEATURES), given: texts.slice(FEATURES),
            row: [], valid: [], weights: [], // see below
        })));
    if (computed) sentences.forEach(attend);
    else sentences.flat().forEach(takeGiven);
    const words = sentences.flat();
    return {
        words, computed,
        lengths: sentences.map(({ length }) => length),
        watched: Math.min(state.get("padding.watched"), words.length - 1),
    };
}

/** @type {(one: Word) => void} */
function takeGiven(one) {
    one.row = one.given.map(readNumber);
    one.valid = one.row.map(Number.isFinite);
}

/**
 * A word whose embedding is not three numbers is left out: others do not attend to it, and its row is not valid.
 * @type {(words: Word[]) => void}
 */
function attend(words) {
    const whole = words.filter(({ embedding }) => embedding.every((text) => Number.isFinite(readNumber(text))));
    const embeddings = whole.map(({ embedding }) => embedding.map(readNumber));
    const [rows, weights] = [selfAttention(embeddings), attentionWeights(embeddings)];
    for (const one of words) {
        const place = whole.indexOf(one);
        one.row = rows[place] ?? new Array(FEATURES).fill(NaN);
        one.valid = one.row.map(Number.isFinite);
        one.weights = whole.map(({ word }, i) => ({ word, weight: weights[place]?.[i] }));
    }
}

/**
 * How many rows of zeros stand behind each sentence.
 * @type {(lengths: number[], fill: number) => number[]}
 */
export function paddingOfEach(lengths, fill) {
    return lengths.map((length) => (fill === 0 ? 0 : paddedLength(lengths, fill) - length));
}

/**
 * How many rows of zeros there are in all.
 * @type {(lengths: number[], fill: number) => number}
 */
export function paddingRows(lengths, fill) {
    return paddingOfEach(lengths, fill).reduce((a, b) => a + b, 0);
}

/**
 * The stack of rows as forward() takes it: { x, valid, places }. `places` says where each word's row stands. Padding
 * is valid where it is included, as zeros.
 * @type {(model: SentencesModel, method: { includesPadding: boolean }, fill: number) => { x: number[][]; valid:
 *     boolean[][]; places: number[] }}
 */
export function stackRows({ words, lengths }, { includesPadding }, fill) {
    /** @type {ReturnType<typeof stackRows>} */
    const { x, valid, places } = { x: [], valid: [], places: [] };
    paddingOfEach(lengths, fill).forEach((padding, sentence) => {
        for (const one of words.filter((word) => word.sentence === sentence)) {
            places.push(x.length);
            x.push(one.row);
            valid.push(one.valid);
        }
        for (let i = 0; i < padding; i++) {
            x.push(new Array(FEATURES).fill(0));
            valid.push(new Array(FEATURES).fill(includesPadding));
        }
    });
    return { x, valid, places };
}

/**
 * One method with so much padding, for the watched word: { y, alone, moved, difference, mean, deviation, valid }.
 * `alone` is its row without any padding, `moved` the largest difference to it: 0 is what one would wish for.
 * @type {(model: SentencesModel, method: Method, fill: number) => MovedRow}
 */
export function normalizeWatched(model, method, fill) {
    const alone = watchedRow(model, method, 0).y;
    const now = watchedRow(model, method, fill);
    return { ...now, alone, difference: now.y.map((y, j) => y - alone[j]), moved: distance(now, alone) };
}

/**
 * The statistics of the whole stack, applied to one row of it: nobody looks at the others, and there may be many.
 * @type {(model: SentencesModel, method: Method, fill: number) => WatchedRow}
 */
function watchedRow(model, { norm, includesPadding }, fill) {
    const { x, valid, places } = stackRows(model, { includesPadding }, fill);
    const row = places[model.watched];
    const part = partition(norm, x.length, FEATURES);
    const whole = measure(x, norm, { valid, part });
    const own = [...new Set(part.index[row])];
    /** @type {any} */
    const moments = Object.fromEntries(Object.entries(whole).map(([name, all]) => [name, own.map((s) => all[s])]));
    const out = forward([x[row]], norm, { valid: [valid[row]], moments });
    /** @type {(values: number[]) => number[]} */
    const ofCells = (values) => out.partition.index[0].map((s) => values[s]);
    return {
        y: out.y[0], valid: valid[row], mean: ofCells(moments.mean), deviation: ofCells(out.var.map(Math.sqrt)),
    };
}

/**
 * What a method makes of a row of padding, or null where there is none. Padding that is ignored stays 0.
 * @type {(model: SentencesModel, method: Method, fill: number) => number[] | null}
 */
export function paddingRow(model, method, fill) {
    const { x, valid, places } = stackRows(model, method, fill);
    const row = x.findIndex((_, i) => !places.includes(i));
    return row < 0 ? null : forward(x, method.norm, { valid }).y[row];
}

/** @type {(now: WatchedRow, alone: number[]) => number} */
function distance({ y, valid }, alone) {
    const distances = y.map((value, j) => Math.abs(value - alone[j])).filter((_, j) => valid[j]);
    return distances.length ? Math.max(...distances) : NaN;
}

/**
 * [padding rows, moved] for each amount of padding; sentences of equal lengths have two ways of having none.
 * @type {(model: SentencesModel, method: Method) => Point[]}
 */
export function driftCurve(model, method) {
    const alone = watchedRow(model, method, 0).y;
    /** @type {Map<number, number>} */
    const points = new Map();
    for (let fill = 0; fill <= MOST_FILL; fill++) {
        points.set(paddingRows(model.lengths, fill), distance(watchedRow(model, method, fill), alone));
    }
    return [...points];
}

/**
 * The least length that makes so many rows of padding.
 * @type {(lengths: number[], padding: number) => number}
 */
export function lengthFor(lengths, padding) {
    let fill = 0;
    while (fill < MOST_FILL && paddingRows(lengths, fill) < padding) fill++;
    return paddedLength(lengths, fill);
}

/**
 * The sums and counts of the means: zeros add nothing to the sum, but they are counted.
 * @type {(model: SentencesModel, fill: number) => { values: number[]; padding: number; sum: number }[]}
 */
export function columnSums(model, fill) {
    const padding = paddingRows(model.lengths, fill);
    return Array.from({ length: FEATURES }, (_, column) => {
        const values = model.words.filter(({ valid }) => valid[column]).map(({ row }) => row[column]);
        return { values, padding, sum: values.reduce((a, b) => a + b, 0) };
    });
}

/**
 * A sentence after its text was changed: `texts` are its new words, `before` its old rows. Words before and behind the
 * change keep their numbers. A word that was only respelled keeps them, too, unless nobody ever chose them.
 * @type {(before: string[][], texts: string[]) => string[][]}
 */
export function respell(before, texts) {
    const old = before.map(([word]) => word);
    let head = 0;
    while (head < Math.min(old.length, texts.length) && old[head] === texts[head]) head++;
    let tail = 0;
    while (tail < Math.min(old.length, texts.length) - head && old.at(-1 - tail) === texts.at(-1 - tail)) tail++;
    const changed = before.slice(head, old.length - tail);
    return texts.map((word, i) => {
        if (i < head) return before[i];
        if (i >= texts.length - tail) return before[i - texts.length + old.length];
        const same = changed[i - head];
        const chosen = same && String(same.slice(1)) !== String(madeUpNumbers(same[0]));
        return [word, ...(chosen ? same.slice(1) : numbersFor(word))];
    });
}

/**
 * Whether somebody chose an embedding: one that is not the word's own.
 * @type {(model: SentencesModel) => boolean}
 */
export function hasOtherEmbeddings({ words }) {
    return words.some(({ word, embedding }) => String(embedding) !== String(numbersFor(word).slice(0, FEATURES)));
}

/**
 * The example's words have their numbers, others made-up ones.
 * @type {(word: string) => string[]}
 */
function numbersFor(word) {
    const known = Object.values(SENTENCE_FIELDS).flat().find(([one]) => one === word);
    return known?.slice(1) ?? madeUpNumbers(word);
}

/**
 * An embedding from 0 to 1 and a row from 0 to 10, by the letters of a word.
 * @type {(word: string) => string[]}
 */
function madeUpNumbers(word) {
    let seed = 7;
    /** @type {(add: number) => number} */
    const next = (add) => (seed = (seed * 137 + add) % 1_000_003);
    for (const letter of word) next(letter.codePointAt(0));
    const embedding = Array.from({ length: FEATURES }, () => String((next(11) % 100) / 100));
    return [...embedding, ...Array.from({ length: FEATURES }, () => String((next(11) % 100) / 10))];
}
