/*
Formulas as MathML, written as text:

    formula("rstd = 1 / sqrt(var + eps)")
    formula(`y = (${formatNumber(7)} - ${formatNumber(4)}) · 0.3953`)

    + - = ≈ · , ( )   as usual         a / b      a fraction; brackets around all of a or b are not shown
    sqrt(...)         a root           Σ a · b    a sum over what is to its right
    x² rstd³          a power          x_i        an index
    xhat dxhat        x̂ and dx̂         |...|      an absolute value
    "some words"      words            mean var weight bias eps, and with a d before them: μ σ² γ β ε

Numbers may look as `formatNumber` writes them. What cannot be read as a formula is shown as the text it is.
*/
import { html, mathml, watchWidth } from "#lib/elements.js";
import { SYMBOLS } from "#lib/symbols.js";

const NUMBER = /(\d[\d.]*(?:e[+-]?\d+)?(?:×10[⁻⁰¹²³⁴⁵⁶⁷⁸⁹]+)?|∞|NaN)/;
const SIGN = /([+\-−=≈·,()/|²³Σ])/; // before names, as Σ is a letter, too
const NAME = /(\p{L}[\p{L}\d]*(?:_[\p{L}\d]+)?)/u;
const WORDS = /"([^"]*)"/;
const LONG = 24; // characters that may not fit beside what comes before, or in one line of a phone
const SHORT = 8; // characters before the first sign that stay with it
const TOKEN = new RegExp(`\\s*(?:${[NUMBER, SIGN, NAME, WORDS].map((one) => one.source).join("|")})`, "uy");

/**
 * The <math> element; `display` gives sums and fractions their full size.
 * @type {(text: string, options?: { display?: boolean }) => MathMLElement}
 */
export function formula(text, { display = false } = {}) {
    const math = mathml("math", { display: display ? "block" : false });
    if (display) watchWidth(math);
    try {
        math.append(readSum(tokens(text), true));
    } catch {
        math.append(mathml("mtext", {}, text));
    }
    return math;
}

/**
 * One formula in pieces, that go into the next line where there is no room, and scroll where even that is short. It
 * also breaks before the signs of a piece; what is long in it is taken apart.
 * @type {(texts: string[]) => HTMLElement}
 */
export function formulaPieces(texts) {
    return html("div", { class: "formula-pieces" }, texts.flatMap(broken));
}

/**
 * The same for one text.
 * @type {(text: string) => HTMLElement}
 */
export function formulaLine(text) {
    return html("div", { class: "formula" }, broken(text));
}

/**
 * A formula as <math> elements, each of which may stand in a line of its own.
 * @type {(text: string) => Element[]}
 */
function broken(text) {
    /** @type {Element[]} */
    let items = [];
    try {
        items = [...readSum(tokens(text), true).children]
            .flatMap((item) => (item.localName === "mo" ? [breakable(item)] : opened(item)));
    } catch {
        items = [mathml("mtext", {}, text)];
    }
    /** @type {Element[][]} */
    const pieces = [[]];
    for (const item of items) {
        const [first, ...more] = pieces[0];
        const isFirstSign = first && pieces.length === 1 && more.length === 0 && "=≈".includes(item.textContent)
            && lengthOf(first) < SHORT;
        if (item.getAttribute("data-break") === "true" && !isFirstSign) pieces.push([]);
        pieces.at(-1).push(item);
    }
    return pieces.map((piece) => {
        const math = mathml("math", { display: "block" }, piece);
        watchWidth(math);
        return math;
    });
}

/**
 * What is long, taken apart: lines may break before its signs, and a fraction is written with a slash.
 * @type {(element: Element) => Element[]}
 */
function opened(element) {
    if (lengthOf(element) < LONG || element.getAttribute("class") === "root") return [element];
    if (element.localName === "mrow") {
        return [...element.children].flatMap((child, i) => (child.localName !== "mo" ? opened(child)
            : [i > 0 && "+−·".includes(child.textContent) ? breakable(child) : child]));
    }
    if (element.localName !== "mfrac") return [element];
    const [above, below] = element.children;
    return [...inBrackets(above, isSum(above)), breakable(plain("/")), ...inBrackets(below, isSeveral(below))];
}

/** @type {(element: Element, needed: boolean) => Element[]} */
function inBrackets(element, needed) {
    return needed ? [plain("("), ...opened(element), plain(")")] : opened(element);
}

/** @type {(element: Element) => boolean} */
function isSum(element) {
    if (element.localName !== "mrow") return false;
    const [only, ...more] = element.children;
    if (more.length === 0) return isSum(only);
    return more.some(({ localName, textContent }) => localName === "mo" && "+−".includes(textContent));
}

/** @type {(element: Element) => boolean} */
function isSeveral(element) {
    if (element.localName !== "mrow" || element.hasAttribute("class")) return false;
    return element.children.length > 1 || isSeveral(element.children[0]);
}

/** @type {(element: Element) => number} */
function lengthOf(element) {
    return element.textContent.replace(/\s/g, "").length;
}

/** @type {(sign: Element) => Element} */
function breakable(sign) {
    sign.setAttribute("data-break", "true");
    sign.setAttribute("form", "infix"); // at the start of a piece too
    return sign;
}

/** @type {(sign: string) => MathMLElement} */
function plain(sign) {
    return mathml("mo", { stretchy: "false" }, sign);
}

/**
 * [kind, text], the next one last, so that reading is popping.
 * @type {(text: string) => Token[]}
 */
