/*
The part "sentences": why padding breaks batch norm, with two sentences and a slider. padding.js has what is computed,
sentencecells.js what is typed; here it is drawn, from top to bottom:

    the slider and the watched word, in sight all the time, and in one line what they come to
    1  the sentences, the rectangle that they are filled up to, and their embeddings
    2  self-attention, and the stack of rows        3  the mean of each column, with and without zeros
    4, 5, 6  three normalizations beside each other, and how far each moves the watched word
    the curve of that against the padding

Each block is a function that returns { element, draw }: draw(model) shows what the state comes to. Inputs are kept
while a person types in them; they are built anew only when there are other words or rows than before.
*/
import { lineChart } from "./chart.js";
import { codesFor } from "./code.js";
import { chooser, slider, uniqueId } from "./controls.js";
import { announce, announceAtRest, copyButtons, dotStrip, formatNumber, html, scrollBox } from "./drawing.js";
import { measure, varianceOf } from "./maths.js";
import {
    METHODS, MOST_FILL, SENTENCES_START, SENTENCE_FIELDS, columnSums, defineSentences, driftCurve, fillOf,
    normalizeWatched, paddingOfEach, paddingRows, readSentences, stackRows,
} from "./padding.js";
import {
    ORDINALS, marked, numberCell, quoted, sentenceEditor, shortened, showProblem, showWordRow, unreadable,
} from "./sentencecells.js";

const PADS_IN_FULL = 3; // of more padding rows, the first two are shown and the rest is one row that says how many

export function mountSentences(root, state) {
    defineSentences(state);
    const read = () => readSentences(state);
    const fill = () => state.get("sentences.fill");
    const blocks = [
        headline(fill), watchedChoice(state, fill), rectangle(fill),
        ...ORDINALS.map((_, i) => sentenceEditor(state, i)),
        attentionWords(), stackTable(state, fill), columnMeans(fill),
        ...Object.keys(METHODS).map((name) => methodCard(name, read, fill)), driftChart(state, read, fill),
    ];
    const [said, watched, filled, first, second, attention, stack, means, counted, layer, valid, chart] = blocks;
    const padding = slider(state, "sentences.fill", "Padding", {
        least: 0, most: MOST_FILL, showing: Object.keys(SENTENCE_FIELDS),
        show: (value) => rowsInWords(paddingRows(read().lengths, value)),
    });
    root.classList.add("sentences");
    root.append(
        html("h2", {}, "Padded sentences"),
        html(
            "p", {}, "A network reads many sentences at once, as one rectangle of numbers. So shorter sentences are ",
            "filled up with rows of zeros, the ", html("em", {}, "padding"), ". Batch norm takes them for words. ",
            html("strong", {}, "Move the slider and watch one word."),
        ),
        html("div", { class: "bar" }, padding, watched.element),
        said.element,

        html("h3", {}, "1. Sentences of different lengths are filled up with zeros"),
        html(
            "p", {}, "Every word has become a row of three numbers, its ", html("em", {}, "embedding"), ". A row of ",
            html("code", { class: "pad" }, "<pad>"), " is no word: it is three zeros that take up room. Type other ",
            "words, or other numbers.",
        ),
        html("div", { class: "columns" }, first.text, second.text),
        filled.element,
        html("div", { class: "columns" }, first.element, second.element),

        html("h3", {}, "2. All rows go on one stack"),
        chooser(state, "sentences.rows", "Rows of the stack", {
            given: "given: example numbers", computed: "computed by self-attention from the embeddings",
        }),
        attention.element,
        html(
            "p", {}, "Below the stack, for each column: the mean, and the ", html("em", {}, "deviation"), ", its ",
            "spread, which is the usual distance of its numbers from the mean (standard deviation).",
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

        html("div", { class: "cards" }, counted.element, layer.element, valid.element),
        html("h3", {}, "Every amount of padding at once"),
        chart.element,
        html(
            "p", {}, html("strong", {}, "In one sentence: "), "padding adds nothing to the sum of a column but is ",
            "counted all the same, so mean and deviation, and with them every word, depend on how long the other ",
            "sentences happen to be.",
        ),
        html(
            "p", {}, html("strong", {}, "So what? "), "A network then may answer differently for the same words, ",
            "depending on their neighbours. The lab tried it: networks with batch norm learned the gender of names ",
            "padded to 44 characters. Then the same names were padded to 11, and mean and deviation taken again. With ",
            "padding counted, 83.6% of new names were right before and 80.9% after (means of five runs); with only ",
            "the real characters counted, 84.4% both times.",
        ),
        html("p", { class: "note" }, "All three divide by the root of variance + 0.00001, as usual, and then stop: ",
            "weight is 1 and bias is 0."),
        html("button", {
            type: "button", onclick: () => { state.set(SENTENCES_START); announce("The example is back."); },
        }, "Start again with the example"),
    );
    state.watch(Object.keys(SENTENCES_START), () => {
        const model = read();
        for (const { draw } of blocks) draw(model);
    });
}

function rowsInWords(count) {
    return count === 0 ? "none" : count === 1 ? "1 row" : `${count} rows`;
}

/** What the slider comes to, in a line or two. */
function headline(fill) {
    const element = html("p", { class: "said" });
    const draw = (model) => {
        const before = element.textContent;
        const word = quoted(model.words[model.watched].word);
        const result = normalizeWatched(model, METHODS.counted, fill());
        const moved = html("b", { class: "number" }, formatNumber(result.moved));
        element.replaceChildren(...(
            Number.isNaN(result.moved) ? [`The row of ${word} ${whyUnknown(result)}: see below.`]
                : paddingRows(model.lengths, fill()) === 0
                    ? [`No padding yet, so every mean is true and ${word} is where it belongs. Move the slider.`]
                    : [
                        "Nothing real changed, yet batch norm moved ", html("b", {}, word), " by ", moved,
                        ", the largest change of its three numbers. Layer norm, and batch norm over the real rows, ",
                        "hold still.",
                    ]
        ));
        const { textContent } = element;
        if (before !== "" && before !== textContent) announceAtRest(textContent);
    };
    return { element, draw };
}

function movedInWords({ moved }) {
    return Number.isNaN(moved) ? "–" : formatNumber(moved);
}

/** Why there is no saying how far a row moved. */
function whyUnknown({ valid }) {
    return valid.some(Boolean) ? "meets numbers too large to compute with" : "cannot be read yet";
}

/** Which word is watched, and how far it moved: both stay in sight with the slider. */
function watchedChoice(state, fill) {
    const id = uniqueId();
    const select = html("select", { id, onchange: () => state.set({ "sentences.watched": Number(select.value) }) });
    const moved = html("b", { class: "number" });
    const element = html("div", { class: "watch" }, html("label", { for: id }, "Watched word"), select,
        html("span", {}, "moved by ", moved));
    let shown = "";
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
        select.value = watched;
        moved.textContent = movedInWords(normalizeWatched(model, METHODS.counted, fill()));
    };
    return { element, draw };
}

