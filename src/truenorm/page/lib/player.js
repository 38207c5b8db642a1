/*
A button that plays something step by step: Play and Pause, or one step at a press for those who want no motion.

    const player = createPlayer({ shown: () => state.get("part") === "why", advance, step: "Next step" });
    root.append(player.button);
    player.stop();                       // whenever somebody goes somewhere by hand

`advance` goes one step on, from the end to the start, and returns whether there is another one to come. Nothing plays
that is out of sight.
*/
import { html } from "#lib/elements.js";

/**
 * `beat`: the milliseconds that a step is shown.
 * @type {(options: { shown: () => boolean; advance: () => boolean; step: string; beat?: number }) => Player}
 */
export function createPlayer({ shown, advance, step, beat = 350 }) {
    const still = matchMedia("(prefers-reduced-motion: reduce)");
    const button = html("button", { type: "button", class: "play", onclick: press });
    /** @type {ReturnType<typeof setInterval> | null} */
    let timer = null;

    function label() {
        button.textContent = still.matches ? step : timer === null ? "Play" : "Pause";
    }

    function stop() {
        clearInterval(timer);
        timer = null;
        label();
    }

    function tick() {
        if (document.hidden || !shown() || !advance()) stop();
    }

    function press() {
        if (timer !== null) return stop();
        if (advance() && !still.matches) timer = setInterval(tick, beat);
        label();
    }

    still.addEventListener("change", stop);
    label();
    return { button, stop };
}
