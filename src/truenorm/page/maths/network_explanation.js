/*
A training step of the character network, line by line, in the symbols of textbooks: the twin of the lab's
explanation.py, with its names and formulas.

    forward    E = C[X]; H0 = E W1 + b1; μ and σ² of H0; HN = (H0 - μ) / √(σ² + ε); HZ = γ · HN + β
               HA = tanh(HZ); logits = HA W2 + b2; Ŷ = softmax(logits); L = -mean of log Ŷ at the targets
    backward   the gradient of L with respect to each of these, from the logits back to C
    update     one step of gradient descent

The numbers are those of layers.js, and of `explain` inside the norm. `check` compares a gradient with finite
differences of the loss.
*/
import { explain } from "#maths/explanation.js";
import { crossEntropy, matrix } from "#maths/layers.js";
import { gradientStep } from "#maths/network.js";
import { forward } from "#maths/normalization.js";

/** @type {Record<string, string>} */
export const PARAMETERS = {
    C: "embed.table", W1: "linear1.weight", b1: "linear1.bias", "γ": "norm1.weight", "β": "norm1.bias",
    W2: "output.weight", b2: "output.bias",
};

/**
 * The steps forward and backward in their order, as formulas in words. D is what the variance is divided by.
 * @type {Record<string, string>}
 */
const FORMULAS = {
    C: "the lookup table, random at first: one row for each character",
    X: "the batch: the last characters of each example",
    Y: "the next character of each example",
    E: "C[X], the rows of an example side by side",
    W1: "weights of the hidden layer",
    b1: "its bias",
    H0: "E W1 + b1, the hidden layer before the norm",
    "μ": "Σ H0 / n, the mean of each hidden unit over the batch, n = N",
    "σ²": "Σ (H0 - μ)² / D, the variance",
    HN: "(H0 - μ) / √(σ² + ε), ε = EPS",
    "γ": "the scale (weight in PyTorch), ones at first",
    "β": "the shift (bias in PyTorch), zeros at first",
    HZ: "γ · HN + β",
    HA: "tanh(HZ), the activation",
    W2: "weights of the output layer",
    b2: "its bias",
    logits: "HA W2 + b2",
    "Ŷ": "softmax(logits): each row sums to 1",
    L: "-Σ log Ŷ[b, Y] / n, the loss",
    dlogits: "(Ŷ - onehot(Y)) / n",
    dW2: "HAᵀ dlogits",
    db2: "Σ dlogits over b",
    dHA: "dlogits W2ᵀ",
    dHZ: "dHA · (1 - HA²)",
    "dγ": "Σ dHZ · HN over b",
    "dβ": "Σ dHZ over b",
    dHN: "dHZ · γ",
    "dσ²": "Σ dHN · (H0 - μ) · (-1/2) · (σ² + ε)^(-3/2) over b",
    "dμ (through HN)": "-Σ dHN / √(σ² + ε) over b",
    "dμ (through σ²)": "dσ² · Σ (-2) · (H0 - μ) / D over b, 0 but for rounding",
    "dμ": "the sum of both paths",
    "dH0 (through HN)": "dHN / √(σ² + ε)",
    "dH0 (through σ²)": "dσ² · 2 · (H0 - μ) / D",
    "dH0 (through μ)": "dμ / n",
    dH0: "the sum of all three paths",
    dW1: "Eᵀ dH0",
    db1: "Σ dH0 over b, 0 but for rounding: subtracting μ removes b1",
    dE: "dH0 W1ᵀ",
    uses: "how often X names each row of C",
    dC: "for each row of C, the sum of its rows of dE, one for each use; 0 if it was not used",
};
export const STEP_NAMES = Object.keys(FORMULAS);
export const FIRST_BACKWARD = STEP_NAMES.indexOf("dlogits");

/**
 * What `explain` calls the steps inside the norm.
 * @type {Record<string, string>}
 */
const INSIDE = {
    "μ": "mean", "σ²": "var", HN: "xhat", dHN: "dxhat", "dσ²": "dvar", "dμ": "dmean",
    "dμ (through HN)": "dmean (through xhat)", "dμ (through σ²)": "dmean (through var)",
    "dH0 (through HN)": "dx (through xhat)", "dH0 (through σ²)": "dx (through var)",
    "dH0 (through μ)": "dx (through mean)",
};

/**
 * The axes of each quantity: b examples, t positions, e embedding, h hidden units.
 * @type {Record<string, string>}
 */
