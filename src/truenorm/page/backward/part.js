/*
The part "backward": from the loss back to dx, one step at a time.

The table and the normalization are those of the part "table" (problem.js). Here a loss is chosen, or dy is typed; one
cell is chosen, whose numbers stand in the formulas; and buttons step through the gradients. steps.js knows the steps,
graph.js draws them, differences.js measures the gradients that they are compared with.
*/
import { cellChooser, columnNamesTo, ordinalsTo, placesWhere, stepCellClass } from "#backward/cells.js";
import { backwardCheck } from "#backward/check.js";
import { LOSSES, lossGradients, lossTerms, sumCells } from "#backward/differences.js";
import { backwardConventions } from "#backward/reasons.js";
import { backwardSteps } from "#backward/stepper.js";
import { ALL_STEPS, STEP_KEYS, stepsBack } from "#backward/steps.js";
import { codesFor } from "#lib/code.js";
import { chooser } from "#lib/controls.js";
import { copyButtons } from "#lib/copy.js";
import { html, putText } from "#lib/elements.js";
import { formula } from "#lib/formula.js";
import { formatNumber, readNumber } from "#lib/numbers.js";
import { PROBLEM, divisorChooser, fitCell, readProblem } from "#lib/problem.js";
import { questions } from "#lib/question.js";
import { choice, textTable } from "#lib/state.js";
import { choiceTable, entryTable } from "#lib/tables.js";
import { shortened } from "#lib/text.js";
import { explain } from "#maths/explanation.js";
import { NORMS, forward } from "#maths/normalization.js";

const EXAMPLE_DY = [["1", "0", "0.5"], ["0", "-1", "0"], ["-1", "0", "1"], ["0", "0.5", "0"], ["1", "2", "-1"]];

/**
 * A cell as it stands in the address: "2,1" is the second row's first.
 * @type {Codec<string>}
 */
const chosenCodec = {
    encode: String,
    decode: (text) => {
        if (!/^[1-9]\d{0,4},[1-9]\d{0,4}$/.test(text)) throw new RangeError("backward: a row and a column.");
        return text;
    },
};

/** @type {(state: State) => void} */
export function defineBackward(state) {
    state.field("backward.loss", choice(...Object.keys(LOSSES)), "given");
    state.field("backward.dy", textTable, EXAMPLE_DY);
    state.field("backward.cell", chosenCodec, "1,1");
    state.field("backward.step", choice(...STEP_KEYS, ALL_STEPS), STEP_KEYS[0]);
    fitCell(state, "backward.cell", () => state.get("backward.cell").split(",").map(Number));
    state.fit("backward.dy", () => {
        const [dy, x] = [sizeOf(state.get("backward.dy")), sizeOf(state.get("x"))];
        const rule = "what is missing is 0, what is too much is not used";
        return dy === x ? "" : `backward.dy is ${dy}, but the table is ${x}: ${rule}.`;
    });
}

/** @type {(table: string[][]) => string} */
function sizeOf(table) {
    return `${table.length} × ${table[0]?.length ?? 0}`;
}

/** @type {(root: HTMLElement, state: State) => void} */
export function mountBackward(root, state) {
    defineBackward(state);
    const parts = [backwardInputs(state), backwardSteps(state), backwardCheck()];
    const empty = html(
        "p", { class: "notice" }, "The table is empty, so there are no gradients. ", tableButton(state, "Fill it"),
    );
    const filled = html(
        "div", {}, parts.map(({ element }) => element), html("h3", {}, "These numbers in Python"),
        copyButtons(codesFor(() => {
            const { problem, dy } = readModel(state);
            return { ...problem, dy };
        })),
    );
    root.append(html(
        "div", { class: "backward" }, html("h2", { class: "unseen" }, "Backward pass"),
        html(
            "p", { class: "backward-intro" },
            "If one number were a little larger, how much would the loss change? That is its gradient, and "
            + "networks learn from nothing else. At the output y it is known: dy. Follow it back to the input x: dx.",
        ),
        empty, filled,
    ));

    filled.append(questions(state, PROBLEM, () => questionsNow(readProblem(state))));

    /** @type {FieldName[]} */
    const drawn = [...PROBLEM, "backward.loss", "backward.dy", "backward.cell"];
    /** @type {BackwardModel | null} */
    let model = null;
    state.watch(drawn, () => {
        model = readModel(state);
        empty.hidden = model !== null;
        filled.hidden = model === null;
        if (model) parts.forEach(({ update }) => update(model));
    });
    state.watch(["backward.step"], () => model && parts[1].update(model));
}

/**
 * Everything that is shown, worked out from the state; null for a table without cells.
 * @type {(state: State) => BackwardModel | null}
 */
export function readModel(state) {
    const problem = readProblem(state);
    const { rows, columns, norm, weight, bias, valid, offsets } = problem;
    if (!rows || !columns) return null;
    const [row, column] = state.get("backward.cell").split(",").map((place, k) =>
        Math.min(Number(place), k ? columns : rows) - 1);
    const texts = shapedDy(state, rows, columns);
    const typed = texts.map((cells) => cells.map(readNumber));
    /** @type {Loss} */
    const loss = {
        kind: state.get("backward.loss"), row, column,
        given: typed.map((cells) => cells.map((value) => (Number.isNaN(value) ? 0 : value))),
    };
    const out = forward(problem.x, norm, problem);
    const dy = lossGradients(out, loss);
    const steps = explain(problem.x, norm, { weight, bias, valid, offsets, dy });
    const explained = new Map(steps.map((step) => [step.name, step]));
    const total = sumCells(lossTerms(out, loss));
    const model = { problem, out, loss, total, dy, row, column, explained, texts, typed };
    return { ...model, steps: stepsBack(model) };
}

