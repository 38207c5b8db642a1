// Where the page's network and random numbers disagree with the lab's. Needs nothing of node: the same lines run inside
// a browser. `twin` holds what random.js, running.js, layers.js, network.js and normalization.js export.

const TOLERANCE = 1e-12;

/** A line for each result that is not Python's. */
export function networkDisagreements(twin, golden) {
    const kinds = { random_numbers: randomResults, networks: networkResults, running: runningResults, training: trainingResults };
    return Object.entries(golden).flatMap(([kind, cases]) => cases.flatMap((one, number) => {
        const { got, want } = kinds[kind](twin, one);
        return Object.keys(want).map((name) => {
            const wrong = difference(got[name], want[name]);
            return wrong && `${kind} ${number}: ${name} ${wrong}`;
        }).filter(Boolean);
    }));
}

function randomResults({ defaultRng }, { seed, ...want }) {
    const many = (n, draw) => Array.from({ length: n }, draw);
    const fresh = () => defaultRng(seed);
    const take = (n, kind, ...given) => {
        const rng = fresh();
        return many(n, () => rng[kind](...given));
    };
    const normal = Float64Array.from(take(100_000, "normal"));
    const got = {
        random: take(5, "random"),
        normal: [...normal.subarray(0, 5)],
        normal_bits: exclusiveOr(normal),
        largest: normal.reduce((most, value) => Math.max(most, Math.abs(value)), 0),
        integers: [1, 2, 27, 28_817, 2 ** 31 + 1].map((n) => take(6, "integer", n)),
        integer_sum: take(2000, "integer", 3_000_000_000).reduce((sum, value) => sum + value, 0),
        permutation: fresh().permutation(40),
        gumbel: take(5, "gumbel"),
    };
    // To the bit, but for gumbel, whose logarithms are the browser's.
    for (const name of Object.keys(want)) {
        if (name === "gumbel") continue;
        want[name] = [JSON.stringify(want[name])];
        got[name] = [JSON.stringify(got[name])];
    }
    return { got, want };
}

/** The exclusive or of all lower and of all upper halves: equal only if every bit is. */
function exclusiveOr(values) {
    const words = new Uint32Array(values.buffer, values.byteOffset, 2 * values.length);
    const sums = [0, 0];
    words.forEach((word, i) => (sums[i % 2] ^= word));
    return sums.map((sum) => sum >>> 0);
}

function networkResults({ defaultRng, characterMlp, crossEntropy }, { seed, options, x, targets, ...golden }) {
    const network = characterMlp(options, defaultRng([seed, 2]));
    const want = { ...golden.want, size: [golden.size], initial_bits: golden.initial_bits };
    const got = { size: [network.flatParameters.length], initial_bits: exclusiveOr(network.flatParameters) };
    network.flatParameters.forEach((value, i) => (network.flatParameters[i] = value + 0.01 * Math.sin(i)));
    const rng = options.dropout ? defaultRng([seed, 4, 0]) : null;
    const logits = network.forward(x, { training: true, rng });
    const { loss, dlogits } = crossEntropy(logits, targets);
    Object.assign(got, { loss: [loss], logits: flat(logits), dlogits: flat(dlogits) });
    const gradients = network.backward(dlogits);
    for (const [name, value] of Object.entries(gradients)) got[`d ${name}`] = flat(value);
    for (const [name, layer] of Object.entries(network.layers)) {
        if (name.startsWith("norm")) got[`y ${name}`] = flat(layer.y);
    }
    got.evaluated = flat(network.forward(x, { training: false }));
    for (const [name, values] of Object.entries(want)) {
        if (got[name] && values.length === 3 && got[name].length > 3) {
            got[name] = [1, 2, 3].map((k) => got[name].reduce((sum, value, i) => sum + value * Math.cos(k * i), 0));
        }
    }
    return { got, want };
}

function runningResults({ startRunning, updateRunning, measure, describe }, { convention, infinite, batches, want }) {
    const all = infinite ? batches.toSpliced(2, 0, [[1, Infinity], [2, 1]]) : batches;
    const end = all.reduce((running, batch) => updateRunning(running, measure(batch, describe("batch"))),
        startRunning(2, convention));
    return { got: { ...end, batches: [end.batches], skipped: [end.skipped] },
        want: { ...want, batches: [want.batches], skipped: [want.skipped] } };
}

/** Losses to 1e-10, everything else to the letter. */
function trainingResults({ prepareWords, readWords, createTrainer }, { options, words, want }) {
    const data = prepareWords(readWords(`${words.join(" \r\n")}\n\n${words[0]}`), options.seed);
    const trainer = createTrainer(data, options);
    const losses = Array.from({ length: 50 }, () => trainer.step());
    const near = (got, wanted) => (Math.abs(got - wanted) <= 1e-10 * Math.abs(wanted) ? 0 : got - wanted);
    const heldOut = trainer.heldOutLoss();
    const text = [data.alphabet.join(""), data.train.x.length, trainer.sample(4)];
    return {
        got: {
            losses: losses.map((loss, i) => near(loss, want.losses[i])), heldOut: [near(heldOut, want.held_out)],
            text: [JSON.stringify(text)],
        },
        want: {
            losses: losses.map(() => 0), heldOut: [0],
            text: [JSON.stringify([want.characters, want.train, want.sampled])],
        },
    };
}

function flat(value) {
    return Array.isArray(value) ? value.flatMap((row) => [...row]) : [...value];
}

/** What is wrong with an array, relative to its largest number; null where nothing is. */
function difference(got, want) {
    if (got?.length !== want.length) return `has ${got?.length} numbers, wanted ${want.length}`;
    // Gradients that are 0 but for rounding, as that of a bias before batch norm, are compared with numbers of size 1e-3.
    const scale = Math.max(...want.map(Math.abs), 1e-3);
    const place = want.findIndex((value, i) => !(got[i] === value || Math.abs(got[i] - value) <= TOLERANCE * scale));
    return place < 0 ? null : `is ${got[place]} at ${place}, wanted ${want[place]}`;
}
