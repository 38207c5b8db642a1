/*
The symbols of the lecture notes for the names of the code: γ for weight, μ for mean.

    inSymbols("x̂ · weight + bias")     // "x̂ · γ + β"
    columnName(0)                       // "z₁": columns are the nodes of a layer, and their numbers are called z
*/

/** @type {Record<string, string>} */
export const SYMBOLS = { mean: "μ", var: "σ²", xhat: "x̂", weight: "γ", bias: "β", eps: "ε", count: "n" };

const NAMES = new RegExp(`\\b(d?)(${Object.keys(SYMBOLS).join("|")})\\b`, "g");

/** @type {(text: string) => string} */
export function inSymbols(text) {
    return text.replaceAll(NAMES, (_, d, name) => d + SYMBOLS[name]);
}

/** @type {(column: number) => string} */
export function columnName(column) {
    return `z${[...String(column + 1)].map((digit) => "₀₁₂₃₄₅₆₇₈₉"[Number(digit)]).join("")}`;
}
