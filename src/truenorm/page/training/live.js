/*
Live training: two settings, each trained in a worker of its own, drawn on the same axes. This file connects the state,
the two workers and the views; `board.js` draws.

Both go on together: none gets more than WINDOW steps ahead. Where motion is not wanted, a press trains BLOCK steps and
shows where they end. Training pauses when the part or the page is out of sight.

State: training.a, training.b (settings), training.seed, training.words.
*/
import { copyButtons } from "#lib/copy.js";
import { announce, html, putText } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { wholeBetween } from "#lib/state.js";
import { moduleWorker } from "#lib/worker.js";
import { boardView } from "#training/board.js";
import { NAMES } from "#training/names.js";
import { FIRST, SECOND, readWordList, settingCodec, trainCommand, wordsCodec } from "#training/settings.js";
import { settingsForm, wordsForm } from "#training/forms.js";

const WINDOW = 500;
const BLOCK = 1000;
const FOREVER = 1e12;
const BETWEEN = 100; // milliseconds between two drawings

/** @type {(state: State) => void} */
export function defineLive(state) {
    state.field("training.a", settingCodec, FIRST);
    state.field("training.b", settingCodec, SECOND);
    state.field("training.seed", wholeBetween(0, Number.MAX_SAFE_INTEGER), 0);
    state.field("training.words", wordsCodec, NAMES);
}

/** @type {(state: State) => HTMLElement} */
export function liveTraining(state) {
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    const board = boardView();
    const trouble = html("p", { class: "problem", role: "alert", hidden: true });
    const runButton = html("button", { type: "button", class: "run", onclick: () => (goal === 0 ? go() : pause()) });
    const stepButton = html("button", { type: "button", onclick: () => stepTo(1) }, "Step");
    const status = html("p", { class: "status" });
    /** @type {LiveSide[]} */
    const sides = [
        { field: "training.a", worker: null, run: 0, report: null },
        { field: "training.b", worker: null, run: 0, report: null },
    ];
    let goal = 0; // the step to stop at; 0 while paused

    function label() {
        const idle = still.matches ? `Run ${formatNumber(BLOCK)} steps` : "Run";
        putText(runButton, goal === 0 ? idle : "Pause");
    }

    const alive = () => sides.filter(({ report }) => report && !report.diverged);
    const furthest = () => Math.max(...alive().map(({ report }) => report.step), 0);

    /**
     * Everybody trains up to here, but not too far ahead of the slowest.
     * @type {(until: number) => void}
     */
    function allow(until) {
        const slowest = Math.min(...alive().map(({ report }) => report.step));
        for (const { worker } of sides) worker?.postMessage({ until: Math.min(until, slowest + WINDOW) });
    }

    /** @type {(until: number) => void} */
    function setGoal(until) {
        goal = until;
        label();
        if (alive().length) allow(goal);
        else if (sides.every(({ report }) => report)) finish(); // else the first report starts it
    }

    function go() {
        setGoal(still.matches ? furthest() + BLOCK : FOREVER);
    }

    /** @type {(more: number) => void} */
    function stepTo(more) {
        setGoal(furthest() + more);
    }

    /** All stop at the same step: those behind catch up with the one ahead. */
    function pause() {
        if (goal !== 0) setGoal(furthest());
    }

    function finish() {
        goal = 0;
        label();
        announce(board.inWords());
    }

    /** @type {(side: LiveSide, data: { run: number; report: RunReport }) => void} */
    function take(side, { run, report }) {
        if (run !== side.run) return; // of a run that was given up
        side.report = report;
        if (state.get("part") !== "training") pause();
        if (goal !== 0) {
            if (alive().every(({ report: { step } }) => step >= goal)) goal = furthest(); // one may have gone further
            if (alive().every(({ report: { step } }) => step >= goal)) finish();
            else allow(goal);
        }
        draw();
    }

    let [drawing, drawn] = [false, 0]; // whether it is going to, and when it was
    function draw() {
        if (drawing || (still.matches && goal !== 0)) return;
        drawing = true;
        const wait = Math.max(BETWEEN - (performance.now() - drawn), 0);
        setTimeout(() => requestAnimationFrame(() => {
            [drawing, drawn] = [false, performance.now()];
            board.update(sides.map(({ field, report }) => ({ setting: state.get(field), report })));
            putText(status, statusInWords(sides.map(({ report }) => report)));
        }), wait);
    }

    /**
     * A new run from step 0. A worker that is in the middle of something is replaced.
     * @type {(side: LiveSide) => void}
     */
    function start(side) {
        side.worker ??= workerFor(side);
        side.run += 1;
        side.report = null;
        const words = readWordList(state.get("training.words")).value;
        const begin = { words, seed: state.get("training.seed"), setting: state.get(side.field) };
        side.worker.postMessage({ start: begin, run: side.run });
    }

    /** @type {(side: LiveSide) => Worker} */
    function workerFor(side) {
        const worker = moduleWorker("#training/worker.js");
        worker.onmessage = ({ data }) => take(side, data);
        worker.onerror = (event) => {
            trouble.textContent = `Training stopped: ${event.message ?? "the browser did not start a worker."}`;
            trouble.hidden = false;
            goal = 0;
            label();
        };
        return worker;
    }

    function reset() {
        goal = 0;
        label();
        sides.forEach(start);
    }

    for (const side of sides) state.watch([side.field], () => start(side));
    let first = true; // the line above has started both already
    state.watch(["training.seed", "training.words"], () => {
        if (!first) sides.forEach(start);
        first = false;
    });
    document.addEventListener("visibilitychange", () => document.hidden && pause());
    still.addEventListener("change", () => { pause(); label(); });
    label();

    const commands = sides.map(({ field }, i) => /** @type {const} */ ([`command for ${"AB"[i]}`, () =>
        trainCommand(state.get(field), state.get("training.seed"), Math.max(sides[i].report?.step ?? 0, 50))]));
    return html(
        "section", { class: "live" },
        html("div", { class: "bench" },
            html("div", { class: "desk" },
                html("div", { class: "buttons", role: "group", "aria-label": "Training" }, runButton, stepButton,
                    html("button", { type: "button", onclick: reset }, "Reset")),
                settingsForm(state)),
            html("div", { class: "loss" }, board.loss, status)),
        trouble, board.element,
        wordsForm(state),
        html("p", { class: "note" }, "The same run in a terminal, with the words above in words.txt: the same losses, ",
            "number by number."),
        copyButtons(Object.fromEntries(commands)),
    );
}

/** @type {(reports: (RunReport | null)[]) => string} */
function statusInWords(reports) {
    return reports.map((report, i) => {
        if (!report) return `${"AB"[i]}: starting.`;
        const { step, speed, parameters, diverged, training } = report;
        if (diverged) return "";
        const loss = training.length ? `, loss ${formatNumber(training.at(-1)[1], 3)}` : "";
        const pace = speed > 0 ? `, ${Math.round(speed).toLocaleString("en")} steps a second` : "";
        const counts = `step ${step.toLocaleString("en")}${loss}, ${parameters.toLocaleString("en")} parameters`;
        return `${"AB"[i]}: ${counts}${pace}.`;
    }).filter(Boolean).join(" ");
}
