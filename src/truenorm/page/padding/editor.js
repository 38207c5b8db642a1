/*
What is typed into the part "padding": the texts of the sentences and the numbers of their words. What cannot be read
is marked where it stands, and kept as it was typed.
*/
import { MOST_WORDS, SENTENCE_NAMES, changeSentences, respell } from "#padding/model.js";
import { uniqueId } from "#lib/controls.js";
import { html, putText, refuse, scrollBox } from "#lib/elements.js";
import { MOST_LETTERS, attempt } from "#lib/limits.js";
import { formatNumber, readNumber } from "#lib/numbers.js";
import { quoted } from "#lib/text.js";

export const ORDINALS = ["first", "second"];
/** @type {Record<string, number>} */
const WAYS = { ArrowUp: -1, ArrowDown: 1, Enter: 1 };

/**
 * The text of a sentence, and the embeddings of its words.
 * @type {(state: State, sentence: number) => { element: HTMLElement; draw(model: SentencesModel): void } & { text:
 *     HTMLElement }}
 */
export function sentenceEditor(state, sentence) {
    const [id, sentenceProblem, cellProblem] = [uniqueId(), uniqueId(), uniqueId()];
    const field = SENTENCE_NAMES[sentence];
    /** @type {HTMLInputElement} */
    const text = html("input", {
        type: "text", id, autocomplete: "off", spellcheck: "false", "aria-describedby": sentenceProblem,
        maxlength: MOST_WORDS * (MOST_LETTERS + 1),
        oninput: () => {
            const words = text.value.split(/\s+/).filter((word) => word !== "");
            complain(words);
            if (words.length && !tooLongOf(words)) changeWords(state, sentence, words.slice(0, MOST_WORDS));
            seen = state.get(field);
        },
    });
    const complaint = html("p", { class: "problem", id: sentenceProblem, hidden: true });
    const problem = html("p", { class: "problem", id: cellProblem, hidden: true });
    const body = html("tbody");
    const caption = html("caption", {}, `Embeddings of the ${ORDINALS[sentence]} sentence`);
    const label = html("label", { for: id }, `The ${ORDINALS[sentence]} sentence`);
    const element = html(
        "div", { class: "editor" },
        scrollBox(`Embeddings, ${ORDINALS[sentence]} sentence`, html("table", { class: "numbers" }, caption, body)),
        problem,
    );
    /** @type {string[][] | null} */
    let seen = null; // the words that the text stands for: it is written anew only when others come from elsewhere

    /** @type {(words: string[]) => void} */
    function complain(words) {
        const kept = quoted(state.get(field).map(([word]) => word).join(" "));
        const tooMany = `There is room for ${MOST_WORDS} words: the others are left out.`;
        const tooLong = `A word has at most ${MOST_LETTERS} characters, got ${tooLongOf(words)}. `
            + `Until it is shorter, ${kept} stays.`;
        showProblem(complaint, !words.length ? `A sentence has one word at least. Until it has, ${kept} stays.`
            : tooLongOf(words) ? tooLong : words.length > MOST_WORDS ? tooMany : "");
        text.setAttribute("aria-invalid", String(complaint.textContent !== ""));
    }

    /** @type {(model: SentencesModel) => void} */
    function draw({ words, computed, watched }) {
        const own = words.filter((one) => one.sentence === sentence);
        if (state.get(field) !== seen) {
            const now = own.map(({ word }) => word);
            if (text.value.trim().split(/\s+/).join(" ") !== now.join(" ")) text.value = now.join(" ");
            complain(now);
            seen = state.get(field);
        }
        if (body.rows.length !== own.length) {
            body.replaceChildren(...own.map((one) => html(
                "tr", {}, html("th", { scope: "row" }),
                one.embedding.map((_, column) => html("td", {}, numberCell(state, one, 1 + column))),
            )));
        }
        own.forEach((one, i) =>
            showWordRow(body.rows[i], one, one.embedding, "embedding", one === words[watched], cellProblem));
        const rule = computed ? "No number, so the word is left out: " : "No number: ";
        showProblem(problem, unreadable(rule, own, ({ embedding }) => embedding));
    }
    return { text: html("div", { class: "editor" }, label, text, complaint), element, draw };
}

