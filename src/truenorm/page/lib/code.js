/*
The computation as Python that prints the numbers which the page shows: with NumPy, with PyTorch and with truenorm.

    copyButtons(codesFor(() => ({ x, norm, valid, weight, bias, offsets, dy })))     // `valid` to `dy` may be left out

The code makes variables `y` and, with dy, `dx`. It is as short as the numbers allow. Only where cells are left out,
samples are kept apart, or a statistic has no spread to divide by, it takes the form that takes care of all of that: a
loop over samples, each as positions x groups x channels.
*/
import { forward } from "#maths/normalization.js";

/** @type {Arrays} */
const NUMPY = { floats: (list) => `np.array(${list}, float)`, truths: (list) => `np.array(${list})` };
/** @type {Arrays} */
const TORCH = {
    floats: (list) => `torch.tensor(${list}, dtype=torch.float64)`,
    truths: (list) => `torch.tensor(${list})`,
};

/**
 * `read` is asked for the problem whenever code is wanted, so that it is always today's.
 * @type {(read: () => CodeInput) => Codes}
 */
export function codesFor(read) {
    return {
        NumPy: () => numpyCode(prepare(read())),
        PyTorch: () => torchCode(prepare(read())),
        truenorm: () => truenormCode(prepare(read())),
    };
}

/**
 * What all three need to know.
 * @type {(input: CodeInput) => Prepared}
 */
function prepare({ x, norm, valid, weight = null, bias = null, offsets = [0, x.length], dy = null }) {
    const out = forward(x, norm, { valid, offsets });
    const columns = x[0]?.length ?? 0;
    const bySample = norm.name === "instance" || norm.name === "group";
    const byRow = norm.name === "layer" || norm.name === "rms";
    const whole = out.valid.every((row) => row.every(Boolean));
    return {
        x, norm, dy, columns, bySample, byRow, whole,
        valid: out.valid,
        offsets: bySample ? offsets : [0, x.length],
        groups: byRow ? 1 : norm.name === "group" ? norm.groups : columns,
        weight: weight ?? new Array(columns).fill(1),
        bias: bias ?? new Array(columns).fill(0),
        simple: whole && !bySample && out.var.every((variance, s) => variance > 0 || onlyZeros(out, s)),
        // Powers of rstd must not overflow.
        inSteps: out.var.every((variance) => variance < 1e100 && variance > 1e-100),
        // The functions of torch take a cubed rstd, and batch_norm more than one row and more than no eps.
        torchTakes: norm.ddof === 0 && norm.eps_at === "var"
            && (norm.name !== "batch" || (x.length > 1 && norm.eps > 0))
            && out.var.every((variance) => variance + norm.eps > 1e-200),
    };
}

/**
 * Zeros, as padding is, leave nothing to round; and with eps under the root there is something to divide by.
 * @type {(out: ForwardResult, s: number) => boolean}
 */
function onlyZeros({ moments, norm }, s) {
    return moments.m2[s] === 0 && moments.mean[s] === 0 && norm.eps > 0 && norm.eps_at === "var"
        && moments.count[s] > norm.ddof;
}

