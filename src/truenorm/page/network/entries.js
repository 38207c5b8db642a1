/*
What is typed and cannot be used: the field keeps it and is marked, and one sentence beside it says why.
*/
import { html, putText } from "#lib/elements.js";

/**
 * The place for the sentence, and what shows it; "" is no problem.
 * @type {(field: HTMLElement) => { place: HTMLElement; complain(words: string): void }}
 */
export function complaintAbout(field) {
    const place = html("p", { class: "problem", role: "status", hidden: true });
    return {
        place,
        complain(words) {
            place.hidden = words === "";
            putText(place, words);
            markWrong(field, words !== "");
        },
    };
}

/** @type {(field: HTMLElement, wrong: boolean) => void} */
export function markWrong(field, wrong) {
    if (wrong) field.setAttribute("aria-invalid", "true");
    else field.removeAttribute("aria-invalid");
}
