/*
Questions to answer before one looks: the explanation comes after the choice.

    questions(state, ["norm", "x"], () => [{
        ask: "x of row 1 grows by 10. Which other values of x̂ change?",
        answers: ["none", "those of its row", "those of its column"],           // two to four
        right: 2,                                                               // counted from 0
        because: `They share μ = ${formatNumber(mean)}.`,                       // text, or elements
    }])

The list is read again whenever one of the fields changes, so that numbers are those of the moment. A question whose
words changed is open again; otherwise the answer stays, and the explanation is written anew. Answers are not kept in
the address, so that those who get a link predict, too.
*/
import { uniqueId } from "#lib/controls.js";
import { html, putText } from "#lib/elements.js";

/** @type {(state: State, fields: readonly FieldName[], read: () => Question[]) => HTMLElement} */
export function questions(state, fields, read) {
    const list = html("ol");
    /** @type {ReturnType<typeof questionCard>[]} */
    const cards = [];
    state.watch(fields, () => {
        const now = read();
        while (cards.length < now.length) {
            cards.push(questionCard());
            list.append(cards.at(-1).element);
        }
        cards.forEach((card, i) => {
            card.element.hidden = i >= now.length;
            if (i < now.length) card.update(now[i]);
        });
    });
    return html("section", { class: "questions" }, html("h3", {}, "Predict, then check"), list);
}

/** @type {() => { element: HTMLElement; update(question: Question): void }} */
function questionCard() {
    /** @type {Question} */
    let question = null;
    let words = "";
    let chosen = -1;
    const id = uniqueId();
    const ask = html("p", { class: "ask", id });
    const choices = html("div", { class: "choices" });
    const verdict = html("b");
    const because = html("span");
    const explanation = html("p", { class: "because", role: "status" }); // filled later: what is new in it is said
    const element = html("li", {}, ask, choices, explanation);

    /** @type {(answer: number) => void} */
    function choose(answer) {
        chosen = answer;
        show();
    }

    function show() {
        const isOpen = chosen < 0;
        [...choices.children].forEach((button, i) => {
            const mark = isOpen ? "" : i === question.right ? "✓ " : i === chosen ? "✗ " : "";
            putText(button, mark + question.answers[i]);
            button.setAttribute("aria-pressed", String(i === chosen));
            button.classList.toggle("right", mark === "✓ ");
        });
        if (isOpen) {
            explanation.replaceChildren();
            return;
        }
        putText(verdict, chosen === question.right ? "Right." : `No: ${question.answers[question.right]}.`);
        because.replaceChildren(...[question.because].flat());
        if (!explanation.firstChild) explanation.append(verdict, " ", because);
    }

    /** @type {(wanted: Question) => void} */
    function update(wanted) {
        question = wanted;
        const wantedWords = JSON.stringify([wanted.ask, wanted.answers]);
        if (words !== wantedWords) {
            words = wantedWords;
            chosen = -1;
            putText(ask, wanted.ask);
            choices.replaceChildren(...wanted.answers.map((_, i) => html(
                "button", { type: "button", "aria-describedby": id, onclick: () => choose(i) })));
        }
        show();
    }
    return { element, update };
}
