// Numbers as the page shows them, and formulas as MathML, in a document that is only as much of one as they need.
import assert from "node:assert/strict";
import { test } from "node:test";

class Element {
    constructor(tag) {
        this.tag = tag;
        this.attributes = new Map();
        this.parts = [];
    }

    append(...parts) { this.parts.push(...parts); }
    setAttribute(name, value) { this.attributes.set(name, value); }
    getAttribute(name) { return this.attributes.get(name) ?? null; }
    get children() { return this.parts; }
    toString() {
        const tag = this.getAttribute("class") === "root" ? "root" : this.tag;
        return tag === "mrow" ? this.parts.join("") : `<${tag}>${this.parts.join("")}</${tag}>`;
    }
}
globalThis.document = { createElementNS: (_, tag) => new Element(tag) };

const { formatNumber } = await import("../../src/truenorm/page/lib/numbers.js");
const { formula } = await import("../../src/truenorm/page/lib/formula.js");

test("numbers are short, and true to their size", () => {
    const shown = [
        [0, "0"], [-0, "0"], [7, "7"], [-0.5, "−0.5"], [1 / 3, "0.3333"], [-1234.5678, "−1235"], [123456, "123500"],
        [1e-4, "0.0001"], [0.0000123456, "1.235×10⁻⁵"], [-2e9, "−2×10⁹"], [1.5e300, "1.5×10³⁰⁰"],
        [NaN, "NaN"], [Infinity, "∞"], [-Infinity, "−∞"],
    ];
    for (const [value, text] of shown) assert.equal(formatNumber(value), text);
    assert.equal(formatNumber(Math.PI, 7), "3.141593");
});

const shown = (text) => String(formula(text)).replace(/^<math>|<\/math>$/g, "");

test("a fraction shows no brackets around all of its parts", () => {
    assert.equal(
        shown("rstd = 1 / (sqrt(var) + 0.5)"),
        "<mi>rstd</mi><mo>=</mo><mfrac><mn>1</mn>" +
        "<root><mo>√</mo><mspace></mspace><msup><mi>σ</mi><mn>2</mn></msup></root><mo>+</mo><mn>0.5</mn></mfrac>",
    );
    assert.equal(shown("(x - 1) · 2"), "<mo>(</mo><mi>x</mi><mo>−</mo><mn>1</mn><mo>)</mo><mo>·</mo><mn>2</mn>");
});

test("sums, powers, indices and hats", () => {
    assert.equal(shown("Σ dxhat"), "<mo>∑</mo><mi>d</mi><mover><mi>x</mi><mo>^</mo></mover>");
    assert.equal(shown("rstd³ · x_12"), "<msup><mi>rstd</mi><mn>3</mn></msup><mo>·</mo><msub><mi>x</mi><mn>12</mn></msub>");
    assert.equal(shown("−2.5×10⁻⁵"), "<mo>−</mo><mn>2.5</mn><mo>×</mo><msup><mn>10</mn><mn>−5</mn></msup>");
});

test("what is no formula is shown as it is", () => {
    for (const text of ["a +", "(a", "a ? b", "sqrt x", ""]) assert.equal(shown(text), `<mtext>${text}</mtext>`);
});
