/*
Covariate shift: a model learns from students of one year and is tested on others, whose iq was measured in another way,
some points higher or lower. What the model is given are standardised features. By which statistics: those of training,
which a network keeps as running statistics, or those of the new students?
*/
import { lineChart } from "#lib/chart.js";
import { html, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { describe, forward, measure } from "#maths/normalization.js";
import { bowlOf } from "#why/descent.js";
import { TEST, TRAIN, featuresOf, placedOf } from "#why/scales.js";
import { pointsOf, squareView } from "#why/square.js";

export const SHIFTS = Array.from({ length: 13 }, (_, i) => (i - 6) * 5);
const NORM = describe("batch", { eps: 0 });
const REACH = 4;

/**
 * The features of new students, standardised by the statistics of training (`given`) and by their own, and the shares
 * of right answers. The model says "placed" to who gets more than ½.
 * @type {(shift: number) => ShiftResult}
 */
export function judge(shift) {
    const moments = measure(featuresOf(TRAIN), NORM);
    const bowl = bowlOf(forward(featuresOf(TRAIN), NORM).xhat, placedOf(TRAIN));
    const shifted = featuresOf(TEST).map(([cgpa, iq]) => [cgpa, iq + shift]);
    const [given, own] = [forward(shifted, NORM, { moments }).xhat, forward(shifted, NORM).xhat];
    const placed = placedOf(TEST);
    /** @type {(x: number[][]) => number} */
    const accuracy = (x) => {
        const said = x.map(([a, b]) => Number(a * bowl.best[0] + b * bowl.best[1] + bowl.targetMean > 0.5));
        return said.filter((one, i) => one === placed[i]).length / x.length;
    };
    return { given, own, placed, bowl, withGiven: accuracy(given), withOwn: accuracy(own) };
}

/** @type {(state: State) => HTMLElement} */
export function shiftView(state) {
    /** @type {ShiftResult} */
    let now = null;
    const views = /** @type {const} */ (["given", "own"]).map((of) => squareView((plot) => [
        boundary(plot, now.bowl), ...pointsOf(plot, now[of], now.placed),
    ]));
    const titles = views.map(() => html("p", { class: "said" }));
    const chart = lineChart({
        title: "Right answers on new students", xLabel: "shift of iq", yLabel: "%", height: 220,
        onscrub: (shift) => state.set({ "why.shift": shift }),
    });
    const results = SHIFTS.map(judge);
    const names = ["statistics of training (running)", "statistics of the new students"];
    state.watch(["why.shift"], () => {
        const shift = state.get("why.shift");
        now = results[SHIFTS.indexOf(shift)];
        const shares = [now.withGiven, now.withOwn];
        chart.update({
            at: shift, places: SHIFTS,
            series: names.map((name, i) => ({
                name, hue: i ? 0 : 1, dash: i, shape: i,
                points: results.map(({ withGiven, withOwn }, k) =>
                    /** @type {Point} */ ([SHIFTS[k], Number((100 * (i ? withOwn : withGiven)).toFixed(1))])),
            })),
        });
        views.forEach((view, i) => {
            const words = `${formatNumber(100 * shares[i], 3)}% right with the ${names[i]}.`;
            titles[i].textContent = words;
            view.update({ low: -REACH, high: REACH, names: ["cgpa", "iq"], label: `New students. ${words}` });
        });
    });
    return html(
        "section", {}, html("h3", {}, "Covariate shift: the data change after training"),
        html("p", { class: "short" }, `A linear model learned from ${TRAIN.length} students. ${TEST.length} others `,
            "come a year later, and their iq test gives everybody more or fewer points. Above the line the model says ",
            "“placed”; filled is who was."),
        html("div", { class: "shift" }, chart.element,
            views.map((view, i) => html("div", {}, view.element, titles[i]))),
        html("p", {}, "A network in use normalizes with running statistics, those of training. They are right as long ",
            "as the data come from the same distribution. Statistics of the new data undo this shift, because only ",
            "the test changed. If the new students really were better, that would be undone, too."),
    );
}

/**
 * Where the model is undecided: w₁x₁ + w₂x₂ + b = ½.
 * @type {(plot: SquarePlot, bowl: Bowl) => Child}
 */
function boundary({ across, down }, { best: [w1, w2], targetMean }) {
    /** @type {(x: number) => number} */
    const at = (x) => (0.5 - targetMean - w1 * x) / w2;
    return svg("line", {
        class: "boundary", x1: across(-REACH), x2: across(REACH), y1: down(at(-REACH)), y2: down(at(REACH)),
    });
}
