/*
Elements: the few lines between the page's parts and the document.

    html("button", { type: "button", class: "plain", onclick: run }, "Run")     // also svg(...) and mathml(...)
    announce("Copied.")                                         // said to those who cannot see it
    refuse("A cell has ...")                                    // shown, and said, until the next key or click
    putText(element, "3 rows")                                  // written if it is new
    scrollBox("Normalised values", table)                       // around every table: it scrolls, the page does not

Text is always put in as text, never as markup, so a cell may hold anything. An attribute that is false, null or
undefined is left out; a function is a listener, as of "onclick". Styles that depend on numbers are set by
`element.style.setProperty`, as the page's policy forbids style attributes.
*/

const NAMESPACES = { svg: "http://www.w3.org/2000/svg", math: "http://www.w3.org/1998/Math/MathML" };

/**
 * @type {<Tag extends keyof HTMLElementTagNameMap>(tag: Tag, attributes?: Attributes, ...children: Child[]) =>
 *     HTMLElementTagNameMap[Tag]}
 */
export function html(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
}

/** @type {(tag: string, attributes?: Attributes, ...children: Child[]) => SVGElement} */
export function svg(tag, attributes = {}, ...children) {
    return fill(/** @type {SVGElement} */ (document.createElementNS(NAMESPACES.svg, tag)), attributes, children);
}

/** @type {(tag: string, attributes?: Attributes, ...children: Child[]) => MathMLElement} */
export function mathml(tag, attributes = {}, ...children) {
    return fill(/** @type {MathMLElement} */ (document.createElementNS(NAMESPACES.math, tag)), attributes, children);
}

/** @type {<Made extends Element>(element: Made, attributes: Attributes, children: Child[]) => Made} */
function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
        if (value === false || value === null || value === undefined) continue;
        if (typeof value === "function") element.addEventListener(name.slice(2), value);
        else element.setAttribute(name, value === true ? "" : String(value));
    }
    const flat = /** @type {any[]} */ (children).flat(Infinity);
    element.append(...flat.filter((child) => child !== null && child !== undefined));
    return element;
}

/**
 * Writes only what is new: what is said aloud is not said again, and nothing is laid out anew.
 * @type {(element: Element, text: string) => void}
 */
export function putText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

/**
 * Sets a property of CSS to a number.
 * @type {(element: HTMLElement, name: string, value: number) => void}
 */
export function setVariable(element, name, value) {
    element.style.setProperty(name, String(value));
}

/**
 * A box in which something wide scrolls, so that the page never does.
 * @type {(label: string, ...children: Child[]) => HTMLElement}
 */
export function scrollBox(label, ...children) {
    const box = html("div", { class: "box", role: "group", "aria-label": label }, ...children);
    watchWidth(box);
    return box;
}

/**
 * What is wider than its place (a box: or taller) is scrolled by keyboard: it takes the focus, and only then. Where it
 * is cut off, it fades.
 * @type {(element: Element) => void}
 */
export function watchWidth(element) {
    widths ??= new ResizeObserver((entries) => new Set(entries.map(({ target }) => boxes.get(target) ?? target))
        .forEach((target) => {
            const tall = target.classList.contains("box") && target.scrollHeight > target.clientHeight + 1;
            if (tall || target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
            else target.removeAttribute("tabindex");
            fade(target);
        }));
    widths.observe(element);
    if (!element.classList.contains("box")) return;
    element.addEventListener("scroll", () => fade(element), { passive: true });
    const [content] = element.children;
    if (!content) return;
    boxes.set(content, element);
    widths.observe(content); // it may grow
}

/**
 * What is cut off at its left or right fades.
 * @type {(box: Element) => void}
 */
export function fade(box) {
    const { scrollLeft, scrollWidth, clientWidth } = box;
    box.classList.toggle("more-left", scrollLeft > 1);
    box.classList.toggle("more-right", scrollWidth - clientWidth - scrollLeft > 1);
}

/** @type {WeakMap<Element, Element>} */
const boxes = new WeakMap(); // by their content

/** @type {ResizeObserver | null} */
let widths = null;

/**
 * Say something that has no place on the screen of its own; the same words again are said again.
 * @type {(text: string) => void}
 */
export function announce(text) {
    const region = document.getElementById("live");
    region.textContent = "";
    setTimeout(() => (region.textContent = text), 50);
}

/** @type {(reason: string) => void} */
export function refuse(reason) {
    const place = document.getElementById("refused");
    putText(place, reason);
    place.hidden = false;
    for (const kind of ["keydown", "pointerdown"]) {
        document.addEventListener(kind, () => (place.hidden = true), { once: true, capture: true });
    }
}

/**
 * Say it once nothing newer has come for half a second: for what follows a slider.
 * @type {(text: string) => void}
 */
export function announceAtRest(text) {
    clearTimeout(resting);
    resting = setTimeout(() => announce(text), 500);
}

/** @type {ReturnType<typeof setTimeout> | undefined} */
let resting = 0;
