/*
The steps of the backward pass, in words and with the numbers of one cell in their formulas. Names, general formulas and
values come from explanation.js; here stands, for each step, what it is, why it is so, which edges of the drawn graph it
goes back along, and its formula with numbers.

    const steps = stepsBack(model);            // those that this normalization has, in their order
    steps[5].key                               // "dvar": as it stands in the address
    inNumbers(steps[5], model)                 // ["dvar = (1 · 3 + ...) · (-1/2) · 0.4152³", '"" ≈ −0.1']

`model` is what backward.js works with: { problem, out, dy, loss, row, column, explained }; `explained` maps the names
of explanation.js to its steps.
*/
import { placesWhere } from "#backward/cells.js";
import { formatNumber } from "#lib/numbers.js";
import { inSymbols } from "#lib/symbols.js";

/** In the address, instead of a step: all of them. */
export const ALL_STEPS = "all";
const MOST_STEP_TERMS = 6;

/**
 * title    what comes out, behind its name            why      one or two sentences; both may depend on the norm
 * paths    boxes of the graph, from where to where    numbers  the right side with numbers, given a `writer`
 * @type {Record<string, StepRule>}
 */
const STEPS_BACK = {
    dy: {
        title: "how the loss changes with y",
        why: "The backward pass begins at the loss. If a cell of y grew a little, the loss would grow dy times as "
            + "much.",
        paths: [["loss", "y"]],
        numbers: null,
    },
    dbias: {
        title: "how the loss changes with β (bias in PyTorch)",
        why: "β is added to every cell of its column, so its gradient is the sum of their dy.",
        paths: [["y", "bias"]],
        numbers: ({ sum, column, of }) => sum(column, (cell) => [of("dy", cell)]),
    },
    dweight: {
        title: "how the loss changes with γ (weight in PyTorch)",
        why: "γ multiplies every x̂ of its column. Where x̂ is 0, γ can change nothing; where x̂ is "
            + "large, it changes much. So each dy counts x̂ times.",
        paths: [["y", "times", "weight"]],
        numbers: ({ sum, column, of }) => sum(column, (cell) => [of("dy", cell), of("xhat", cell)]),
    },
    dxhat: {
        title: "how the loss changes with x̂, the normalised numbers",
        why: "y is γ · x̂ + β. So a step of x̂ arrives at y γ times as large.",
        paths: [["y", "times", "xhat"]],
        numbers: ({ product, of }) => product(of("dy"), of("weight")),
    },
    "dx (through xhat)": {
        title: (norm) => `the first of ${norm.center ? "three" : "two"} paths to x`,
        why: (norm) => `x̂ is ${norm.center ? "x − μ" : "x"}, times rstd (one divided by the spread). If `
            + `${norm.center ? "the mean and the spread" : "the spread"} did not change with x, this would be all.`,
        paths: [["xhat", "deviation", "x"]],
        numbers: ({ product, of }) => product(of("dxhat"), of("rstd")),
    },
    dvar: {
        title: (norm) => `how the loss changes with the ${norm.center ? "variance σ²" : "mean of the squares, σ²"}`,
        why: (norm) => `But the spread changes too. ${norm.center ? "The variance σ²" : "The mean square (σ²)"} sets `
            + "rstd, and rstd stretches every cell that shares it, so all of them contribute. The last factors are the "
            + `derivative of ${norm.eps_at === "var" ? "1/√(σ² + ε)" : "1/(σ + ε)"}.`,
        paths: [["xhat", "rstd", "var"]],
        numbers: ({ sum, shared, of, factor, power, model }) => {
            const { norm } = model.problem;
            if (norm.eps_at === "std" && of("var") === 0) return "0";
            const terms = sum(shared, (cell) => [of("dxhat", cell), of(norm.center ? "x - mean" : "x", cell)]);
            return norm.eps_at === "var" ? `(${terms}) · (-1/2) · ${power(of("rstd"))}³`
                : `(${terms}) · (-1/2) · ${power(of("rstd"))}² / sqrt(${factor(of("var"))})`;
        },
    },
    "dmean (through xhat)": {
        title: "how the loss changes with the mean μ, on the first path",
        why: "The mean is subtracted from every cell that shares it. When it grows, all of them fall: hence the minus.",
        paths: [["xhat", "deviation", "mean"]],
        numbers: ({ sum, shared, of, factor }) =>
            `-(${sum(shared, (cell) => [of("dxhat", cell)])}) · ${factor(of("rstd"))}`,
    },
    "dmean (through var)": {
        title: "how the loss changes with the mean μ, on the second path",
        why: "The variance is measured from the mean, so the mean might matter there. But numbers lie above and below "
            + "their mean in balance, x − μ adds up to 0: this path carries nothing, or a trace of rounding.",
        paths: [["var", "deviation", "mean"]],
        numbers: ({ sum, shared, of, factor, degrees }) => (degrees === null ? "0"
            : `${factor(of("dvar"))} · (-2) · (${sum(shared, (cell) => [of("x - mean", cell)])}) / ${degrees}`),
    },
    dmean: {
        title: "how the loss changes with the mean μ, both paths together",
        why: "Where paths meet, gradients are added.",
        paths: [["xhat", "deviation", "mean"], ["var", "deviation", "mean"]],
        numbers: ({ addition, of }) => addition(of("dmean (through xhat)"), of("dmean (through var)")),
    },
    "dx (through var)": {
        title: "the second path to x",
        why: (norm) => `Moving x away from ${norm.center ? "the mean" : "0"} increases the spread, and the more so the `
            + `further away it is: the derivative of a square, ${norm.center ? "(x − μ)²" : "x²"}, is twice the `
            + `number. The spread divides by ${norm.ddof ? "n − 1" : "n"}, hence the fraction.`,
        paths: [["var", "deviation", "x"]],
        numbers: ({ product, of, degrees, model }) => (degrees === null ? "0"
            : `${product(of("dvar"), 2, of(model.problem.norm.center ? "x - mean" : "x"))} / ${degrees}`),
    },
    "dx (through mean)": {
        title: "the third path to x",
        why: "Every number has the same share in its mean: one part in n.",
        paths: [["mean", "x"]],
        numbers: ({ of, factor }) => `${factor(of("dmean"))} / ${of("count")}`,
    },
    dx: {
        title: (norm) => `how the loss changes with x, ${norm.center ? "all three" : "both"} paths together`,
        why: "This is what we wanted: the gradient at the input. For the layer before, it is the dy to begin with.",
        paths: [["xhat", "deviation", "x"], ["var", "deviation", "x"], ["mean", "x"]],
        numbers: ({ addition, of, model }) => addition(
            of("dx (through xhat)"), of("dx (through var)"),
            ...(model.problem.norm.center ? [of("dx (through mean)")] : []),
        ),
    },
};

