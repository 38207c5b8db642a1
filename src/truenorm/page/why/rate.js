/*
The slider for the learning rate, with a mark at the largest rate that still converges for each of the two sides. A mark
is a button that takes the slider there. 0 in the state stands for the best rate of each side, 2 / (λ₁ + λ₂).
*/
import { uniqueId } from "#lib/controls.js";
import { html, putText, setVariable } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";

const [LEAST, MOST] = [1e-4, 10];
const DECADES = Math.log10(MOST / LEAST);
const NOTCHES = 100;

/** @type {(lr: number) => number} */
function partOf(lr) {
    return Math.min(Math.max(Math.log10(lr / LEAST) / DECADES, 0), 1);
}

/** @type {(notch: number) => number} */
function rateAt(notch) {
    return Number((LEAST * 10 ** ((notch / NOTCHES) * DECADES)).toPrecision(3));
}

/**
 * Rounded down to three digits, so that it still converges.
 * @type {(lr: number) => number}
 */
export function below(lr) {
    const unit = 10 ** (Math.floor(Math.log10(lr)) - 2);
    return Number((Math.floor(lr / unit) * unit).toPrecision(3));
}

/**
 * The learning rate of a side.
 * @type {(chosen: number, bowl: Bowl) => number}
 */
export function rateOf(chosen, bowl) {
    return chosen || bowl.bestRate;
}

/** @type {(state: State) => View<Side[]>} */
export function rateSlider(state) {
    const id = uniqueId();
    /** @type {HTMLInputElement} */
    const range = html("input", {
        type: "range", id, min: 0, max: NOTCHES, step: 1,
        oninput: () => state.set({ "why.lr": rateAt(range.valueAsNumber) }),
    });
    const value = html("output", { for: id, "aria-live": "off" });
    const best = html("button", { type: "button", onclick: () => state.set({ "why.lr": 0 }) }, "Best rate for each");
    const marks = [0, 1].map((place) => html("button", { type: "button", class: `mark mark-${place}` }));
    const element = html(
        "div", { class: "rate" },
        html("div", { class: "slider" }, html("label", { for: id }, "Learning rate"), value, best,
            html("span", { class: "note" }, "▲ the largest that converges")),
        html("div", { class: "track" }, range, marks),
    );

    /** @type {(sides: Side[]) => void} */
    function update(sides) {
        const chosen = state.get("why.lr");
        const rates = sides.map(({ bowl }) => rateOf(chosen, bowl));
        range.value = String(Math.round(partOf(rates[0]) * NOTCHES));
        const words = chosen ? formatNumber(chosen, 3)
            : rates.map((lr) => formatNumber(lr, 3)).join(" and ");
        putText(value, words);
        range.setAttribute("aria-valuetext", words);
        best.setAttribute("aria-pressed", String(chosen === 0));
        sides.forEach(({ bowl: { largestRate }, short }, i) => {
            setVariable(marks[i], "--at", partOf(largestRate));
            putText(marks[i], `▲ ${formatNumber(below(largestRate))} ${short}`);
            marks[i].onclick = () => state.set({ "why.lr": Math.min(below(largestRate), MOST) });
            marks[i].classList.toggle("late", partOf(largestRate) > 0.5); // it would not fit to the right
        });
    }
    return { element, update };
}
