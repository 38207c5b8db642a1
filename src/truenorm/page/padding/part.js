/*
The part "padding": why padding breaks batch norm, with two sentences and a slider. model.js has what is computed,
sentencecells.js what is typed; here it is drawn, from top to bottom:

    the slider and the watched word, in sight all the time, and in one line what they come to
    1  the sentences, the rectangle that they are filled up to, and their embeddings
    2  self-attention, and the stack of rows        3  the mean of each column, with and without zeros
    4, 5, 6  three normalizations beside each other, and how far each moves the watched word
    the curve of that against the padding

Each block is a function that returns { element, draw }: draw(model) shows what the state comes to. Inputs are kept
while a person types in them; they are built anew only when there are other words or rows than before.
*/
import { ORDINALS, marked, sentenceEditor } from "#padding/editor.js";
import { driftChart, methodCard, movedInWords, whyUnknown } from "#padding/methods.js";
import {
    METHODS, METHOD_NAMES, MOST_FILL, REVIEWS, SENTENCES_START, SENTENCE_NAMES, changeSentences, columnSums,
    defineSentences, fillNow, hasOtherEmbeddings, normalizeWatched, paddedLength, paddingOfEach, paddingRows,
    readSentences, respell, sentenceLengths,
} from "#padding/model.js";
import { columnMeans, shownPads, stackTable } from "#padding/stack.js";
import { chooser, slider, uniqueId } from "#lib/controls.js";
import { announce, announceAtRest, html, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { questions } from "#lib/question.js";
import { quoted, shortened } from "#lib/text.js";

const FIELDS = /** @type {FieldName[]} */ (Object.keys(SENTENCES_START));

/** @type {(root: HTMLElement, state: State) => void} */
export function mountPadding(root, state) {
    defineSentences(state);
    const read = () => readSentences(state);
    const fill = () => fillNow(state);
    const editors = ORDINALS.map((_, i) => sentenceEditor(state, i));
    const rows = chooser(state, "padding.rows", "Rows of the stack", {
        given: "given: example numbers", computed: "computed by self-attention from the embeddings",
    });
    const blocks = [
        headline(fill), watchedChoice(state, fill), rectangle(fill),
        ...editors, keptRows(rows),
        attentionWords(), stackTable(state, fill), columnMeans(fill),
        ...METHOD_NAMES.map((name) => methodCard(name, read, fill)), driftChart(state, read, fill),
    ];
    const [said, watched, filled, first, second, kept, attention, stack, means, all, layer, valid, chart] = blocks;
    const padding = slider(state, "padding.length", "Padding", {
        stops: () => Array.from({ length: MOST_FILL + 1 }, (_, far) => paddedLength(sentenceLengths(state), far)),
        showing: SENTENCE_NAMES, show: () => paddingInWords(sentenceLengths(state), fill()),
    });
    root.classList.add("padding");
    root.append(
        html("h2", { class: "unseen" }, "Padded sentences"),
        html(
            "p", { class: "intro" },
            "A network reads many sentences at once, as one rectangle of numbers. So shorter sentences are ",
            "filled up with rows of zeros, the ", html("em", {}, "padding"), ". Batch norm treats them as words. ",
            html("strong", {}, "Move the slider and watch one word."),
        ),
        html("div", { class: "bar" }, padding, watched.element),
        said.element,

        html("h3", {}, "1. Sentences of different lengths are filled up with zeros"),
        html("div", { class: "texts" }, filled.element, ...editors.map(({ text }) => text)),
        html(
            "p", { class: "intro" },
            "Every word has become a row of three numbers, its ", html("em", {}, "embedding"), ". A row of ",
            html("code", { class: "pad" }, "<pad>"), " is no word: it is three zeros that take up room. Type other ",
            "words, or other numbers.",
        ),
        html("div", { class: "columns" }, first.element, second.element, reviewTable(state)),
        kept.element,

        html("h3", {}, "2. All rows go on one stack"),
        rows,
        attention.element,
        html(
            "p", {}, "Below the stack, for each column: its mean μ and its standard deviation σ, the usual ",
            "distance of its numbers from the mean.",
        ),
        html("div", { class: "columns" }, stack.element, html(
            "div", { class: "beside" },
            html("h3", {}, "3. Batch norm takes the mean of each column, zeros included"),
            means.element,
            html(
                "p", { class: "note" }, "Dots are the numbers of a column. The upright line is their mean, the grey ",
                "bar reaches one deviation to each side.",
            ),
        )),

        html("div", { class: "cards" }, all.element, layer.element, valid.element),
        html("h3", {}, "Every amount of padding at once"),
        chart.element,
        html(
            "p", {}, html("strong", {}, "In one sentence: "), "padding adds nothing to the sum of a column but is ",
            "counted all the same, so μ and σ, and with them every word, depend on how long the other ",
            "sentences happen to be. That is why transformers use layer norm: its μ and σ² are those of one word.",
        ),
        html(
            "p", {}, html("strong", {}, "So what? "), "A network then may answer differently for the same words, ",
            "depending on their neighbours. The lab tried it: networks with batch norm learned the gender of names ",
            "padded to 44 characters. Then the same names were padded to 11, and μ and σ taken again. With ",
            "padding included, 83.6% of new names were right before and 80.9% after (means of five runs); with ",
            "padding ignored, 84.4% both times.",
        ),
        html("p", { class: "note" }, "All three divide by √(σ² + ε) with ε = 1×10⁻⁵, as usual, and then stop: ",
            "γ is 1 and β is 0."),
        questions(state, FIELDS, () => questionsNow(read(), fill())),
        html("button", {
            type: "button", onclick: () => { state.set(SENTENCES_START); announce("The example is back."); },
        }, "Start again with the example"),
    );
    state.watch(FIELDS, () => {
        const model = read();
        for (const { draw } of blocks) draw(model);
    });
}

/** @type {(model: SentencesModel, fill: number) => Question[]} */
function questionsNow(model, fill) {
    const word = model.words[model.watched];
    /** @type {(rows: number) => string} */
    const mean = (rows) => {
        const { values, padding, sum } = columnSums(model, rows)[0];
        return formatNumber(sum / (values.length + padding));
    };
    const layer = normalizeWatched(model, METHODS.layer, fill);
    return [{
        ask: "More rows of zeros, padding included: where does μ of column 1 go?",
        answers: ["towards 0", "away from 0", "it stays"], right: 0,
        because: `The sum stays, but it is divided by more rows: ${mean(0)} without padding, ${mean(MOST_FILL)} `
            + "with the slider at its end.",
    }, {
        ask: `Layer norm: how far do 100 rows of zeros move ${quoted(word.word)}?`,
        answers: ["not at all", "a little", "as far as batch norm does"], right: 0,
        because: `μ and σ are of its own row: ${formatNumber(layer.mean[0])} and ${formatNumber(layer.deviation[0])}.`,
    }, {
        ask: "Layer norm with β = 1: what does a row of padding become?",
        answers: ["0, 0, 0", "1, 1, 1"], right: 1,
        because: "x̂ is 0 there, so y = γ·0 + β = 1. Padding stays 0 only while β is 0, as at the start of training.",
    }];
}

/** @type {(lengths: number[], fill: number) => string} */
function paddingInWords(lengths, fill) {
    const count = paddingRows(lengths, fill);
    const rows = count === 1 ? "1 row" : `${count} rows`;
    return count === 0 ? "none" : `to ${paddedLength(lengths, fill)} words: ${rows}`;
}

/**
 * What the slider comes to, in a line or two.
 * @type {(fill: () => number) => { element: HTMLElement; draw(model: SentencesModel): void }}
 */
function headline(fill) {
    const element = html("p", { class: "said" });
    /** @type {(model: SentencesModel) => void} */
    const draw = (model) => {
        const before = element.textContent;
        const word = quoted(model.words[model.watched].word);
        const result = normalizeWatched(model, METHODS.all, fill());
        const moved = html("b", { class: "number" }, formatNumber(result.moved));
        element.replaceChildren(...(
            Number.isNaN(result.moved) ? [`The row of ${word} ${whyUnknown(result)}: see below.`]
                : paddingRows(model.lengths, fill()) === 0
                    ? [`No padding yet, so ${word} is where it belongs. Move the slider.`]
                    : [
                        "Only padding was added, yet batch norm moved ", html("b", {}, word), " by ", moved,
                        ", the largest change of its three numbers. Layer norm, and batch norm over the words only, ",
                        "do not move it.",
                    ]
        ));
        const { textContent } = element;
        if (before !== "" && before !== textContent) announceAtRest(textContent);
    };
    return { element, draw };
}

/**
 * Which word is watched, and how far it moved: both stay in sight with the slider.
 * @type {(state: State, fill: () => number) => { element: HTMLElement; draw(model: SentencesModel): void }}
 */
function watchedChoice(state, fill) {
    const id = uniqueId();
    /** @type {HTMLSelectElement} */
    const select = html("select", { id, onchange: () => state.set({ "padding.watched": Number(select.value) }) });
    const moved = html("b", { class: "number" });
    const element = html("div", { class: "watch" }, html("label", { for: id }, "Watched word"), select,
        html("span", {}, "moved by ", moved));
    let shown = "";
    /** @type {(model: SentencesModel) => void} */
    const draw = (model) => {
        const { words, watched } = model;
        const now = JSON.stringify(words.map(({ word, sentence }) => [word, sentence]));
        if (now !== shown) {
            select.replaceChildren(...ORDINALS.map((ordinal, sentence) => html(
                "optgroup", { label: `In the ${ordinal} sentence` },
                words.map((one, place) =>
                    (one.sentence === sentence ? html("option", { value: place }, one.word) : null)),
            )));
        }
        shown = now;
        select.value = String(watched);
        moved.textContent = movedInWords(normalizeWatched(model, METHODS.all, fill()));
    };
    return { element, draw };
}

/**
 * Both sentences, equally long: a picture of what padding is for.
 * @type {(fill: () => number) => { element: HTMLElement; draw(model: SentencesModel): void }}
 */
function rectangle(fill) {
    const [body, caption] = [html("tbody"), html("caption")];
    const longer = html("p", { class: "note" }, "A batch is filled up to its longest sentence, which may be neither ",
        "of these two: here the slider plays a longer one, so both get padding.");
    const table = html("table", { class: "numbers tokens" }, caption, body);
    const element = html("div", {}, scrollBox("The sentences, filled up", table), longer);
    /** @type {(model: SentencesModel) => void} */
    const draw = ({ words, lengths, watched }) => {
        const most = Math.max(...lengths);
        const equal = Math.min(...lengths) === most;
        caption.textContent = fill() > 0 && !equal ? "Filled up, they make a rectangle"
            : fill() > 1 ? "Filled up, as for a longer sentence"
                : equal ? "Equally long: no padding is needed" : "No padding yet: move the slider";
        longer.hidden = fill() <= 1;
        body.replaceChildren(...paddingOfEach(lengths, fill()).map((padding, sentence) => {
            const own = words.filter((one) => one.sentence === sentence);
            const missing = Math.min(most - own.length, padding); // up to the longest; behind that, both have the same
            return html(
                "tr", {}, html("th", { scope: "row" }, sentence + 1),
                own.map((one) => {
                    const isWatched = one === words[watched];
                    return html("td", { class: isWatched && "watched" }, isWatched ? marked(one.word) : one.word);
                }),
                Array.from({ length: missing }, () => html("td", { class: "pad" }, "<pad>")),
                shownPads(padding - missing).map((text) => html("td", { class: "pad" }, text)),
            );
        }));
    };
    return { element, draw };
}

/**
 * The texts of a sentiment task, two of which make a mini-batch.
 * @type {(state: State) => HTMLElement}
 */
function reviewTable(state) {
    /** @type {(from: number) => void} */
    const use = (from) => {
        const [first, second] = REVIEWS.slice(from).map(([review]) => respell([], review.split(" ")));
        changeSentences(state, {
            "padding.first": first, "padding.second": second, "padding.watched": first.length,
        });
    };
    return scrollBox("Four reviews", html(
        "table", { class: "numbers reviews" }, html("caption", {}, "Four reviews, two in a mini-batch"),
        html("thead", {}, html("tr", {}, ["review", "sentiment"].map((name) => html("th", { scope: "col" }, name)))),
        html("tbody", {}, REVIEWS.map(([review, sentiment], i) => html(
            "tr", {}, html("th", { scope: "row" }, review), html("td", {}, sentiment),
            i % 2 ? null : html("td", { rowspan: 2 }, html("button", {
                type: "button", "aria-label": `Use reviews ${i + 1} and ${i + 2}`, onclick: () => use(i),
            }, "Use")),
        ))),
    ));
}

/**
 * Given rows stay as they are when an embedding changes: said where it is typed, with the way to other rows.
 * @type {(rows: HTMLElement) => { element: HTMLElement; draw(model: SentencesModel): void }}
 */
function keptRows(rows) {
    /** @type {() => HTMLInputElement} */
    const computed = () => rows.querySelector("[value=computed]");
    const element = html(
        "p", { class: "notice", role: "status" }, "The stack below keeps its given rows: they do not follow from the ",
        "embeddings. ", html("button", {
            type: "button", onclick: () => {
                computed().click();
                computed().focus();
            },
        }, "Compute them by self-attention"),
    );
    /** @type {(model: SentencesModel) => void} */
    const draw = (model) => {
        element.hidden = model.computed || !hasOtherEmbeddings(model);
    };
    return { element, draw };
}

/**
 * Where the rows come from and, where they are computed, what the watched word is made of.
 * @type {() => { element: HTMLElement; draw(model: SentencesModel): void }}
 */
function attentionWords() {
    const element = html("p", { class: "attention" });
    /** @type {(model: SentencesModel) => void} */
    const draw = ({ words, computed, watched }) => {
        const { word, weights } = words[watched];
        const parts = weights.filter(({ weight }) => weight !== undefined);
        const terms = parts.map(({ word: other, weight }) => `${formatNumber(weight, 2)} · ${shortened(other)}`);
        const mixture = `${shortened(word)} = ${terms.join(" + ")}`;
        element.replaceChildren(...(computed ? [
            "Self-attention makes each word a mixture of all words of its sentence. The more alike two embeddings are ",
            "(multiplied number by number and added up), the larger their share; ", html("em", {}, "softmax"),
            " makes these shares positive, with sum 1. Padding gets none. In short: ",
            html("code", {}, "softmax(E Eᵀ / √3) E"), ", where E is the embeddings of a sentence.",
            ...(terms.length ? [html("br"), html("code", { class: "mixture" }, mixture)] : []),
        ] : [
            "These rows are example numbers, made up for a lecture as if a larger network had computed them: they do ",
            "not follow from the embeddings above. Type others if you like. “Computed” mixes the embeddings by ",
            "self-attention instead; the point is the same, so it may be skipped.",
        ]));
    };
    return { element, draw };
}