/** @type {(given: Prepared) => string} */
function numpyCode(given) {
    const { norm, dy, byRow } = given;
    const { center } = norm;
    const eps = literal(norm.eps);
    const degrees = norm.ddof ? "n - 1" : "n";
    const spread = norm.ddof ? "(std > 0) & (n > 1)" : "std > 0";
    const outside = norm.eps_at === "std";
    if (given.simple) {
        const A = `axis=${byRow ? 1 : 0}, keepdims=True`;
        return program(
            "import numpy as np", "", ...numbers(given, NUMPY, false),
            center ? `mean = x.mean(${A})` : "mean = 0",
            center ? `var = x.var(${A}, ddof=${norm.ddof})` : `var = (x**2).mean(${A})`,
            outside ? `rstd = 1 / (np.sqrt(var) + ${eps})` : `rstd = 1 / np.sqrt(var + ${eps})`,
            "xhat = (x - mean) * rstd",
            "y = xhat * weight + bias",
            "print(y)",
            ...(dy ? [
                "",
                `n = x.shape[${byRow ? 1 : 0}]`,
                ...(given.inSteps ? numpySteps(norm, A) : [
                    "dxhat = dy * weight",
                    center ? `through_mean = dxhat.mean(${A})` : "through_mean = 0",
                    `through_var = xhat * (dxhat * xhat).sum(${A}) / ${norm.ddof ? "(n - 1)" : "n"}`,
                    outside ? `through_var *= (np.sqrt(var) + ${eps}) / np.sqrt(var)` : null,
                    "dx = rstd * (dxhat - through_mean - through_var)",
                ]),
                "print(dx)",
            ] : []),
        );
    }
    const A = `axis=${byRow ? "(1, 2)" : "(0, 2)"}, keepdims=True`;
    /** @type {(name: string) => string} */
    const apart = (name) => `${name}[rows].reshape(-1, ${given.groups}, ${given.columns / given.groups})`;
    return program(
        "import numpy as np", "", ...numbers(given, NUMPY, true),
        "y = np.zeros_like(x)", dy ? "dx = np.zeros_like(x)" : null,
        `for rows in [${samples(given)}]:`,
        `    part, mask = ${apart("x")}, ${apart("valid")}`,
        `    n = mask.sum(${A})`,
        center ? `    mean = part.sum(${A}, where=mask) / np.maximum(n, 1)` : "    mean = 0",
        center ? `    mean += (part - mean).sum(${A}, where=mask) / np.maximum(n, 1)  # what rounding left over` : null,
        `    var = ((part - mean) ** 2).sum(${A}, where=mask) / np.maximum(${degrees}, 1)`,
        outside ? `    std = np.sqrt(var) + ${eps}` : `    std = np.sqrt(var + ${eps})`,
        `    rstd = np.divide(1, std, out=np.zeros_like(std), where=${spread})  # 0 where there is no spread`,
        "    xhat = np.where(mask, part - mean, 0) * rstd",
        "    y[rows] = np.where(valid[rows], xhat.reshape(x[rows].shape) * weight + bias, 0)",
        ...(dy ? [
            `    dxhat = ${apart("(np.where(valid, dy, 0) * weight)")}`,
            center ? `    through_mean = dxhat.sum(${A}) / np.maximum(n, 1)` : "    through_mean = 0",
            `    through_var = xhat * (dxhat * xhat).sum(${A}) / np.maximum(${degrees}, 1)`,
            outside ? "    through_var *= np.divide(std, np.sqrt(var), out=np.zeros_like(std), where=var > 0)" : null,
            "    dx[rows] = np.where(mask, rstd * (dxhat - through_mean - through_var), 0).reshape(x[rows].shape)",
        ] : []),
        "print(y)", dy ? "print(dx)" : null,
    );
}

/**
 * The steps of the part "backward", under their names; dy, the first, is given.
 * @type {(norm: Norm, A: string) => (string | null)[]}
 */
function numpySteps({ center, ddof, eps_at }, A) {
    const degrees = ddof ? "(n - 1)" : "n";
    return [
        "dbias = dy.sum(axis=0)",
        "dweight = (dy * xhat).sum(axis=0)",
        "dxhat = dy * weight",
        "dx_through_xhat = dxhat * rstd",
        `dvar = (dxhat * (x - mean)).sum(${A}) * -0.5 * ${eps_at === "var" ? "rstd**3" : "rstd**2 / np.sqrt(var)"}`,
        center ? `dmean_through_xhat = -dxhat.sum(${A}) * rstd` : null,
        center ? `dmean_through_var = dvar * (-2 * (x - mean)).sum(${A}) / ${degrees}  # 0 but for rounding` : null,
        center ? "dmean = dmean_through_xhat + dmean_through_var" : null,
        `dx_through_var = dvar * 2 * (x - mean) / ${degrees}`,
        center ? "dx_through_mean = dmean / n" : null,
        `dx = dx_through_xhat + dx_through_var${center ? " + dx_through_mean" : ""}`,
    ];
}

/** @type {(given: Prepared) => string} */
function torchCode(given) {
    const { norm, dy, byRow, columns } = given;
    const { center } = norm;
    const eps = literal(norm.eps);
    const degrees = norm.ddof ? "n - 1" : "n";
    const spread = norm.ddof ? "(std > 0) & (n > 1)" : "std > 0";
    const gradient = dy ? ["dx, = torch.autograd.grad(y, x, dy)", "print(dx)"] : [];
    const usual = given.simple && given.torchTakes;
    const head = [...numbers(given, TORCH, !usual), dy ? "x.requires_grad_()" : null];
    if (usual) {
        /** @type {Partial<Record<NormName, string>>} */
        const calls = {
            batch: `y = F.batch_norm(x, None, None, weight, bias, training=True, eps=${eps})`,
            layer: `y = F.layer_norm(x, (${columns},), weight, bias, eps=${eps})`,
            rms: `y = F.rms_norm(x, (${columns},), weight, eps=${eps}) + bias`,
        };
        return program(
            "import torch", "from torch.nn import functional as F", "", ...head,
            calls[norm.name],
            "print(y.detach())", ...gradient,
        );
    }
    const A = `${byRow ? "(1, 2)" : "(0, 2)"}, keepdim=True`;
    /** @type {(name: string) => string} */
    const apart = (name) => `${name}[rows].reshape(-1, ${given.groups}, ${columns / given.groups})`;
    return program(
        "import torch", "", ...head, "xhat = []",
        `for rows in [${samples(given)}]:`,
        `    part, mask = ${apart("x")}, ${apart("valid")}`,
        "    part = torch.where(mask, part, 0.0)",
        `    n = mask.sum(${A})`,
        center ? `    mean = part.sum(${A}) / n.clamp(min=1)` : "    mean = 0.0",
        center ? `    mean = mean + torch.where(mask, part - mean, 0.0).sum(${A}) / n.clamp(min=1)` : null,
        "    centered = torch.where(mask, part - mean, 0.0)",
        `    var = (centered**2).sum(${A}) / (${degrees}).clamp(min=1)`,
        "    # Equal numbers have no spread, and no gradient comes through it.",
        `    square = torch.where(var > 0, var, 0.0)${norm.eps_at === "std" ? "" : ` + ${eps}`}`,
        "    std = torch.where(square > 0, torch.where(square > 0, square, 1.0).sqrt(), 0.0)",
        norm.eps_at === "std" ? `    std = std + ${eps}` : null,
        `    some = ${spread}`,
        "    rstd = torch.where(some, 1 / torch.where(some, std, 1.0), 0.0)  # 0 where there is no spread",
        "    xhat.append((centered * rstd).reshape(x[rows].shape))",
        "y = torch.where(valid, torch.cat(xhat) * weight + bias, 0.0)",
        "print(y.detach())", ...gradient,
    );
}

