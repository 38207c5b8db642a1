/*
The part "network": one training step of a network that predicts the next letter, value by value and gradient by
gradient, as `truenorm explain --example network` prints it. maths/network_explanation.js has the steps, model.js makes
the network that the state describes, numbers.js writes formulas with numbers.

    the buttons and the step in words        the graph, whose nodes can be chosen; gradient descent
    the node's value and its gradient        words and seed; a first layer of three nodes
*/
import { setInactive } from "#lib/controls.js";
import { html, putText } from "#lib/elements.js";
import { questions } from "#lib/question.js";
import { choice, numberBetween, wholeBetween } from "#lib/state.js";
import { FIRST_BACKWARD, STEP_NAMES } from "#maths/network_explanation.js";
import { gradientCard, valueCard } from "#network/cards.js";
import { formulaWords } from "#network/cells.js";
import { dataView, sizeChooser } from "#network/data.js";
import { descentView, pathCodec } from "#network/descent.js";
import { defineFirstLayer, firstLayerView } from "#network/first_layer.js";
import { networkGraph } from "#network/graph.js";
import { networkReader } from "#network/model.js";
import { networkQuestions } from "#network/questions.js";
import { MOST_SEED, SIZES, wordsCodec } from "#network/words.js";

/**
 * A cell as it stands in the address: "2,1" is the second row's first.
 * @type {Codec<string>}
 */
const cellCodec = {
    encode: String,
    decode: (text) => {
        if (!/^[1-9]\d{0,3},[1-9]\d{0,3}$/.test(text)) throw new RangeError("network: a row and a column.");
        return text;
    },
};

/** @type {(state: State) => void} */
export function defineNetwork(state) {
    state.field("network.size", choice(...Object.keys(SIZES)), "small");
    state.field("network.step", choice(...STEP_NAMES), "C");
    state.field("network.cell", cellCodec, "1,1");
    state.field("network.words", wordsCodec, []);
    state.field("network.seed", wholeBetween(0, MOST_SEED), 0);
    state.field("network.lr", numberBetween(1e-6, 1000), 0.1);
    state.field("network.path", pathCodec, []);
    defineFirstLayer(state);
}

/** @type {(root: HTMLElement, state: State) => void} */
export function mountNetwork(root, state) {
    defineNetwork(state);
    const read = networkReader(state);
    const headline = html("p", { class: "network-headline" });
    const stepper = stepButtons(state);
    const graph = networkGraph({ onchoose: (node) => state.set({ "network.step": stepOf(node, state) }) });
    const cards = [valueCard(state), gradientCard(state)];
    const descent = descentView(state);
    root.classList.add("network");
    root.append(
        html("div", { class: "network-top" },
            html("div", {}, html("h2", {}, "Guessing the next letter: one training step"), headline),
            sizeChooser(state)),
        stepper.element, html("div", { class: "network-stage" }, graph.element, descent.element),
        html("div", { class: "network-main" }, cards.map(({ element }) => element)),
        dataView(state), firstLayerView(state),
        questions(state, ["network.size", "network.words", "network.seed"], () => networkQuestions(read())),
    );
    state.watch(["network.size", "network.words", "network.seed", "network.lr", "network.path", "network.step",
        "network.cell", "theme"], () => {
        const model = read();
        putText(headline, model.headline);
        root.classList.toggle("large", state.get("network.size") === "notes");
        stepper.update(model);
        graph.update({ steps: model.steps, at: state.get("network.step") });
        cards.forEach(({ update }) => update(model));
    });
    state.watch(["network.size", "network.words", "network.seed", "network.lr", "network.path"], () =>
        descent.update(read()));
}

/**
 * A node was chosen: its gradient while the steps go back, if it has one, and otherwise its value.
 * @type {(node: string, state: State) => string}
 */
function stepOf(node, state) {
    const back = STEP_NAMES.indexOf(state.get("network.step")) >= FIRST_BACKWARD;
    return back && STEP_NAMES.includes(`d${node}`) ? `d${node}` : node;
}

/** @type {(state: State) => View<NetworkModel>} */
function stepButtons(state) {
    const words = html("p", { class: "network-words", role: "status" });
    const place = () => STEP_NAMES.indexOf(state.get("network.step"));
    /** @type {(goal: number) => void} */
    const go = (goal) => {
        if (STEP_NAMES[goal]) state.set({ "network.step": STEP_NAMES[goal] });
    };
    const [back, next, turn] = [
        html("button", { type: "button", onclick: () => go(place() - 1) }, "‹ Back"),
        html("button", { type: "button", class: "next", onclick: () => go(place() + 1) }, "Next ›"),
        html("button", { type: "button", onclick: () => go(isBack() ? 0 : FIRST_BACKWARD) }),
    ];
    const isBack = () => place() >= FIRST_BACKWARD;
    const element = html("div", {
        class: "network-steps", role: "group", "aria-label": "Steps", onkeydown: (event) => {
            /** @type {Record<string, number>} */
            const goals = { ArrowLeft: place() - 1, ArrowRight: place() + 1, Home: 0, End: STEP_NAMES.length - 1 };
            if (goals[event.key] === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
            event.preventDefault();
            go(goals[event.key]);
        },
    }, back, next, turn, words);

    /** @type {(model: NetworkModel) => void} */
    function update({ get }) {
        const step = get(STEP_NAMES[place()]);
        setInactive(back, place() === 0);
        setInactive(next, place() === STEP_NAMES.length - 1);
        putText(turn, isBack() ? "To the values" : "To the gradients");
        const said = `${isBack() ? "Backward" : "Forward"}, step ${place() + 1} of ${STEP_NAMES.length}: `;
        if (words.textContent === `${said}${step.name}${formulaWords(step)}`) return;
        words.replaceChildren(said, html("b", { class: isBack() ? "grad" : "" }, step.name), formulaWords(step));
    }
    return { element, update };
}

