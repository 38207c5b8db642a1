/*
The network as a drawn graph: from C and X to the loss, with shapes on the edges. Nodes are buttons with a picture of
their numbers, and of their gradients once the backward pass has reached them.

    const graph = networkGraph({ onchoose: (node) => ... });
    graph.update({ steps, at: "dHN" });

One Tab stop; arrow keys move from node to node. The layer from left to right stands in the middle, its parameters
above, the statistics of the norm below. Where there is less room, shapes stand in the nodes; on a phone the way also
turns down behind HZ and comes back. Each layout is stretched to the width that there is.
*/
import { html, putText, scrollBox, setVariable, svg } from "#lib/elements.js";
import { formatNumber } from "#lib/numbers.js";
import { drawCells, shapeOf } from "#network/cells.js";

/**
 * Left edge, top and width of each node, in the order of the forward pass.
 * @type {Record<string, [left: number, top: number, width: number]>}
 */
export const NODES = {
    C: [0, 84, 82], X: [127, 0, 82], E: [127, 84, 82], W1: [232, 0, 60], b1: [298, 0, 60], H0: [254, 84, 82],
    "μ": [254, 168, 82], "σ²": [381, 168, 82], HN: [381, 84, 82], "γ": [486, 0, 60], "β": [552, 0, 60],
    HZ: [508, 84, 82], HA: [635, 84, 82], W2: [740, 0, 60], b2: [806, 0, 60], logits: [762, 84, 82],
    "Ŷ": [889, 84, 82], Y: [1016, 0, 82], L: [1016, 84, 82],
};
/** @type {typeof NODES} */
const ON_A_PHONE = {
    C: [0, 60, 54], X: [68, 0, 54], E: [68, 60, 54], W1: [124, 0, 38], b1: [164, 0, 26], H0: [136, 60, 54],
    "μ": [136, 120, 54], "σ²": [204, 120, 54], HN: [204, 60, 54], "γ": [260, 0, 38], "β": [300, 0, 26],
    HZ: [272, 60, 54], HA: [272, 120, 54], W2: [260, 240, 38], b2: [300, 240, 26], logits: [272, 180, 54],
    "Ŷ": [204, 180, 54], Y: [68, 180, 54], L: [136, 180, 54],
};
/** @type {typeof NODES} */
const ON_A_TABLET = {
    C: [0, 72, 64], X: [80, 0, 64], E: [80, 72, 64], W1: [150, 0, 40], b1: [194, 0, 40], H0: [160, 72, 64],
    "μ": [160, 144, 64], "σ²": [240, 144, 64], HN: [240, 72, 64], "γ": [310, 0, 40], "β": [354, 0, 40],
    HZ: [320, 72, 64], HA: [400, 72, 64], W2: [470, 0, 40], b2: [514, 0, 40], logits: [480, 72, 64],
    "Ŷ": [560, 72, 64], Y: [640, 0, 64], L: [640, 72, 64],
};
/** @type {Record<"wide" | "tablet" | "phone", GraphLayout>} */
const LAYOUTS = {
    wide: { nodes: NODES, tall: 54, size: [1098, 222], most: 1098, edge: 14, above: 28, labelled: true },
    tablet: { nodes: ON_A_TABLET, tall: 52, size: [704, 196], most: 1098, edge: 8, above: 34, labelled: false },
    phone: { nodes: ON_A_PHONE, tall: 46, size: [326, 286], most: 500, edge: 8, above: 30, labelled: false },
};
const MARGINS = 4; // of the box
const EDGES = /** @type {[string, string][]} */ (("C>E X>E E>H0 W1>H0 b1>H0 H0>μ H0>σ² μ>σ² H0>HN μ>HN σ²>HN HN>HZ "
    + "γ>HZ β>HZ HZ>HA HA>logits W2>logits b2>logits logits>Ŷ Ŷ>L Y>L").split(" ").map((edge) => edge.split(">")));

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
    const [phone, tablet] = ["<= 48rem", "< 74rem"].map((most) => matchMedia(`screen and (width ${most})`));
    const edges = svg("svg", { "aria-hidden": "true" });
    const nodes = names.map((name) => drawnNode(name, () => onchoose(name)));
    const plane = html("div", {
        class: "plane", role: "group", "aria-label": "The network, from C to the loss L", onkeydown: move,
    }, edges, nodes.map(({ element }) => element));
    const box = scrollBox("The network", plane);
    box.classList.add("network-graph");
    let layout = LAYOUTS.wide;
    let revealed = "";
    /** @type {{ steps: NetworkStep[]; at: string } | null} */
    let shown = null;
    arrange();
    for (const query of [phone, tablet]) query.addEventListener("change", arrangeAnew);
    new ResizeObserver(arrangeAnew).observe(box);

    function arrangeAnew() {
        const before = layout;
        arrange();
        if (shown && before.size.join() !== layout.size.join()) update(shown);
    }

    function arrange() {
        const name = phone.matches ? "phone" : tablet.matches ? "tablet" : "wide";
        layout = stretched(LAYOUTS[name], box.clientWidth - MARGINS);
        const [wide, tall] = layout.size;
        edges.setAttribute("viewBox", `0 0 ${wide} ${tall}`);
        plane.className = `plane ${name}`;
        for (const [name, value] of Object.entries({ wide, tall, node: layout.tall })) {
            setVariable(plane, `--${name}`, value);
        }
        nodes.forEach(({ element }, k) => {
            const [left, top, width] = layout.nodes[names[k]];
            for (const [name, value] of Object.entries({ left, top, width })) setVariable(element, `--${name}`, value);
        });
    }

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

    /** @type {(news: { steps: NetworkStep[]; at: string }) => void} */
    function update(news) {
        shown = news;
        const { steps, at } = news;
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
            const classes = `edge ${look}${backwards ? " backwards" : ""}`;
            return drawnEdge(edge, layout, classes, backwards, shapes.get(edge[0]));
        }));
        nodes.forEach(({ element, update: show }, k) => {
            const value = steps.find((step) => step.name === names[k]);
            const gradient = now.part === "backward" ? back.find((step) => step.name === `d${names[k]}`) : undefined;
            show(value, gradient, layout);
            if (names[k] === chosen) element.setAttribute("aria-current", "step");
            else element.removeAttribute("aria-current");
            element.tabIndex = names[k] === chosen ? 0 : -1;
            element.classList.toggle("gradient", now.part === "backward");
        });
        if (revealed !== chosen) requestAnimationFrame(() => { // once the part is shown
            const [left, , width] = layout.nodes[chosen];
            box.scrollLeft = left - (box.clientWidth - width) / 2;
        });
        revealed = chosen;
    }
    return { element: box, update };
}

