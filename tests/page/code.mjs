// Prints the codes of the golden cases, and of tables with next to nothing in them, as JSON, for Python to run: see
// test_assembly.py.
import { readFileSync } from "node:fs";

import { codesFor } from "../../src/truenorm/page/lib/code.js";
import { NORMS, backward, describe, forward } from "../../src/truenorm/page/maths/normalization.js";
import { read } from "./golden.mjs";

const golden = JSON.parse(readFileSync(new URL("golden.json", import.meta.url), "utf8"));
const cases = [...golden.conventions, ...golden.shapes, ...golden.edges].filter(({ x, valid }) =>
    valid || x.flat().every((value) => Math.abs(value) < 1e100)); // the page reads no NaN, and plain sums may overflow
const codes = cases.map((one) => {
    const { norm, ...problem } = read(one);
    const made = codesFor(() => ({ ...problem, norm: describe(norm.name, norm) }));
    const programs = Object.fromEntries(Object.entries(made).map(([name, make]) => [name, make()]));
    const large = one.valid ? 1 : Math.max(1, ...one.x.flat().map(Math.abs));
    return { y: one.want.y, dx: one.want.dx, large, programs };
});
process.stdout.write(JSON.stringify([...codes, ...smallCases()]));

/** Little to divide by, or nothing: one row, one column, zeros; each with all conventions. The page's own numbers. */
function smallCases() {
    const tables = [[[0, 0]], [[0]], [[3], [3]], [[0, 0], [0, 0]], [[1, 2, 3]], [[7, 5], [2, 3], [1, 2]]];
    const found = [];
    for (const x of tables) for (const name of Object.keys(NORMS)) for (const ddof of [0, 1]) {
        for (const [eps, eps_at] of [[0, "var"], [1e-5, "var"], [1e-320, "var"], [1e-5, "std"], [1e-320, "std"]]) {
            const norm = describe(name, { eps, ddof, eps_at });
            const dy = x.map((row, i) => row.map((_, j) => (i === j ? 1.5 : -0.5 * i)));
            const problem = { x, norm, dy, weight: x[0].map((_, j) => j + 2), bias: x[0].map(() => 0.25) };
            const out = forward(x, norm, problem);
            const { dx } = backward(dy, out);
            if (![...out.y, ...dx].flat().every(Number.isFinite)) continue; // 0 / 1e-320: said on the page
            const programs = Object.fromEntries(Object.entries(codesFor(() => problem)).map(([k, make]) => [k, make()]));
            found.push({ y: out.y, dx, large: 1, programs });
        }
    }
    return found;
}
