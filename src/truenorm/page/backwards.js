/*
The part "backwards": from the loss back to dx, one step at a time.

The table and the normalization are those of the part "table" (problem.js). Here a loss is chosen, or dy is typed; one
cell is chosen, whose numbers stand in the formulas; and buttons step through the gradients. steps.js knows the steps,
graph.js draws them, differences.js measures the slopes that they are checked with.
*/
import { codesFor } from "./code.js";
import { chooser, setInactive } from "./controls.js";
import { LOSSES, compareSlopes, jumpsAt, lossSlopes, lossTerms, sumCells } from "./differences.js";
import { copyButtons, formatNumber, html, putText, scrollBox } from "./drawing.js";
import { explain } from "./explanation.js";
import { formula } from "./formula.js";
import { computationGraph, edgeSample } from "./graph.js";
import { NORMS, forward } from "./maths.js";
import { PROBLEM, readNumber, readProblem } from "./problem.js";
import { backwardsConventions, chosenInWords, chosenStatistic, reasonInWords, verdictInWords } from "./reasons.js";
import { choice, textTable } from "./state.js";
import { STEP_KEYS, inNumbers, numbersInGraph, stepsBack } from "./steps.js";
import { bracketedNumber } from "./tableformulas.js";
import { choiceTable, entryTable, valueTable } from "./valuetable.js";

const EXAMPLE_DY = [["1", "0", "0.5"], ["0", "-1", "0"], ["-1", "0", "1"], ["0", "0.5", "0"], ["1", "2", "-1"]];
const ALL_STEPS = "all";

/** A cell as it stands in the address: "2,1" is the second row's first. */
const chosenCodec = {
    encode: String,
    decode: (text) => {
        if (!/^[1-9]\d{0,4},[1-9]\d{0,4}$/.test(text)) throw new RangeError("backwards: a row and a column.");
        return text;
    },
};

export function mountBackwards(root, state) {
    state.field("backwards.loss", choice(...Object.keys(LOSSES)), "given");
    state.field("backwards.dy", textTable, EXAMPLE_DY);
    state.field("backwards.cell", chosenCodec, "1,1");
    state.field("backwards.step", choice(...STEP_KEYS, ALL_STEPS), STEP_KEYS[0]);

    const parts = [backwardsInputs(state), backwardsSteps(state), backwardsCheck()];
    const empty = html(
        "p", { class: "notice" }, "The table is empty, so nothing can flow back. ", tableButton(state, "Fill it"),
    );
    const filled = html(
        "div", {}, parts.map(({ element }) => element), html("h3", {}, "These numbers in Python"),
        copyButtons(codesFor(() => {
            const { problem, dy } = readModel(state);
            return { ...problem, dy };
        })),
    );
    root.append(html(
        "div", { class: "backwards" }, html("h2", {}, "Backwards"),
        html(
            "p", {}, "If one number in a network were a little larger, how much would the loss change? The loss says "
            + "how wrong the network is; the answer is called the number’s gradient, and networks learn from nothing "
            + "else. At the output y it is known: dy. Follow it back, step by step, to the input x: dx.",
        ),
        empty, filled,
    ));

    const drawn = [...PROBLEM, "backwards.loss", "backwards.dy", "backwards.cell"];
    let model = null;
    state.watch(drawn, () => {
        model = readModel(state);
        empty.hidden = model !== null;
        filled.hidden = model === null;
        if (model) parts.forEach(({ update }) => update(model));
    });
    state.watch(["backwards.step"], () => model && parts[1].update(model));
}

