/*
The computation as a drawn graph: numbers are boxes, and an arrow leads from each to what is made of it. Going back, the
gradients walk against the arrows.

    const graph = computationGraph();
    graph.update({ center: true, lit: ["var-rstd"], done: ["y-loss"], numbers: { x: { value: 7, gradient: 0.1 } } });

An edge is named "from-to", as it is computed forward. It looks different in three ways: not yet gone back along, thin
and grey with its arrow forward; gone back along before, coloured with its arrow backward; now, thick. One spine leads
down from x to the loss; what is shared by many cells stands at its right. So it fits a phone without scrolling.
*/
import { svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { inSymbols } from "#lib/symbols.js";

const GRAPH_WIDTH = 330;
const GRAPH_BOX = { width: 146, height: 41 };
const SPINE = 75;
const ASIDE = 252;
const GRAPH_NARROW = 130; // weight and bias, so that their short arrows have room
const GRAPH_WIDE = 152; // the others beside the spine: "dmean so far" is long

/**
 * Names as a reader knows them; the others are shown as they are.
 * @type {Record<string, string>}
 */
const GRAPH_LABELS = { deviation: "x − μ", times: "γ · x̂", weight: "γ weight", bias: "β bias" };

/**
 * Boxes at [column, row], and edges by the way they leave and arrive.
 * @type {Graph}
 */
const GRAPH_CENTERED = {
    boxes: {
        x: [SPINE, 0], mean: [ASIDE, 1], deviation: [SPINE, 2], var: [ASIDE, 3], rstd: [ASIDE, 4], xhat: [SPINE, 5],
        times: [SPINE, 6], weight: [ASIDE, 6], y: [SPINE, 7], bias: [ASIDE, 7], loss: [SPINE, 8],
    },
    edges: {
        "x-mean": "right down", "x-deviation": "down", "mean-deviation": "down left", "deviation-var": "right down",
        "deviation-xhat": "down", "var-rstd": "down", "rstd-xhat": "down left",
        "xhat-times": "down", "weight-times": "left", "times-y": "down", "bias-y": "left", "y-loss": "down",
    },
};
/** @type {Graph} */
const GRAPH_UNCENTERED = {
    boxes: {
        x: [SPINE, 0], var: [ASIDE, 1], rstd: [ASIDE, 2], xhat: [SPINE, 3],
        times: [SPINE, 4], weight: [ASIDE, 4], y: [SPINE, 5], bias: [ASIDE, 5], loss: [SPINE, 6],
    },
    edges: {
        "x-var": "right down", "x-xhat": "down", "var-rstd": "down", "rstd-xhat": "down left",
        "xhat-times": "down", "weight-times": "left", "times-y": "down", "bias-y": "left", "y-loss": "down",
    },
};
const GRAPH_ROW = 63;
/** @type {Record<string, Point>} */
const GRAPH_DIRECTIONS = { right: [1, 0], left: [-1, 0], down: [0, 1] };

/**
 * `onchoose(box)` when a box is clicked. Each step has a button too, so nothing depends on a mouse.
 * @type {(onchoose: (box: string) => void) => { element: SVGElement; update(shown: GraphUpdate): void }}
 */
export function computationGraph(onchoose) {
    const element = svg("svg", {
        class: "backward-graph", role: "img",
        onclick: ({ target }) => {
            const box = target.closest("[data-box]");
            if (box) onchoose(box.getAttribute("data-box"));
        },
    });

    /** @type {(shown: GraphUpdate) => void} */
    function update({ center, lit, done, numbers, target, label }) {
        const { boxes, edges } = center ? GRAPH_CENTERED : GRAPH_UNCENTERED;
        const rows = Math.max(...Object.values(boxes).map(([, row]) => row)) + 1;
        /** @type {(name: string) => EdgeState} */
        const stateOf = (name) => (lit.includes(name) ? "lit" : done.includes(name) ? "done" : "todo");
        // Lit edges come last, so that they lie on top.
        const names = Object.keys(edges).sort((a, b) => Number(stateOf(a) === "lit") - Number(stateOf(b) === "lit"));
        element.setAttribute("viewBox", `0 0 ${GRAPH_WIDTH} ${rows * GRAPH_ROW - (GRAPH_ROW - GRAPH_BOX.height) + 4}`);
        element.setAttribute("aria-label", label);
        element.replaceChildren(
            ...names.map((name) => drawnEdge(name, edges[name], boxes, stateOf(name))),
            ...Object.entries(boxes).map(([name, place]) =>
                drawnBox(name, place, numbers[name] ?? {}, name === target)),
        );
    }
    return { element, update };
}

/**
 * A piece of an edge, for the legend.
 * @type {(state: EdgeState) => SVGElement}
 */
export function edgeSample(state) {
    return svg(
        "svg", { class: "backward-sample", viewBox: "0 0 44 16", "aria-hidden": "true" },
        edgeBetween([42, 8], [2, 8], "left", "left", state),
    );
}

/**
 * @type {(name: string, place: Point) => { left: number; right: number; top: number; bottom: number; middle: number;
 *     x: number }}
 */
function boxFrame(name, [x, row]) {
    const short = name === "weight" || name === "bias";
    const width = short ? GRAPH_NARROW : x === ASIDE ? GRAPH_WIDE : GRAPH_BOX.width;
    const middle = row * GRAPH_ROW + GRAPH_BOX.height / 2 + 2;
    const right = x === ASIDE ? GRAPH_WIDTH - 2 : x + width / 2;
    const half = GRAPH_BOX.height / 2;
    return { left: right - width, right, top: middle - half, bottom: middle + half, middle, x };
}

/** @type {(name: string, place: Point, number: Partial<GraphNumber>, isTarget: boolean) => SVGElement} */
function drawnBox(name, place, { value, gradient, gradientName }, isTarget) {
    const { left, right, top } = boxFrame(name, place);
    /** @type {(at: number, kind: string, words: string, number: number | undefined) => Child[]} */
    const line = (at, kind, words, number) => [
        svg("text", { class: kind, x: left + 6, y: top + at }, words),
        number === undefined ? null
            : svg("text", { class: `${kind} number`, x: right - 6, y: top + at, "text-anchor": "end" }, inBox(number)),
    ];
    const known = gradient !== undefined;
    return svg(
        "g", { class: `box${known ? " known" : ""}${isTarget ? " target" : ""}`, "data-box": name },
        svg("rect", { x: left, y: top, width: right - left, height: GRAPH_BOX.height, rx: 4 }),
        line(known ? 16 : 25, "value", GRAPH_LABELS[name] ?? inSymbols(name), value),
        known ? line(33, "gradient", gradientName, gradient) : null,
    );
}

/**
 * As many digits as there is room for.
 * @type {(number: number) => string}
 */
function inBox(number) {
    const text = formatNumber(number, 3);
    return text.includes("×") ? formatNumber(number, 2) : text;
}

/** @type {(name: string, way: string, boxes: Record<string, Point>, state: EdgeState) => SVGElement} */
function drawnEdge(name, way, boxes, state) {
    const [from, to] = name.split("-");
    const [a, b] = [boxFrame(from, boxes[from]), boxFrame(to, boxes[to])];
    const [leaves, arrives] = way.includes(" ") ? way.split(" ") : [way, way];
    // What comes in at a box's right side does so in its upper half, what goes out leaves from the lower one.
    const bent = leaves !== arrives;
    const lower = bent && from === "deviation" ? 9 : 0;
    const upper = bent && to === "deviation" ? 9 : 0;
    /** @type {Record<string, Point>} */
    const starts = { right: [a.right, a.middle + lower], left: [a.left, a.middle], down: [a.x, a.bottom] };
    /** @type {Record<string, Point>} */
    const ends = { left: [b.right, b.middle - upper], down: [b.x, b.top] };
    const edge = edgeBetween(starts[leaves], ends[arrives], leaves, arrives, state);
    edge.setAttribute("data-edge", name);
    edge.setAttribute("data-state", state);
    return edge;
}

/**
 * A line, or a bend from one direction into another, with its arrow forward at the end or backward at the start.
 * @type {(start: Point, end: Point, leaves: string, arrives: string, state: EdgeState) => SVGElement}
 */
function edgeBetween(start, end, leaves, arrives, state) {
    const size = { todo: 7, done: 9, lit: 13 }[state];
    const backward = state !== "todo";
    const [out, into] = [GRAPH_DIRECTIONS[leaves], GRAPH_DIRECTIONS[arrives]];
    // The line ends inside the arrow's head, so that a thick one does not stick out at the tip.
    const inner = size * 0.8;
    const first = backward ? [start[0] + out[0] * inner, start[1] + out[1] * inner] : start;
    const last = backward ? end : [end[0] - into[0] * inner, end[1] - into[1] * inner];
    const corner = out[0] ? [last[0], first[1]] : [first[0], last[1]];
    const line = leaves === arrives ? `L${last}` : `Q${corner} ${last}`;
    const head = backward ? arrowHead(start, [-out[0], -out[1]], size) : arrowHead(end, into, size);
    return svg("g", { class: `edge ${state}` }, svg("path", { class: "line", d: `M${first} ${line}` }), head);
}

/** @type {(tip: Point, direction: Point, size: number) => SVGElement} */
function arrowHead([x, y], [dx, dy], size) {
    const [backX, backY, half] = [x - dx * size, y - dy * size, size * 0.5];
    const corners = [[x, y], [backX - dy * half, backY + dx * half], [backX + dy * half, backY - dx * half]];
    return svg("polygon", { class: "head", points: corners.map((corner) => corner.join(",")).join(" ") });
}