const AXES = {
    C: "character e", X: "b t", Y: "b", E: "b e", W1: "e h", b1: "h", H0: "b h", "μ": "h", "σ²": "h", HN: "b h",
    "γ": "h", "β": "h", HZ: "b h", HA: "b h", W2: "h character", b2: "character", logits: "b character",
    "Ŷ": "b character", L: "", uses: "character",
};

const CHANGE = 1e-5; // of an element, for finite differences: truncation and rounding errors are both below 1e-9
const MOST_CHECKED = 40; // elements of one array; all of them, where there are no more
const LAYERS = ["embed", "linear1", "norm1", "act1", "output"];
/** @type {Record<string, string>} */
const OUTPUTS = { E: "embed", H0: "linear1", HZ: "norm1", HA: "act1", logits: "output" };

/**
 * Every intermediate and every gradient of one training step. The network keeps its parameters.
 * @type {(network: Network, x: number[][], targets: number[], options?: { learningRate?: number; characters?: string[]
 *     }) => NetworkExplanation}
 */
export function explainNetwork(network, x, targets, { learningRate = 0.1, characters = [] } = {}) {
    const { layers, parameters, gradients, flatParameters } = network;
    const norm = /** @type {any} */ (layers.norm1).norm;
    const n = x.length;
    const training = { training: true };
    const { loss, probabilities, dlogits } = crossEntropy(network.forward(x, training), targets);
    network.backward(dlogits);
    const inside = new Map(explain(plainRows(layers.linear1.y), norm, {
        weight: Array.from(flatten(parameters["norm1.weight"])), bias: Array.from(flatten(parameters["norm1.bias"])),
        dy: plainRows(layers.norm1.dy),
    }).map(({ name, values }) => [name, values]));
    const uses = parameters["embed.table"].map(() => 0);
    for (const token of x.flat()) uses[token] += 1;

    /** @type {Record<string, any>} */
    const values = { X: x, Y: targets, "Ŷ": probabilities, L: [loss], uses };
    for (const [name, own] of Object.entries(INSIDE)) values[name] = inside.get(own);
    for (const [name, own] of Object.entries(PARAMETERS)) {
        values[name] = parameters[own];
        values[`d${name}`] = gradients[own];
    }
    for (const [name, own] of Object.entries(OUTPUTS)) {
        values[name] = layers[own].y;
        values[`d${name}`] = own === "output" ? dlogits : layers[LAYERS[LAYERS.indexOf(own) + 1]].dx;
    }
    const steps = STEP_NAMES.map((name, k) =>
        makeStep(k < FIRST_BACKWARD ? "forward" : "backward", name, formulaOf(name, n, norm), values[name]));
    const lossAfter = tryStep();
    const byName = new Map(steps.map((step) => [step.name, step]));
    const get = (/** @type {string} */ name) => byName.get(name);

    /** One step of gradient descent, noted and undone: the loss after it. */
    function tryStep() {
        const before = flatParameters.slice();
        gradientStep(network, learningRate);
        for (const [name, own] of Object.entries(PARAMETERS)) {
            steps.push(makeStep("update", `new ${name}`, `${name} - ${learningRate} · d${name}`, parameters[own]));
        }
        const after = crossEntropy(network.forward(x, training), targets).loss;
        flatParameters.set(before);
        return after;
    }

    /**
     * The loss of the batch; or of `value` as the output of the layer `after`.
     * @type {(value?: any, after?: string) => number}
     */
    function lossOf(value = x, after = "") {
        const rest = LAYERS.slice(LAYERS.indexOf(after) + 1);
        return crossEntropy(rest.reduce((now, name) => layers[name].forward(now, training), value), targets).loss;
    }

    /**
     * The loss as a function of one quantity; what it was computed from stays as it is.
     * @type {(name: string) => (flat: Float64Array) => number}
     */
    function lossBy(name) {
        const { rows, columns } = get(name);
        const affine = { weight: Array.from(get("γ").values), bias: Array.from(get("β").values) };
        if (name in PARAMETERS) {
            const own = parameters[PARAMETERS[name]];
            return (flat) => {
                put(own, flat);
                const found = lossOf();
                put(own, get(name).values);
                return found;
            };
        }
        if (name in OUTPUTS) return (flat) => lossOf(matrix(rows, columns, flat), OUTPUTS[name]);
        if (name === "HN") {
            return (flat) => lossOf(matrix(rows, columns, flat.map((value, k) =>
                affine.weight[k % columns] * value + affine.bias[k % columns])), "norm1");
        }
        const h0 = plainRows(matrix(n, columns, get("H0").values));
        /** @type {(mean: number[], m2: number[]) => number} */
        const withStatistics = (mean, m2) => {
            const moments = { count: mean.map(() => n), mean, m2 };
            return lossOf(matrix(n, columns, flatten(forward(h0, norm, { ...affine, moments }).y)), "norm1");
        };
        if (name === "σ²") {
            const mean = Array.from(get("μ").values);
            return (flat) => withStatistics(mean, Array.from(flat, (value) => value * (n - norm.ddof)));
        }
        return (flat) => withStatistics(Array.from(flat), Array.from(flat, (mean, j) =>
            h0.reduce((sum, row) => sum + (row[j] - mean) ** 2, 0)));
    }

    /** @type {Map<string, { largest: number; tried: number }>} */
    const checks = new Map();

    /**
     * The gradient beside (L(value + h) - L(value - h)) / 2h: for the element `k`, and the largest difference of all.
     * @type {(name: string, k: number) => GradientCheck | null}
     */
    function check(name, k) {
        const quantity = byName.get(name.slice(1));
        if (!name.startsWith("d") || !quantity) return null;
        const [lossAt, flat] = [lossBy(quantity.name), quantity.values.slice()];
        /** @type {(place: number) => Pick<GradientCheck, "up" | "down" | "slope" | "difference">} */
        const tryAt = (place) => {
            const kept = flat[place];
            const [up, down] = [CHANGE, -CHANGE].map((change) => {
                flat[place] = kept + change;
                return lossAt(flat);
            });
            flat[place] = kept;
            const slope = (up - down) / (2 * CHANGE);
            return { up, down, slope, difference: Math.abs(slope - get(name).values[place]) };
        };
        if (!checks.has(name)) {
            const tried = Math.min(flat.length, MOST_CHECKED);
            const places = Array.from({ length: tried }, (_, i) => Math.floor((i * flat.length) / tried));
            checks.set(name, { tried, largest: Math.max(...places.map((place) => tryAt(place).difference)) });
        }
        const chosen = tryAt(k);
        const { largest, tried } = checks.get(name);
        return { h: CHANGE, ...chosen, largest: Math.max(largest, chosen.difference), tried, elements: flat.length };
    }

    const examples = x.map((row, i) => `${row.map((token) => characters[token]).join("")}→${characters[targets[i]]}`);
    /** @type {NetworkLabels} */
    const labels = characters.length ? { character: characters, b: examples } : {};
    const embedding = get("C").columns;
    return { steps, get, check, loss, lossAfter, learningRate, labels, n, ddof: norm.ddof, eps: norm.eps, x, targets,
        embedding };
}