/** Everything that is shown, worked out from the state; null for a table without cells. */
function readModel(state) {
    const problem = readProblem(state);
    const { rows, columns, norm, weight, bias, valid, offsets } = problem;
    if (!rows || !columns) return null;
    const [row, column] = state.get("backwards.cell").split(",").map((place, k) =>
        Math.min(place, k ? columns : rows) - 1);
    const texts = shapedDy(state, rows, columns);
    const typed = texts.map((cells) => cells.map(readNumber));
    const loss = {
        kind: state.get("backwards.loss"), row, column,
        given: typed.map((cells) => cells.map((value) => (Number.isNaN(value) ? 0 : value))),
    };
    const out = forward(problem.x, norm, problem);
    const dy = lossSlopes(out, loss);
    const steps = explain(problem.x, norm, { weight, bias, valid, offsets, dy });
    const explained = new Map(steps.map((step) => [step.name, step]));
    const total = sumCells(lossTerms(out, loss));
    const model = { problem, out, loss, total, dy, row, column, explained, texts, typed };
    return { ...model, steps: stepsBack(model) };
}

/** The texts of dy in the shape of x: what a larger table has not is 0, what a smaller one has not is kept. */
function shapedDy(state, rows, columns) {
    const kept = state.get("backwards.dy");
    return Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_, j) => kept[i]?.[j] ?? "0"));
}

function cellChooser(state) {
    return (row, column) => state.set({ "backwards.cell": `${row + 1},${column + 1}` });
}

function tableButton(state, words) {
    return html("button", { type: "button", onclick: () => state.set({ part: "table" }) }, `${words} in “One table”`);
}

/** What there is to begin with: the norm, x, the loss and dy. */
function backwardsInputs(state) {
    const onchoose = cellChooser(state);
    const x = choiceTable({ onchoose });
    const dy = entryTable({ label: "dy", onchoose, onentry: (...entry) => enterDy(state, ...entry) });
    const conventions = html("p", { class: "note" });
    const problem = html("p", { class: "problem", role: "status" });
    const loss = html("p", { class: "backwards-loss" });
    const titles = (table) => Object.fromEntries(Object.entries(table).map(([key, { title }]) => [key, title]));
    const element = html(
        "div", {},
        html("div", { class: "controls" }, chooser(state, "norm", "Norm", titles(NORMS)),
            chooser(state, "backwards.loss", "Loss", titles(LOSSES))),
        html("div", { class: "columns" }, x.element, dy.element),
        problem, loss, conventions, tableButton(state, "Change x, weight, bias or eps"),
    );

    function update(model) {
        const { rows, columns, cells } = model.problem;
        const names = { rowNames: ordinalsTo(rows), columnNames: ordinalsTo(columns) };
        const classes = (i, j) => stepCellClass(model, i, j);
        const chosen = (i, j) => i === model.row && j === model.column;
        const shown = cells.map((row) => row.map(cutText));
        x.update({ ...names, caption: "x: choose a cell", texts: shown, classes, chosen });
        const editable = model.loss.kind === "given";
        const bad = (i, j) => editable && Number.isNaN(model.typed[i][j]);
        dy.update({
            ...names, chosen, classes, bad, editable,
            caption: editable ? "dy: type any numbers" : "dy: follows from the loss",
            texts: editable ? model.texts : model.dy.map((row) => row.map((value) => formatNumber(value))),
        });
        const wrong = placesWhere(model, bad);
        problem.hidden = wrong.length === 0;
        const said = `Not a number in dy: ${listedPlaces(wrong)}. Until that changes, it counts as 0.`;
        putText(problem, wrong.length ? said : "");
        const kind = LOSSES[model.loss.kind];
        loss.replaceChildren(formula(`${kind.formula} = ${formatNumber(model.total)}`));
        conventions.textContent = backwardsConventions(model);
    }
    return { element, update };
}

/** A block of texts, from this cell on; what lies outside of the table is left out. */
function enterDy(state, row, column, block) {
    const cells = state.get("x");
    const texts = shapedDy(state, cells.length, cells[0].length);
    block.forEach((line, i) => line.forEach((text, j) => {
        if (texts[row + i]?.[column + j] !== undefined) texts[row + i][column + j] = text;
    }));
    state.set({ "backwards.dy": texts });
}

