/*
Live training: two settings, each trained in a worker of its own, drawn on the same axes. This file connects the state,
the two workers and the views; `board.js` draws.

Both go on together, a few steps at a time: the next few begin once both have reported. So what is drawn is of the same
step. Only a run that began anew is behind; the other waits for it. Where motion is not wanted, a press trains BLOCK
steps, counts them, and draws where they end. Training pauses when the part or the page is out of sight.

State: training.a, training.b (settings), training.seed, training.words.
*/
import { copyButtons } from "#lib/copy.js";
import { announce, html, putText } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { wholeBetween } from "#lib/state.js";
import { moduleWorker } from "#lib/worker.js";
import { boardView } from "#training/board.js";
import { NAMES } from "#training/names.js";
import {
    FIRST, SECOND, deepSettings, readWordList, settingCodec, trainCommand, wordsCodec,
} from "#training/settings.js";
import { settingsForm, wordsForm } from "#training/forms.js";

const BLOCK = 1000;
const FOREVER = 1e12;
const BEAT = 150; // milliseconds between two drawings, and those that a few steps should take
const STILL = 1000; // the same where motion is not wanted
const FEW = 16; // steps at a time, to begin with

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
    const stepButton = html("button", { type: "button", onclick: step }, "Step");
    const status = html("p", { class: "status" });
    /** @type {LiveSide[]} */
    const sides = [
        { field: "training.a", worker: null, run: 0, asked: 0, busy: 0, report: null },
        { field: "training.b", worker: null, run: 0, asked: 0, busy: 0, report: null },
    ];
    let goal = 0; // the step to stop at; 0 while paused
    let next = 0; // the step that both are on their way to
    let few = FEW; // steps at a time: as many as take about a BEAT
    let [began, planned] = [0, 0]; // when they did, and how many they are
    let pace = 0; // steps a millisecond

    function label() {
        const idle = still.matches ? `Run ${formatNumber(BLOCK)} steps` : "Run";
        putText(runButton, goal === 0 ? idle : "Pause");
    }

    const alive = () => sides.filter(({ report }) => report && !report.diverged);
    const stepsNow = () => alive().map(({ report }) => report.step);

    /** The next few steps. */
    function advance() {
        const least = Math.min(...stepsNow());
        next = Math.min(goal, least + few);
        [began, planned] = [performance.now(), next - least];
        ask();
    }

    /** Those that are not there yet train until then. Asked twice for the same, a run would report twice. */
    function ask() {
        for (const side of alive()) {
            if (side.report.step >= next || side.asked === next) continue;
            side.asked = next;
            side.worker.postMessage({ until: next });
        }
    }

    /** A few steps took so long: more or fewer the next time. */
    function measure() {
        const took = Math.max(performance.now() - began, 1);
        const trained = Math.max(...alive().map(({ busy }) => busy), 1);
        pace = ((pace || planned / took) + planned / took) / 2;
        // Reports and messages take time, much of it on a busy machine: twice as much is for the training.
        const wanted = Math.max(still.matches ? STILL : BEAT, 2 * (took - trained));
        few = Math.ceil(Math.min(Math.max((planned / trained) * wanted, few / 2), few * 2));
    }

    /** @type {(until: number) => void} */
    function setGoal(until) {
        [goal, next, pace] = [until, 0, 0];
        label();
        if (sides.some(({ report }) => !report)) return; // the first report starts it
        if (alive().length) advance();
        else finish();
    }

    function go() {
        setGoal(still.matches ? Math.max(...stepsNow(), 0) + BLOCK : FOREVER);
    }

    /** One step more than the one ahead; while they train, than the steps that they are at. */
    function step() {
        setGoal(Math.max(...stepsNow(), goal === 0 ? 0 : next) + 1);
    }

    /** The few steps that they are at are the last. */
    function pause() {
        if (goal !== 0) goal = next;
        label();
    }

    function finish() {
        goal = 0;
        label();
        draw();
        announce(statusInWords(sides.map(({ report }) => report), 0));
    }

    /** @type {(side: LiveSide, data: { run: number; busy: number; report: RunReport }) => void} */
    function take(side, { run, busy, report }) {
        if (run !== side.run) return; // of a run that was given up
        Object.assign(side, { busy, report });
        if (state.get("part") !== "training") pause();
        if (goal === 0 || sides.some((one) => !one.report)) return draw();
        const least = Math.min(...stepsNow());
        if (least < next) return side.asked === 0 ? advance() : ask(); // it began anew; or the other is still at it
        if (next > 0) measure();
        if (least >= goal) finish();
        else advance();
        draw();
    }

    let [drawing, drawn] = [false, 0]; // whether it is going to, and when it was
    /** @type {(RunReport | null)[]} */
    let reports = []; // of one moment: until it is drawn, one side may report again
    function draw() {
        reports = sides.map(({ report }) => report);
        if (drawing) return;
        drawing = true;
        const wait = Math.max(BEAT - (performance.now() - drawn), 0);
        setTimeout(() => requestAnimationFrame(() => {
            [drawing, drawn] = [false, performance.now()];
            putText(status, statusInWords(reports, goal === 0 ? 0 : pace));
            if (still.matches && goal !== 0) return;
            board.update(sides.map(({ field }, i) => ({ setting: state.get(field), report: reports[i] })));
        }), wait);
    }

    /**
     * A new run from step 0. A worker that is in the middle of something is replaced.
     * @type {(side: LiveSide) => void}
     */
    function start(side) {
        side.worker ??= workerFor(side);
        side.run += 1;
        side.asked = 0;
        side.report = null;
        few = FEW; // other settings may be much slower
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

    /** Both settings, and ten steps of them. @type {(initScale: number) => void} */
    function showDeep(initScale) {
        const [a, b] = deepSettings(initScale);
        state.set({ "training.a": a, "training.b": b });
        setGoal(10);
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
        trouble,
        html("p", { class: "note deep" }, "In many layers gradients may vanish, or explode on their way back. ",
            "Compare those of A and B: ", [0.2, 3].map((scale) => html("button", {
                type: "button", onclick: () => showDeep(scale),
            }, `six layers, initial scale ${scale}`))),
        board.element,
        html("p", { class: "note" }, "Dropout sets this share of the outputs of tanh to 0 in training, others in each ",
            "step. No output can be relied on alone, which regularizes."),
        wordsForm(state),
        html("p", { class: "note" }, "The same run in a terminal, with the words above in words.txt: the same losses, ",
            "number by number."),
        copyButtons(Object.fromEntries(commands)),
    );
}

/** @type {(reports: (RunReport | null)[], pace: number) => string} */
function statusInWords(reports, pace) {
    const said = reports.map((report, i) => {
        if (!report) return `${"AB"[i]}: starting.`;
        const { step, parameters, diverged, training } = report;
        if (diverged) return "";
        const loss = training.length ? `, loss ${formatNumber(training.at(-1)[1], 3)}` : "";
        return `${"AB"[i]}: step ${whole(step)}${loss}, ${whole(parameters)} parameters.`;
    });
    const [a, b] = reports.map((report) => (report && !report.diverged ? report.step : NaN));
    if (a !== b && a + b >= 0) said.push(a < b ? "B waits for A." : "A waits for B.");
    return [...said, pace > 0 ? `${whole(1000 * pace)} steps a second.` : ""].filter(Boolean).join(" ");
}

/** @type {(value: number) => string} */
function whole(value) {
    return Math.round(value).toLocaleString("en");
}
