/*
The words that the network learns from, as they are typed: read, checked, and kept in the address.

    readWords("anna, emma")     // { words: ["anna", "emma"], problem: "" }, or no words and a sentence
*/
import { textRow } from "#lib/state.js";
import { quoted } from "#lib/text.js";

const MOST_WORDS = 60;
const MOST_LETTERS = 24;
const MOST_CHARACTERS = 60; // different ones, with the dot
export const MOST_SEED = 1e6;

/**
 * The small network is that of `truenorm explain --example network`. The other has the sizes of the lecture notes, and
 * words in which all 26 letters occur.
 * @type {Record<NetworkSize, { hidden: number; batch: number; words: string[] }>}
 */
export const SIZES = {
    small: { hidden: 4, batch: 5, words: ["anna", "emma", "ian", "mia", "nina"] },
    notes: {
        hidden: 100, batch: 32, words: ["betty", "daniel", "emma", "felix", "grace", "hugo", "jack", "louis", "max",
            "noah", "pam", "quinn", "sophia", "victor", "wendy", "zoe"],
    },
};

/** @type {(text: string) => { words: string[]; problem: string }} */
export function readWords(text) {
    const words = text.split(/[\s,;]+/u).filter((word) => word !== "");
    const problem = problemWith(words);
    return problem ? { words: [], problem } : { words, problem };
}

/** @type {(words: string[]) => string} */
function problemWith(words) {
    if (words.length === 0) return "There is no word here. Type one or more, with commas between them.";
    if (words.length > MOST_WORDS) return `There is room for ${MOST_WORDS} words, got ${words.length}.`;
    for (const word of words) {
        const unknown = word.match(/[^\p{L}\p{M}'’-]/u);
        if (unknown) {
            return `${quoted(word)} has an unknown character, ${quoted(unknown[0])}. Words may have letters, `
                + "apostrophes and hyphens.";
        }
        if ([...word].length > MOST_LETTERS) return `${quoted(word)} has more than ${MOST_LETTERS} characters.`;
    }
    const different = charactersOf(words).length;
    return different <= MOST_CHARACTERS ? ""
        : `These words have ${different - 1} different characters, there is room for ${MOST_CHARACTERS - 1}.`;
}

/**
 * The rows of C: the dot, and the characters of the words by their code points.
 * @type {(words: string[]) => string[]}
 */
export function charactersOf(words) {
    const found = [...new Set(words.join(""))];
    return [".", ...found.sort((a, b) => a.codePointAt(0) - b.codePointAt(0))];
}

/**
 * Words in the address. None stands for those of the network's size.
 * @type {Codec<string[]>}
 */
export const wordsCodec = {
    ...textRow,
    decode: (text) => {
        const words = textRow.decode(text);
        if (words.some((word) => word === "") || problemWith(words)) throw new RangeError("network: words.");
        return words;
    },
};

/** @type {(state: State) => string[]} */
export function wordsOf(state) {
    const words = state.get("network.words");
    return words.length ? words : SIZES[state.get("network.size")].words;
}