/** @type {(given: Prepared) => string} */
function truenormCode(given) {
    const { norm, dy, bySample, whole } = given;
    const words = [
        norm.name === "group" ? norm.groups : null, `eps=${literal(norm.eps)}`,
        norm.ddof ? "ddof=1" : null, norm.eps_at === "std" ? 'eps_at="std"' : null,
    ].filter((word) => word !== null);
    const head = [
        "import numpy as np", "", "import truenorm as tn", "",
        ...numbers(given, NUMPY, !whole), `norm = tn.${norm.name}(${words.join(", ")})`,
    ];
    if (bySample && !whole) {
        return program( // `offsets` and `valid` are not given together: sample by sample, each a batch of one
            ...head, "y = np.zeros_like(x)", dy ? "dx = np.zeros_like(x)" : null,
            `for rows in [${samples(given)}]:`,
            "    out = tn.forward(x[None, rows], norm, weight=weight, bias=bias, valid=valid[None, rows])",
            "    y[rows] = out.y[0]",
            dy ? "    dx[rows] = tn.backward(dy[None, rows], out)[0][0]" : null,
            "print(y)", dy ? "print(dx)" : null,
        );
    }
    const ragged = bySample ? `, offsets=[${given.offsets.join(", ")}]` : whole ? "" : ", valid=valid";
    return program(
        ...head, `out = tn.forward(x, norm, weight=weight, bias=bias${ragged})`, "y = out.y", "print(y)",
        ...(dy ? ["dx, dweight, dbias = tn.backward(dy, out)", "print(dx)"] : []),
    );
}

/**
 * The inputs as Python; `arrays` makes arrays of floats and of truth values out of lists.
 * @type {(given: Prepared, arrays: Arrays, needsValid: boolean) => (string | null)[]}
 */
function numbers({ x, valid, weight, bias, dy }, arrays, needsValid) {
    /** @type {(values: (number | boolean)[]) => string} */
    const row = (values) => `[${values.map(literal).join(", ")}]`;
    /** @type {(rows: (number | boolean)[][]) => string} */
    const table = (rows) => `[\n${rows.map((one) => `    ${row(one)},\n`).join("")}]`;
    const strange = [x, dy ?? []].flat(2).some((value) => !Number.isFinite(value));
    return [
        strange ? 'inf, nan = float("inf"), float("nan")' : null,
        `x = ${arrays.floats(table(x))}`,
        dy ? `dy = ${arrays.floats(table(dy))}` : null,
        `weight, bias = ${arrays.floats(row(weight))}, ${arrays.floats(row(bias))}`,
        needsValid ? `valid = ${arrays.truths(table(valid))}` : null,
    ];
}

/**
 * A value as Python writes it, to the last bit.
 * @type {(value: number | boolean) => string}
 */
function literal(value) {
    /** @type {Record<string, string>} */
    const words = { true: "True", false: "False", NaN: "nan", Infinity: "inf", "-Infinity": "-inf" };
    const small = value !== 0 && Math.abs(Number(value)) < 1e-3;
    return words[String(value)] ?? (small ? Number(value).toExponential() : String(value));
}

/** @type {(given: Prepared) => string} */
function samples({ offsets }) {
    return offsets.slice(1).map((stop, i) => `slice(${offsets[i]}, ${stop})`).join(", ");
}

/** @type {(...lines: (string | null)[]) => string} */
function program(...lines) {
    return lines.filter((line) => line !== null).map((line) => `${line}\n`).join("");
}
