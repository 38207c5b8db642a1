/*
The first view of the part: two features as they are and standardised, side by side; scatter, loss surface with the path
of gradient descent, the loss step by step, and what follows from the Hessian in numbers.
*/
import { lineChart } from "#lib/chart.js";
import { chooser, slider } from "#lib/controls.js";
import { html, putText, scrollBox } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { createPlayer } from "#lib/player.js";
import { CLOSE, MOST_STEPS, conditionWithBias, descend, lossAt, stepsToBest } from "#why/descent.js";
import { below, rateOf, rateSlider } from "#why/rate.js";
import { hiddenInWords, placedOf, rangeOf, sidesOf, TRAIN } from "#why/scales.js";
import { pointsOf, squareView } from "#why/square.js";
import { surfaceView } from "#why/surface.js";

export const STEPS = 40;
export const GROWTHS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50];
const WEIGHTS = Array.from({ length: 21 }, (_, i) => (i - 10) / 10);
/** @type {FieldName[]} */
const SHOWN = ["why.of", "why.growth", "why.lr", "why.step", "why.w1", "why.w2"];

/** @type {Record<WhyData, string>} */
const INTRODUCTIONS = {
    inputs: "One learning rate serves both weights. Features on different scales make the loss a narrow valley: what "
        + "is small enough for iq is too small for cgpa.",
    hidden: "H, what a hidden layer gives, is the input of the next layer. Its scale depends on weights that change in "
        + "training: standardised inputs do not help it, a norm on H does.",
};

/** @type {(state: State) => HTMLElement} */
export function descentView(state) {
    /** @type {(w: Point) => void} */
    const setStart = ([w1, w2]) => {
        player.stop();
        state.set({ "why.w1": within(w1), "why.w2": within(w2) });
    };
    const panes = [paneView(setStart), paneView(setStart)];
    const rate = rateSlider(state);
    const player = createPlayer({
        shown: () => state.get("part") === "why", step: "Next step", beat: 180,
        advance: () => {
            const next = (state.get("why.step") + 1) % (STEPS + 1);
            state.set({ "why.step": next });
            return next < STEPS;
        },
    });
    const chart = lineChart({
        title: "Loss after each step", xLabel: "step", yLabel: "loss", height: 200,
        onscrub: (step) => {
            player.stop();
            state.set({ "why.step": step });
        },
    });
    chart.element.querySelector(".slider").append(player.button);
    const facts = factsView();
    const intro = html("p", { class: "short" });
    const units = html("span");
    const growth = slider(state, "why.growth", "Weights of unit 2 ×", { stops: () => GROWTHS });
    state.watch(SHOWN, () => {
        const [of, chosen, step] = [state.get("why.of"), state.get("why.lr"), state.get("why.step")];
        const sides = sidesOf(of, state.get("why.growth"));
        /** @type {Point} */
        const start = [state.get("why.w1"), state.get("why.w2")];
        const paths = sides.map(({ bowl }) => descend(bowl, start, rateOf(chosen, bowl), STEPS));
        growth.hidden = of === "inputs";
        putText(intro, INTRODUCTIONS[of]);
        putText(units, of === "inputs" ? "" : hiddenInWords(state.get("why.growth")));
        rate.update(sides);
        sides.forEach((side, i) => panes[i].update({ side, path: paths[i], step }));
        chart.update({
            at: step, logarithmic: true, places: Array.from({ length: STEPS + 1 }, (_, i) => i),
            series: sides.map(({ bowl, short }, i) => ({
                name: short, hue: i ? 0 : 3, dash: i ? 0 : 1, shape: i,
                points: paths[i].map((w, one) => /** @type {Point} */ ([one, lossAt(bowl, w)])),
            })),
        });
        facts.update({ sides, start, chosen });
    });
    const of = chooser(state, "why.of", "Features", { inputs: "cgpa and iq", hidden: "a hidden layer H" });
    return html(
        "section", {},
        intro,
        html("div", { class: "controls" }, html("div", {}, of, growth), rate.element),
        html("div", { class: "panes" }, panes.map(({ element }) => element)),
        html("p", { class: "note keys" }, `${TRAIN.length} students; filled: placed. Along a ring the loss is the `,
            "same, × is the lowest. The large circle is the start: drag it. ", units),
        html("div", { class: "columns below" }, chart.element, html(
            "div", {}, facts.element,
            html("div", { class: "starts" },
                slider(state, "why.w1", "Start: w₁", { stops: () => WEIGHTS }),
                slider(state, "why.w2", "Start: w₂", { stops: () => WEIGHTS })),
        )),
    );
}

