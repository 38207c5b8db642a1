"""The character network by the names of the lecture notes that it follows, for those who do so with a pencil.

E = C[X]; H0 = E W1 + b1; mean, var of H0; HN = (H0 - mean) / sqrt(var + eps); HZ = weight · HN + bias
HA = tanh(HZ); logits = HA W2 + b2; loss
"""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from truenorm.explanation.steps import explain
from truenorm.lab.layers import Normalize, Pass, cross_entropy
from truenorm.lab.networks import Network

Array = NDArray[Any]


def notes_gradients(network: Network, x: Array, targets: Array) -> dict[str, Array]:
    """The gradient of the loss for everything that the notes name, from the loss back to C.

    network   a `character_mlp` of depth 1 with batch norm before its activation, in training
    """
    norm = network.layers.get("norm1")
    if not isinstance(norm, Normalize) or list(network.layers)[1:4] != ["linear1", "norm1", "act1"]:
        raise ValueError(
            f"notes_gradients: a network with one norm, before its activation, got {', '.join(network.layers)}."
        )
    how = Pass(training=True)
    _, dlogits = cross_entropy(network.forward(x, how), targets)
    gradients, flows = network.backward(dlogits), network.flows
    weight, bias = norm.parameters["weight"], norm.parameters["bias"]
    steps = explain(norm.out.masked.source, norm.norm, weight=weight, bias=bias, dy=flows["norm1"])
    return {
        "W2": gradients["output.weight"],
        "b2": gradients["output.bias"],
        "HA": flows["act1"],
        "HZ": flows["norm1"],
        "weight": gradients["norm1.weight"],
        "bias": gradients["norm1.bias"],
        "HN": steps["dxhat"],
        "var": steps["dvar"],
        "mean": steps["dmean"],
        "H0": flows["linear1"],
        "W1": gradients["linear1.weight"],
        "b1": gradients["linear1.bias"],
        "E": flows["embed"],
        "C": gradients["embed.table"],
    }
