/*
The network as a drawn graph: from C and X to the loss, with shapes on the edges. Nodes are buttons with a picture of
their numbers, and of their gradients once the backward pass has reached them.

    const graph = networkGraph({ onchoose: (node) => ... });
    graph.update({ steps, at: "dHN" });

One Tab stop; arrow keys move from node to node. The layer from left to right stands in the middle, its parameters
above, the statistics of the norm below. Where there is no room, the drawing scrolls to the chosen node.
*/
import { html, scrollBox, setVariable, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { drawCells, shapeOf } from "#network/cells.js";

const PITCH = [127, 84];
const WIDE = 82;
const NARROW = 60;
const TALL = 54;

/**
 * Column and lane of each node, in the order of the forward pass.
 * @type {Record<string, Point>}
 */
export const NODES = {
    C: [0, 1], X: [1, 0], E: [1, 1], W1: [1.74, 0], b1: [2.26, 0], H0: [2, 1], "μ": [2, 2], "σ²": [3, 2], HN: [3, 1],
    "γ": [3.74, 0], "β": [4.26, 0], HZ: [4, 1], HA: [5, 1], W2: [5.74, 0], b2: [6.26, 0], logits: [6, 1], "Ŷ": [7, 1],
    Y: [8, 0], L: [8, 1],
};
const EDGES = /** @type {[string, string][]} */ (("C>E X>E E>H0 W1>H0 b1>H0 H0>μ H0>σ² μ>σ² H0>HN μ>HN σ²>HN HN>HZ "
    + "γ>HZ β>HZ HZ>HA HA>logits W2>logits b2>logits logits>Ŷ Ŷ>L Y>L").split(" ").map((edge) => edge.split(">")));
const SIZE = [8 * PITCH[0] + WIDE, 2 * PITCH[1] + TALL];

/**
 * The node that a step is about: H0 of "H0", "dH0", "dH0 (through μ)" and "new H0".
 * @type {(name: string) => string}
 */
export function nodeOf(name) {
    const node = name.replace(/^new /, "").replace(/ \(.*/, "");
    if (node === "uses") return "X";
    return node in NODES ? node : node.slice(1);
}

/**
 * The edges of a step: forward those that lead into its node, backward those that the gradient comes back along.
 * @type {(step: NetworkStep) => [string, string][]}
 */
function edgesOf({ name, part }) {
    const node = nodeOf(name);
    if (name === "uses") return []; // row numbers have no gradient
    const through = name.match(/through (.*)\)/)?.[1];
    if (part !== "backward") return EDGES.filter(([, to]) => to === node);
    return EDGES.filter(([from, to]) =>
        (from === node && to === (through ?? to)) || (name === "dlogits" && from === "Ŷ"));
}

/** @type {(options: { onchoose: (node: string) => void }) => View<{ steps: NetworkStep[]; at: string }>} */
export function networkGraph({ onchoose }) {
    const names = Object.keys(NODES);
    const edges = svg("svg", { viewBox: `0 0 ${SIZE[0]} ${SIZE[1]}`, "aria-hidden": "true" });
    const nodes = names.map((name) => drawnNode(name, () => onchoose(name)));
    const plane = html("div", {
        class: "plane", role: "group", "aria-label": "The network, from C to the loss L", onkeydown: move,
    }, edges, nodes.map(({ element }) => element));
    const box = scrollBox("The network", plane);
    box.classList.add("network-graph");
    setVariable(plane, "--wide", SIZE[0]);
    setVariable(plane, "--tall", SIZE[1]);
    let revealed = "";

    /** @type {(event: KeyboardEvent) => void} */
    function move(event) {
        const place = nodes.findIndex(({ element }) => element === event.target);
        /** @type {Record<string, number>} */
        const goals = {
            ArrowRight: place + 1, ArrowDown: place + 1, ArrowLeft: place - 1, ArrowUp: place - 1,
            Home: 0, End: nodes.length - 1,
        };
        const goal = goals[event.key];
        if (goal === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
        event.preventDefault();
        if (!nodes[goal]) return;
        onchoose(names[goal]);
        nodes[goal].element.focus({ preventScroll: true });
    }

    /** @type {(shown: { steps: NetworkStep[]; at: string }) => void} */
    function update({ steps, at }) {
        const place = steps.findIndex(({ name }) => name === at);
        const now = steps[place];
        const chosen = nodeOf(at);
        const back = steps.slice(0, place + 1).filter(({ part }) => part === "backward");
        const lit = edgesOf(now);
        const done = now.part === "backward" ? back.flatMap(edgesOf) : [];
        const shapes = new Map(steps.map((step) => [step.name, shapeOf(step)]));
        edges.replaceChildren(...EDGES.map((edge) => {
            const look = lit.includes(edge) ? "lit" : done.includes(edge) ? "done" : "";
            const backwards = look !== "" && now.part === "backward";
            return drawnEdge(edge, `edge ${look}${backwards ? " backwards" : ""}`, backwards, shapes.get(edge[0]));
        }));
        nodes.forEach(({ element, update: show }, k) => {
            const value = steps.find((step) => step.name === names[k]);
            show(value, now.part === "backward" ? back.find((step) => step.name === `d${names[k]}`) : undefined);
            if (names[k] === chosen) element.setAttribute("aria-current", "step");
            else element.removeAttribute("aria-current");
            element.tabIndex = names[k] === chosen ? 0 : -1;
            element.classList.toggle("gradient", now.part === "backward");
        });
        if (revealed !== chosen) requestAnimationFrame(() => { // once the part is shown
            box.scrollLeft = frameOf(chosen)[0] - (box.clientWidth - WIDE) / 2;
        });
        revealed = chosen;
    }
    return { element: box, update };
}

/**
 * @type {(name: string, run: () => void) => { element: HTMLElement; update(value: NetworkStep, gradient: NetworkStep |
 *     undefined): void }}
 */
function drawnNode(name, run) {
    const pictures = [html("canvas"), html("canvas", { class: "of-gradient" })];
    const number = html("span", { class: "number" });
    const label = html("b", {}, name);
    const element = html("button", { type: "button", class: "node", onclick: run }, label, number, pictures);
    const [left, top, width] = frameOf(name);
    setVariable(element, "--left", left);
    setVariable(element, "--top", top);
    setVariable(element, "--width", width);

    /** @type {(value: NetworkStep, gradient: NetworkStep | undefined) => void} */
    function update(value, gradient) {
        const isNumber = value.axes.length === 0;
        number.textContent = isNumber ? formatNumber(value.values[0]) : "";
        const words = isNumber ? number.textContent : shapeOf(value);
        element.setAttribute("aria-label", `${name}, ${words}${gradient ? ", with its gradient" : ""}`);
        [value, gradient].forEach((step, k) => {
            pictures[k].hidden = !step || isNumber;
            if (!pictures[k].hidden) drawPicture(pictures[k], step, gradient ? (width - 18) / 2 : width - 14);
        });
    }
    return { element, update };
}

/**
 * As large as fits, with cells that are about square.
 * @type {(canvas: HTMLCanvasElement, step: NetworkStep, room: number) => void}
 */
function drawPicture(canvas, step, room) {
    const cell = Math.min(room / step.columns, 26 / step.rows, 8);
    drawCells(canvas, step, Math.max(cell * step.columns, 4), Math.max(cell * step.rows, 4));
}

/** @type {(name: string) => [left: number, top: number, width: number]} */
function frameOf(name) {
    const [column, lane] = NODES[name];
    const width = Number.isInteger(column) ? WIDE : NARROW;
    return [column * PITCH[0] + (WIDE - width) / 2, lane * PITCH[1], width];
}

/** @type {(edge: [string, string], look: string, backwards: boolean, shape: string) => SVGElement} */
function drawnEdge([from, to], look, backwards, shape) {
    const [[x1, y1], [x2, y2]] = endsOf(from, to);
    const [start, end] = backwards ? [[x2, y2], [x1, y1]] : [[x1, y1], [x2, y2]];
    const angle = (Math.atan2(end[1] - start[1], end[0] - start[0]) * 180) / Math.PI;
    const level = y1 === y2;
    // One label for a node that several edges leave: at the edge that goes on to the right, or the only one.
    const labelled = level ? from !== "μ" : !["H0", "μ"].includes(from);
    const middle = level ? [(x1 + x2) / 2, y1 - 6] : [x1 + (x1 < x2 ? -5 : 5), (y1 + y2) / 2 + 4];
    return svg(
        "g", { class: look },
        svg("line", { x1, y1, x2, y2 }),
        svg("path", { d: "M0 0L-8 -4V4z", transform: `translate(${end[0]} ${end[1]}) rotate(${angle})` }),
        labelled ? svg("text", {
            x: middle[0], y: middle[1], "text-anchor": level ? "middle" : x1 < x2 ? "end" : "start",
        }, shape.replaceAll(" ", "")) : null,
    );
}

/** @type {(from: string, to: string) => [Point, Point]} */
function endsOf(from, to) {
    const [left, top, width] = frameOf(from);
    const [toLeft, toTop, toWidth] = frameOf(to);
    const middles = [left + width / 2, toLeft + toWidth / 2];
    if (top === toTop) return [[left + width, top + TALL / 2], [toLeft, toTop + TALL / 2]];
    const [y1, y2] = top < toTop ? [top + TALL, toTop] : [top, toTop + TALL];
    const aside = middles[1] - middles[0];
    if (Math.abs(aside) > WIDE) return [[left + width - 8, y1], [toLeft + 8, y2]]; // across the square of the norm
    return [[middles[0], y1], [middles[1] - aside / 2, y2]];
}