/** The buttons, the words, the graph, the formulas and the values of the step. */
function backwardsSteps(state) {
    const progress = html("p", { class: "backwards-progress", role: "status" });
    const why = html("p", { class: "backwards-why" });
    const graph = computationGraph();
    const caption = html("figcaption");
    const formulas = html("div");
    const values = valueTable({ onchoose: (i, j) => chooseValue(i, j) });
    let model = null;

    const go = (move) => state.set({ "backwards.step": move(model.steps, positionOf(model, state)) });
    const moves = {
        First: (steps) => steps[0].key,
        Back: (steps, at) => steps[Math.max(at - 1, 0)].key,
        Next: (steps, at) => steps[Math.min(at + 1, steps.length - 1)].key,
        All: () => ALL_STEPS,
    };
    const buttons = Object.entries(moves).map(([name, move]) =>
        html("button", { type: "button", onclick: () => go(move) }, name));
    const keys = {
        ArrowLeft: "Back", ArrowUp: "Back", ArrowRight: "Next", ArrowDown: "Next", Home: "First", End: "All",
    };
    const stepper = html("div", {
        class: "backwards-buttons", role: "group", "aria-label": "Steps",
        onkeydown: (event) => {
            if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
            event.preventDefault();
            go(moves[keys[event.key]]);
        },
    }, buttons, html("span", { class: "note" }, "or ← → on a button"));
    const legend = [["lit", "this step"], ["done", "done"], ["todo", "not yet; the arrow shows how y is computed"]];
    const element = html(
        "div", { class: "backwards-steps" },
        html("h3", {}, "Step by step"),
        html("div", { class: "backwards-head" }, stepper, progress),
        why,
        html(
            "div", { class: "columns" },
            html(
                "figure", { class: "backwards-figure" }, graph.element, caption,
                html("ul", { class: "backwards-legend" },
                    legend.map(([kind, words]) => html("li", {}, edgeSample(kind), words))),
            ),
            html("div", { class: "backwards-details" }, formulas, values.element),
        ),
    );

    /** A click on a value of many chooses a cell that it belongs to. */
    function chooseValue(i, j) {
        const step = shownStep(model, state);
        const goal = step.of === "cells" ? [i, j] : step.of === "columns" ? [model.row, j] : null;
        const found = goal ?? placesWhere(model, (r, c) => model.out.valid[r][c] && model.out.partition.index[r][c]
            === statisticAt(model, i, j))[0];
        if (found) cellChooser(state)(...found);
    }

    function update(news) {
        model = news;
        const all = state.get("backwards.step") === ALL_STEPS;
        const { steps } = model;
        const position = positionOf(model, state);
        const step = shownStep(model, state);
        const [first, last] = [position === 0, position >= steps.length - 1];
        const inactive = { First: first, Back: first, Next: last, All: all };
        buttons.forEach((button) => setInactive(button, inactive[button.textContent]));
        const words = all ? [`All ${steps.length} steps`]
            : [`Step ${position + 1} of ${steps.length}: `, html("strong", {}, stepName(step)), `, ${step.title}`];
        const said = words.map((word) => word.textContent ?? word).join("");
        if (progress.textContent !== said) progress.replaceChildren(...words);
        why.textContent = all ? "The whole way back, with the numbers of the chosen cell." : step.why;
        const lit = all ? [] : step.edges;
        const way = all ? "The whole way back is done." : `Back along ${step.paths.map(wayInWords).join(", and ")}.`;
        graph.update({
            center: model.problem.norm.center, lit,
            done: steps.slice(0, position).flatMap(({ edges }) => edges).filter((edge) => !lit.includes(edge)),
            target: all ? null : step.paths[0].at(-1),
            numbers: numbersInGraph(model, steps, position),
            label: `How y is computed from x. ${way}`,
        });
        caption.textContent = way;
        formulas.replaceChildren(...(all ? overviewOf(model, go) : detailsOf(model, step)));
        values.update(valuesOf(model, step));
    }
    return { element, update };
}

