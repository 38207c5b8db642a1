/*
Gradient descent by hand: the learning rate, a step or ten, and the losses so far.
*/
import { uniqueId } from "#lib/controls.js";
import { announce, html, putText, svg } from "#lib/elements.js";
import { formatNumber, readNumber } from "#lib/numbers.js";
import { quoted } from "#lib/text.js";
import { complaintAbout } from "#network/entries.js";

const MOST_STEPS = 1000;
const LEAST_LR = 1e-6;
const MOST_LR = 1000;

/**
 * "20x0.1,5x1" is twenty steps at 0.1, then five at 1.
 * @type {Codec<DescentPath>}
 */
export const pathCodec = {
    encode: (path) => path.map(([lr, steps]) => `${steps}x${lr}`).join(","),
    decode: (text) => {
        /** @type {DescentPath} */
        const path = text === "" ? [] : text.split(",").map((one) => {
            const [, steps, lr] = one.match(/^([1-9]\d{0,3})x([\d.e+-]{1,20})$/) ?? [];
            return [isRate(Number(lr)) ? Number(lr) : NaN, Number(steps)];
        });
        if (path.flat().some(Number.isNaN) || countSteps(path) > MOST_STEPS) throw new RangeError("network: steps.");
        return path;
    },
};

/** @type {(value: number) => boolean} */
export function isRate(value) {
    return value >= LEAST_LR && value <= MOST_LR;
}

/** @type {(path: DescentPath) => number} */
export function countSteps(path) {
    return path.reduce((sum, [, steps]) => sum + steps, 0);
}

/** @type {(path: DescentPath, lr: number, steps: number) => DescentPath} */
export function longerPath(path, lr, steps) {
    const last = path.at(-1);
    return last?.[0] === lr ? [...path.slice(0, -1), [lr, last[1] + steps]] : [...path, [lr, steps]];
}

/** @type {(state: State) => View<NetworkModel>} */
export function descentView(state) {
    const id = uniqueId();
    const summary = html("p", { class: "said" });
    const chart = html("div", { class: "losses" });
    /** @type {HTMLInputElement} */
    const rate = html("input", {
        type: "text", id, autocomplete: "off", maxlength: 20, oninput: () => enter(rate.value),
    });
    const { place, complain } = complaintAbout(rate);
    /** @type {(words: string, run: () => void) => HTMLElement} */
    const button = (words, onclick) => html("button", { type: "button", onclick }, words);
    /** @type {NetworkModel | null} */
    let model = null;

    /** @type {(text: string) => void} */
    function enter(text) {
        const value = readNumber(text);
        complain(isRate(value) ? "" : `A learning rate is a number from ${formatNumber(LEAST_LR)} to ${MOST_LR}, got `
            + `${quoted(text)}. ${state.get("network.lr")} stays in use.`);
        if (isRate(value)) state.set({ "network.lr": value });
    }

    function startAgain() {
        state.set({ "network.path": [] });
        complain("");
    }

    /** @type {(steps: number) => void} */
    function take(steps) {
        const [path, lr] = [state.get("network.path"), state.get("network.lr")];
        if (countSteps(path) + steps > MOST_STEPS) {
            return complain(`${MOST_STEPS} steps are the most that this page takes. Reset to take more.`);
        }
        if (!Number.isFinite(model.lossAfter)) return complain("The next loss is too large for a number. Reset.");
        state.set({ "network.path": longerPath(path, lr, steps) });
    }

    /** @type {(news: NetworkModel) => void} */
    function update(news) {
        const isNew = model !== null && model.losses.length !== news.losses.length;
        model = news;
        const { losses, loss, lossAfter, learningRate } = model;
        if (readNumber(rate.value) !== learningRate && document.activeElement !== rate) {
            rate.value = String(learningRate);
            complain("");
        }
        const rises = lossAfter > loss ? " It rises: this learning rate is too large here." : "";
        const steps = losses.length === 2 ? "1 step" : `${losses.length - 1} steps`;
        putText(summary, `Loss ${loss.toFixed(6)} after ${steps}, ${lossAfter.toFixed(6)} after one `
            + `more on the same batch.${rises}`);
        chart.replaceChildren(lossCurve(losses));
        if (isNew) announce(`Step ${losses.length - 1}: loss ${formatNumber(loss)}.`);
    }
    const element = html(
        "div", { class: "network-descent", role: "group", "aria-label": "Gradient descent" },
        html("div", {},
            html("div", { class: "row" }, html("label", { for: id }, "Learning rate"), rate,
                button("Take a step", () => take(1)), button("Take 10", () => take(10)),
                button("Reset", startAgain)),
            place, summary),
        chart,
    );
    return { element, update };
}

/** @type {(losses: number[]) => SVGElement} */
function lossCurve(losses) {
    const [wide, tall] = [170, 90];
    const steps = losses.length - 1;
    const most = Math.max(...losses);
    /** @type {(loss: number, k: number) => Point} */
    const place = (loss, k) => [34 + (k * (wide - 44)) / Math.max(steps, 10), 12 + (1 - loss / most) * (tall - 30)];
    const points = losses.map((loss, k) => place(loss, k).map((one) => one.toFixed(1)));
    const [x, y] = points.at(-1);
    const bottom = tall - 18;
    return svg(
        "svg", {
            viewBox: `0 0 ${wide} ${tall}`, role: "img", "aria-label": `Losses of ${steps} steps: from `
                + `${formatNumber(losses[0])} to ${formatNumber(losses.at(-1))}.`,
        },
        svg("line", { class: "axis", x1: 34, x2: wide, y1: bottom, y2: bottom }),
        [[most, 16], [0, bottom + 4]].map(([value, at]) =>
            svg("text", { x: 28, y: at, "text-anchor": "end" }, formatNumber(value, 3))),
        svg("text", { x: 34, y: tall - 4 }, "0"),
        svg("text", { x: wide, y: tall - 4, "text-anchor": "end" }, `${Math.max(steps, 10)} steps`),
        svg("path", { class: "curve", d: `M${points.map((point) => point.join(" ")).join("L")}` }),
        svg("circle", { cx: x, cy: y, r: 4 }),
    );
}