/**
 * The same layout, as wide as this if that is in its bounds.
 * @type {(layout: GraphLayout, width: number) => GraphLayout}
 */
function stretched({ nodes, size: [least, tall], most, ...layout }, width) {
    const wide = Math.min(Math.max(width, least), most);
    /** @type {typeof NODES} */
    const moved = Object.fromEntries(Object.entries(nodes).map(([name, [left, top, wideNode]]) =>
        [name, [(left * wide) / least, top, (wideNode * wide) / least]]));
    return { ...layout, nodes: moved, size: [wide, tall], most };
}

/**
 * @type {(name: string, run: () => void) => { element: HTMLElement; update(value: NetworkStep, gradient: NetworkStep |
 *     undefined, layout: GraphLayout): void }}
 */
function drawnNode(name, run) {
    const pictures = [html("canvas"), html("canvas", { class: "of-gradient" })];
    const [number, shape] = [html("span", { class: "number" }), html("small")];
    const label = html("b", {}, name);
    const element = html("button", { type: "button", class: "node", onclick: run }, label, shape, number, pictures);

    /** @type {(value: NetworkStep, gradient: NetworkStep | undefined, layout: GraphLayout) => void} */
    function update(value, gradient, layout) {
        const isNumber = value.axes.length === 0;
        const [width, tall] = [layout.nodes[name][2] - layout.edge, layout.tall - layout.above];
        number.textContent = isNumber ? formatNumber(value.values[0]) : "";
        putText(shape, layout.labelled ? "" : shortShape(shapeOf(value)));
        const words = isNumber ? number.textContent : shapeOf(value);
        element.setAttribute("aria-label", `${name}, ${words}${gradient ? ", with its gradient" : ""}`);
        [value, gradient].forEach((step, k) => {
            pictures[k].hidden = !step || isNumber;
            if (!pictures[k].hidden) drawPicture(pictures[k], step, gradient ? (width - 4) / 2 : width, tall);
        });
    }
    return { element, update };
}

/**
 * As large as fits, with cells that are about square.
 * @type {(canvas: HTMLCanvasElement, step: NetworkStep, width: number, tall: number) => void}
 */
function drawPicture(canvas, step, width, tall) {
    const cell = Math.min(width / step.columns, tall / step.rows, 8);
    drawCells(canvas, step, Math.max(cell * step.columns, 4), Math.max(cell * step.rows, 4));
}

/** @type {(shape: string) => string} */
function shortShape(shape) {
    return shape.replaceAll(" ", "");
}

/**
 * @type {(edge: [string, string], layout: GraphLayout, look: string, backwards: boolean, shape: string) => SVGElement}
 */
function drawnEdge([from, to], layout, look, backwards, shape) {
    const [[x1, y1], [x2, y2]] = endsOf(layout.nodes[from], layout.nodes[to], layout.tall);
    const [start, end] = backwards ? [[x2, y2], [x1, y1]] : [[x1, y1], [x2, y2]];
    const angle = (Math.atan2(end[1] - start[1], end[0] - start[0]) * 180) / Math.PI;
    const level = y1 === y2;
    // One label for a node that several edges leave: at the edge that goes on to the right, or the only one.
    const labelled = layout.labelled && (level ? from !== "μ" : !["H0", "μ"].includes(from));
    const middle = level ? [(x1 + x2) / 2, y1 - 6] : [x1 + (x1 < x2 ? -5 : 5), (y1 + y2) / 2 + 4];
    return svg(
        "g", { class: look },
        svg("line", { x1, y1, x2, y2 }),
        svg("path", { d: "M0 0L-8 -4V4z", transform: `translate(${end[0]} ${end[1]}) rotate(${angle})` }),
        labelled ? svg("text", {
            x: middle[0], y: middle[1], "text-anchor": level ? "middle" : x1 < x2 ? "end" : "start",
        }, shortShape(shape)) : null,
    );
}

/** @type {(from: number[], to: number[], tall: number) => [Point, Point]} */
function endsOf([left, top, width], [toLeft, toTop, toWidth], tall) {
    const middles = [left + width / 2, toLeft + toWidth / 2];
    const level = top + tall / 2;
    if (top === toTop) {
        return left < toLeft ? [[left + width, level], [toLeft, level]] : [[left, level], [toLeft + toWidth, level]];
    }
    const [y1, y2] = top < toTop ? [top + tall, toTop] : [top, toTop + tall];
    const aside = middles[1] - middles[0];
    if (Math.abs(aside) > toWidth) return [[left + width - 8, y1], [toLeft + 8, y2]]; // across the square of the norm
    return [[middles[0], y1], [middles[1] - aside / 2, y2]];
}