/** Which step it is: for a step that this normalization has not, the last one before it; all of them is beyond. */
function positionOf(model, state) {
    const key = state.get("backwards.step");
    if (key === ALL_STEPS) return model.steps.length;
    const order = STEP_KEYS.indexOf(key);
    return model.steps.findLastIndex((step) => STEP_KEYS.indexOf(step.key) <= order);
}

function shownStep(model, state) {
    return model.steps[Math.min(positionOf(model, state), model.steps.length - 1)];
}

function detailsOf(model, step) {
    const sums = step.symbols.includes("Σ");
    const reach = { columns: `column ${model.column + 1}`, statistics: chosenStatistic(model) };
    const where = step.of === "cells" ? chosenInWords(model) : reach[step.of];
    const symbols = step.name === "dy" ? LOSSES[model.loss.kind].formula : step.symbols;
    const real = model.out.valid[model.row][model.column];
    return [
        formula(symbols, { display: true }),
        sums ? html("p", { class: "note" }, step.of === "columns" ? "Σ adds up the cells of a column."
            : `Σ adds up the cells that share one ${model.problem.norm.center ? "mean" : "spread"}.`) : null,
        html("p", { class: "backwards-where" }, `With the numbers of ${where}:`),
        real || step.of !== "cells" ? formulaInNumbers(step, model)
            : html("p", { class: "notice" }, "This cell of x holds no number. It is left out, and so is its gradient."),
        ...reasonsFor(model, step.key),
    ].filter((one) => one !== null);
}

function formulaInNumbers(step, model) {
    return formulaPieces(inNumbers(step, model));
}

/** One formula in pieces, that go into the next line where there is no room, and scroll where even that is short. */
function formulaPieces(texts) {
    return html("div", { class: "backwards-numbers" }, texts.map((text) => formula(text, { display: true })));
}

function overviewOf(model, go) {
    const button = (step, place) => html("button", {
        type: "button", "aria-label": `Step ${place + 1}: ${stepName(step)}`, onclick: () => go(() => step.key),
    }, place + 1);
    return [
        html("p", { class: "backwards-where" }, `With the numbers of ${chosenInWords(model)}:`),
        html("ol", { class: "backwards-list" }, model.steps.map((step, place) =>
            html("li", {}, button(step, place), formulaInNumbers(step, model)))),
        ...reasonsFor(model, "dx"),
    ];
}

/** The values of a step as a table, in the shape that they have: one for each cell, column or statistic. */
function valuesOf(model, step) {
    const { rows, columns, norm } = model.problem;
    const { index } = model.out.partition;
    const text = (value) => formatNumber(value);
    if (step.of === "cells") {
        return {
            caption: `${stepName(step)}, one for each cell`,
            rowNames: ordinalsTo(rows), columnNames: ordinalsTo(columns),
            texts: step.values.map((cells, i) => cells.map((value, j) => (model.out.valid[i][j] ? text(value) : "–"))),
            classes: (i, j) => stepCellClass(model, i, j), chosen: (i, j) => i === model.row && j === model.column,
        };
    }
    const each = step.of === "columns" ? "column" : NORMS[norm.name].each;
    const shape = step.of === "columns" ? { rowNames: [stepName(step)], columnNames: ordinalsTo(columns) }
        : statisticNames(model, stepName(step));
    const width = shape.columnNames.length;
    const own = step.of === "columns" ? model.column : index[model.row][model.column];
    return {
        ...shape, caption: `${stepName(step)}, one for each ${each}`,
        texts: shape.rowNames.map((_, i) => shape.columnNames.map((_, j) => text(step.values[i * width + j]))),
        classes: () => "", chosen: (i, j) => i * width + j === own,
    };
}

function statisticNames(model, name) {
    const { rows, columns, norm, offsets } = model.problem;
    const samples = ordinalsTo(offsets.length - 1).map((one) => `sample ${one}`);
    return {
        batch: { rowNames: [name], columnNames: ordinalsTo(columns) },
        layer: { rowNames: ordinalsTo(rows), columnNames: [name] },
        rms: { rowNames: ordinalsTo(rows), columnNames: [name] },
        instance: { rowNames: samples, columnNames: ordinalsTo(columns) },
        group: { rowNames: samples, columnNames: ordinalsTo(norm.groups).map((one) => `group ${one}`) },
    }[norm.name];
}

