/*
A live run: the trainer, and what the page shows of it. It runs in a worker (worker.js), and needs no document.

    const run = createRun({ words, seed, setting });
    run.advance(1000, 25);       // up to step 1000, for at most 25 milliseconds
    run.report();                // what is shown
*/
import { createTrainer, prepareWords } from "#maths/training.js";

const MOST_POINTS = 120; // of a curve
const BINS = 20;
export const FLAT = 0.97; // where tanh is flat: its slope is less than 0.06
const DIVERGED = 100; // times the loss of guessing
const EVALUATED = 512; // held-out examples
const SAMPLED = 8; // words

/** @type {(start: RunStart, now?: () => number) => LiveRun} */
export function createRun({ words, seed, setting }, now = () => performance.now()) {
    const data = prepareWords(words, seed);
    // Batch norm as the notes have it, with n - 1.
    const trainer = createTrainer(data, { ...setting, ddof: setting.norm === "batch" ? 1 : 0, seed });
    const guessing = Math.log(data.alphabet.length + 1);
    const training = lossCurve();
    /** @type {Point[]} */
    let heldOut = [];
    /** @type {LayerReport[]} */
    let layers = [];
    /** @type {{ step: number; loss: number } | null} */
    let diverged = null;
    let reported = 0; // the step of the last report

    return {
        get steps() { return trainer.steps; },
        advance(until, milliseconds) {
            const start = now();
            while (trainer.steps < until && diverged === null && now() - start < milliseconds) {
                const loss = trainer.step();
                training.add(loss);
                if (!(loss <= DIVERGED * guessing)) diverged = { step: trainer.steps, loss };
            }
            return trainer.steps < until && diverged === null;
        },
        report() {
            // Later the network has been run on other words, and holds their values.
            if (trainer.steps !== reported) layers = layerReports(trainer.network);
            reported = trainer.steps;
            if (diverged === null) {
                const isNew = heldOut.at(-1)?.[0] !== trainer.steps;
                if (isNew) heldOut.push([trainer.steps, trainer.heldOutLoss(EVALUATED)]);
                // Every second, and the last.
                if (heldOut.length > MOST_POINTS) heldOut = heldOut.filter((_, i, { length }) => (length - i) % 2);
            }
            return {
                step: trainer.steps, training: training.points(), heldOut, layers, guessing, diverged,
                words: diverged ? [] : trainer.sample(SAMPLED), parameters: trainer.network.flatParameters.length,
                examples: data.train.x.length,
            };
        },
    };
}

/**
 * The mean loss of every so many steps: of one at first, of more as the run grows; the last may be of fewer.
 * @returns {{ add(loss: number): void; points(): Point[] }}
 */
export function lossCurve() {
    let width = 1;
    /** @type {number[]} */
    let means = [];
    let [sum, count] = [0, 0];
    return {
        add(loss) {
            [sum, count] = [sum + loss, count + 1];
            if (count < width) return;
            means.push(sum / count);
            [sum, count] = [0, 0];
            if (means.length < MOST_POINTS) return;
            means = Array.from({ length: means.length / 2 }, (_, i) => (means[2 * i] + means[2 * i + 1]) / 2);
            width *= 2;
        },
        points() {
            /** @type {Point[]} */
            const points = means.map((mean, i) => [(i + 1) * width, mean]);
            return count ? [...points, [means.length * width + count, sum / count]] : points;
        },
    };
}

/**
 * For each hidden layer what the last batch made: the outputs of tanh as a histogram from -1 to 1, the share that is
 * saturated, and the root mean square of the gradients of its weights.
 * @type {(network: Network) => LayerReport[]}
 */
function layerReports({ layers }) {
    return Object.entries(layers).filter(([name]) => name.startsWith("act")).map(([name, { y }]) => {
        const counts = new Array(BINS).fill(0);
        let saturated = 0;
        for (const row of y) {
            for (const value of row) {
                counts[Math.min(Math.floor(((value + 1) / 2) * BINS), BINS - 1)] += 1;
                if (Math.abs(value) > FLAT) saturated += 1;
            }
        }
        const gradients = /** @type {Matrix} */ (layers[name.replace("act", "linear")].gradients.weight);
        let squares = 0;
        for (const row of gradients) for (const value of row) squares += value * value;
        const [cells, numbers] = [y.length * y[0].length, gradients.length * gradients[0].length];
        return { counts, saturated: saturated / cells, gradient: Math.sqrt(squares / numbers) };
    });
}
