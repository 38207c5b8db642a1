// Where the page's maths and the golden vectors disagree. Needs nothing of node: the same lines run inside a browser.

const TOLERANCE = 1e-12;

/** A line for each result that is not Python's; `maths` holds the functions of maths.js and explanation.js. */
export function disagreements(maths, golden) {
    const found = [];
    for (const [kind, cases] of Object.entries(golden)) {
        cases.forEach((one, number) => {
            const numbers = read(one);
            const got = kind === "merges" ? mergedResults(maths, numbers) : results(maths, numbers);
            for (const [name, want] of Object.entries(numbers.want)) {
                const wrong = difference(got[name], want);
                if (wrong) found.push(`${kind} ${number}: ${name} ${wrong}`);
            }
        });
    }
    return found;
}

function results(maths, { norm, x, dy, steps, want, ...given }) {
    const out = maths.forward(x, maths.describe(norm.name, norm), given);
    const got = { ...out.moments, rstd: out.rstd, y: out.y };
    if (dy) Object.assign(got, maths.backwardSums(dy, out), maths.backward(dy, out));
    if (steps) {
        Object.assign(want, steps);
        const { moments, ...shown } = given;
        maths.explain(x, maths.describe(norm.name, norm), { ...shown, dy }).forEach(({ name, values }) => {
            if (name in steps) got[name] = values;
        });
    }
    return got;
}

/** The moments of parts, merged; and dx of each part, with the sums of all. */
function mergedResults(maths, { norm, x, dy, cuts }) {
    const described = maths.describe(norm.name, norm);
    const parts = cuts.slice(1).map((stop, i) => ({ start: cuts[i], stop, x: x.slice(cuts[i], stop) }));
    const empty = { count: x[0].map(() => 0), mean: x[0].map(() => 0), m2: x[0].map(() => 0) };
    const moments = maths.merge(...parts.map((part) => (part.x.length ? maths.measure(part.x, described) : empty)));
    if (!dy) return moments;
    const outs = parts.filter((part) => part.x.length).map((part) => ({
        out: maths.forward(part.x, described, { moments }), dy: dy.slice(part.start, part.stop),
    }));
    const all = outs.map((part) => maths.backwardSums(part.dy, part.out));
    const add = (name) => all.map((sums) => sums[name]).reduce((one, two) => one.map((value, s) => value + two[s]));
    const sums = { dxhat: add("dxhat"), dxhat_xhat: add("dxhat_xhat"), dweight: null, dbias: null };
    return { ...moments, dx: outs.flatMap((part) => maths.backward(part.dy, part.out, { sums }).dx) };
}

/** A case with its numbers: those that JSON does not have are written as words, NaN and Infinity. */
export function read(value) {
    if (Array.isArray(value)) return value.map(read);
    if (value && typeof value === "object") {
        return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, read(one)]));
    }
    return ["NaN", "Infinity", "-Infinity"].includes(value) ? Number(value) : value;
}

/** What is wrong with an array, relative to its largest number; null where nothing is. */
function difference(got, want) {
    const [a, b] = [got, want].map((array) => array?.flat());
    if (a?.length !== b.length) return `has ${a?.length} numbers, wanted ${b.length}`;
    const scale = Math.max(...b.filter(Number.isFinite).map(Math.abs), 0);
    const place = b.findIndex((value, i) => !(Object.is(a[i], value) || Math.abs(a[i] - value) <= TOLERANCE * scale));
    return place < 0 ? null : `is ${a[place]} at ${place}, wanted ${b[place]}`;
}
