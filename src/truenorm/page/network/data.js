/*
What the network is made from: its size, the words, the seed of its random numbers.
*/
import { chooser, uniqueId } from "#lib/controls.js";
import { html, putText } from "#lib/elements.js";
import { readNumber } from "#lib/numbers.js";
import { quoted } from "#lib/text.js";
import { readWords, wordsOf } from "#network/words.js";

const MOST_SEED = 1e6;

/** @type {(state: State) => HTMLElement} */
export function sizeChooser(state) {
    return chooser(state, "network.size", "Examples × hidden units", { small: "5 × 4", notes: "32 × 100" });
}

/** @type {(state: State) => HTMLElement} */
export function dataView(state) {
    const [wordsId, seedId] = [uniqueId(), uniqueId()];
    const wordsProblem = html("p", { class: "problem", role: "status", hidden: true });
    const seedProblem = html("p", { class: "problem", role: "status", hidden: true });
    /** @type {HTMLTextAreaElement} */
    const words = html("textarea", {
        id: wordsId, rows: 2, maxlength: 1500, spellcheck: "false", oninput: () => {
            const read = readWords(words.value);
            show(wordsProblem, words, read.problem && `${read.problem} The network keeps the words from before.`);
            if (!read.problem) state.set({ "network.words": read.words, "network.path": [] });
        },
    });
    /** @type {HTMLInputElement} */
    const seed = html("input", {
        type: "text", id: seedId, inputmode: "numeric", autocomplete: "off", maxlength: 20, oninput: () => {
            const value = readNumber(seed.value);
            const good = Number.isInteger(value) && value >= 0 && value <= MOST_SEED;
            show(seedProblem, seed, good ? "" : `A seed is a whole number from 0 to ${MOST_SEED}, got `
                + `${quoted(seed.value)}. ${state.get("network.seed")} stays in use.`);
            if (good) state.set({ "network.seed": value, "network.path": [] });
        },
    });

    /** @type {(place: HTMLElement, field: HTMLElement, problem: string) => void} */
    function show(place, field, problem) {
        place.hidden = problem === "";
        putText(place, problem);
        if (problem) field.setAttribute("aria-invalid", "true");
        else field.removeAttribute("aria-invalid");
    }

    state.watch(["network.words", "network.size", "network.seed"], () => {
        const now = wordsOf(state);
        if (readWords(words.value).words.join() !== now.join() && document.activeElement !== words) {
            words.value = now.join(", ");
            show(wordsProblem, words, "");
        }
        if (readNumber(seed.value) !== state.get("network.seed") && document.activeElement !== seed) {
            seed.value = String(state.get("network.seed"));
            show(seedProblem, seed, "");
        }
    });
    const reset = html("button", {
        type: "button", onclick: () => {
            state.set({ "network.words": [], "network.seed": 0, "network.path": [], "network.lr": 0.1 });
            [words.value, seed.value] = [wordsOf(state).join(", "), "0"];
            show(wordsProblem, words, "");
            show(seedProblem, seed, "");
        },
    }, "Reset words, seed and learning rate");
    return html(
        "section", { class: "network-data" }, html("h3", {}, "Words and seed"),
        html("label", { for: wordsId }, "Words to learn from. C has a row for each character in them, and one for the dot "
            + "before and after a word."),
        words, wordsProblem,
        html("div", { class: "row" }, html("label", { for: seedId }, "Seed of the random numbers"), seed, reset),
        seedProblem,
    );
}