/**
 * The scatter and the loss surface of one side, and where the path has got to.
 * @type {(onstart: (w: Point) => void) => View<{ side: Side; path: Point[]; step: number }>}
 */
function paneView(onstart) {
    /** @type {number[][]} */
    let x = [];
    const placed = placedOf(TRAIN);
    const title = html("h3", {});
    const said = html("p", { class: "said" });
    const scatter = squareView((plot) => pointsOf(plot, x, placed));
    const surface = surfaceView(onstart);
    const pictures = html("div", {}, scatter.element, surface.element);

    /** @type {(model: { side: Side; path: Point[]; step: number }) => void} */
    function update({ side, path, step }) {
        const words = stateInWords(side, path, Math.min(step, path.length - 1)); // a path that diverges ends early
        ({ x } = side);
        title.textContent = side.title;
        said.textContent = words;
        scatter.update({ ...rangeOf(x), names: side.names, label: scatterInWords(side) });
        surface.update({
            bowl: side.bowl, path, step, names: ["w₁", "w₂"],
            label: `Loss over the two weights, ${side.short}, and the path of gradient descent. ${words}`,
        });
    }
    return { element: html("section", { class: "pane" }, title, pictures, said), update };
}

/**
 * As the sliders have it.
 * @type {(weight: number) => number}
 */
function within(weight) {
    return Math.min(Math.max(Math.round(weight * 10), -10), 10) / 10;
}

/** @type {(side: Side) => string} */
function scatterInWords({ x, names, bowl, short }) {
    const [mean, std] = [bowl.mean, bowl.std].map((values) => values.map((value) => formatNumber(value)));
    const words = names.map((name, i) => `${name}: mean ${mean[i]}, deviation ${std[i]}`);
    return `${x.length} students, ${short}. ${words.join("; ")}. Filled: placed.`;
}

/** @type {(side: Side, path: Point[], step: number) => string} */
function stateInWords({ bowl }, path, step) {
    const loss = lossAt(bowl, path[step]);
    const ratio = loss / bowl.lowest;
    const words = `Step ${step}: loss ${formatNumber(loss)}`;
    if (loss > lossAt(bowl, path[0])) return `${words} and rising. Gradient descent diverges.`;
    return `${words}, ${ratio <= CLOSE ? "within 1% of" : `${formatNumber(ratio, 3)} times`} the lowest.`;
}

/** @type {() => View<{ sides: Side[]; start: Point; chosen: number }>} */
function factsView() {
    const body = html("tbody", {});
    const heads = html("tr", {});
    const sentence = html("p", { class: "note" });
    const caption = html("caption", {}, "What the curvature says");
    const table = html("table", { class: "numbers facts" }, caption, html("thead", {}, heads), body);
    const element = html("div", {}, scrollBox("What the curvature says", table), sentence);

    /** @type {(model: { sides: Side[]; start: Point; chosen: number }) => void} */
    function update({ sides, start, chosen }) {
        /** @type {Record<string, (side: Side) => string>} */
        const facts = {
            "λ max of the Hessian": ({ bowl }) => formatNumber(bowl.large, 3),
            "λ min": ({ bowl }) => formatNumber(bowl.small, 3),
            "condition number λ max / λ min": ({ bowl }) => formatNumber(bowl.condition, 3),
            "largest rate that converges, 2 / λ max": ({ bowl }) => formatNumber(below(bowl.largestRate)),
            "learning rate here": ({ bowl }) => formatNumber(rateOf(chosen, bowl), 3),
            "steps to within 1% of the lowest loss": ({ bowl }) => stepsInWords(bowl, start, rateOf(chosen, bowl)),
        };
        heads.replaceChildren(html("td", {}), ...sides.map(({ short }) => html("th", { scope: "col" }, short)));
        body.replaceChildren(...Object.entries(facts).map(([name, read]) => html(
            "tr", {}, html("th", { scope: "row" }, name), sides.map((side) => html("td", {}, read(side))),
        )));
        const [raw, normal] = sides.map(({ bowl }) => formatNumber(conditionWithBias(bowl), 3));
        sentence.textContent = "L = ½ mean((ŷ − y)²) with ŷ = w₁x₁ + w₂x₂ + b, and b always at its best value. If b is "
            + `learned by gradient descent, too, the means matter: the condition numbers are ${raw} and ${normal}.`;
    }
    return { element, update };
}

/** @type {(bowl: Bowl, start: Point, lr: number) => string} */
function stepsInWords(bowl, start, lr) {
    if (lr >= bowl.largestRate) return "never";
    const steps = stepsToBest(bowl, start, lr);
    return Number.isFinite(steps) ? formatNumber(steps) : `over ${formatNumber(MOST_STEPS)}`;
}
