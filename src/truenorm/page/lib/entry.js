/*
What is typed, pasted or dropped into a field is measured before the browser puts it there: to lay out a megabyte takes
seconds.
*/
import { MOST_LETTERS } from "#lib/limits.js";

/** @type {(root: Document, say: (reason: string) => void) => void} */
export function guardEntry(root, say) {
    root.addEventListener("beforeinput", (event) => {
        const added = (event.data ?? event.dataTransfer?.getData("text/plain") ?? "").length;
        const { most, kept } = roomIn(/** @type {Element} */ (event.target));
        if (added === 0 || kept + added <= most) return;
        event.preventDefault();
        say(`There is room for ${most} characters here, this would be ${kept + added}. Nothing was changed.`);
    });
}

/**
 * How many characters fit into a field, and how many stay when the selected ones are replaced.
 * @type {(field: Element) => { most: number; kept: number }}
 */
function roomIn(field) {
    if (field instanceof HTMLInputElement || field instanceof HTMLTextAreaElement) {
        const { maxLength, value, selectionStart, selectionEnd } = field;
        return { most: maxLength < 0 ? Infinity : maxLength, kept: value.length - (selectionEnd - selectionStart) };
    }
    return { most: MOST_LETTERS, kept: field.textContent.length - getSelection().toString().length };
}
