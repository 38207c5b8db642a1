// Live training: what may be typed, what a run reports, and the worker that it runs in.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import { standaloneUrl } from "../../src/truenorm/page/lib/worker.js";
import { NAMES } from "../../src/truenorm/page/training/names.js";
import { createRun, lossCurve } from "../../src/truenorm/page/training/run.js";
import {
    FIRST, deepSettings, readSeed, readSetting, readWordList, settingCodec, settingInWords, trainCommand, wordsCodec,
} from "../../src/truenorm/page/training/settings.js";

const golden = JSON.parse(readFileSync(new URL("golden_network.json", import.meta.url), "utf8"));

test("a live run has the lab's losses, point by point", () => {
    const [{ words, want }] = golden.training;
    const run = createRun({ words, seed: 0, setting: { ...FIRST, lr: 0.1 } });
    assert.equal(run.advance(50, Infinity), false);
    const report = run.report();
    assert.deepEqual(report.training.map(([step]) => step), Array.from({ length: 50 }, (_, i) => i + 1));
    report.training.forEach(([, loss], i) => assert.ok(Math.abs(loss - want.losses[i]) <= 1e-10 * want.losses[i]));
    assert.ok(Math.abs(report.heldOut.at(-1)[1] - want.held_out) <= 1e-10 * want.held_out);
    assert.deepEqual(report.words.slice(0, 4).every((word) => word.length > 0), true);
    assert.equal(report.layers.length, 1);
    assert.equal(report.layers[0].counts.reduce((sum, count) => sum + count), 32 * 100);
    assert.equal(report.diverged, null);
    const again = run.report(); // the network has been run on held-out words since
    assert.deepEqual(again.layers, report.layers);
    assert.deepEqual(again.words, report.words);
});

test("in six layers gradients vanish or explode without batch norm, and do not with it", () => {
    const gradients = (setting) => {
        const run = createRun({ words: NAMES.split("\n"), seed: 0, setting });
        run.advance(10, Infinity);
        return run.report().layers.map(({ gradient }) => gradient);
    };
    const [small, smallWithout] = deepSettings(0.2).map(gradients);
    assert.ok(Math.max(...smallWithout) < 1e-5);
    assert.ok(Math.min(...small) > 1e-3);
    const [large, largeWithout] = deepSettings(3).map(gradients);
    assert.ok(largeWithout[0] > 10 * largeWithout[5]); // from the last layer to the first
    assert.ok(large[0] < 5 * large[5]);
});

test("with batch norm the scale of the first weights hardly matters", () => {
    const loss = (norm, initScale) => {
        const run = createRun({ words: NAMES.split("\n"), seed: 0, setting: { ...FIRST, norm, lr: 1, initScale } });
        run.advance(300, Infinity);
        return run.report().heldOut.at(-1)[1];
    };
    assert.ok(Math.abs(loss("batch", 10) - loss("batch", 1)) < 0.1);
    assert.ok(loss("none", 10) - loss("none", 1) > 1);
});

test("a run stops between two steps when its time is over", () => {
    let time = 0;
    const run = createRun({ words: ["ab", "cd", "ad"], seed: 1, setting: { ...FIRST, batch: 2 } }, () => (time += 1));
    assert.equal(run.advance(1000, 10), true);
    const { steps } = run;
    assert.ok(steps > 0 && steps < 12);
    assert.equal(run.advance(steps, 10), false);
    assert.equal(run.report().step, steps);
});

test("a run that diverges stops and says where; others do not", () => {
    for (const norm of ["none", "batch", "layer", "rms"]) {
        const run = createRun({ words: NAMES.split("\n"), seed: 0, setting: { ...FIRST, norm, lr: 1000 } });
        assert.equal(run.advance(500, Infinity), false);
        const { diverged, step, words } = run.report();
        assert.equal(diverged.step, step);
        assert.ok(step < 500 && !(diverged.loss < 300), norm);
        assert.deepEqual(words, []);
        run.advance(600, Infinity);
        assert.equal(run.steps, step);
    }
});

test("a curve holds the mean of equally many steps, and few points", () => {
    const curve = lossCurve();
    for (let i = 1; i <= 960; i++) curve.add(i);
    const points = curve.points();
    const width = points[0][0];
    assert.ok(points.length >= 60 && points.length < 120);
    points.forEach(([step, mean], i) => assert.deepEqual([step, mean], [(i + 1) * width, step - (width - 1) / 2]));
    for (const loss of [5, 8]) curve.add(loss);
    assert.deepEqual(curve.points().at(-1), [962, 6.5]);
});

