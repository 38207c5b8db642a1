/*
A training run of the character network, one step at a time: the twin of the lab's data.py, training.py and sampling.py.

    const data = prepareWords(readWords("emma\nolivia\nava"), seed);       // alphabet, train, heldOut
    const trainer = createTrainer(data, { norm: "batch", ddof: 1, batch: 32, lr: 0.1, seed });
    trainer.step();                  // takes one step, returns the loss of its batch
    trainer.heldOutLoss();           // in evaluation mode, with running statistics
    trainer.sample(5);               // new words

Random numbers come from the seed and the step, as in the lab: the same words, options and seed give the same batches
and, but for rounding, the same losses.
*/
import { crossEntropy } from "#maths/layers.js";
import { characterMlp, gradientStep } from "#maths/network.js";
import { defaultRng } from "#maths/random.js";

const BOUNDARY = 0; // the token before and after a word
const PREFETCH = 4096; // examples that are drawn at once
const EVALUATION_BATCH = 4096;
const MOST_CHARACTERS = 40; // of a sampled word, if the network does not end it before
const BLOCK = 3;

const LINE_END = /[\n\v\f\r\x85\u2028\u2029]/; // as in Python

/**
 * The words of a text with one word a line, without duplicates, blank lines and surrounding spaces.
 * @type {(text: string) => string[]}
 */
export function readWords(text) {
    const words = new Set(text.split(LINE_END).map((line) => line.trim().normalize("NFC")));
    words.delete("");
    return [...words];
}

/**
 * Characters, the training set and the held-out set: a tenth of the words, at least one. Needs two words.
 * @type {(words: string[], seed: number) => WordData}
 */
export function prepareWords(words, seed) {
    if (words.length < 2) throw new RangeError(`training: at least two words, one a line, got ${words.length}.`);
    const alphabet = [...new Set(words.join(""))].sort((a, b) => a.codePointAt(0) - b.codePointAt(0));
    const order = defaultRng([seed, 1]).permutation(words.length);
    const held = Math.min(Math.max(1, Math.floor(words.length / 10)), words.length - 1);
    /** @type {(rows: number[]) => Examples} */
    const examples = (rows) => nextCharacterExamples(rows.map((i) => words[i]), alphabet);
    return { alphabet, train: examples(order.slice(held)), heldOut: examples(order.slice(0, held)) };
}

/**
 * Every character of every word, and its end, as the target of the tokens before it.
 * @type {(words: string[], alphabet: string[]) => Examples}
 */
export function nextCharacterExamples(words, alphabet) {
    const tokens = new Map(alphabet.map((character, i) => [character, i + 1]));
    /** @type {Examples} */
    const examples = { x: [], targets: [] };
    for (const word of words) {
        let context = new Array(BLOCK).fill(BOUNDARY);
        for (const token of [...[...word].map((character) => tokens.get(character)), BOUNDARY]) {
            examples.x.push(context);
            examples.targets.push(token);
            context = [...context.slice(1), token];
        }
    }
    return examples;
}

/**
 * @type {(data: WordData, options: Partial<NetworkOptions> & { seed: number; batch: number; lr: number }) => Trainer}
 */
export function createTrainer({ alphabet, train, heldOut }, { seed, batch, lr, ...options }) {
    const sizes = { vocabSize: alphabet.length + 1, block: BLOCK };
    const network = characterMlp({ ...options, ...sizes }, defaultRng([seed, 2]));
    const chunkSteps = Math.max(1, Math.floor(PREFETCH / batch));
    let chunk = -1;
    /** @type {number[]} */
    let drawn = []; // the rows of the chunk's batches
    let steps = 0;

    /** @type {(step: number) => number[]} */
    function batchRows(step) {
        const wanted = Math.floor(step / chunkSteps);
        if (wanted !== chunk) {
            const rng = defaultRng([seed, 3, wanted]);
            drawn = Array.from({ length: chunkSteps * batch }, () => rng.integer(train.x.length));
            chunk = wanted;
        }
        const start = (step % chunkSteps) * batch;
        return drawn.slice(start, start + batch);
    }

    return {
        network,
        get steps() { return steps; },
        step() {
            const rows = batchRows(steps);
            const rng = options.dropout ? defaultRng([seed, 4, steps]) : null;
            const logits = network.forward(rows.map((i) => train.x[i]), { training: true, rng });
            const { loss, dlogits } = crossEntropy(logits, rows.map((i) => train.targets[i]));
            network.backward(dlogits);
            gradientStep(network, lr);
            steps += 1;
            return loss;
        },
        heldOutLoss(limit = heldOut.x.length) {
            const count = Math.min(limit, heldOut.x.length);
            const rows = Array.from({ length: count }, (_, i) => Math.floor((i * heldOut.x.length) / count));
            let total = 0;
            for (let start = 0; start < count; start += EVALUATION_BATCH) {
                const part = rows.slice(start, start + EVALUATION_BATCH);
                const logits = network.forward(part.map((i) => heldOut.x[i]));
                total += crossEntropy(logits, part.map((i) => heldOut.targets[i])).loss * part.length;
            }
            return total / count;
        },
        sample(count, rng = defaultRng([seed, 5, steps])) {
            return sampleWords(network, alphabet, rng, count);
        },
    };
}

/**
 * New words, all at once: each round draws the next character of every word that has not ended. Logits that are not
 * finite end all words.
 * @type {(network: Network, alphabet: string[], rng: { gumbel(): number }, count: number) => string[]}
 */
export function sampleWords(network, alphabet, rng, count) {
    const words = new Array(count).fill("");
    const contexts = words.map(() => new Array(BLOCK).fill(BOUNDARY));
    let open = words.map((_, i) => i);
    for (let round = 0; round < MOST_CHARACTERS && open.length; round++) {
        const logits = network.forward(open.map((i) => contexts[i]));
        if (!logits.every((row) => row.every(Number.isFinite))) break;
        open = open.filter((word, i) => {
            const token = drawToken(logits[i], rng, round === 0); // no empty words
            contexts[word] = [...contexts[word].slice(1), token];
            if (token !== BOUNDARY) words[word] += alphabet[token - 1];
            return token !== BOUNDARY;
        });
    }
    return words;
}

/**
 * Draw from softmax(logits): add Gumbel noise and take the largest.
 * @type {(logits: Float64Array, rng: { gumbel(): number }, first: boolean) => number}
 */
function drawToken(logits, rng, first) {
    let [best, most] = [1, -Infinity];
    logits.forEach((logit, token) => {
        const value = (first && token === BOUNDARY ? -Infinity : logit) + rng.gumbel();
        if (value > most) [best, most] = [token, value];
    });
    return best;
}
