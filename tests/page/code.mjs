// Prints the codes of the golden cases as JSON, for Python to run: see test_page.py.
import { readFileSync } from "node:fs";

import { codesFor } from "../../src/truenorm/page/code.js";
import { describe } from "../../src/truenorm/page/maths.js";
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
process.stdout.write(JSON.stringify(codes));
