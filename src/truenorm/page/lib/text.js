/*
Text that may hold anything, in an address and in sentences.
*/

/**
 * Half of a surrogate pair is no character and cannot be encoded: it becomes U+FFFD.
 * @type {(text: string) => string}
 */
export function encodeText(text) {
    return /^[\w.-]*$/.test(text) ? text : encodeURIComponent(text.replace(/\p{Cs}/gu, "\ufffd")); // most are numbers
}

/** @type {(text: string) => string} */
export function quoted(text) {
    return `“${shortened(text)}”`;
}

/**
 * A long text is cut. Characters that cannot be seen are replaced, as some turn the direction of the words behind them;
 * those that join letters stay.
 * @type {(text: string, most?: number) => string}
 */
export function shortened(text, most = 24) {
    const letters = [...text.slice(0, 2 * most + 2)];
    const shown = letters.length > most ? `${letters.slice(0, most - 1).join("")}…` : text;
    return shown.replace(/(?![\u200c\u200d])[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}]/gu, "\ufffd");
}