/** Both sentences, equally long: a picture of what padding is for. */
function rectangle(fill) {
    const [body, caption] = [html("tbody"), html("caption")];
    const longer = html("p", { class: "note" }, "A batch is filled up to its longest sentence, which may be neither ",
        "of these two: here the slider plays a longer one, so both get padding.");
    const table = html("table", { class: "numbers tokens" }, caption, body);
    const element = html("div", {}, scrollBox("The sentences, filled up", table), longer);
    const draw = ({ words, lengths, watched }) => {
        const most = Math.max(...lengths);
        const equal = Math.min(...lengths) === most;
        caption.textContent = fill() > 0 && !equal ? "Filled up, they make a rectangle"
            : fill() > 1 ? "Filled up, as for a longer sentence"
                : equal ? "Equally long: no padding is needed" : "No padding yet: move the slider";
        longer.hidden = fill() <= 1;
        body.replaceChildren(...paddingOfEach(lengths, fill()).map((padding, sentence) => {
            const own = words.map((one, place) => [one, place]).filter(([one]) => one.sentence === sentence);
            const missing = Math.min(most - own.length, padding); // up to the longest; behind that, both have the same
            return html(
                "tr", {}, html("th", { scope: "row" }, sentence + 1),
                own.map(([{ word }, place]) => html(
                    "td", { class: place === watched ? "watched" : false }, place === watched ? marked(word) : word,
                )),
                Array.from({ length: missing }, () => html("td", { class: "pad" }, "<pad>")),
                shownPads(padding - missing).map((text) => html("td", { class: "pad" }, text)),
            );
        }));
    };
    return { element, draw };
}

/** So many padding rows: each alone while they are few. */
function shownPads(count) {
    if (count <= PADS_IN_FULL) return new Array(count).fill("<pad>");
    return ["<pad>", "<pad>", `<pad> × ${count - 2}`];
}