/** @type {(name: string, n: number, norm: Norm) => string} */
function formulaOf(name, n, { ddof, eps }) {
    const bessel = name === "σ²" && ddof ? ", with Bessel's correction" : "";
    const epsilon = String(eps).replace("0.00001", "1e-05"); // as Python writes it
    const degrees = ddof ? "/ (n - 1)" : "/ n";
    return FORMULAS[name].replace("/ D", degrees).replace("= N", `= ${n}`).replace("EPS", epsilon) + bessel;
}

/**
 * A step with a copy of its values: the layers use theirs again.
 * @type {(part: NetworkStep["part"], name: string, formula: string, value: any) => NetworkStep}
 */
function makeStep(part, name, formula, value) {
    const axes = (AXES[name] ?? AXES[name.replace(/^(d|new )| \(.*/g, "")]).split(" ").filter((axis) => axis !== "");
    const values = flatten(value);
    const rows = axes.length === 2 ? value.length : 1;
    return { part, name, formula, axes, rows, columns: values.length / rows, values };
}

/** @type {(value: any) => Float64Array} */
function flatten(value) {
    const rows = typeof value[0] === "number" ? [value] : value;
    return Float64Array.from(rows.flatMap((/** @type {Iterable<number>} */ row) => [...row]));
}

/** @type {(target: Parameter, flat: Float64Array) => void} */
function put(target, flat) {
    if (!Array.isArray(target)) target.set(flat);
    else target.forEach((row, i) => row.set(flat.subarray(i * row.length, (i + 1) * row.length)));
}

/** @type {(rows: Matrix) => number[][]} */
function plainRows(rows) {
    return rows.map((row) => Array.from(row));
}
