/*
What the network is made from: its size, the words, the seed of its random numbers.
*/
import { chooser, uniqueId } from "#lib/controls.js";
import { html } from "#lib/elements.js";
import { readNumber } from "#lib/numbers.js";
import { quoted } from "#lib/text.js";
import { complaintAbout } from "#network/entries.js";
import { MOST_SEED, readWords, wordsOf } from "#network/words.js";

/** @type {(state: State) => HTMLElement} */
export function sizeChooser(state) {
    return chooser(state, "network.size", "Examples × hidden units", { small: "5 × 4", notes: "32 × 100" });
}

/** @type {(state: State) => HTMLElement} */
export function dataView(state) {
    const [wordsId, seedId] = [uniqueId(), uniqueId()];
    const words = html("textarea", { id: wordsId, rows: 2, maxlength: 1500, spellcheck: "false", oninput: enterWords });
    const seed = html("input", {
        type: "text", id: seedId, inputmode: "numeric", autocomplete: "off", maxlength: 20, oninput: enterSeed,
    });
    const [aboutWords, aboutSeed] = [complaintAbout(words), complaintAbout(seed)];

    function enterWords() {
        const read = readWords(words.value);
        aboutWords.complain(read.problem && `${read.problem} The network keeps the words from before.`);
        if (!read.problem) state.set({ "network.words": read.words, "network.path": [] });
    }

    function enterSeed() {
        const value = readNumber(seed.value);
        const good = Number.isInteger(value) && value >= 0 && value <= MOST_SEED;
        aboutSeed.complain(good ? "" : `A seed is a whole number from 0 to ${MOST_SEED}, got ${quoted(seed.value)}. `
            + `${state.get("network.seed")} stays in use.`);
        if (good) state.set({ "network.seed": value, "network.path": [] });
    }

    let [lastWords, lastSeed] = ["", ""];

    /** What changed elsewhere replaces what was typed; the rest stays, even if it cannot be used. */
    function show() {
        const [nowWords, nowSeed] = [wordsOf(state).join(", "), String(state.get("network.seed"))];
        if (nowWords !== lastWords && readWords(words.value).words.join(", ") !== nowWords) {
            words.value = nowWords;
            aboutWords.complain("");
        }
        if (nowSeed !== lastSeed && String(readNumber(seed.value)) !== nowSeed) {
            seed.value = nowSeed;
            aboutSeed.complain("");
        }
        [lastWords, lastSeed] = [nowWords, nowSeed];
    }
    state.watch(["network.words", "network.size", "network.seed"], show);
    const reset = html("button", {
        type: "button", onclick: () => {
            state.set({ "network.words": [], "network.seed": 0, "network.path": [], "network.lr": 0.1 });
            [lastWords, lastSeed] = ["", ""];
            show();
        },
    }, "Reset words, seed and learning rate");
    return html(
        "section", { class: "network-data" }, html("h3", {}, "Words and seed"),
        html("label", { for: wordsId }, "Words to learn from. C has a row for each character in them, and one for the ",
            "dot before and after a word."),
        words, aboutWords.place,
        html("div", { class: "row" }, html("label", { for: seedId }, "Seed of the random numbers"), seed, reset),
        aboutSeed.place,
    );
}