/** Where the rows come from and, where they are computed, what the watched word is made of. */
function attentionWords() {
    const element = html("p", { class: "attention" });
    const draw = ({ words, computed, watched }) => {
        const { word, weights } = words[watched];
        const parts = weights.filter(({ weight }) => weight !== undefined);
        const terms = parts.map(({ word: other, weight }) => `${formatNumber(weight, 2)} · ${shortened(other)}`);
        const mixture = `${shortened(word)} = ${terms.join(" + ")}`;
        element.replaceChildren(...(computed ? [
            "Self-attention makes each word a mixture of all words of its sentence. The more alike two embeddings are ",
            "(multiplied number by number and added up), the larger their weight; ", html("em", {}, "softmax"),
            " makes these weights positive, with sum 1. Padding gets none. In short: ",
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

/** All rows, one above the other, as batch norm sees them; below, what it makes of the columns. */
function stackTable(state, fill) {
    const id = uniqueId();
    const bodies = ORDINALS.map(() => html("tbody"));
    const foot = html("tfoot");
    const problem = html("p", { class: "problem", id, hidden: true });
    const share = html("div", { class: "share", role: "img" }, html("span"), html("span", { class: "pad" }));
    const counts = html("p", { class: "note" });
    const head = html("thead", {}, html(
        "tr", {}, html("td", {}, "word"), [1, 2, 3].map((column) => html("th", { scope: "col" }, column)),
    ));
    const table = html("table", { class: "numbers stack" }, html("caption", {}, "The stack"), head, bodies, foot);
    const element = html("div", { class: "rows" }, scrollBox("The stack of rows", table), problem, share, counts);
    let built = "";

    function build({ words, lengths, computed }) {
        const now = JSON.stringify([computed, lengths, fill()]);
        if (now === built) return;
        built = now;
        paddingOfEach(lengths, fill()).forEach((padding, sentence) => bodies[sentence].replaceChildren(
            ...words.filter((one) => one.sentence === sentence).map((one) => html(
                "tr", { class: "word" }, html("th", { scope: "row" }),
                one.given.map((_, column) => html("td", {}, computed ? null : numberCell(state, one, 4 + column))),
            )),
            ...shownPads(padding).map((text) => html(
                "tr", { class: "pad" }, html("th", { scope: "row" }, text),
                [0, 0, 0].map((zero) => html("td", { class: "pad" }, zero)),
            )),
        ));
    }

    function draw(model) {
        const { words, lengths, computed, watched } = model;
        build(model);
        const rows = bodies.flatMap((body) => [...body.querySelectorAll(".word")]);
        rows.forEach((row, i) => showWordRow(row, words[i], words[i].given, "row", i === watched, id));
        showProblem(problem, computed ? "" : unreadable("No number, so left out: ", words, ({ given }) => given));
        foot.replaceChildren(
            ...statisticRows(model, METHODS.counted, fill(), "all rows", "pad"),
            ...statisticRows(model, METHODS.valid, fill(), "real rows", "real"),
        );
        const padding = paddingRows(lengths, fill());
        const percent = Math.round((100 * padding) / (padding + words.length));
        const said = padding === 0 ? `${words.length} real rows and no padding, so “all rows” are the real rows.`
            : `${words.length} real rows and ${padding} of padding: ${percent} % of the stack is not real.`;
        share.setAttribute("aria-label", said);
        share.firstChild.style.setProperty("flex-grow", words.length);
        share.lastChild.style.setProperty("flex-grow", padding);
        counts.textContent = said;
    }
    return { element, draw };
}

/** Mean and deviation of each column, with padding or without. */
function statisticRows(model, method, fill, of, kind) {
    const { x, valid } = stackRows(model, method, fill);
    const moments = measure(x, method.norm, { valid });
    const rows = { mean: moments.mean, deviation: varianceOf(moments, 0).map(Math.sqrt) };
    return Object.entries(rows).map(([name, values]) => html(
        "tr", { class: `statistic ${kind}`, "data-values": JSON.stringify(values) },
        html("th", { scope: "row" }, `${name}, ${of}`), values.map((value) => html("td", {}, formatNumber(value))),
    ));
}

/** For each column: the same sum, divided by how many rows there are, and by how many are real. */
function columnMeans(fill) {
    const body = html("tbody");
    const head = html("thead", {}, html(
        "tr", {}, html("td", {}, html("span", {}, "column")), html("th", { scope: "col" }, "real rows"),
        html("th", { scope: "col" }, "zeros counted"),
    ));
    const how = html("p");
    const element = html("div", {}, how, scrollBox("The mean of each column", html(
        "table", { class: "numbers means" },
        html("caption", { class: "unseen" }, "The mean of each column"), head, body,
    )));
    const row = ({ values, padding, sum }, column) => {
        const domain = [Math.min(0, ...values), Math.max(0, ...values)];
        const strip = (label, all) => {
            const mean = all.length ? sum / all.length : 0;
            const std = Math.sqrt(all.reduce((total, value) => total + (value - mean) ** 2, 0) / (all.length || 1));
            const said = `${formatNumber(sum)} / ${all.length} = `;
            const drawable = Number.isFinite(domain[1] - domain[0]) && Number.isFinite(mean);
            const picture = drawable ? dotStrip({ label, values: all, mean, std, domain }) : null;
            return html("td", {}, picture, said, html("b", {}, formatNumber(mean)));
        };
        return html(
            "tr", {}, html("th", { scope: "row" }, column + 1), strip(`Column ${column + 1}, real rows`, values),
            strip(`Column ${column + 1}, zeros counted`, [...values, ...new Array(padding).fill(0)]),
        );
    };
    const draw = (model) => {
        how.textContent = paddingRows(model.lengths, fill()) === 0
            ? "No padding yet, so both means are the same. Move the slider."
            : "Zeros add nothing to the sum of a column. But they are counted when it is divided:";
        body.replaceChildren(...columnSums(model, fill()).map(row));
    };
    return { element, draw };
}

const CARD_WORDS = {
    counted: {
        heading: "4. So the mean shrinks, and every word moves",
        unpadded: "4. Without padding, nothing moves",
        how: "Each number less the mean of its column, divided by the deviation of its column. Both are of all rows, "
            + "padding included.",
        still: "No padding yet: move the slider.",
    },
    layer: {
        heading: "5. Layer norm goes along the row",
        how: "Mean and deviation of each row, over its own three numbers. A row of padding has its own, too, and no "
            + "other row ever sees it.",
        still: "It holds still: no other row comes in.",
    },
    valid: {
        heading: "6. Or count only the real rows",
        how: "Mean and deviation of each column, but over words alone. All it takes is to say how long each sentence "
            + "is.",
        still: "It holds still: zeros are not counted.",
    },
};

/** One method: its statistics, the watched row without and with padding, and how far it moved. */
function methodCard(name, read, fill) {
    const method = METHODS[name];
    const { heading, unpadded = heading, how, still } = CARD_WORDS[name];
    const body = html("tbody");
    const moved = html("p", { class: "moved" });
    const id = uniqueId();
    const table = html("table", { class: "numbers" }, html("caption", { class: "unseen" }, method.title), body);
    const title = html("h3", { id });
    const element = html(
        "section", { class: "card", "data-method": name, "aria-labelledby": id },
        html("p", { class: "note" }, method.title), title, html("p", {}, how), moved,
        scrollBox(heading, table),
        copyButtons(codesFor(() => ({ ...stackRows(read(), method, fill()), norm: method.norm }))),
    );
    const draw = (model) => {
        const { word } = model.words[model.watched];
        const watched = normalizeWatched(model, method, fill());
        title.textContent = paddingRows(model.lengths, fill()) === 0 ? unpadded : heading;
        const perRow = method.norm.name === "layer";
        const cells = (values, show = formatNumber) =>
            values.map((value, j) => html("td", {}, watched.valid[j] ? show(value) : "–"));
        const statistics = (values) =>
            (perRow ? html("td", { colspan: 3 }, formatNumber(values[0])) : cells(values));
        const line = (label, content, kind = false) =>
            html("tr", { class: kind }, html("th", { scope: "row" }, label), content);
        body.replaceChildren(
            line("mean", statistics(watched.mean)),
            line("deviation", statistics(watched.deviation)),
            line("no padding", cells(watched.alone)),
            line("now", cells(watched.y), "watched"),
            line("moved", cells(watched.difference, signedNumber)),
        );
        const shown = movedInWords(watched);
        moved.replaceChildren(
            html("b", { class: "number" }, shown),
            html("span", {}, shown === "–" ? `The row of ${quoted(word)} ${whyUnknown(watched)}.`
                : watched.moved === 0 ? still
                    : `is how far ${quoted(word)} moved: the largest change of its three numbers.`),
        );
        element.classList.toggle("drifts", watched.moved > 0);
        Object.assign(element.dataset, { // in full, for whoever wants to compare
            moved: watched.moved, y: JSON.stringify(watched.y), alone: JSON.stringify(watched.alone),
            mean: JSON.stringify(watched.mean), deviation: JSON.stringify(watched.deviation),
        });
    };
    return { element, draw };
}

function signedNumber(value) {
    return value > 0 ? `+${formatNumber(value)}` : formatNumber(value);
}

/** How far the watched word moves, against the padding. */
function driftChart(state, read, fill) {
    const chart = lineChart({
        title: "How far the watched word moves", xLabel: "rows of padding", yLabel: "moved by", height: 240,
        onscrub: (padding) => state.set({ "sentences.fill": fillOf(read().lengths, padding) }),
    });
    const note = html("p", { class: "note" }, "Two of the three lines lie on 0, one upon the other.");
    let drawn = "";
    let series = [];
    const draw = (model) => {
        const now = JSON.stringify([model.words.map(({ row }) => row), model.lengths, model.watched]);
        if (now !== drawn) { // the curve does not depend on the slider
            series = Object.values(METHODS).map((method) =>
                ({ name: method.title, hue: method.hue, points: driftCurve(model, method) }));
        }
        drawn = now;
        chart.update({ series, at: paddingRows(model.lengths, fill()) });
    };
    return { element: html("div", { class: "drift" }, chart.element, note), draw };
}