/** Every key that may stand in the address: "dx (through xhat)" is written dx-xhat. */
export const STEP_KEYS = Object.keys(STEPS_BACK).map(stepKey);

/** @type {(name: string) => string} */
function stepKey(name) {
    return name.replace(" (through ", "-").replace(")", "");
}

/**
 * The steps that this normalization has: { key, name, title, why, paths, edges, of, values, symbols }.
 * @type {(model: Omit<BackwardModel, "steps">) => BackwardStep[]}
 */
export function stepsBack({ problem, explained }) {
    const { norm } = problem;
    /** @type {(words: string | ((norm: Norm) => string)) => string} */
    const say = (words) => (typeof words === "function" ? words(norm) : words);
    return Object.entries(STEPS_BACK).filter(([name]) => explained.has(name)).map(([name, step]) => {
        const { of, values, formula } = explained.get(name);
        // Without a mean there is no box for x - mean: the path goes straight on.
        const paths = step.paths.filter((path) => norm.center || !path.includes("mean"))
            .map((path) => path.filter((box) => norm.center || box !== "deviation"));
        return /** @type {BackwardStep} */ ({
            key: stepKey(name), name, title: say(step.title), why: say(step.why), of, values, paths,
            edges: [...new Set(paths.flatMap(edgesBack))],
            symbols: symbolsOf(name, formula),
        });
    });
}

/**
 * The edges along a path, by their forward names.
 * @type {(path: string[]) => string[]}
 */
function edgesBack(path) {
    return path.slice(1).map((box, i) => `${box}-${path[i]}`);
}

/**
 * explanation.js writes for people; what formula.js cannot read in it becomes words.
 * @type {(name: string, text: string) => string}
 */
function symbolsOf(name, text) {
    /** @type {(one: string) => string} */
    const words = (one) => one.replaceAll(/(\w+) \(through (\w+)\)/g, (_, left, way) =>
        `"${inSymbols(left)} through ${inSymbols(way)}"`);
    const right = text === "both paths" ? words("dmean (through xhat) + dmean (through var)")
        : words(text.replace(", 0 but for rounding", ""));
    return `${words(name)} = ${right}`;
}

/**
 * A step's formula with the numbers of the chosen cell: [all of it, its result], as texts for formula.js.
 * @type {(step: BackwardStep, model: Omit<BackwardModel, "steps">) => string[]}
 */
