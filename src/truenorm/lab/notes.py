"""The gradients of the character network under the names that lecture notes use, to check a derivation on paper.

E = C[X]; H0 = E W1 + b1; mean, var of H0; HN = (H0 - mean) / sqrt(var + eps); HZ = weight · HN + bias
HA = tanh(HZ); logits = HA W2 + b2; loss
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from truenorm.explanation.steps import explain
from truenorm.lab.layers import ForwardContext, Normalize, cross_entropy
from truenorm.lab.networks import Network

Array = NDArray[Any]


def notes_gradients(network: Network, x: Array, targets: Array) -> dict[str, Array]:
    """The gradient of the loss with respect to every quantity above, from the logits back to C.

    network   a `character_mlp` of depth 1 with batch norm before its activation
    """
    norm = network.layers.get("norm1")
    if not isinstance(norm, Normalize) or list(network.layers)[1:4] != ["linear1", "norm1", "act1"]:
        raise ValueError(
            f"notes_gradients: needs one norm, before the activation, got the layers {', '.join(network.layers)}."
        )
    _, dlogits = cross_entropy(network.forward(x, ForwardContext(training=True)), targets)
    gradients, output_gradients = network.backward(dlogits), network.output_gradients
    weight, bias = norm.parameters["weight"], norm.parameters["bias"]
    steps = explain(norm.out.masked.source, norm.norm, weight=weight, bias=bias, dy=output_gradients["norm1"])
    return {
        "W2": gradients["output.weight"],
        "b2": gradients["output.bias"],
        "HA": output_gradients["act1"],
        "HZ": output_gradients["norm1"],
        "weight": gradients["norm1.weight"],
        "bias": gradients["norm1.bias"],
        "HN": steps["dxhat"],
        "var": steps["dvar"],
        "mean": steps["dmean"],
        "H0": output_gradients["linear1"],
        "W1": gradients["linear1.weight"],
        "b1": gradients["linear1.bias"],
        "E": output_gradients["embed"],
        "C": gradients["embed.table"],
    }
