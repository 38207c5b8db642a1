/*
The loss over two weights as contour lines, and the path of gradient descent on it. The start of the path is moved with
the mouse or a finger here, and with sliders elsewhere.

The lines are exact: the contours of a squared error are ellipses, whose axes are the eigenvectors of the Hessian. From
one to the next the steep direction is as long everywhere, so the loss grows as 1, 4, 9, 16 ...
*/
import { html, svg } from "#lib/elements.js";
import { squareView } from "#why/square.js";

const REACH = 1.15; // of both weights
const RING = 0.15; // from one contour to the next, in the steep direction
const RINGS = 18;
const FAR = 10;
const FINGER = 22;

/**
 * `onstart` is given the weights at which somebody puts the start.
 * @type {(onstart: (w: Point) => void) => View<SurfaceModel>}
 */
export function surfaceView(onstart) {
    /** @type {SurfaceModel | null} */
    let model = null;
    const view = squareView((plot) => [...contours(plot, model.bowl), ...pathOf(plot, model)]);
    const element = html("div", { class: "surface" }, view.element);

    /** @type {(event: PointerEvent) => void} */
    const place = (event) => {
        const { left, top } = view.element.getBoundingClientRect();
        const [w1, w2] = view.plot().valueAt(event.clientX - left, event.clientY - top);
        onstart([w1, w2]);
    };
    // A finger that is not on the start scrolls the page.
    view.element.addEventListener("pointerdown", (event) => {
        const isHandle = /** @type {Element} */ (event.target).classList.contains("handle");
        if (event.button !== 0 || (event.pointerType === "touch" && !isHandle)) return;
        view.element.setPointerCapture(event.pointerId);
        if (!isHandle) place(event);
    });
    view.element.addEventListener("pointermove", (event) => {
        if (view.element.hasPointerCapture(event.pointerId)) place(event);
    });

    /** @type {(news: SurfaceModel) => void} */
    function update(news) {
        model = news;
        view.update({ low: -REACH, high: REACH, names: news.names, label: news.label });
    }
    return { element, update };
}

/** @type {(plot: SquarePlot, bowl: Bowl) => Child[]} */
function contours({ across, down, scale }, { best, large, small, angle }) {
    const [x, y] = [across(best[0]), down(best[1])];
    const longer = Math.sqrt(large / small);
    const turn = `rotate(${(-angle * 180) / Math.PI} ${x} ${y})`; // the screen's y grows downwards
    return Array.from({ length: RINGS }, (_, i) => svg("ellipse", {
        class: "contour", cx: x, cy: y, transform: turn,
        rx: (RINGS - i) * RING * scale, ry: (RINGS - i) * RING * longer * scale,
    }));
}

/** @type {(plot: SquarePlot, model: SurfaceModel) => Child[]} */
function pathOf({ across, down }, { bowl, path, step }) {
    const walked = path.slice(0, step + 1);
    const lost = walked.findIndex(([a, b]) => Math.hypot(a, b) > FAR); // the frame has cut off the path before
    const shown = (lost < 0 ? walked : walked.slice(0, lost + 1)).map(([a, b]) => [across(a), down(b)]);
    const [x, y] = [across(bowl.best[0]), down(bowl.best[1])];
    const now = shown.at(-1);
    return [
        svg("path", { class: "best", d: `M${x - 6} ${y - 6}l12 12m0 -12l-12 12` }),
        svg("path", { class: "way", d: `M${shown.map(([a, b]) => `${a.toFixed(1)} ${b.toFixed(1)}`).join("L")}` }),
        shown.slice(1, -1).map(([cx, cy]) => svg("circle", { class: "step", cx, cy, r: 2 })),
        shown.length > 1 ? svg("circle", { class: "now", cx: now[0], cy: now[1], r: 5 }) : null,
        svg("circle", { class: "start", cx: shown[0][0], cy: shown[0][1], r: 7 }),
        svg("circle", { class: "handle", cx: shown[0][0], cy: shown[0][1], r: FINGER }),
    ];
}
