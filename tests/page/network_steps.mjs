// Every step of the page's network, as JSON: `node network_steps.mjs '["anna"]' small 0 0.1`. test_network.py compares
// it with Python's.
import { explainNetwork } from "../../src/truenorm/page/maths/network_explanation.js";
import { startNetwork } from "../../src/truenorm/page/network/model.js";

const [words, size, seed, learningRate] = process.argv.slice(2);
const { network, x, targets, characters } = startNetwork(JSON.parse(words), size, Number(seed));
const found = explainNetwork(network, x, targets, { learningRate: Number(learningRate), characters });
const steps = found.steps.map((step) => ({ ...step, values: Array.from(step.values) }));
const checks = Object.fromEntries(found.steps.flatMap(({ name, part }) => {
    const check = part === "backward" ? found.check(name, 0) : null;
    return check ? [[name, check.largest]] : [];
}));
const { loss, lossAfter, labels } = found;
process.stdout.write(JSON.stringify({ steps, checks, loss, loss_after: lossAfter, labels }));
