// The page's network is the lab's, number for number: `node --test tests/page`. Golden vectors: see golden_network.py.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";

import * as layers from "../../src/truenorm/page/maths/layers.js";
import * as network from "../../src/truenorm/page/maths/network.js";
import * as normalization from "../../src/truenorm/page/maths/normalization.js";
import * as random from "../../src/truenorm/page/maths/random.js";
import * as running from "../../src/truenorm/page/maths/running.js";
import * as training from "../../src/truenorm/page/maths/training.js";
import { networkDisagreements } from "./golden_network.mjs";

const twin = { ...normalization, ...random, ...running, ...layers, ...network, ...training };
const golden = JSON.parse(readFileSync(new URL("golden_network.json", import.meta.url), "utf8"));

for (const kind of Object.keys(golden)) {
    test(`${kind}: ${golden[kind].length} cases as in Python`, () => {
        assert.deepEqual(networkDisagreements(twin, { [kind]: golden[kind] }), []);
    });
}

test("a wrong number would be noticed", () => {
    const wrong = structuredClone({ networks: [golden.networks[0]] });
    wrong.networks[0].want["d norm1.weight"][0] += 1e-9;
    assert.match(networkDisagreements(twin, wrong).join(), /^networks 0: d norm1.weight is /);
});

test("a loss that is off by a billionth would be noticed", () => {
    const wrong = structuredClone({ training: [golden.training[0]] });
    wrong.training[0].want.losses[49] *= 1 + 1e-9;
    assert.match(networkDisagreements(twin, wrong).join(), /^training 0: losses is .* at 49/);
});

test("words are read as Python reads them, and one word is too few", () => {
    assert.deepEqual(training.readWords(" ab \r\ncd\x85ab\u2028\n\tcafe\u0301\n"), ["ab", "cd", "café"]);
    for (const words of [[], ["ab"]]) assert.throws(() => training.prepareWords(words, 0), /at least two words/);
    const { train, heldOut } = training.prepareWords(["ab", "b"], 0);
    assert.deepEqual([train.targets.length + heldOut.targets.length, train.x.length > 0], [5, true]);
});

test("the network of the notes has 3,681 parameters, by name and as one vector", () => {
    const { parameters, flatParameters, layers: named } = network.characterMlp({}, random.defaultRng([0, 2]));
    assert.equal(flatParameters.length, 3681);
    assert.deepEqual(Object.keys(named), ["embed", "linear1", "norm1", "act1", "output"]);
    parameters["output.bias"][26] = 5;
    parameters["linear1.weight"][5][99] = 7;
    assert.equal(flatParameters.at(-1), 5);
    assert.equal(flatParameters[27 * 2 + 6 * 100 - 1], 7);
    assert.equal(named.linear1.parameters.weight[5][99], 7);
});

test("a layer keeps its last input, output and gradients", () => {
    const one = network.characterMlp({ hidden: 4, ddof: 1 }, random.defaultRng([1]));
    const logits = one.forward([[0, 1, 2], [0, 0, 5], [3, 1, 2]], { training: true });
    const { dlogits, probabilities } = layers.crossEntropy(logits, [1, 2, 0]);
    one.backward(dlogits);
    const { embed, linear1, norm1, act1, output } = one.layers;
    assert.equal(embed.y, linear1.x);
    assert.equal(linear1.y, norm1.x);
    assert.equal(norm1.y, act1.x);
    assert.equal(output.y, logits);
    assert.equal(output.dx, act1.dy);
    assert.equal(norm1.dx, linear1.dy);
    assert.equal(linear1.dx, embed.dy);
    assert.equal(norm1.out.var.length, 4);
    assert.ok(Math.abs(probabilities[0].reduce((sum, share) => sum + share) - 1) < 1e-15);
});
