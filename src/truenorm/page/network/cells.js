/*
A matrix as coloured cells on a canvas: the small pictures in the graph, and heat maps.

The colour's strength is the size of the number, against the largest of the matrix. Blue is positive; negative is
orange and has a dash, a minus, so that the sign can be seen without colour.
*/

export const ROUNDING = 1e-12; // what sizes below this are left by

/**
 * Fills the canvas, whose size is `width` by `height` in CSS pixels. Its CSS says which colours: color is for positive
 * numbers, outline-color for negative ones, and caret-color for the dash.
 * @type {(canvas: HTMLCanvasElement, shown: Pick<NetworkStep, "rows" | "columns" | "values">, width: number, height:
 *     number) => void}
 */
export function drawCells(canvas, { rows, columns, values }, width, height) {
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    canvas.style.setProperty("width", `${width}px`);
    canvas.style.setProperty("height", `${height}px`);
    const { color, outlineColor, caretColor } = getComputedStyle(canvas);
    const ink = canvas.getContext("2d");
    const most = largest(values);
    const dashed = width / columns >= 4 && height / rows >= 4;
    for (let i = 0; i < rows; i++) {
        for (let j = 0; j < columns; j++) {
            const value = values[i * columns + j];
            const [left, right] = [j, j + 1].map((one) => Math.round((one * canvas.width) / columns));
            const [top, bottom] = [i, i + 1].map((one) => Math.round((one * canvas.height) / rows));
            const gap = right - left > 3 * scale ? Math.round(scale / 2) : 0;
            ink.globalAlpha = Math.min(Math.abs(value) / most, 1) || 0;
            ink.fillStyle = value < 0 ? outlineColor : color;
            ink.fillRect(left, top, right - left - gap, bottom - top - gap);
            if (!(value < 0) || !dashed) continue;
            ink.globalAlpha = 0.4 + 0.6 * ink.globalAlpha;
            ink.fillStyle = caretColor;
            const middle = Math.round((top + bottom - scale) / 2);
            ink.fillRect(left + (right - left) / 4, middle, (right - left) / 2, scale);
        }
    }
    ink.globalAlpha = 1;
}

/**
 * The largest size; what is left by rounding counts as 0, not as strong colours.
 * @type {(values: ArrayLike<number>) => number}
 */
export function largest(values) {
    let most = ROUNDING;
    for (let k = 0; k < values.length; k++) if (Math.abs(values[k]) > most) most = Math.abs(values[k]);
    return most;
}

/**
 * A step in words, with ε as it stands elsewhere on the page.
 * @type {(step: NetworkStep) => string}
 */
export function formulaWords({ formula }) {
    return ` = ${formula.replace("1e-05", "1×10⁻⁵")}`;
}

/**
 * "5 × 4", "4" or "".
 * @type {(step: NetworkStep) => string}
 */
export function shapeOf({ axes, rows, columns }) {
    return axes.length === 2 ? `${rows} × ${columns}` : axes.length === 1 ? String(columns) : "";
}
