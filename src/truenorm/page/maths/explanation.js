/*
The same computation step by step: the twin of explanation.py, with its names and formulas. Where `backward` adds the
three paths of dx up to one line, each stands alone here.

    for (const { name, formula, of, values } of explain(x, norm, { weight, bias, valid, offsets, dy })) ...

Forward:   x, count, mean, x - mean, var, rstd, xhat, weight, bias, y
Backward:  dy, dbias, dweight, dxhat, dx (through xhat), dvar, dmean (through xhat), dmean (through var), dmean,
           dx (through var), dx (through mean), dx
*/
import { backwardSums, cellsOf, dxhatOf, forward, ratio, sumStatistics } from "#maths/normalization.js";

/**
 * Every intermediate of `forward` and, with `dy`, of `backward`, each path alone: the twin of explanation.py.
 * A list of steps { part, name, formula, of, values }; `of` is "cells" (values are rows), "statistics" or "columns".
 * @type {(x: number[][], norm: Norm, options?: Affine & Masking & { dy?: number[][] | null }) => ExplainedStep[]}
 */
export function explain(x, norm, { weight = null, bias = null, valid, offsets, dy = null } = {}) {
    const out = forward(x, norm, { weight, bias, valid, offsets });
    const steps = forwardSteps(out);
    return dy === null ? steps : [...steps, ...backwardSteps(dy, out)];
}

/** @type {(out: ForwardResult) => ExplainedStep[]} */
function forwardSteps(out) {
    const { norm, moments } = out;
    /** @type {(name: string, formula: string, of: "cells" | "statistics" | "columns", values: any) => ExplainedStep} */
    const step = (name, formula, of, values) => ({ part: "forward", name, formula, of, values });
    const steps = [
        step("x", "the input", "cells", out.x),
        step("count", "how many elements", "statistics", moments.count),
    ];
    if (norm.center) {
        steps.push(step("mean", "Σ x / count", "statistics", moments.mean));
        steps.push(step("x - mean", "each element minus its mean", "cells", centered(out)));
    }
    const deviation = norm.eps_at === "var" ? `sqrt(var + ${norm.eps})` : `(sqrt(var) + ${norm.eps})`;
    steps.push(step("var", `Σ ${inWords(norm)}² / ${degreesInWords(norm)}`, "statistics", out.var));
    steps.push(step("rstd", `1 / ${deviation}`, "statistics", out.rstd));
    steps.push(step("xhat", `${inWords(norm)} · rstd`, "cells", out.xhat));
    if (out.weight) steps.push(step("weight", "given", "columns", out.weight));
    if (out.bias) steps.push(step("bias", "given", "columns", out.bias));
    const affine = `xhat${out.weight ? " · weight" : ""}${out.bias ? " + bias" : ""}`;
    return [...steps, step("y", affine, "cells", out.y)];
}

/** @type {(dy: number[][], out: ForwardResult) => ExplainedStep[]} */
function backwardSteps(dy, out) {
    const { norm, moments, rstd } = out;
    /** @type {(name: string, formula: string, of: "cells" | "statistics" | "columns", values: any) => ExplainedStep} */
    const step = (name, formula, of, values) => ({ part: "backward", name, formula, of, values });
    const deviations = centered(out);
    const sums = backwardSums(dy, out);
    const dxhat = dxhatOf(dy, out);
    const degrees = moments.count.map((count) => count - norm.ddof);
    const steps = [step("dy", "the gradient that comes in", "cells", cellsOf(out, (i, j) => dy[i][j]))];
    if (out.bias) steps.push(step("dbias", "Σ dy", "columns", sums.dbias));
    if (out.weight) steps.push(step("dweight", "Σ dy · xhat", "columns", sums.dweight));
    steps.push(step("dxhat", out.weight ? "dy · weight" : "dy", "cells", dxhat));

    const direct = cellsOf(out, (i, j, s) => dxhat[i][j] * rstd[s]);
    steps.push(step("dx (through xhat)", "dxhat · rstd", "cells", direct));

    // Where the spread is 0 and eps stands outside the root, the deviation has no gradient: it is taken as 0.
    const std = out.var.map(Math.sqrt);
    const derivative = rstd.map((r, s) => (norm.eps_at === "var" ? -0.5 * r ** 3 : -(r ** 2) * ratio(0.5, std[s])));
    const derivativeInWords = norm.eps_at === "var" ? "(-1/2) · rstd³" : "(-1/2) · rstd² / sqrt(var)";
    const dxhatDeviation = cellsOf(out, (i, j) => dxhat[i][j] * deviations[i][j]);
    const dvar = sumStatistics(out, dxhatDeviation).map((sum, s) => sum * derivative[s]);
    steps.push(step("dvar", `Σ dxhat · ${inWords(norm)} · ${derivativeInWords}`, "statistics", dvar));

    const throughVar = cellsOf(out, (i, j, s) => dvar[s] * 2 * deviations[i][j] * ratio(1, degrees[s]));
    const throughVarStep = step(
        "dx (through var)", `dvar · 2 · ${inWords(norm)} / ${degreesInWords(norm)}`, "cells", throughVar,
    );
    if (!norm.center) {
        const dx = cellsOf(out, (i, j) => direct[i][j] + throughVar[i][j]);
        return [...steps, throughVarStep, step("dx", "dx (through xhat) + dx (through var)", "cells", dx)];
    }
    const byXhat = sums.dxhat.map((sum, s) => -rstd[s] * sum);
    const drift = sumStatistics(out, cellsOf(out, (i, j) => -2 * deviations[i][j]));
    const byVar = drift.map((sum, s) => dvar[s] * sum * ratio(1, degrees[s]));
    const dmean = byXhat.map((value, s) => value + byVar[s]);
    const throughMean = cellsOf(out, (i, j, s) => dmean[s] * ratio(1, moments.count[s]));
    const dx = cellsOf(out, (i, j) => direct[i][j] + throughVar[i][j] + throughMean[i][j]);
    return [
        ...steps,
        step("dmean (through xhat)", "-Σ dxhat · rstd", "statistics", byXhat),
        step(
            "dmean (through var)", `dvar · Σ (-2) · (x - mean) / ${degreesInWords(norm)}, 0 but for rounding`,
            "statistics", byVar,
        ),
        step("dmean", "both paths", "statistics", dmean),
        throughVarStep,
        step("dx (through mean)", "dmean / count", "cells", throughMean),
        step("dx", "dx (through xhat) + dx (through var) + dx (through mean)", "cells", dx),
    ];
}

/** @type {(out: ForwardResult) => number[][]} */
function centered(out) {
    return cellsOf(out, (i, j, s) => out.x[i][j] - out.moments.mean[s]);
}

/** @type {(norm: Norm) => string} */
function inWords(norm) {
    return norm.center ? "(x - mean)" : "x";
}

/** @type {(norm: Norm) => string} */
function degreesInWords(norm) {
    return norm.ddof ? "(count - 1)" : "count";
}
