/*
The character network of note 003: the twin of the lab's `character_mlp`, with the same layers under the same names.

    const network = characterMlp({ norm: "batch", ddof: 1 }, defaultRng([seed, 2]));
    const logits = network.forward(x, { training: true });     // x: rows of `block` tokens
    const { loss, dlogits } = crossEntropy(logits, targets);
    network.backward(dlogits);                                  // writes network.gradients
    gradientStep(network, 0.1);

    network.layers.linear1.y                    // also norm1, act1, dropout1, linear2, ..., output
    network.parameters["linear1.weight"]        // also "embed.table", "norm1.weight", "norm1.bias", "output.bias", ...

Every parameter is a part of `flatParameters`, and its gradient a part of `flatGradients`, in the same order.
*/
import { Dropout, Embedding, GELU, Linear, Normalize, ReLU, Sigmoid, Tanh, matrix } from "#maths/layers.js";

/** @type {NetworkOptions} */
export const DEFAULTS = {
    vocabSize: 27, block: 3, embedding: 2, hidden: 100, depth: 1, activation: "tanh", norm: "batch", normAt: "before",
    ddof: 0, dropout: 0, initScale: 1,
};

/** @type {Record<ActivationName, () => Layer>} */
const ACTIVATIONS = {
    tanh: () => new Tanh(), relu: () => new ReLU(), sigmoid: () => new Sigmoid(), gelu: () => new GELU(),
};

// Initial weights of std gain / √inputs keep the std of the activations about constant from layer to layer.
/** @type {Record<ActivationName, number>} */
const GAINS = { tanh: 5 / 3, relu: Math.SQRT2, sigmoid: 1, gelu: Math.SQRT2 };

/**
 * Logits of the next character, given the last `block` characters: embedding, hidden layers with a norm, output.
 * @type {(options: Partial<NetworkOptions>, rng: { normal(): number }) => Network}
 */
export function characterMlp(options, rng) {
    const { vocabSize, block, embedding, hidden, depth, ...rest } = { ...DEFAULTS, ...options };
    /** @type {(inputs: number, outputs: number, gain: number) => Linear} */
    const linear = (inputs, outputs, gain) =>
        new Linear(normalMatrix(rng, inputs, outputs, gain * inverseRoot(inputs)), new Float64Array(outputs));
    /** @type {Record<string, Layer>} */
    const layers = { embed: new Embedding(normalMatrix(rng, vocabSize, embedding, 1)) };
    let inputs = block * embedding;
    for (let number = 1; number <= depth; number++) {
        layers[`linear${number}`] = linear(inputs, hidden, rest.initScale * GAINS[rest.activation]);
        const activation = { [`act${number}`]: ACTIVATIONS[rest.activation]() };
        const norm = rest.norm === "none" ? {}
            : { [`norm${number}`]: new Normalize(rest.norm, hidden, { ddof: rest.ddof }) };
        Object.assign(layers, ...(rest.normAt === "before" ? [norm, activation] : [activation, norm]));
        if (rest.dropout) layers[`dropout${number}`] = new Dropout(rest.dropout);
        inputs = hidden;
    }
    // Small weights give nearly equal logits, so that the loss starts near log(outputs).
    layers.output = linear(inputs, vocabSize, 0.1);
    return joinLayers(layers);
}

/**
 * Named layers, run one after the other.
 * @type {(layers: Record<string, Layer>) => Network}
 */
export function joinLayers(layers) {
    const all = Object.values(layers);
    const [flatParameters, parameters] = flatten(layers, "parameters");
    const [flatGradients, gradients] = flatten(layers, "gradients");
    return {
        layers, parameters, gradients, flatParameters, flatGradients,
        forward(x, context = { training: false }) {
            /** @type {any} */
            let value = x;
            for (const layer of all) value = layer.forward(value, context);
            return value;
        },
        backward(dlogits) {
            all.reduceRight((dy, layer) => layer.backward(dy), dlogits);
            return gradients;
        },
    };
}

/**
 * w -= lr · gradient, for all parameters.
 * @type {(network: Network, lr: number) => void}
 */
export function gradientStep({ flatParameters, flatGradients }, lr) {
    for (let i = 0; i < flatParameters.length; i++) flatParameters[i] -= flatGradients[i] * lr;
}

/**
 * Move the layers' arrays into one vector; return it, and its parts by name.
 * @type {(layers: Record<string, Layer>, kind: "parameters" | "gradients") =>
 *     [Float64Array, Record<string, Parameter>]}
 */
function flatten(layers, kind) {
    const entries = Object.entries(layers).flatMap(([layer, { [kind]: arrays }]) =>
        Object.entries(arrays).map(([name, value]) => ({ layer, arrays, name, value })));
    const flat = new Float64Array(entries.reduce((sum, { value }) => sum + sizeOf(value), 0));
    /** @type {Record<string, Parameter>} */
    const byName = {};
    let start = 0;
    for (const { layer, arrays, name, value } of entries) {
        const part = flat.subarray(start, start + sizeOf(value));
        start += part.length;
        if (Array.isArray(value)) {
            value.forEach((row, i) => part.set(row, i * row.length));
            arrays[name] = matrix(value.length, value[0].length, part);
        } else {
            part.set(value);
            arrays[name] = part;
        }
        byName[`${layer}.${name}`] = arrays[name];
    }
    return [flat, byName];
}

/** @type {(value: Parameter) => number} */
function sizeOf(value) {
    return Array.isArray(value) ? value.length * value[0].length : value.length;
}

/** @type {(rng: { normal(): number }, rows: number, columns: number, std: number) => Matrix} */
function normalMatrix(rng, rows, columns, std) {
    const flat = Float64Array.from({ length: rows * columns }, () => rng.normal() * std);
    return matrix(rows, columns, flat);
}

/**
 * 1 / √n, rounded once, as NumPy has it; 1 / Math.sqrt(n) is rounded twice, and n ** -0.5 is not the same everywhere.
 * @type {(n: number) => number}
 */
function inverseRoot(n) {
    const near = 1 / Math.sqrt(n);
    const exact = BigInt(near * 2 ** 80);
    return near + (near * Number((1n << 160n) - BigInt(n) * exact * exact) * 2 ** -160) / 2;
}