test("what cannot be used is refused in one sentence", () => {
    const reason = (name, text, setting = FIRST) => readSetting(name, text, setting).reason;
    assert.equal(reason("lr", "1e9"), "Learning rate: a number above 0 and at most 1000, got “1e9”.");
    for (const text of ["NaN", "", "0", "-1", "1e999", "fast", "1,234"]) assert.match(reason("lr", text), /^Learning rate: /);
    assert.equal(reason("depth", "1.5"), "Hidden layers: a whole number from 1 to 6, got “1.5”.");
    assert.match(reason("batch", "1"), /^Batch size: at least 2 with batch norm/);
    assert.match(reason("norm", "batch", { ...FIRST, norm: "none", batch: 1 }), /^Batch size: at least 2/);
    assert.equal(readSetting("batch", "1", { ...FIRST, norm: "layer" }).value, 1);
    assert.equal(readSetting("lr", "0,3", FIRST).value, 0.3);
    assert.match(readSeed("-1").reason, /^Seed: a whole number from 0 to /);
    assert.equal(readWordList("").reason, "Words: at least two different ones, one a line, got none.");
    assert.equal(readWordList("emma\nemma\n").reason,
        "Words: at least two different ones, one a line, got one, “emma”.");
    const many = Array.from({ length: 300 }, (_, i) => String.fromCodePoint(0x4e00 + i)).join("\n");
    assert.match(readWordList(many).reason, /^Words: at most 200 different characters, got 300/);
});

test("settings and words stand in an address, and nonsense does not", () => {
    for (const setting of [FIRST, { ...FIRST, norm: "rms", normAt: "after", lr: 1e-7, batch: 1, dropout: 0.25 }]) {
        assert.deepEqual(settingCodec.decode(settingCodec.encode(setting)), setting);
    }
    for (const text of ["", "batch", "batch,before,0.1,1,1,1,0", "group,before,0.1,1,1,32,0", "batch,before,0,1,1,32,0",
        "batch,before,1e9,1,1,32,0", "batch,before,0.1,1,1,32,0,0", "batch,before,NaN,1,1,32,0", "%E0%A4%A"]) {
        assert.throws(() => settingCodec.decode(text), text);
    }
    for (const text of ["ab\ncd", "Łucja\n😀 &=#,\n"]) assert.equal(wordsCodec.decode(wordsCodec.encode(text)), text);
    for (const text of ["", "ab", "ab%0Aab"]) assert.throws(() => wordsCodec.decode(text), text);
    assert.throws(() => wordsCodec.check("a\n".repeat(30_000)), /at most 50000 characters/);
});

test("the command names what differs from the lab's defaults", () => {
    assert.equal(trainCommand(FIRST, 4, 50), "truenorm train --data words.txt --norm batch --ddof 1 --lr 3 "
        + "--dtype float64 --schedule constant --seed 4 --steps 50 --out runs/batch-3");
    const all = { norm: "layer", normAt: "after", lr: 0.1, depth: 3, initScale: 2, batch: 8, dropout: 0.5 };
    assert.match(trainCommand(all, 0, 9), /--norm layer --norm-at after --lr 0.1 --depth 3 --init-scale 2 --batch 8 --dropout 0.5/);
    assert.equal(settingInWords(all), "layer norm after tanh, learning rate 0.1, 3 layers, scale 2, batch 8, dropout 0.5");
});

test("a worker's URL holds a module and all that it imports", async () => {
    const url = (text) => `data:text/javascript,${encodeURIComponent(text)}`;
    const imports = {
        "#a.js": url('import { b } from "#b.js";\nimport {\n    c,\n} from "#c.js";\nexport const a = b + c;\n'),
        "#b.js": url('import { c } from "#c.js";\nexport const b = c + "\\n\\\\ # 100% \\"";\n'),
        "#c.js": url('export const c = "c"; // not: import "#d.js"\n'),
    };
    const { a } = await import(standaloneUrl("#a.js", imports));
    assert.equal(a, 'c\n\\ # 100% "c');
    assert.throws(() => standaloneUrl("#d.js", imports), /a module of the page, got #d.js/);
});
