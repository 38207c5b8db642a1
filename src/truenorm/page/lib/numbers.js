/*
Numbers as people read and write them.

    formatNumber(0.0000123456)       // "1.235×10⁻⁵": the one way to show a number
    readNumber("1,5")                // 1.5; NaN where the text is no number
*/

/**
 * A number for people: so many digits, no trailing zeros, a true minus; 10 to a power where very large or small.
 * @type {(value: number, digits?: number) => string}
 */
export function formatNumber(value, digits = 4) {
    if (Number.isNaN(value)) return "NaN";
    const sign = value < 0 ? "−" : "";
    const size = Math.abs(value);
    if (size === Infinity) return `${sign}∞`;
    const rounded = Number(size.toPrecision(digits));
    if (rounded === 0 || (rounded >= 1e-4 && rounded < 1e6)) return `${sign}${rounded}`;
    const [mantissa, exponent] = rounded.toExponential().split("e");
    const raised = [...exponent.replace("+", "")].map((digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]).join("");
    return `${sign}${mantissa}×10${raised}`;
}

/**
 * In brackets where a minus would follow another sign.
 * @type {(value: number, digits?: number) => string}
 */
export function bracketedNumber(value, digits) {
    return value < 0 ? `(${formatNumber(value, digits)})` : formatNumber(value, digits);
}

/**
 * The number that a text says, or NaN. A comma may stand for the point, and − for the minus.
 * @type {(text: string) => number}
 */
export function readNumber(text) {
    const value = couldBeThousands(text) ? NaN : numberOf(text);
    return Number.isFinite(value) ? value : NaN;
}

/**
 * Whether a text says a number that is larger than a computer can hold, such as 1e999.
 * @type {(text: string) => boolean}
 */
export function isBeyondNumbers(text) {
    return Math.abs(numberOf(text)) === Infinity;
}

/** @type {(text: string) => number} */
function numberOf(text) {
    const plain = text.trim().replace(",", ".").replace("−", "-");
    return /^[+-]?(\d+(\.\d*)?|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : NaN;
}

/**
 * Whether a text such as 1,234 means one thing to some readers and another to others.
 * @type {(text: string) => boolean}
 */
export function couldBeThousands(text) {
    return /^[+-]?[1-9]\d{0,2}(,\d{3})+$/.test(text.trim());
}
