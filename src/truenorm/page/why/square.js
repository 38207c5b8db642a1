/*
A square drawing with two axes on the same scale, so that what is longer on the screen is longer in the data.

    const view = squareView((plot) => [svg("circle", { cx: plot.across(1), cy: plot.down(2), r: 3 })]);
    view.update({ low: 0, high: 140, names: ["cgpa", "iq"], label: "40 students" });

It draws itself anew when its width changes. What lies beyond the axes is cut off.
*/
import { ticks } from "#lib/chart.js";
import { uniqueId } from "#lib/controls.js";
import { html, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";

const MARGIN = { left: 34, right: 8, top: 22, bottom: 34 };

/** @type {(draw: (plot: SquarePlot) => Child[]) => SquareView} */
export function squareView(draw) {
    const element = html("div", { class: "square" });
    const clip = uniqueId();
    /** @type {SquareData | null} */
    let data = null;
    /** @type {SquarePlot | null} */
    let plot = null;

    function redraw() {
        if (data === null) return;
        const size = element.clientWidth || 280;
        plot = plotOf(size, data);
        const { inner, height, across, down } = plot;
        const { low, high, names, label } = data;
        const [left, right, top, bottom] = [across(low), across(high), down(high), down(low)];
        const values = ticks(low, high, size > 220 ? 4 : 2);
        element.replaceChildren(svg(
            "svg", { role: "img", "aria-label": label, width: size, height, viewBox: `0 0 ${size} ${height}` },
            svg("clipPath", { id: clip }, svg("rect", { x: left, y: top, width: inner, height: inner })),
            values.map((value) => [
                svg("line", { class: "grid", x1: across(value), x2: across(value), y1: top, y2: bottom }),
                svg("line", { class: "grid", x1: left, x2: right, y1: down(value), y2: down(value) }),
                svg("text", { x: across(value), y: bottom + 14, "text-anchor": "middle" }, formatNumber(value)),
                svg("text", { x: left - 5, y: down(value) + 4, "text-anchor": "end" }, formatNumber(value)),
            ]),
            svg("g", { "clip-path": `url(#${clip})` }, draw(plot)),
            svg("rect", { class: "frame", x: left, y: top, width: inner, height: inner }),
            svg("text", { class: "name", x: right, y: bottom + 29, "text-anchor": "end" }, `${names[0]} →`),
            svg("text", { class: "name", x: left, y: 14 }, `↑ ${names[1]}`),
        ));
    }

    /** @type {(news: SquareData) => void} */
    function update(news) {
        data = news;
        redraw();
    }

    new ResizeObserver(redraw).observe(element);
    return { element, update, plot: () => plot };
}

/** @type {(size: number, data: SquareData) => SquarePlot} */
function plotOf(size, { low, high }) {
    const inner = Math.max(size - MARGIN.left - MARGIN.right, 40);
    const scale = inner / (high - low);
    return {
        inner, scale, height: inner + MARGIN.top + MARGIN.bottom,
        across: (value) => MARGIN.left + (value - low) * scale,
        down: (value) => MARGIN.top + (high - value) * scale,
        valueAt: (x, y) => [low + (x - MARGIN.left) / scale, high - (y - MARGIN.top) / scale],
    };
}

/**
 * Students as points: filled where placed, hollow where not.
 * @type {(plot: SquarePlot, x: number[][], placed: number[], quiet?: boolean) => Child[]}
 */
export function pointsOf({ across, down }, x, placed, quiet = false) {
    return x.map(([a, b], i) => svg("circle", {
        class: `${placed[i] ? "point placed" : "point"}${quiet ? " quiet" : ""}`, cx: across(a), cy: down(b), r: 3.5,
    }));
}
