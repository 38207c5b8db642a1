/*
A histogram that keeps its scale while its numbers change, so that what moves is the data.

    const into = histogram({ hue: 0, reach: 5, open: true, flat: 2.09 });
    root.append(into.element);
    into.update({ label: "What goes into tanh", counts: [3, 10, ..., 2], most: 0.4 });     // most: share at the top

Bins are equally wide, from -reach to reach. `open`: the first and the last count all that lies beyond; they stand apart
and are hollow. `flat`: beyond it, on both sides, the background is shaded. It draws itself anew when its width changes.
*/
import { html, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";

const HISTOGRAM = { left: 36, right: 4, top: 16, bottom: 22, height: 150 };

/** @type {(options: HistogramOptions) => { element: HTMLElement; update(news: HistogramData): void }} */
export function histogram({ hue, reach, open = false, flat = null }) {
    const element = html("div", { class: "histogram" });
    /** @type {HistogramData | null} */
    let data = null;
    let width = 0; // as last seen: to ask for it lays out the whole page

    function redraw() {
        if (data === null) return;
        width ||= element.clientWidth || 300;
        element.replaceChildren(histogramDrawing({ ...data, hue, reach, open, flat, width }));
    }

    /** @type {(news: HistogramData) => void} */
    function update(news) {
        data = news;
        redraw();
    }

    new ResizeObserver(([{ contentRect }]) => {
        width = contentRect.width;
        redraw();
    }).observe(element);
    return { element, update };
}

/** @type {(drawn: HistogramOptions & HistogramData & { width: number }) => SVGElement} */
function histogramDrawing({ label, counts, most, hue, reach, open, flat, width }) {
    const { left, right, top, bottom, height } = HISTOGRAM;
    const total = counts.reduce((sum, count) => sum + count, 0) || 1;
    const floor = height - bottom;
    /** @type {(share: number) => number} */
    const up = (share) => floor - (share / most) * (floor - top);
    // An open histogram has half a bin of air between its inside and each of the two ends.
    const slot = (width - left - right) / (counts.length + (open ? 1 : 0));
    const inside = open ? counts.length - 2 : counts.length;
    const begin = left + (open ? 1.5 * slot : 0);
    /** @type {(value: number) => number} */
    const across = (value) => begin + ((value + reach) / (2 * reach)) * inside * slot;
    /** @type {(i: number) => number} */
    const place = (i) => (!open ? i : i === 0 ? 0 : i === counts.length - 1 ? i + 1 : i + 0.5);
    const level = most > 0.6 ? 0.5 : most > 0.25 ? 0.2 : 0.1;
    const levels = Array.from({ length: Math.floor(most / level + 1e-9) + 1 }, (_, i) => i * level);
    return svg(
        "svg", { role: "img", "aria-label": label, width, height, viewBox: `0 0 ${width} ${height}` },
        flat === null ? null : [
            histogramShade(left, across(-flat), top, floor), histogramShade(across(flat), width - right, top, floor),
        ],
        levels.map((share) => [
            svg("line", { class: "grid", x1: left, x2: width - right, y1: up(share), y2: up(share) }),
            histogramTick(left - 6, up(share) + 4, "end", `${formatNumber(100 * share)}%`),
        ]),
        counts.map((count, i) => histogramBar({
            x: left + place(i) * slot, width: slot, top: up(count / total), floor, hue, count, total,
            beyond: open && (i === 0 || i === counts.length - 1),
        })),
        svg("line", { class: "axis", x1: left, x2: width - right, y1: floor, y2: floor }),
        [-reach, 0, reach].map((value) => histogramTick(across(value), floor + 16, "middle", formatNumber(value))),
    );
}

/** @type {(x: number, y: number, anchor: string, text: string) => SVGElement} */
function histogramTick(x, y, anchor, text) {
    return svg("text", { class: "tick", x, y, "text-anchor": anchor }, text);
}

/** @type {(from: number, to: number, top: number, floor: number) => SVGElement} */
function histogramShade(from, to, top, floor) {
    return svg("rect", { class: "flat", x: from, y: top, width: Math.max(to - from, 0), height: floor - top });
}

/**
 * A count that is not 0 is never less than a pixel high.
 * @type {(bar: { x: number; width: number; top: number; floor: number; hue: number; beyond: boolean; count: number;
 *     total: number }) => SVGElement}
 */
function histogramBar({ x, width, top, floor, hue, beyond, count, total }) {
    const height = count > 0 ? Math.max(floor - top, 1) : 0;
    const gap = Math.min(1, width / 6);
    return svg("rect", {
        class: `bar series-${hue}${beyond ? " beyond" : ""}`,
        x: x + gap, y: floor - height, width: Math.max(width - 2 * gap, 1), height, "data-count": count,
    }, svg("title", {}, `${formatNumber((100 * count) / total)}%`));
}