function tokens(text) {
    /** @type {Token[]} */
    const found = [];
    TOKEN.lastIndex = 0;
    const whole = text.trimEnd();
    while (TOKEN.lastIndex < whole.length) {
        const match = TOKEN.exec(whole);
        if (!match) throw new SyntaxError(`formula: no such sign in ${text}.`);
        const [, number, sign, name, words] = match;
        if (number !== undefined) found.push(["number", number]);
        else if (sign !== undefined) found.push(["sign", sign]);
        else if (name !== undefined) found.push(["name", name]);
        else found.push(["words", words]);
    }
    return found.reverse();
}

/** @type {(rest: Token[], signs: string) => string | null} */
function next(rest, signs) {
    const [kind, text] = rest.at(-1) ?? [];
    return kind === "sign" && signs.includes(text) ? rest.pop()[1] : null;
}

/** @type {(rest: Token[], whole?: boolean) => MathMLElement} */
function readSum(rest, whole = false) {
    const row = [];
    for (;;) {
        row.push(readProduct(rest));
        const sign = next(rest, "+-−=≈,");
        if (sign === null) break;
        row.push(mathml("mo", { form: "infix" }, sign === "-" ? "−" : sign)); // also between words
    }
    if (whole && rest.length) throw new SyntaxError("formula: more than a formula.");
    return mathml("mrow", {}, row);
}

/** @type {(rest: Token[]) => MathMLElement} */
function readProduct(rest) {
    let left = readPower(rest);
    for (;;) {
        const sign = next(rest, "·/");
        if (sign === null) return left;
        const right = readPower(rest);
        left = sign === "/" ? mathml("mfrac", {}, bare(left), bare(right))
            : mathml("mrow", {}, left, mathml("mo", {}, sign), right);
    }
}

/** @type {(rest: Token[]) => MathMLElement} */
function readPower(rest) {
    const base = readOne(rest);
    const raised = next(rest, "²³");
    return raised === null ? base : mathml("msup", {}, base, mathml("mn", {}, raised === "²" ? "2" : "3"));
}

/** @type {(rest: Token[]) => MathMLElement} */
function readOne(rest) {
    const prefix = next(rest, "-−Σ");
    if (prefix !== null) return mathml("mrow", {}, mathml("mo", {}, prefix === "Σ" ? "∑" : "−"), readPower(rest));
    if (next(rest, "(")) return enclosed(rest, "(", ")");
    if (next(rest, "|")) return enclosed(rest, "|", "|");
    const [kind, text] = rest.pop() ?? [];
    if (kind === "number") return readNumeral(text);
    // Not <mtext>: that counts as space, and signs between spaces get no room.
    if (kind === "words") return mathml("mi", { mathvariant: "normal" }, text);
    if (kind !== "name") throw new SyntaxError("formula: a number or a name.");
    if (text !== "sqrt") return readName(text);
    if (!next(rest, "(")) throw new SyntaxError("formula: sqrt has brackets.");
    return root(bare(enclosed(rest, "(", ")")));
}

/**
 * The sign is drawn by CSS, as high as what is under it. That of <msqrt> grows only with a font that has larger ones,
 * and few systems have such a font. As text there is a √, of no size.
 * @type {(inside: Element) => MathMLElement}
 */
function root(inside) {
    const sign = mathml("mo", { stretchy: "false", lspace: "0", rspace: "0" }, "√");
    return mathml("mrow", { class: "root" }, sign, mathml("mspace", { width: "0.62em" }), inside);
}

/** @type {(rest: Token[], open: string, close: string) => MathMLElement} */
function enclosed(rest, open, close) {
    const inside = readSum(rest);
    if (!next(rest, close)) throw new SyntaxError("formula: brackets close.");
    /** @type {(sign: string) => MathMLElement} */
    const fence = (sign) => mathml("mo", { stretchy: "false" }, sign);
    return mathml("mrow", { class: open === "(" ? "bracketed" : false }, fence(open), inside, fence(close));
}

/**
 * Without the brackets around all of it, where a bar or a root shows what belongs together.
 * @type {(element: Element) => Element}
 */
function bare(element) {
    return element.getAttribute("class") === "bracketed" ? element.children[1] : element;
}

/** @type {(text: string) => MathMLElement} */
function readNumeral(text) {
    const [mantissa, power] = text.split("×10");
    if (power === undefined) return mathml("mn", {}, text);
    const exponent = [...power].map((digit) => "−0123456789"["⁻⁰¹²³⁴⁵⁶⁷⁸⁹".indexOf(digit)]).join("");
    const ten = mathml("msup", {}, mathml("mn", {}, "10"), mathml("mn", {}, exponent));
    return mathml("mrow", {}, mathml("mn", {}, mantissa), mathml("mo", {}, "×"), ten);
}

/** @type {(text: string) => MathMLElement} */
function readName(text) {
    const [name, index] = text.split("_");
    const [, d, known] = name.match(/^(d?)(.+)$/);
    const base = !(known in SYMBOLS) ? mathml("mi", {}, name)
        : d ? mathml("mrow", {}, mathml("mi", { mathvariant: "normal" }, "d"), readSymbol(known)) : readSymbol(known);
    return index === undefined ? base : mathml("msub", {}, base, mathml(/^\d/.test(index) ? "mn" : "mi", {}, index));
}

/** @type {(name: string) => MathMLElement} */
function readSymbol(name) {
    const sign = () => mathml("mo", { stretchy: "false" }, "^");
    if (name === "xhat") return mathml("mover", { accent: "true" }, mathml("mi", {}, "x"), sign());
    if (name === "var") return mathml("msup", {}, mathml("mi", {}, "σ"), mathml("mn", {}, "2"));
    return mathml("mi", {}, SYMBOLS[name]);
}
