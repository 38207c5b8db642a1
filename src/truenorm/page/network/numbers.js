/*
The formula of each step with the numbers of one cell in it.

    inNumbers(model, step, [2, 0])     // ["dHZ = 0.004589", "· (1 - (−0.8687)²)", "= 0.001126"]

In pieces, as a sum of many terms goes on in the next line. A rule returns pieces, or { open, terms, close } for a sum
of products: of long ones the first three terms and the last are shown.
*/
import { bracketedNumber, formatNumber } from "#lib/numbers.js";

const MOST_TERMS = 6;

/** @type {(model: NetworkModel, step: NetworkStep, cell: Point) => string[]} */
export function inNumbers(model, step, [i, j]) {
    const { name, part, columns, values } = step;
    const result = `= ${formatNumber(values[i * columns + j])}`;
    if (part === "update") {
        const parameter = name.slice("new ".length);
        const [value, gradient] = [parameter, `d${parameter}`].map((one) => readerOf(model)(one, i, j));
        return [`"${name}" = ${formatNumber(value)} - ${model.learningRate} · ${bracketedNumber(gradient)}`, result];
    }
    const rule = RULES[name];
    if (!rule) return [`${name} ${result}`];
    const made = rule(readerOf(model), i, j, model);
    const label = name.replace(/ \(.*/, "");
    if (Array.isArray(made)) return [`${label} = ${made[0]}`, ...made.slice(1), result];
    const { open = "", terms, close = "" } = made;
    const [first = "0", ...rest] = closed(signed(terms), close);
    return [`${label} = ${open}${first}`, ...rest, result];
}

/**
 * The value of a step by its name; vectors have one row.
 * @type {(model: NetworkModel) => ValueReader}
 */
function readerOf({ get }) {
    return (name, i, j) => {
        const { columns, values } = get(name);
        return values[i * columns + j];
    };
}

/**
 * Products as terms of a sum. The sign of the first factor becomes the sign in front of the term.
 * @type {(terms: number[][]) => string[]}
 */
function signed(terms) {
    const many = terms.length > MOST_TERMS;
    const shown = terms.filter((_, k) => !many || k < 3 || k === terms.length - 1).map(([first, ...rest], k) => {
        const sign = first < 0 ? "−" : k ? "+" : "";
        const product = [formatNumber(Math.abs(first)), ...rest.map((one) => bracketedNumber(one))].join(" · ");
        return k ? `"${sign} ${product}"` : `${sign}${product}`;
    });
    if (many) shown.splice(3, 0, '"+ …"');
    return shown;
}

/**
 * What follows a sum stands right behind its last term; what it is divided by may stand in the next line.
 * @type {(pieces: string[], close: string) => string[]}
 */
function closed(pieces, close) {
    const last = (pieces.at(-1) ?? "0").replaceAll('"', "");
    if (!close || pieces.length === 1) return [...pieces.slice(0, -1), `${last}${close}`];
    return [...pieces.slice(0, -1), ...`${last}${close}`.split(/ (?=\/)/).map((piece) => `"${piece}"`)];
}

/** @type {(count: number) => number[]} */
function upTo(count) {
    return Array.from({ length: count }, (_, k) => k);
}

const f = formatNumber, b = bracketedNumber;
/** @type {(at: ValueReader, j: number, model: NetworkModel) => string} */
const root = (at, j, { eps }) => `sqrt(${f(at("σ²", 0, j))} + ${eps})`;
/** @type {(model: NetworkModel) => string} */
const degrees = ({ n, ddof }) => (ddof ? `(${n} − 1)` : String(n));

/**
 * A cell of the product of two matrices, each of them transposed or not.
 * @type {(left: string, right: string, how?: "" | "left" | "right") => NumberRule}
 */
const matrixProduct = (left, right, how = "") => (at, i, j, { get }) => ({
    terms: upTo(how === "left" ? get(left).rows : get(left).columns).map((k) => [
        how === "left" ? at(left, k, i) : at(left, i, k), how === "right" ? at(right, j, k) : at(right, k, j),
    ]),
});
/** @type {(product: NumberRule, bias: string) => NumberRule} */
const plusBias = (product, bias) => (at, i, j, model) => {
    const { terms } = /** @type {SumOfProducts} */ (product(at, i, j, model));
    return { terms, close: ` + ${b(at(bias, 0, j))}` };
};
/** @type {(...names: string[]) => NumberRule} */
const sumOver = (...names) => (at, i, j, { n }) =>
    ({ terms: upTo(n).map((k) => names.map((name) => at(name, k, j))) });
/** @type {(...names: string[]) => NumberRule} */
const paths = (...names) => (at, i, j) => ({ terms: names.map((name) => [at(name, i, j)]) });

/** @type {Record<string, NumberRule>} */
const RULES = {
    E: (at, i, j, { x, embedding, labels }) => {
        const position = Math.floor(j / embedding);
        const token = x[i][position];
        return [`"C[${labels.character[token]}, e${j % embedding}], as X[${labels.b[i]}, t${position}] is ${token}"`];
    },
    H0: plusBias(matrixProduct("E", "W1"), "b1"),
    "μ": (at, i, j, { n }) => ({ open: "(", terms: upTo(n).map((k) => [at("H0", k, j)]), close: `) / ${n}` }),
    "σ²": (at, i, j, model) => {
        const all = upTo(model.n);
        const shown = all.length > MOST_TERMS ? [0, 1, -1, all.length - 1] : all;
        const squares = shown.map((k) => (k < 0 ? "+ …"
            : `${k ? "+ " : ""}(${f(at("H0", k, j))} − ${b(at("μ", 0, j))})²`));
        return closed([`(${squares[0]}`, ...squares.slice(1)], `) / ${degrees(model)}`);
    },
    HN: (at, i, j, model) => [`(${f(at("H0", i, j))} - ${b(at("μ", 0, j))}) / ${root(at, j, model)}`],
    HZ: (at, i, j) => [`${f(at("γ", 0, j))} · ${b(at("HN", i, j))} + ${b(at("β", 0, j))}`],
    HA: (at, i, j) => [`"tanh(${f(at("HZ", i, j))})"`],
    logits: plusBias(matrixProduct("HA", "W2"), "b2"),
    "Ŷ": (at, i, j, { get }) => {
        const { columns } = get("logits");
        const shown = columns > MOST_TERMS ? [0, 1, -1, columns - 1] : upTo(columns);
        const powers = shown.map((k) => (k < 0 ? '"…"' : `"exp(${f(at("logits", i, k))})"`));
        return [`"exp(${f(at("logits", i, j))})" / (${powers.join(" + ")})`];
    },
    L: (at, i, j, { n, targets }) => {
        const shown = n > MOST_TERMS ? [0, 1, 2, -1, n - 1] : upTo(n);
        const logs = shown.map((k) => (k < 0 ? "+ …" : `${k ? "+ " : ""}log ${f(at("Ŷ", k, targets[k]))}`));
        return closed([`−(${logs[0]}`, ...logs.slice(1)], `) / ${n}`);
    },
    dlogits: (at, i, j, { n, targets }) => [`(${f(at("Ŷ", i, j))} - ${Number(targets[i] === j)}) / ${n}`],
    dW2: matrixProduct("HA", "dlogits", "left"),
    db2: sumOver("dlogits"),
    dHA: matrixProduct("dlogits", "W2", "right"),
    dHZ: (at, i, j) => [`${f(at("dHA", i, j))} · (1 - ${b(at("HA", i, j))}²)`],
    "dγ": sumOver("dHZ", "HN"),
    "dβ": sumOver("dHZ"),
    dHN: (at, i, j) => [`${f(at("dHZ", i, j))} · ${b(at("γ", 0, j))}`],
    "dσ²": (at, i, j, model) => ({
        open: "−(", terms: upTo(model.n).map((k) => [at("dHN", k, j), at("H0", k, j) - at("μ", 0, j)]),
        close: `) / (2 · √(${f(at("σ²", 0, j))} + ${model.eps})³)`,
    }),
    "dμ (through HN)": (at, i, j, model) => ({
        open: "−(", terms: upTo(model.n).map((k) => [at("dHN", k, j)]),
        close: `) / √(${f(at("σ²", 0, j))} + ${model.eps})`,
    }),
    "dμ (through σ²)": (at, i, j, model) => ({
        open: `${f(at("dσ²", 0, j))} · (−2) · (`, terms: upTo(model.n).map((k) => [at("H0", k, j) - at("μ", 0, j)]),
        close: `) / ${degrees(model)}`,
    }),
    "dμ": paths("dμ (through HN)", "dμ (through σ²)"),
    "dH0 (through HN)": (at, i, j, model) => [`${f(at("dHN", i, j))} / ${root(at, j, model)}`],
    "dH0 (through σ²)": (at, i, j, model) => [
        `${f(at("dσ²", 0, j))} · 2 · (${f(at("H0", i, j))} - ${b(at("μ", 0, j))}) / ${degrees(model)}`,
    ],
    "dH0 (through μ)": (at, i, j, { n }) => [`${f(at("dμ", 0, j))} / ${n}`],
    dH0: paths("dH0 (through HN)", "dH0 (through σ²)", "dH0 (through μ)"),
    dW1: matrixProduct("E", "dH0", "left"),
    db1: sumOver("dH0"),
    dE: matrixProduct("dH0", "W1", "right"),
    dC: (at, i, j, { x, embedding }) => ({
        terms: x.flatMap((row, k) =>
            row.flatMap((token, t) => (token === i ? [[at("dE", k, t * embedding + j)]] : []))),
    }),
};
