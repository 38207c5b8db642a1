/*
The network that the state describes: its batch, its parameters after the steps that were taken, and every value and
gradient of the next one. It is that of `truenorm explain --example network --seed N --words ...`.
*/
import { crossEntropy } from "#maths/layers.js";
import { characterMlp, gradientStep } from "#maths/network.js";
import { explainNetwork } from "#maths/network_explanation.js";
import { defaultRng } from "#maths/random.js";
import { nextCharacterExamples } from "#maths/training.js";
import { SIZES, charactersOf, wordsOf } from "#network/words.js";

const BLOCK = 3;
const EMBEDDING = 2;

/**
 * A function that reads the state. What did not change is not computed again, and a longer path goes on from where the
 * shorter one ended.
 * @type {(state: State) => () => NetworkModel}
 */
export function networkReader(state) {
    let [key, explained] = ["", ""];
    /** @type {ReturnType<typeof startNetwork> | null} */
    let start = null;
    /** @type {number[]} */
    let taken = []; // the learning rates of the steps so far
    /** @type {number[]} */
    let losses = []; // before each of them
    /** @type {NetworkModel | null} */
    let model = null;
    return () => {
        const [size, seed, words] = [state.get("network.size"), state.get("network.seed"), wordsOf(state)];
        const wanted = state.get("network.path").flatMap(([lr, steps]) => new Array(steps).fill(lr));
        const lr = state.get("network.lr");
        const now = JSON.stringify([size, seed, words]);
        if (key !== now || taken.some((one, k) => one !== wanted[k])) {
            start = startNetwork(words, size, seed);
            [key, taken, losses] = [now, [], []];
        }
        const news = JSON.stringify([now, wanted, lr]);
        if (news === explained) return model;
        explained = news;
        const { network, x, targets, characters } = start;
        for (const rate of wanted.slice(taken.length)) {
            const { loss, dlogits } = crossEntropy(network.forward(x, { training: true }), targets);
            if (!Number.isFinite(loss)) break;
            network.backward(dlogits);
            gradientStep(network, rate);
            taken.push(rate);
            losses.push(loss);
        }
        const explanation = explainNetwork(network, x, targets, { learningRate: lr, characters });
        const parameters = network.flatParameters.length.toLocaleString("en");
        model = {
            ...explanation, losses: [...losses, explanation.loss],
            headline: `${x.length} examples of ${BLOCK} characters, ${characters.length} characters with ${EMBEDDING} `
                + `numbers each, ${SIZES[size].hidden} hidden units, ${parameters} parameters.`,
        };
        return model;
    };
}

/**
 * A new network and its batch, drawn with NumPy's random numbers as the lab draws them.
 * @type {(words: string[], size: NetworkSize, seed: number) => { network: Network; x: number[][]; targets: number[];
 *     characters: string[] }}
 */
export function startNetwork(words, size, seed) {
    const { hidden, batch } = SIZES[size];
    const characters = charactersOf(words);
    const options = { vocabSize: characters.length, block: BLOCK, embedding: EMBEDDING, hidden, ddof: 1 };
    const network = characterMlp(options, defaultRng([seed, 2]));
    const examples = nextCharacterExamples(words, characters.slice(1));
    const rng = defaultRng([seed, 3, 0]);
    const drawn = Array.from({ length: batch }, () => rng.integer(examples.x.length));
    return { network, x: drawn.map((k) => examples.x[k]), targets: drawn.map((k) => examples.targets[k]), characters };
}
