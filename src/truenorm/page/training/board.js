/*
What is seen of two live runs: their losses on the same axes; and for each, its layers and the words that it makes up.
*/
import { lineChart, lineSample } from "#lib/chart.js";
import { html, putText, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { histogram } from "#training/histogram.js";
import { percentOf } from "#training/runs.js";
import { settingInWords } from "#training/settings.js";

/** @type {Look[]} */
const LOOKS = [{ hue: 0, dash: 0, shape: 0 }, { hue: 1, dash: 1, shape: 1 }];
const GUESSING = { hue: 4, dash: 5, shape: 5, thin: true };
const FRAME = { x: 20, y: [2, 4] }; // at least: few steps should not look like many
const GRADIENTS = [-7, 1]; // powers of ten from the left to the right of a bar

/** @type {() => { element: HTMLElement; loss: HTMLElement; update(runs: ShownRun[]): void }} */
export function boardView() {
    const chart = lineChart({ title: "Loss", xLabel: "step", yLabel: "loss", height: 330 });
    const sides = LOOKS.map((look, i) => sideView(look, "AB"[i]));
    chart.update({ logarithmic: true, frame: FRAME });

    /** @type {(runs: ShownRun[]) => void} */
    function update(runs) {
        const known = runs.flatMap(({ report }, i) => (report ? [{ report, name: "AB"[i], look: LOOKS[i] }] : []));
        const last = Math.max(...known.map(({ report }) => report.step), FRAME.x);
        const steps = known.flatMap(({ report }) => [...report.training, ...report.heldOut].map(([step]) => step));
        const guessing = Math.max(...known.map(({ report }) => report.guessing), 0);
        chart.update({
            at: null, places: steps, // guessing is the same at all of them, and beyond
            series: [
                ...known.map(({ report, name, look }) => ({ name, points: report.training, ...look })),
                ...known.map(({ report, name, look }) =>
                    ({ name: `${name}, held-out words`, points: report.heldOut, ...look, dash: 2, thin: true })),
                { name: "guessing", points: [[0, guessing], [last, guessing]], ...GUESSING },
            ],
        });
        runs.forEach((run, i) => sides[i].update(run));
    }

    const element = html("div", { class: "sides" }, sides.map((side) => side.element));
    return { element, loss: chart.element, update };
}

/** @type {(look: Look, name: string) => View<ShownRun>} */
function sideView(look, name) {
    const title = html("span", {}, name);
    const problem = html("p", { class: "problem", role: "alert", hidden: true });
    const layerList = html("div", { class: "layers" });
    const words = html("p", { class: "made" });
    /** @type {ReturnType<typeof layerView>[]} */
    let layers = [];

    /** @type {(run: ShownRun) => void} */
    function update({ setting, report }) {
        putText(title, `${name}: ${settingInWords(setting)}`);
        const diverged = report?.diverged ?? null;
        putText(problem, diverged ? divergedInWords(diverged, report.guessing) : "");
        problem.hidden = diverged === null;
        if (layers.length !== setting.depth) {
            layers = Array.from({ length: setting.depth }, (_, i) => layerView(look.hue, i + 1));
            layerList.replaceChildren(...layers.map(({ element }) => element));
        }
        layers.forEach((view, i) => view.update(report?.layers[i] ?? null));
        putText(words, report?.words.join(", ") ?? "");
    }

    const element = html(
        "section", { class: `side series-${look.hue}`, "aria-label": `Run ${name}` },
        html("h3", {}, lineSample(look), title), problem,
        html("p", { class: "kind" }, "Words it makes up"), words,
        html("p", { class: "kind" }, "Outputs of tanh, and the gradient of the layer’s weights"), layerList,
    );
    return { element, update };
}

/** @type {(diverged: { step: number; loss: number }, guessing: number) => string} */
function divergedInWords({ step, loss }, guessing) {
    const size = Number.isFinite(loss) ? `${formatNumber(loss, 3)}, more than 100 times that of guessing ` +
        `(${formatNumber(guessing, 3)})` : "no longer a number";
    return `This run diverged and stopped: at step ${step} its loss is ${size}. Try a smaller learning rate or another `
        + "norm.";
}

/** @type {(hue: number, number: number) => View<LayerReport | null>} */
function layerView(hue, number) {
    const drawing = histogram({ hue, reach: 1 });
    const saturated = html("span");
    const gradient = html("span");
    const bar = svg(
        "svg", { class: "gradient", viewBox: "0 0 100 6", preserveAspectRatio: "none", "aria-hidden": "true" },
        svg("rect", { x: 0, y: 0, width: 0, height: 6 }),
    );
    const element = html("div", { class: "layer" },
        html("p", {}, html("b", {}, `Layer ${number}`), saturated), drawing.element,
        html("p", {}, gradient), bar);

    /** @type {(report: LayerReport | null) => void} */
    function update(report) {
        element.classList.toggle("empty", report === null);
        const counts = report?.counts ?? [0];
        const most = Math.max(0.3, Math.ceil((Math.max(...counts) / sumOf(counts)) * 10) / 10 || 0);
        const share = report ? percentOf(report.saturated) : "–";
        drawing.update({ counts, most, label: `Outputs of tanh in layer ${number}: ${share} saturated` });
        putText(saturated, report ? `${share} saturated` : "");
        putText(gradient, `gradient ${report ? formatNumber(report.gradient, 2) : "–"}`);
        const [low, high] = GRADIENTS;
        const part = report ? (Math.log10(report.gradient) - low) / (high - low) : 0;
        bar.firstElementChild.setAttribute("width", String(100 * Math.min(Math.max(part || 0, 0), 1)));
    }

    return { element, update };
}

/** @type {(values: number[]) => number} */
function sumOf(values) {
    return values.reduce((sum, value) => sum + value, 0) || 1;
}