export function inNumbers(step, model) {
    const writer = numberWriter(model);
    const left = step.symbols.split(" = ")[0];
    const { numbers } = STEPS_BACK[step.name];
    const result = writer.of(step.name);
    const right = numbers === null ? null : numbers(writer);
    const shown = writer.plain(result);
    if (right === null || right === shown) return [`${left} = ${shown}`];
    return [`${left} = ${right}`, `"" ${writer.rounded() ? "≈" : "="} ${shown}`];
}

/**
 * What formulas with numbers are written with; `rounded` says whether any number was shortened.
 * @type {(model: Omit<BackwardModel, "steps">) => NumberWriter}
 */
function numberWriter(model) {
    const { out, explained, row, column } = model;
    const index = out.partition.index;
    const statistic = index[row][column];
    const places = placesWhere(out.valid, (i, j) => out.valid[i][j]);
    let isRounded = false;

    /** @type {(value: number) => string} */
    const plain = (value) => {
        if (Number(value.toPrecision(4)) !== value) isRounded = true;
        return formatNumber(value);
    };
    /** @type {(value: number) => string} */
    const factor = (value) => (value < 0 ? `(${plain(value)})` : plain(value));
    /** @type {(...values: number[]) => string} */
    const product = (...values) => values.map((value, k) => (k ? factor(value) : plain(value))).join(" · ");
    // The sign of a term's first factor becomes the sign in front of the term.
    /** @type {(values: number[], k: number) => string} */
    const term = (values, k) => {
        const minus = values[0] < 0;
        const text = product(Math.abs(values[0]), ...values.slice(1));
        return k === 0 ? `${minus ? "−" : ""}${text}` : `${minus ? "−" : "+"} ${text}`;
    };
    /** @type {(cells: Point[], valuesAt: (cell: Point) => number[]) => string} */
    const sum = (cells, valuesAt) => {
        const many = cells.length > MOST_STEP_TERMS;
        const terms = cells.filter((_, k) => !many || k < 3 || k === cells.length - 1)
            .map((cell, k) => term(valuesAt(cell), k));
        if (many) terms.splice(3, 0, '+ "…"');
        return terms.join(" ") || "0";
    };
    /** @type {(name: string, place?: Point) => number} */
    const of = (name, [i, j] = [row, column]) => {
        const { of: kind, values } = explained.get(name);
        return kind === "cells" ? values[i][j] : kind === "columns" ? values[j] : values[index[i][j]];
    };
    const { ddof } = model.problem.norm;
    const count = of("count");
    return {
        model, plain, factor, product, sum, of,
        addition: (...values) => values.map((value, k) => term([value], k)).join(" "),
        power: (value) => (plain(value).includes("×") ? `(${plain(value)})` : plain(value)),
        column: places.filter(([, j]) => j === column),
        shared: places.filter(([i, j]) => index[i][j] === statistic),
        degrees: count <= ddof ? null : ddof ? `(${count} - ${ddof})` : String(count),
        rounded: () => isRounded,
    };
}

/**
 * What boxes of the graph show after so many steps: the value of the chosen cell, and its gradient as far as known.
 * @type {(model: Omit<BackwardModel, "steps">, steps: BackwardStep[], position: number) => Record<string, GraphNumber>}
 */
export function numbersInGraph(model, steps, position) {
    const known = new Map(steps.slice(0, position + 1).map((step) => [step.name, step]));
    const { of } = numberWriter(model);
    /** @type {Record<string, string>} */
    const names = { deviation: "x - mean" };
    /** @type {Record<string, GraphNumber>} */
    const numbers = { loss: { value: model.total } };
    for (const box of ["x", "mean", "deviation", "var", "rstd", "xhat", "weight", "bias", "y"]) {
        const name = names[box] ?? box;
        if (model.explained.has(name)) numbers[box] = { value: of(name) };
    }
    numbers.times = { value: of("xhat") * of("weight") };
    /** @type {(box: string, name: string) => [number, string] | null} */
    const gradientOf = (box, name) => {
        if (known.has(name)) return [of(name), inSymbols(name)];
        const parts = [...known.keys()].filter((one) => one.startsWith(`${name} (`));
        return parts.length ? [parts.map((one) => of(one)).reduce((a, b) => a + b), `${inSymbols(name)} so far`] : null;
    };
    for (const box of ["y", "bias", "weight", "xhat", "var", "mean", "x"]) {
        const found = numbers[box] && gradientOf(box, `d${box}`);
        if (found) [numbers[box].gradient, numbers[box].gradientName] = found;
    }
    return numbers;
}
