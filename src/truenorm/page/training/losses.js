/*
The loss of the recorded runs over time: the chart, its legend of switches, and the player that walks through the
moments. Each run keeps its look: dash and hue say which norm, the marker which learning rate.
*/
import { lineChart, lineSample } from "#lib/chart.js";
import { html, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { createPlayer } from "#lib/player.js";
import { NORM_WORDS, pairAt, runKey, shownRuns } from "#training/runs.js";

/** @type {Record<RecordedNorm, number>} */
export const NORM_HUES = { none: 3, batch: 0 };
/** @type {Record<RecordedNorm, number>} */
const NORM_DASHES = { none: 1, batch: 0 };
const GUESSING = { hue: 4, dash: 5, shape: 5, thin: true };
const BEAT = 450; // milliseconds that a moment is shown while it plays

/** @type {(recorded: Recorded, run: Run) => Look} */
export function lookOfRun({ rates }, { norm, rate }) {
    return { hue: NORM_HUES[norm], dash: NORM_DASHES[norm], shape: rates.indexOf(rate) };
}

/** @type {(state: State, recorded: Recorded) => HTMLElement} */
export function lossChart(state, recorded) {
    const { points, moments, runs } = recorded;
    const player = momentPlayer(state, moments);
    const chart = lineChart({
        title: "Training loss", xLabel: "step", yLabel: "loss", height: 300, legend: false,
        onscrub: (step) => {
            player.stop();
            state.set({ "training.step": step });
        },
    });
    chart.element.querySelector(".slider").append(player.button);
    /** @type {Series} */
    const guessing = { name: "blind guessing", points: moments.map((step) => [step, recorded.guessing]), ...GUESSING };
    state.watch(["training.lr", "training.step", "training.scale", "training.steps", "training.runs"], () => {
        const series = shownRuns(state, recorded).map((key) => {
            const run = runs.get(key);
            return {
                name: `learning rate ${run.rate} ${NORM_WORDS[run.norm]}`,
                points: points.map((step, i) => /** @type {Point} */ ([step, run.loss[i] ?? NaN])),
                ...lookOfRun(recorded, run), thin: String(run.rate) !== state.get("training.lr"),
            };
        });
        chart.update({
            series: [guessing, ...series], places: moments, at: state.get("training.step"),
            logarithmic: state.get("training.scale") === "log", stretched: state.get("training.steps") === "early",
        });
    });
    return chart.element;
}

/**
 * The legend: a row for each learning rate, a switch for each run, and its loss at the moment.
 * @type {(state: State, recorded: Recorded) => HTMLElement}
 */
export function runSwitches(state, recorded) {
    const { rates, runs } = recorded;
    /** @type {Map<string, { box: HTMLInputElement; loss: HTMLElement }>} */
    const switches = new Map();
    /** @type {Map<string, HTMLElement>} */
    const rows = new Map(rates.map((rate) => [String(rate), html(
        "tr", {}, html("th", { scope: "row" }, String(rate)),
        pairAt(recorded, rate).map((run) => {
            const key = runKey(run.norm, rate);
            /** @type {HTMLInputElement} */
            const box = html("input", { type: "checkbox", onchange: () => setRun(state, recorded, key, box.checked) });
            const name = html("span", { class: "unseen" }, `learning rate ${rate} ${NORM_WORDS[run.norm]}`);
            const loss = html("b", {});
            switches.set(key, { box, loss });
            return html("td", {}, html("label", {}, box, lineSample(lookOfRun(recorded, run)), name), loss);
        }),
    )]));
    const caption = html("caption", {});
    state.watch(["training.lr", "training.step", "training.runs"], () => {
        const step = state.get("training.step");
        const point = recorded.points.indexOf(step);
        const shown = shownRuns(state, recorded);
        caption.textContent = `Loss at step ${formatNumber(step)}`;
        for (const [key, { box, loss }] of switches) {
            box.checked = shown.includes(key);
            loss.textContent = formatNumber(runs.get(key).loss[point] ?? NaN);
        }
        for (const [rate, row] of rows) row.classList.toggle("chosen", rate === state.get("training.lr"));
    });
    return html(
        "div", { class: "switches" },
        scrollBox("Runs in the chart", html(
            "table", { class: "numbers" }, caption,
            html("thead", {}, html(
                "tr", {}, html("th", { scope: "col" }, "lr"), html("th", { scope: "col" }, "without"),
                html("th", { scope: "col" }, "with batch norm"),
            )),
            html("tbody", {}, [...rows.values()]),
        )),
        html("p", { class: "note" }, "Tick the runs to draw. Each point is the mean since the point before; ",
            lineSample(GUESSING), " is blind guessing."),
    );
}

/** @type {(state: State, recorded: Recorded, key: string, shown: boolean) => void} */
function setRun(state, recorded, key, shown) {
    const others = shownRuns(state, recorded);
    const wanted = [...recorded.runs.keys()].filter((one) => (one === key ? shown : others.includes(one)));
    state.set({ "training.runs": wanted });
}

/** @type {(state: State, moments: number[]) => Player} */
function momentPlayer(state, moments) {
    return createPlayer({
        shown: () => state.get("part") === "training", step: "Next moment", beat: BEAT,
        advance: () => {
            const next = (moments.indexOf(state.get("training.step")) + 1) % moments.length;
            state.set({ "training.step": moments[next] });
            return next < moments.length - 1;
        },
    });
}
