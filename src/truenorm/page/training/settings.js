/*
The settings of a live run: what may be typed, how they stand in the address, and the equal command of the lab.

    readSetting("lr", "1e9", setting)     // { reason: "Learning rate: ..." } or { value: 0.1 }
*/
import { readNumber } from "#lib/numbers.js";
import { TooLarge, checkLetters } from "#lib/limits.js";
import { encodeText, quoted } from "#lib/text.js";
import { readWords } from "#maths/training.js";

/** @type {Record<LiveNorm, string>} */
export const NORM_NAMES = { none: "no norm", batch: "batch norm", layer: "layer norm", rms: "RMS norm" };

/** @type {Record<keyof Setting, { label: string; choices?: Record<string, string>; limits?: Limits }>} */
export const SETTINGS = {
    norm: { label: "Norm", choices: { none: "none", batch: "batch", layer: "layer", rms: "RMS" } },
    normAt: { label: "Place", choices: { before: "before tanh", after: "after tanh" } },
    lr: { label: "Learning rate", limits: { above: 0, most: 1000 } },
    depth: { label: "Hidden layers", limits: { least: 1, most: 6, whole: true } },
    initScale: { label: "Initial scale", limits: { above: 0, most: 100 } },
    batch: { label: "Batch size", limits: { least: 1, most: 256, whole: true } },
    dropout: { label: "Dropout", limits: { least: 0, most: 0.9 } },
};
const SEED = { label: "Seed", limits: { least: 0, most: 2 ** 53 - 1, whole: true } };

/** @type {Setting} */
export const FIRST = { norm: "batch", normAt: "before", lr: 3, depth: 1, initScale: 1, batch: 32, dropout: 0 };
/** @type {Setting} */
export const SECOND = { ...FIRST, norm: "none" };

/**
 * With and without batch norm in six layers. Small first weights make gradients vanish without it, large ones explode.
 * @type {(initScale: number) => [Setting, Setting]}
 */
export function deepSettings(initScale) {
    const deep = { lr: 0.1, depth: 6, initScale };
    return [{ ...FIRST, ...deep }, { ...SECOND, ...deep }];
}

/**
 * What somebody has chosen or typed, or why it cannot be.
 * @type {(name: keyof Setting, text: string, setting: Setting) => { value?: any; reason?: string }}
 */
export function readSetting(name, text, setting) {
    const { label, choices, limits } = SETTINGS[name];
    if (choices && !Object.hasOwn(choices, text)) return { reason: `${label}: ${Object.keys(choices).join(", ")}.` };
    /** @type {{ value?: any; reason?: string }} */
    const read = choices ? { value: text } : readLimited(label, limits, text);
    if (read.reason) return read;
    /** @type {Setting} */
    const { norm, batch } = Object.assign({}, setting, { [name]: read.value });
    if (norm !== "batch" || batch > 1) return read;
    return { reason: "Batch size: at least 2 with batch norm, as one example has no variance. Layer norm takes 1." };
}

/** @type {(text: string) => { value?: number; reason?: string }} */
export function readSeed(text) {
    return readLimited(SEED.label, SEED.limits, text);
}

/** @type {(label: string, limits: Limits, text: string) => { value?: number; reason?: string }} */
function readLimited(label, { above = null, least = null, most, whole = false }, text) {
    const value = readNumber(text);
    const low = above === null ? value >= least : value > above;
    if (low && value <= most && (!whole || Number.isInteger(value))) return { value };
    const range = above === null ? `from ${least} to ${most}` : `above ${above} and at most ${most}`;
    return { reason: `${label}: a ${whole ? "whole " : ""}number ${range}, got ${quoted(text)}.` };
}

/**
 * The words of a text, or why the network cannot learn them.
 * @type {(text: string) => { value?: string[]; reason?: string }}
 */
export function readWordList(text) {
    const words = readWords(text);
    if (words.length < 2) {
        const got = words.length === 0 ? "none" : `one, ${quoted(words[0])}`;
        return { reason: `Words: at least two different ones, one a line, got ${got}.` };
    }
    const characters = new Set(words.join("")).size;
    if (characters > 200) return { reason: `Words: at most 200 different characters, got ${characters}.` };
    return { value: words };
}

// ---- in the address ----

const MOST_TEXT = 50_000;

/** @type {Codec<Setting>} */
export const settingCodec = {
    encode: (setting) => Object.keys(SETTINGS).map((name) => setting[/** @type {keyof Setting} */ (name)]).join(","),
    decode: (text) => {
        const texts = text.split(",").map(decodeURIComponent);
        const names = /** @type {(keyof Setting)[]} */ (Object.keys(SETTINGS));
        if (texts.length !== names.length) throw new RangeError("training: seven settings.");
        /** @type {any} */
        const setting = { ...FIRST, norm: "none" };
        for (const name of [...names].reverse()) { // the norm last: it may ask for two examples
            const { value, reason } = readSetting(name, texts[names.indexOf(name)], setting);
            if (reason) throw new RangeError(reason);
            setting[name] = value;
        }
        return setting;
    },
};

/** @type {Codec<string>} */
export const wordsCodec = {
    encode: encodeText,
    decode: (text) => {
        if (text.length > 4 * MOST_TEXT) checkLetters("A list of words in the address", 4 * MOST_TEXT, text.length);
        const plain = decodeURIComponent(text);
        wordsCodec.check(plain);
        const { reason } = readWordList(plain);
        if (reason) throw new RangeError(reason);
        return plain;
    },
    check: (text) => {
        if (text.length > MOST_TEXT) throw new TooLarge(`Words: at most ${MOST_TEXT} characters, got ${text.length}.`);
    },
};

// ---- in words ----

/**
 * What trains the same network on a machine with truenorm: the same losses, number by number.
 * @type {(setting: Setting, seed: number, steps: number) => string}
 */
export function trainCommand({ norm, normAt, lr, depth, initScale, batch, dropout }, seed, steps) {
    const words = [
        `--data words.txt --norm ${norm}`, norm === "batch" ? "--ddof 1" : "",
        norm !== "none" && normAt === "after" ? "--norm-at after" : "", `--lr ${lr}`,
        depth > 1 ? `--depth ${depth}` : "", initScale === 1 ? "" : `--init-scale ${initScale}`,
        batch === 32 ? "" : `--batch ${batch}`, dropout ? `--dropout ${dropout}` : "",
        `--dtype float64 --schedule constant --seed ${seed} --steps ${steps}`, `--out runs/${norm}-${lr}`,
    ];
    return `truenorm train ${words.filter(Boolean).join(" ")}`;
}

/**
 * A setting in a few words: the norm, and what differs from the usual.
 * @type {(setting: Setting) => string}
 */
export function settingInWords({ norm, normAt, lr, depth, initScale, batch, dropout }) {
    return [
        NORM_NAMES[norm] + (norm !== "none" && normAt === "after" ? " after tanh" : ""), `learning rate ${lr}`,
        depth > 1 ? `${depth} layers` : "", initScale === 1 ? "" : `scale ${initScale}`,
        batch === 32 ? "" : `batch ${batch}`, dropout ? `dropout ${dropout}` : "",
    ].filter(Boolean).join(", ");
}