function statisticAt(model, i, j) {
    return i * statisticNames(model, "").columnNames.length + j;
}

/** A second way to the same number, that knows nothing of the first. */
function backwardsCheck() {
    const result = html("div");
    const element = html(
        "div", { class: "backwards-check" }, html("h3", {}, "Is it true? Measure it"),
        html(
            "p", {}, "A finite difference measures a gradient without any of these formulas: make one x larger by a "
            + "tiny h, then smaller by h, work out the loss both times, and divide the change by 2h. It must come out "
            + "as dx.",
        ),
        result,
    );

    function update(model) {
        const { row, column } = model;
        if (!model.out.valid[row][column]) {
            const words = `There is no number in ${chosenInWords(model)} to move.`;
            result.replaceChildren(html("p", { class: "notice" }, words));
            return;
        }
        const values = (name) => model.explained.get(name)?.values;
        const paths = ["dx (through xhat)", "dx (through var)", "dx (through mean)"].map(values).filter(Boolean);
        const found = compareSlopes({ ...model, dx: values("dx"), paths });
        const { chosen } = found;
        const line = (name, words, value) => html(
            "tr", {}, html("th", { scope: "row" }, `${name}, ${words}`), html("td", { "data-check": name }, value),
        );
        const digits = 10;
        result.replaceChildren(
            formulaPieces([
                '("loss at x + h" - "loss at x − h") / (2 · h)',
                `"" = (${formatNumber(chosen.up, digits)} - ${bracketedNumber(chosen.down, digits)}) `
                + `/ (2 · ${formatNumber(chosen.h, 3)})`,
                `"" ≈ ${formatNumber(chosen.slope)}`,
            ]),
            scrollBox("dx in two ways", html(
                "table", { class: "numbers" }, html("caption", {}, `dx of ${chosenInWords(model)}, in two ways`),
                line("measured", "by moving x", formatNumber(chosen.slope, digits)),
                line("dx", "by the steps above", formatNumber(chosen.dx, digits)),
                jumpsAt(model.out, row, column) ? null
                    : line("difference", "relative to the largest path of dx", formatNumber(chosen.relative, 2)),
            )),
            html("p", { class: "backwards-verdict" }, verdictInWords(model, found)),
        );
    }
    return { element, update };
}

/** Why gradients of the chosen cell are 0, at the steps where that would puzzle. */
function reasonsFor(model, key) {
    const { text, at } = reasonInWords(model);
    return text && at.includes(key) ? [html("p", { class: "notice" }, text)] : [];
}

function stepCellClass({ out, row, column }, i, j) {
    const { index } = out.partition;
    if (!out.valid[i][j]) return "pad";
    return index[i][j] === index[row][column] ? "shared" : "";
}

function wayInWords(path) {
    const words = { xhat: "x̂", deviation: "x − mean", times: "x̂ · weight" };
    return path.map((box) => words[box] ?? box).join(" → ");
}

function stepName({ name }) {
    return name.replace("xhat", "x̂");
}

/** Texts of cells may be long. */
function cutText(text) {
    return text.length > 12 ? `${text.slice(0, 11)}…` : text;
}

function ordinalsTo(count) {
    return Array.from({ length: count }, (_, i) => String(i + 1));
}

function placesWhere(model, holds) {
    return model.problem.cells.flatMap((cells, i) => cells.flatMap((_, j) => (holds(i, j) ? [[i, j]] : [])));
}

function listedPlaces(found) {
    const words = found.slice(0, 3).map(([i, j]) => `row ${i + 1}, column ${j + 1}`);
    return found.length > 3 ? `${words.join("; ")} and ${found.length - 3} more` : words.join("; ");
}