/** @type {(problem: Problem) => Question[]} */
function questionsNow({ norm, rows, columns, valid }) {
    const answers = [...new Set([1, rows, rows * columns])].map(String);
    const paths = norm.center ? "x̂ itself, σ² and μ" : "x̂ itself and the mean of the squares";
    return [{
        ask: "The loss is the sum of all y, with γ = 1, under batch norm. What is dx?",
        answers: ["1 in every cell", "0 in every cell", "it depends on x"], right: 1,
        because: "x̂ adds up to 0 in each column, whatever x is. So no x changes this sum. Choose it above, and look.",
    }, {
        ask: `On how many paths does x reach the loss (${NORMS[norm.name].title})?`,
        answers: ["one", "two", "three"], right: norm.center ? 2 : 1,
        because: `Through ${paths}: where they meet, they add up.`,
    }, ...(rows > 1 && valid.every((row) => row[0]) ? [{
        ask: "dβ of column 1: how many cells of dy are added up?", answers, right: answers.indexOf(String(rows)),
        because: `β is added to all ${rows} cells of its column, so each of them passes its dy on.`,
    }] : [])];
}

/**
 * The texts of dy in the shape of x: what a larger table has not is 0, what a smaller one has not is kept.
 * @type {(state: State, rows: number, columns: number) => string[][]}
 */
function shapedDy(state, rows, columns) {
    const kept = state.get("backward.dy");
    return Array.from({ length: rows }, (_, i) => Array.from({ length: columns }, (_, j) => kept[i]?.[j] ?? "0"));
}

/** @type {(state: State, words: string) => HTMLElement} */
function tableButton(state, words) {
    return html("button", { type: "button", onclick: () => state.set({ part: "table" }) }, `${words} in “One table”`);
}

/**
 * What there is to begin with: the norm, x, the loss and dy.
 * @type {(state: State) => View<BackwardModel>}
 */
function backwardInputs(state) {
    const onchoose = cellChooser(state);
    const x = choiceTable({ onchoose });
    const dy = entryTable({ label: "dy", onchoose, onentry: (...entry) => enterDy(state, ...entry) });
    const conventions = html("p", { class: "note" });
    const problem = html("p", { class: "problem", role: "status" });
    const loss = html("p", { class: "backward-loss" });
    /** @type {(table: Record<string, { title: string }>) => Record<string, string>} */
    const titles = (table) => Object.fromEntries(Object.entries(table).map(([key, { title }]) => [key, title]));
    const element = html(
        "div", {},
        html("div", { class: "controls" }, chooser(state, "norm", "Norm", titles(NORMS)),
            chooser(state, "backward.loss", "Loss", titles(LOSSES))),
        html("div", { class: "columns backward-inputs" }, x.element, dy.element,
            html("div", { class: "backward-about" }, loss, conventions,
                html("div", { class: "controls" }, divisorChooser(state), tableButton(state, "Change x, γ, β or ε")))),
        problem,
    );

    /** @type {(model: BackwardModel) => void} */
    function update(model) {
        const { rows, columns, cells } = model.problem;
        const names = { rowNames: ordinalsTo(rows), columnNames: columnNamesTo(columns) };
        /** @type {(i: number, j: number) => string} */
        const classes = (i, j) => stepCellClass(model, i, j);
        /** @type {(i: number, j: number) => boolean} */
        const chosen = (i, j) => i === model.row && j === model.column;
        const shown = cells.map((row) => row.map((text) => shortened(text, 12)));
        x.update({ ...names, caption: "x: choose a cell", texts: shown, classes, chosen });
        const editable = model.loss.kind === "given";
        /** @type {(i: number, j: number) => boolean} */
        const bad = (i, j) => editable && Number.isNaN(model.typed[i][j]);
        dy.update({
            ...names, chosen, classes, bad, editable,
            caption: editable ? "dy: type any numbers" : "dy: follows from the loss",
            texts: editable ? model.texts : model.dy.map((row) => row.map((value) => formatNumber(value))),
        });
        const wrong = placesWhere(cells, bad);
        problem.hidden = wrong.length === 0;
        const said = `Not a number in dy: ${listedPlaces(wrong)}. Until that changes, it counts as 0.`;
        putText(problem, wrong.length ? said : "");
        const kind = LOSSES[model.loss.kind];
        loss.replaceChildren(formula(`${kind.formula} = ${formatNumber(model.total)}`));
        conventions.textContent = backwardConventions(model);
    }
    return { element, update };
}

/**
 * A block of texts, from this cell on; what lies outside of the table is left out.
 * @type {(state: State, row: number, column: number, block: string[][]) => void}
 */
function enterDy(state, row, column, block) {
    const cells = state.get("x");
    const texts = shapedDy(state, cells.length, cells[0].length);
    block.forEach((line, i) => line.forEach((text, j) => {
        if (texts[row + i]?.[column + j] !== undefined) texts[row + i][column + j] = text;
    }));
    state.set({ "backward.dy": texts });
}

/** @type {(found: Point[]) => string} */
function listedPlaces(found) {
    const words = found.slice(0, 3).map(([i, j]) => `row ${i + 1}, column ${j + 1}`);
    return found.length > 3 ? `${words.join("; ")} and ${found.length - 3} more` : words.join("; ");
}