/**
 * Other words for a sentence; the watched word stays the watched one wherever it goes.
 * @type {(state: State, sentence: number, words: string[]) => void}
 */
function changeWords(state, sentence, words) {
    const field = SENTENCE_NAMES[sentence];
    const before = state.get(field);
    const after = respell(before, words);
    const ahead = sentence === 0 ? 0 : state.get(SENTENCE_NAMES[0]).length;
    const place = state.get("padding.watched") - ahead;
    let watched = place;
    if (place >= before.length) watched = place + after.length - before.length;
    else if (place >= 0) {
        const same = after.indexOf(before[place]);
        watched = same >= 0 ? same : Math.min(place, after.length - 1);
    }
    changeSentences(state, { [field]: after, "padding.watched": watched + ahead });
}

/**
 * A cell for one number of a word: text `slot` of its row in the state. Up and down go to the words around it.
 * @type {(state: State, word: Word, slot: number) => HTMLInputElement}
 */
export function numberCell(state, { sentence, position }, slot) {
    const field = SENTENCE_NAMES[sentence];
    /** @type {HTMLInputElement} */
    const input = html("input", {
        type: "text", inputmode: "decimal", autocomplete: "off", class: "cell", "data-slot": slot,
        maxlength: MOST_LETTERS,
        oninput: () => {
            /** @type {(row: string[]) => string[]} */
            const change = (row) => row.map((text, i) => (i === slot ? input.value : text));
            const sentenceNow = state.get(field).map((row, i) => (i === position ? change(row) : row));
            attempt(() => state.set({ [field]: sentenceNow }), refuse);
        },
        onkeydown: (/** @type {KeyboardEvent} */ event) => {
            const step = WAYS[event.key];
            if (step === undefined) return;
            const column = [...input.closest("table").querySelectorAll("input")]
                .filter((one) => one.dataset.slot === String(slot));
            const goal = column[column.indexOf(input) + step];
            event.preventDefault();
            goal?.focus();
            goal?.select();
        },
    });
    return input;
}

/**
 * A row of a table whose first cell is a word and whose others are inputs, or plain cells.
 * @type {(row: HTMLTableRowElement, word: Word, texts: string[], what: string, watched: boolean, problem: string) =>
 *     void}
 */
export function showWordRow(row, { word, row: values, valid }, texts, what, watched, problem) {
    const [head, ...cells] = row.cells;
    row.classList.toggle("watched", watched);
    head.replaceChildren(...(watched ? marked(word) : [word]));
    head.title = word;
    cells.forEach((cell, column) => {
        const input = cell.querySelector("input");
        if (!input) {
            cell.textContent = valid[column] ? formatNumber(values[column]) : "–";
            return;
        }
        const wrong = Number.isNaN(readNumber(texts[column]));
        if (input.value !== texts[column]) input.value = texts[column];
        input.setAttribute("aria-label", `${word}, ${what}, number ${column + 1}`);
        input.setAttribute("aria-invalid", String(wrong));
        if (wrong) input.setAttribute("aria-describedby", problem);
        else input.removeAttribute("aria-describedby");
    });
}

/**
 * What cannot be read as a number, and where it stands; "" if all can.
 * @type {(rule: string, words: Word[], textsOf: (word: Word) => string[]) => string}
 */
export function unreadable(rule, words, textsOf) {
    const found = words.flatMap((one) => textsOf(one).flatMap((text, column) => {
        if (!Number.isNaN(readNumber(text))) return [];
        const what = text.trim() === "" ? "an empty cell" : quoted(text);
        return [`${what} (number ${column + 1} of ${quoted(one.word)})`];
    }));
    return found.length ? `${rule}${found.join(", ")}.` : "";
}

/** @type {(element: HTMLElement, text: string) => void} */
export function showProblem(element, text) {
    putText(element, text);
    element.hidden = text === "";
}

/** @type {(word: string) => string[]} */
export function marked(word) {
    return ["▸ ", word];
}

/**
 * How long the first word is that is too long, or 0.
 * @type {(words: string[]) => number}
 */
function tooLongOf(words) {
    return words.find((word) => word.length > MOST_LETTERS)?.length ?? 0;
}
