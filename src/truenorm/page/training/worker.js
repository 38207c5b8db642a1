/*
The worker of a live run. Messages start a run and say how far to go; it reports where it stops.

    { start: { words, seed, setting }, run: 3 }       // the run's number comes back with its reports
    { until: 1000 }
*/
import { createRun } from "#training/run.js";

const TURN = 20; // milliseconds of work between two looks at the messages

/** @type {LiveRun | null} */
let run = null;
let [number, until, began, working] = [0, 0, 0, false];

// A message to oneself comes back sooner than a timer, which browsers delay. That of a run that was given up is
// ignored: it would report the new run twice.
const turns = new MessageChannel();
turns.port1.onmessage = (/** @type {MessageEvent} */ { data }) => data === number && work();

function work() {
    working = run.advance(until, TURN);
    if (!working) report();
    else turns.port2.postMessage(number);
}

function report() {
    const busy = performance.now() - began; // milliseconds of training
    postMessage({ run: number, busy, report: run.report() });
}

globalThis.onmessage = (/** @type {MessageEvent} */ { data }) => {
    if (data.start) {
        [run, number, until, working] = [createRun(data.start), data.run, 0, false];
        report();
    } else {
        until = data.until;
        if (!run || working) return;
        began = performance.now();
        work();
    }
};
