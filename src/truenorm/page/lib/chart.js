/*
A line chart that is read without colour and without a mouse.

    const chart = lineChart({ title: "Loss", xLabel: "step", yLabel: "nats", onscrub: (x) => ... });
    root.append(chart.element);
    chart.update({ series: [{ name: "batch norm", points: [[0, 3.3], [100, 2.4]] }], at: 100, logarithmic: false });

Each series has a hue, a dash and a marker of its own, by its place in the list or, so that it keeps them while others
come and go, by numbers given with it: { name, points, hue: 0, dash: 1, shape: 4, thin: true }. A native slider below
the chart, or a mouse on it, moves a cursor over the x values (or over `places` alone); the legend shows every series'
value there, or its last before. A part with a legend of its own says `legend: false` and draws `lineSample`s.
`stretched` gives small x more room, as a logarithm that begins at 0. What is not finite leaves a gap. It draws itself
anew when its width changes, so that text keeps its size on a phone.
*/
import { uniqueId } from "#lib/controls.js";
import { html, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";

const DASHES = ["none", "7 4", "2 3", "10 3 2 3", "4 2", "1 4"];
const MARKERS = ["circle", "square", "triangle", "diamond", "cross", "bar"];
const MARGIN = { left: 56, right: 14, top: 26, bottom: 26 };
const MOST_MARKERS = 9;

/**
 * @type {(options: { title: string; xLabel: string; yLabel: string; height?: number; onscrub?: ((x: number) => void) |
 *     null; legend?: boolean }) => { element: HTMLElement; update(news: Partial<ChartData>): void }}
 */
export function lineChart({ title, xLabel, yLabel, height = 260, onscrub = null, legend: ownLegend = true }) {
    const id = uniqueId();
    const box = html("div", { class: "canvas" });
    /** @type {HTMLInputElement} */
    const range = html("input", { type: "range", id, min: 0, step: 1, oninput: () => move(range.valueAsNumber) });
    const value = html("output", { for: id, "aria-live": "off" });
    const legend = html("ul", { class: "legend", hidden: !ownLegend });
    const element = html(
        "figure", { class: "chart" }, html("figcaption", {}, title), box,
        html("div", { class: "slider" }, html("label", { for: id }, xLabel), range, value), legend,
    );
    /** @type {ChartData} */
    let data = { series: [], at: null, logarithmic: false, stretched: false, places: null, frame: null };
    /** @type {number[]} */
    let places = [];

    /** @type {(news: Partial<ChartData>) => void} */
    function update(news) {
        data = { ...data, ...news };
        const all = data.places ?? data.series.flatMap(({ points }) => points.map(([x]) => x));
        places = [...new Set(all)].sort((a, b) => a - b);
        range.max = String(Math.max(places.length - 1, 0));
        draw();
    }

    /** @type {(place: number) => void} */
    function move(place) {
        data.at = places[place];
        draw();
        onscrub?.(data.at);
    }

    function draw() {
        const at = nearest(places, data.at ?? places.at(-1));
        range.value = String(Math.max(places.indexOf(at), 0));
        value.textContent = at === undefined ? "" : formatNumber(at);
        range.setAttribute("aria-valuetext", `${xLabel} ${value.textContent}`);
        const words = data.series.map(({ name, points }) => `${name} ${shownAt(points, at)}`);
        const label = `${title}. ${yLabel} against ${xLabel}; at ${value.textContent}: ${words.join(", ")}.`;
        box.replaceChildren(plot(data, places, at, { label, yLabel, height, width: box.clientWidth || 600 }));
        if (ownLegend) legend.replaceChildren(...data.series.map((one, i) =>
            html("li", {}, lineSample(lookOf(one, i)), html("span", {}, one.name),
                html("b", {}, shownAt(one.points, at)))));
    }

    /** @type {(event: PointerEvent) => void} */
    const point = (event) => {
        if (event.buttons !== 1 || !places.length) return;
        const left = box.getBoundingClientRect().left + MARGIN.left;
        const inside = (event.clientX - left) / (box.clientWidth - MARGIN.left - MARGIN.right);
        const warped = places.map(warpOf(data.stretched));
        const [first, last] = endsOf(places, data).map(warpOf(data.stretched));
        const there = first + inside * (last - first);
        const place = warped.indexOf(nearest(warped, there));
        if (places[place] !== data.at) move(place);
    };
    box.addEventListener("pointerdown", point);
    box.addEventListener("pointermove", point);
    new ResizeObserver(() => draw()).observe(box);
    return { element, update };
}

/**
 * About so many round numbers between these, both ends covered as far as they are round.
 * @type {(low: number, high: number, about?: number) => number[]}
 */
export function ticks(low, high, about = 5) {
    if (!(high > low)) return [low];
    const raw = (high - low) / about;
    const power = 10 ** Math.floor(Math.log10(raw));
    if (!(power > 0 && power < Infinity)) return [low]; // beyond what a computer can divide
    const step = power * [1, 2, 5, 10].find((one) => one * power >= raw);
    const first = Math.ceil(low / step);
    const count = Math.floor(high / step + 1e-9) - first + 1;
    return Array.from({ length: count }, (_, i) => Number(((first + i) * step).toPrecision(12)));
}

/**
 * @type {(data: ChartData, places: number[], at: number | undefined, look: { label: string; yLabel: string; height:
 *     number; width: number }) => SVGElement}
 */
function plot(data, places, at, { label, yLabel, height, width }) {
    const { series, logarithmic, stretched, frame } = data;
    /** @type {(y: number) => number} */
    const up = logarithmic ? (y) => (y > 0 ? Math.log10(y) : NaN) : (y) => y;
    const known = [...series.flatMap(({ points }) => points.map(([, y]) => y)), ...(frame?.y ?? [])];
    const ys = known.map(up).filter(Number.isFinite);
    const [low, high] = widened(Math.min(...ys, Infinity), Math.max(...ys, -Infinity));
    const [first, last] = endsOf(places, data);
    const warp = warpOf(stretched);
    /** @type {(x: number) => number} */
    const part = (x) => (warp(x) - warp(first)) / (warp(last) - warp(first) || 1);
    /** @type {(x: number) => number} */
    const across = (x) => MARGIN.left + part(x) * (width - MARGIN.left - MARGIN.right);
    /** @type {(y: number) => number} */
    const down = (y) => height - MARGIN.bottom - ((up(y) - low) / (high - low)) * (height - MARGIN.top - MARGIN.bottom);
    const levels = logarithmic ? powersBetween(low, high) : ticks(low, high);
    const bottom = height - MARGIN.bottom;
    return svg(
        "svg", { role: "img", "aria-label": label, width, height, viewBox: `0 0 ${width} ${height}` },
        levels.map((y) => [
            svg("line", { class: "grid", x1: MARGIN.left, x2: width - MARGIN.right, y1: down(y), y2: down(y) }),
            svg("text", { class: "tick", x: MARGIN.left - 8, y: down(y) + 4, "text-anchor": "end" }, formatNumber(y)),
        ]),
        (stretched ? powersUpTo(last) : ticks(first, last, Math.max(2, Math.floor(width / 110)))).map((x) => {
            const last = across(x) > width - MARGIN.right - 12; // it would be cut off at the right
            const [place, anchor] = last ? [width, "end"] : [across(x), "middle"];
            return svg("text", { class: "tick", x: place, y: bottom + 18, "text-anchor": anchor }, formatNumber(x));
        }),
        svg("line", { class: "axis", x1: MARGIN.left, x2: width - MARGIN.right, y1: bottom, y2: bottom }),
        svg("text", { class: "tick", x: MARGIN.left, y: 12 }, `${yLabel} ↑`),
        at === undefined ? null
            : svg("line", { class: "cursor", x1: across(at), x2: across(at), y1: MARGIN.top, y2: bottom }),
        series.map((one, i) => line(one.points.map(([x, y]) => [across(x), down(y)]), lookOf(one, i))),
    );
}

/**
 * From where to where the axis goes: at least as far as the frame, in which little would look like much.
 * @type {(places: number[], data: ChartData) => Point}
 */
function endsOf(places, { frame }) {
    return [places[0] ?? 0, Math.max(places.at(-1) ?? 1, frame?.x ?? 0)];
}

/**
 * What tells a series from the others: by its place, where it does not say.
 * @type {(series: Partial<Look>, i: number) => Look}
 */
function lookOf({ hue, dash, shape, thin }, i) {
    return { hue: hue ?? i, dash: dash ?? i, shape: shape ?? i, thin };
}

/** @type {(look: Look, path: string, ...markers: Child[]) => SVGElement} */
function seriesGroup({ hue, dash, thin }, path, ...markers) {
    return svg(
        "g", { class: `series series-${hue % MARKERS.length}${thin ? " thin" : ""}` },
        svg("path", { d: path, fill: "none", "stroke-dasharray": DASHES[dash % DASHES.length] }), markers,
    );
}

/**
 * One series: the line, broken where there is no value, and a few markers.
 * @type {(points: Point[], look: Look) => SVGElement}
 */
function line(points, look) {
    let path = "";
    points.forEach(([x, y], place) => {
        if (!Number.isFinite(y)) return;
        const goesOn = place > 0 && Number.isFinite(points[place - 1][1]);
        path += `${goesOn ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
    });
    const apart = (points.at(-1)?.[0] - points[0]?.[0]) / MOST_MARKERS;
    let next = -Infinity; // where there is room for a marker again
    const shown = points.filter(([x, y]) => {
        if (x < next || !Number.isFinite(y)) return false;
        next = x + apart;
        return true;
    });
    return seriesGroup(look, path, shown.map(([x, y]) => marker(x, y, look.shape)));
}

/** @type {(x: number, y: number, i: number) => SVGElement} */
function marker(x, y, i) {
    /** @type {Record<string, string>} */
    const shapes = {
        circle: "M-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z", square: "M-3.5 -3.5h7v7h-7z", triangle: "M0 -4.5L4.5 3.5h-9z",
        diamond: "M0 -5L5 0L0 5L-5 0z", cross: "M-4 -4L4 4M4 -4L-4 4", bar: "M0 -5V5",
    };
    return svg("path", { class: "marker", d: shapes[MARKERS[i % MARKERS.length]], transform: `translate(${x} ${y})` });
}

/**
 * How a series looks, for a legend: lineSample({ hue: 0, dash: 1, shape: 2 }).
 * @type {(look: Look) => SVGElement}
 */
export function lineSample(look) {
    return svg(
        "svg", { class: "sample", width: 44, height: 14, viewBox: "0 0 44 14", "aria-hidden": "true" },
        seriesGroup(look, "M2 7H42", marker(22, 7, look.shape)),
    );
}

/** @type {(points: Point[], at: number | undefined) => string} */
function shownAt(points, at) {
    const point = points.findLast(([x]) => x <= at);
    return point === undefined || !Number.isFinite(point[1]) ? "–" : formatNumber(point[1]);
}

/** @type {(stretched: boolean) => (x: number) => number} */
function warpOf(stretched) {
    return stretched ? Math.log1p : (x) => x;
}

/** @type {(places: number[], x: number) => number} */
function nearest(places, x) {
    return places.reduce((best, one) => (Math.abs(one - x) < Math.abs(best - x) ? one : best), places[0]);
}

/** @type {(low: number, high: number) => [number, number]} */
function widened(low, high) {
    if (!(low <= high)) return [0, 1];
    const room = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    return [low - room, high + room];
}

/** @type {(low: number, high: number) => number[]} */
function powersBetween(low, high) {
    const powers = [];
    for (let power = Math.ceil(low); power <= high; power++) powers.push(10 ** power);
    return powers.length >= 2 ? powers : ticks(10 ** low, 10 ** high).filter((y) => y > 0);
}

/**
 * 0, 1, 10, 100 ... and the end, where there is room for it.
 * @type {(last: number) => number[]}
 */
function powersUpTo(last) {
    const powers = [0];
    for (let power = 1; power <= last; power *= 10) powers.push(power);
    return powers.at(-1) * 2 < last ? [...powers, last] : powers;
}
