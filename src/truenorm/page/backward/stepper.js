/*
The steps of the backward pass: the buttons, the graph, the formulas and the values of the chosen step.
*/
import { cellChooser, columnNamesTo, ordinalsTo, placesWhere, stepCellClass } from "#backward/cells.js";
import { LOSSES } from "#backward/differences.js";
import { computationGraph, edgeSample } from "#backward/graph.js";
import { chosenInWords, chosenStatistic, reasonInWords } from "#backward/reasons.js";
import { ALL_STEPS, STEP_KEYS, inNumbers, numbersInGraph } from "#backward/steps.js";
import { setInactive } from "#lib/controls.js";
import { html } from "#lib/elements.js";
import { formulaLine, formulaPieces } from "#lib/formula.js";
import { formatNumber } from "#lib/numbers.js";
import { inSymbols } from "#lib/symbols.js";
import { valueTable } from "#lib/tables.js";
import { NORMS } from "#maths/normalization.js";

/**
 * The buttons, the words, the graph, the formulas and the values of the step.
 * @type {(state: State) => View<BackwardModel>}
 */
export function backwardSteps(state) {
    const progress = html("p", { class: "backward-progress", role: "status" });
    const why = html("p", { class: "backward-why" });
    const graph = computationGraph((box) => {
        const key = box === "loss" ? "dy" : `d${box}`;
        if (model.steps.some((step) => step.key === key)) state.set({ "backward.step": key });
    });
    const caption = html("figcaption");
    const formulas = html("div");
    const values = valueTable({ onchoose: (i, j) => chooseValue(i, j) });
    /** @type {BackwardModel | null} */
    let model = null;

    /** @type {(move: (steps: BackwardStep[], at: number) => string) => void} */
    const go = (move) => state.set({ "backward.step": move(model.steps, positionOf(model, state)) });
    /** @type {Record<string, (steps: BackwardStep[], at: number) => string>} */
    const moves = {
        First: (steps) => steps[0].key,
        Back: (steps, at) => steps[Math.max(at - 1, 0)].key,
        Next: (steps, at) => steps[Math.min(at + 1, steps.length - 1)].key,
        All: () => ALL_STEPS,
    };
    const buttons = Object.entries(moves).map(([name, move]) =>
        html("button", { type: "button", onclick: () => go(move) }, name));
    /** @type {Record<string, string>} */
    const keys = {
        ArrowLeft: "Back", ArrowUp: "Back", ArrowRight: "Next", ArrowDown: "Next", Home: "First", End: "All",
    };
    const stepper = html("div", {
        class: "backward-buttons", role: "group", "aria-label": "Steps",
        onkeydown: (event) => {
            if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
            event.preventDefault();
            go(moves[keys[event.key]]);
        },
    }, buttons, html("span", { class: "note" }, "or ← → on a button"));
    /** @type {[EdgeState, string][]} */
    const legend = [["lit", "this step"], ["done", "done"], ["todo", "not yet; the arrow shows how y is computed"]];
    const element = html(
        "div", { class: "backward-steps" },
        html("h3", {}, "Step by step"),
        html("div", { class: "backward-head" }, stepper, progress),
        why,
        html(
            "div", { class: "columns" },
            html("div", { class: "backward-details" }, formulas, values.element),
            html(
                "figure", { class: "backward-figure" }, graph.element, caption,
                html("ul", { class: "backward-legend" },
                    legend.map(([kind, words]) => html("li", {}, edgeSample(kind), words))),
            ),
        ),
    );

    /**
     * A click on a value of many chooses a cell that it belongs to.
     * @type {(i: number, j: number) => void}
     */
    function chooseValue(i, j) {
        const step = shownStep(model, state);
        /** @type {Point | null} */
        const goal = step.of === "cells" ? [i, j] : step.of === "columns" ? [model.row, j] : null;
        const { valid, partition } = model.out;
        const found = goal ?? placesWhere(valid, (r, c) =>
            valid[r][c] && partition.index[r][c] === statisticAt(model, i, j))[0];
        if (found) cellChooser(state)(...found);
    }

    /** @type {(news: BackwardModel) => void} */
    function update(news) {
        model = news;
        const all = state.get("backward.step") === ALL_STEPS;
        const { steps } = model;
        const position = positionOf(model, state);
        const step = shownStep(model, state);
        const [first, last] = [position === 0, position >= steps.length - 1];
        /** @type {Record<string, boolean>} */
        const inactive = { First: first, Back: first, Next: last, All: all };
        buttons.forEach((button) => setInactive(button, inactive[button.textContent]));
        /** @type {(string | HTMLElement)[]} */
        const words = all ? [`All ${steps.length} steps`]
            : [`Step ${position + 1} of ${steps.length}: `, html("strong", {}, stepName(step)), `, ${step.title}`];
        const said = words.map((word) => (typeof word === "string" ? word : word.textContent)).join("");
        if (progress.textContent !== said) progress.replaceChildren(...words);
        why.textContent = all ? "The whole backward pass, with the numbers of the chosen cell." : step.why;
        const lit = all ? [] : step.edges;
        const way = all ? "The backward pass is complete." : `Back along ${step.paths.map(wayInWords).join(", and ")}.`;
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

/**
 * Which step it is: for a step that this normalization has not, the last one before it; all of them is beyond.
 * @type {(model: BackwardModel, state: State) => number}
 */
function positionOf(model, state) {
    const key = state.get("backward.step");
    if (key === ALL_STEPS) return model.steps.length;
    const order = STEP_KEYS.indexOf(key);
    return model.steps.findLastIndex((step) => STEP_KEYS.indexOf(step.key) <= order);
}

/** @type {(model: BackwardModel, state: State) => BackwardStep} */
function shownStep(model, state) {
    return model.steps[Math.min(positionOf(model, state), model.steps.length - 1)];
}

/** @type {(model: BackwardModel, step: BackwardStep) => Element[]} */
function detailsOf(model, step) {
    const sums = step.symbols.includes("Σ");
    /** @type {Record<string, string>} */
    const reach = { columns: `column ${model.column + 1}`, statistics: chosenStatistic(model) };
    const where = step.of === "cells" ? chosenInWords(model) : reach[step.of];
    const symbols = step.name === "dy" ? LOSSES[model.loss.kind].formula : step.symbols;
    const isValid = model.out.valid[model.row][model.column];
    return [
        formulaLine(symbols),
        sums ? html("p", { class: "note" }, step.of === "columns" ? "Σ adds up the cells of a column."
            : `Σ adds up the cells that share one ${model.problem.norm.center ? "mean" : "spread"}.`) : null,
        html("p", { class: "backward-where" }, `With the numbers of ${where}:`),
        isValid || step.of !== "cells" ? formulaInNumbers(step, model)
            : html("p", { class: "notice" }, "This cell of x holds no number. It is left out, and so is its gradient."),
        ...reasonsFor(model, step.key),
    ].filter((one) => one !== null);
}

/** @type {(step: BackwardStep, model: BackwardModel) => HTMLElement} */
function formulaInNumbers(step, model) {
    return formulaPieces(inNumbers(step, model));
}

/** @type {(model: BackwardModel, go: (move: (steps: BackwardStep[], at: number) => string) => void) => Element[]} */
function overviewOf(model, go) {
    /** @type {(step: BackwardStep, place: number) => HTMLElement} */
    const button = (step, place) => html("button", {
        type: "button", "aria-label": `Step ${place + 1}: ${stepName(step)}`, onclick: () => go(() => step.key),
    }, place + 1);
    return [
        html("p", { class: "backward-where" }, `With the numbers of ${chosenInWords(model)}:`),
        html("ol", { class: "backward-list" }, model.steps.map((step, place) =>
            html("li", {}, button(step, place), formulaInNumbers(step, model)))),
        ...reasonsFor(model, "dx"),
    ];
}

/**
 * The values of a step as a table, in the shape that they have: one for each cell, column or statistic.
 * @type {(model: BackwardModel, step: BackwardStep) => TableUpdate}
 */
function valuesOf(model, step) {
    const { rows, columns, norm } = model.problem;
    const { index } = model.out.partition;
    /** @type {(value: number) => string} */
    const text = (value) => // of this path, x − μ adds up to 0
        (value && step.key === "dmean-var" && Math.abs(value) < 1e-12 ? "≈ 0" : formatNumber(value));
    if (step.of === "cells") {
        return {
            caption: `${stepName(step)}, one for each cell`,
            rowNames: ordinalsTo(rows), columnNames: columnNamesTo(columns),
            texts: step.values.map((cells, i) => cells.map((value, j) => (model.out.valid[i][j] ? text(value) : "–"))),
            classes: (i, j) => stepCellClass(model, i, j), chosen: (i, j) => i === model.row && j === model.column,
        };
    }
    const each = step.of === "columns" ? "column" : NORMS[norm.name].each;
    const shape = step.of === "columns" ? { rowNames: [stepName(step)], columnNames: columnNamesTo(columns) }
        : statisticNames(model, stepName(step));
    const width = shape.columnNames.length;
    const own = step.of === "columns" ? model.column : index[model.row][model.column];
    return {
        ...shape, caption: `${stepName(step)}, one for each ${each}`,
        texts: shape.rowNames.map((_, i) => shape.columnNames.map((_, j) => text(step.values[i * width + j]))),
        classes: () => "", chosen: (i, j) => i * width + j === own,
    };
}

/** @type {(model: BackwardModel, name: string) => { rowNames: string[]; columnNames: string[] }} */
function statisticNames(model, name) {
    const { rows, columns, norm, offsets } = model.problem;
    const samples = ordinalsTo(offsets.length - 1).map((one) => `sample ${one}`);
    return {
        batch: { rowNames: [name], columnNames: columnNamesTo(columns) },
        layer: { rowNames: ordinalsTo(rows), columnNames: [name] },
        rms: { rowNames: ordinalsTo(rows), columnNames: [name] },
        instance: { rowNames: samples, columnNames: columnNamesTo(columns) },
        group: { rowNames: samples, columnNames: ordinalsTo(norm.groups).map((one) => `group ${one}`) },
    }[norm.name];
}

/** @type {(model: BackwardModel, i: number, j: number) => number} */
function statisticAt(model, i, j) {
    return i * statisticNames(model, "").columnNames.length + j;
}

/**
 * Why gradients of the chosen cell are 0, at the steps where that would puzzle.
 * @type {(model: BackwardModel, key: string) => HTMLElement[]}
 */
function reasonsFor(model, key) {
    const { text, at } = reasonInWords(model);
    return text && at.includes(key) ? [html("p", { class: "notice" }, text)] : [];
}

/** @type {(path: string[]) => string} */
function wayInWords(path) {
    /** @type {Record<string, string>} */
    const words = { deviation: "x − μ", times: "γ · x̂" };
    return path.map((box) => words[box] ?? inSymbols(box)).join(" → ");
}

/** @type {(step: { name: string }) => string} */
function stepName({ name }) {
    return inSymbols(name);
}
