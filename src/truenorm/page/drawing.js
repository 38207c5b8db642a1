/*
Elements and numbers: the few lines that stand between the page's parts and the document.

    html("button", { type: "button", class: "plain", onclick: run }, "Run")     // also svg(...) and mathml(...)
    formatNumber(0.0000123456)                                   // "1.235×10⁻⁵": the one way to show a number
    announce("Copied.")                                         // said to those who cannot see it
    putText(element, "3 rows")                                  // written if it is new
    dotStrip({ label, values, mean, std, domain })              // a row of dots
    scrollBox("Normalised values", table)                       // around every table: it scrolls, the page does not
    copyButtons({ NumPy: () => code, PyTorch: () => code, truenorm: () => code })

Text is always put in as text, never as markup, so a cell may hold anything. An attribute that is false, null or
undefined is left out; one that begins with "on" is a listener. Styles that depend on numbers are set by
`element.style.setProperty`, as the page's policy forbids style attributes.
*/

const NAMESPACES = { svg: "http://www.w3.org/2000/svg", math: "http://www.w3.org/1998/Math/MathML" };

export function html(tag, attributes = {}, ...children) {
    return fill(document.createElement(tag), attributes, children);
}

export function svg(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(NAMESPACES.svg, tag), attributes, children);
}

export function mathml(tag, attributes = {}, ...children) {
    return fill(document.createElementNS(NAMESPACES.math, tag), attributes, children);
}

function fill(element, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) {
        if (value === false || value === null || value === undefined) continue;
        if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
        else element.setAttribute(name, value === true ? "" : value);
    }
    element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
    return element;
}

/** A number for people: so many digits, no trailing zeros, a true minus; 10 to a power where very large or small. */
export function formatNumber(value, digits = 4) {
    if (Number.isNaN(value)) return "NaN";
    const sign = value < 0 ? "−" : "";
    const size = Math.abs(value);
    if (size === Infinity) return `${sign}∞`;
    const rounded = Number(size.toPrecision(digits));
    if (rounded === 0 || (rounded >= 1e-4 && rounded < 1e6)) return `${sign}${rounded}`;
    const [mantissa, exponent] = rounded.toExponential().split("e");
    const raised = [...exponent.replace("+", "")].map((digit) => "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"["-0123456789".indexOf(digit)]).join("");
    return `${sign}${mantissa}×10${raised}`;
}

/** Writes only what is new: what is said aloud is not said again, and nothing is laid out anew. */
export function putText(element, text) {
    if (element.textContent !== text) element.textContent = text;
}

/** A box in which something wide scrolls, so that the page never does. */
export function scrollBox(label, ...children) {
    const box = html("div", { class: "box", role: "group", "aria-label": label }, ...children);
    watchWidth(box);
    return box;
}

/** What is wider than its place (a box: or taller) is scrolled by keyboard: it takes the focus, and only then. */
export function watchWidth(element) {
    widths ??= new ResizeObserver((entries) => entries.forEach(({ target }) => {
        const tall = target.classList.contains("box") && target.scrollHeight > target.clientHeight + 1;
        if (tall || target.scrollWidth > target.clientWidth) target.setAttribute("tabindex", "0");
        else target.removeAttribute("tabindex");
    }));
    widths.observe(element);
}

let widths = null;

/** Say something that has no place on the screen of its own; the same words again are said again. */
export function announce(text) {
    const region = document.getElementById("live");
    region.textContent = "";
    setTimeout(() => (region.textContent = text), 50);
}

/** Say it once nothing newer has come for half a second: for what follows a slider. */
export function announceAtRest(text) {
    clearTimeout(resting);
    resting = setTimeout(() => announce(text), 500);
}

let resting = 0;

/** Values as dots on a line, with a tick at the mean and a bar of one deviation to each side. */
export function dotStrip({ label, values, mean = null, std = null, domain, width = 160, height = 28 }) {
    const [low, high] = domain;
    const place = (value) => 8 + ((value - low) / (high - low || 1)) * (width - 16);
    const shown = values.filter((value) => value >= low && value <= high);
    const middle = height / 2;
    const words = [`${values.length} values`];
    if (mean !== null) words.push(`mean ${formatNumber(mean)}`);
    if (std !== null) words.push(`deviation ${formatNumber(std)}`);
    const name = `${label}: ${words.join(", ")}`;
    return svg(
        "svg", { class: "dots", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": name },
        svg("line", { class: "axis", x1: 8, x2: width - 8, y1: middle, y2: middle }),
        mean === null || std === null ? null
            : bar(place(Math.max(mean - std, low)), place(Math.min(mean + std, high)), middle),
        mean !== null ? svg("line", { class: "mean", x1: place(mean), x2: place(mean), y1: 4, y2: height - 4 }) : null,
        shown.map((value) => svg("circle", { class: "dot", cx: place(value), cy: middle, r: 4 })),
    );
}

function bar(from, to, middle) {
    return svg("rect", { class: "deviation", x: from, y: middle - 5, width: Math.max(to - from, 0), height: 10 });
}

/**
 * Buttons that copy code, and a place to read it; `codes` maps what it is for to a function that makes it. Where the
 * browser does not let a page copy, the code is shown instead, selected.
 */
export function copyButtons(codes) {
    const names = Object.keys(codes);
    const shown = codeView(codes, names);
    const buttons = names.map((name) => {
        const button = html("button", { type: "button", "aria-label": name, onclick: () => copy(name, button, shown) },
            html("span", {}, name), html("span", { class: "done" }, "copied ✓"));
        return button;
    });
    return html("div", { class: "copy", role: "group", "aria-label": "Copy as code" },
        "Copy as ", buttons, shown.element);
}

/** The code of one name at a time. While it is open, it follows what changes in its part of the page. */
function codeView(codes, names) {
    const code = html("pre");
    const choice = html("select", { "aria-label": "Code for", hidden: names.length === 1, onchange: write },
        names.map((name) => html("option", {}, name)));
    const element = html("details", { ontoggle: follow },
        html("summary", {}, names.length === 1 ? `Show the ${names[0]}` : "Show the code"),
        choice, scrollBox("Code", code));
    const changes = new MutationObserver(() => { // once they rest: a large table has long code
        clearTimeout(timer);
        timer = setTimeout(write, 150);
    });
    let timer = 0;

    function write() {
        const text = codes[choice.value]();
        if (code.textContent !== text) code.textContent = text;
        changes.takeRecords(); // not of itself
        return text;
    }

    function follow() {
        changes.disconnect();
        if (!element.open) return;
        write();
        changes.observe(element.closest("[role=tabpanel]"), { childList: true, characterData: true, subtree: true });
    }

    function choose(name) {
        choice.value = name;
        return write();
    }

    function select() {
        element.open = true;
        getSelection().selectAllChildren(code);
    }
    return { element, choose, select };
}

async function copy(name, button, shown) {
    try {
        await navigator.clipboard.writeText(shown.choose(name));
        announce(`Copied as ${name}.`);
        clearTimeout(button.timer);
        button.classList.add("copied");
        button.timer = setTimeout(() => button.classList.remove("copied"), 2000);
    } catch {
        shown.select();
        announce("The browser does not let this page copy. The code is shown, and selected.");
    }
}
