/*
Values as dots on a line: dotStrip({ label, values, mean, std, domain }).
*/
import { svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";

/**
 * Values as dots on a line, with a tick at the mean and a bar of one deviation to each side, where they are finite.
 * @type {(strip: { label: string; values: number[]; mean?: number | null; std?: number | null; domain: number[];
 *     width?: number; height?: number }) => SVGElement}
 */
export function dotStrip({ label, values, mean = null, std = null, domain, width = 160, height = 28 }) {
    const [low, high] = domain;
    const known = Number.isFinite(high - low);
    const middles = known && Number.isFinite(mean) && Number.isFinite(std); // null is neither
    /** @type {(value: number) => number} */
    const place = (value) => 8 + ((value - low) / (high - low || 1)) * (width - 16);
    const shown = known ? values.filter((value) => value >= low && value <= high) : [];
    const middle = height / 2;
    const words = [`${values.length} values`];
    if (mean !== null) words.push(`mean ${formatNumber(mean)}`);
    if (std !== null) words.push(`deviation ${formatNumber(std)}`);
    const name = `${label}: ${words.join(", ")}`;
    return svg(
        "svg", { class: "dots", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name },
        svg("line", { class: "axis", x1: 8, x2: width - 8, y1: middle, y2: middle }),
        known && low < 0 && high > 0 ? svg("line", { class: "zero", x1: place(0), x2: place(0), y1: 8, y2: height - 8 })
            : null,
        middles ? bar(place(Math.max(mean - std, low)), place(Math.min(mean + std, high)), middle) : null,
        middles ? svg("line", { class: "mean", x1: place(mean), x2: place(mean), y1: 4, y2: height - 4 }) : null,
        shown.map((value) => svg("circle", { class: "dot", cx: place(value), cy: middle, r: 4 })),
    );
}

/** @type {(from: number, to: number, middle: number) => SVGElement} */
function bar(from, to, middle) {
    return svg("rect", { class: "deviation", x: from, y: middle - 5, width: Math.max(to - from, 0), height: 10 });
}
