"""`explain_network`: a training step of the character network, line by line, in the symbols of textbooks.

    forward    E = C[X]; H0 = E W1 + b1; μ and σ² of H0; HN = (H0 - μ) / √(σ² + ε); HZ = γ · HN + β
               HA = tanh(HZ); logits = HA W2 + b2; Ŷ = softmax(logits); L = -mean of log Ŷ at the targets
    backward   the gradient of L with respect to each of these, from the logits back to C
    update     one step of gradient descent

The numbers are those of the lab's layers, and of `explain` inside the norm. Each gradient is compared with finite
differences of the loss.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.moments import Moments
from truenorm.engine import forward
from truenorm.explanation.step import FiniteDifferences, Part, Step, StepByStep
from truenorm.explanation.steps import explain
from truenorm.lab.layers import ForwardContext, Normalize, cross_entropy
from truenorm.lab.networks import Network

Array = NDArray[Any]
PARAMETERS = {
    "C": "embed.table",
    "W1": "linear1.weight",
    "b1": "linear1.bias",
    "γ": "norm1.weight",
    "β": "norm1.bias",
    "W2": "output.weight",
    "b2": "output.bias",
}
CHANGE = 1e-5  # of an element, for finite differences: truncation and rounding errors are both below 1e-9
MOST_CHECKED = 200  # elements of one array


@dataclass(frozen=True, eq=False, repr=False)
class NetworkExplanation(StepByStep):
    """All steps. Index it by name: `explanation["HN"]`, `explanation["dW1"]`."""

    steps: tuple[Step, ...]
    learning_rate: float
    loss: float
    loss_after: float  # after the update, on the same batch
    labels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def headline(self) -> str:
        batch, hidden = self["H0"].shape
        characters, embedding = self["C"].shape
        parameters = sum(self[name].size for name in PARAMETERS)
        return (
            f"One training step: {batch} examples of {self['X'].shape[1]} characters, {characters} characters with "
            f"{embedding} numbers each, {hidden} hidden units, {parameters:,} parameters"
        )

    @property
    def summary(self) -> str:
        return (
            f"Loss {self.loss:.6f} before the update, {self.loss_after:.6f} after it "
            f"(learning rate {self.learning_rate:g}, same batch)."
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain data, ready for JSON."""
        return {
            "learning_rate": self.learning_rate,
            "loss": self.loss,
            "loss_after": self.loss_after,
            "labels": {axis: list(names) for axis, names in self.labels.items()},
            "steps": [step.as_dict() for step in self.steps],
        }


def explain_network(
    network: Network, x: Array, targets: Array, *, learning_rate: float = 0.1, characters: Sequence[str] = ()
) -> NetworkExplanation:
    """Every intermediate and every gradient of one training step. The network keeps its parameters.

    network      a `character_mlp` of depth 1 with batch norm before its activation
    characters   a name for each row of C
    """
    if list(network.layers) != ["embed", "linear1", "norm1", "act1", "output"]:
        raise ValueError(
            f"explain_network: needs one norm, before the activation, got the layers {', '.join(network.layers)}."
        )
    norm = network.layers["norm1"]
    if not isinstance(norm, Normalize) or norm.running is None:
        raise ValueError("explain_network: needs batch norm, got another norm.")
    steps = _Steps(network, norm, x, targets)
    steps.add_forward()
    steps.add_backward()
    loss = steps.loss()
    before = network.flat_parameters.copy()
    for name, own in PARAMETERS.items():
        parameter = network.parameters[own]
        parameter -= learning_rate * steps.gradients[name]
        steps.add("update", f"new {name}", f"{name} - {learning_rate:g} · d{name}", parameter.copy(), steps.axes[name])
    loss_after = steps.loss()
    network.flat_parameters[...] = before
    return NetworkExplanation(tuple(steps.steps), learning_rate, loss, loss_after, _labels(x, targets, characters))


def _labels(x: Array, targets: Array, characters: Sequence[str]) -> dict[str, Sequence[str]]:
    """Each example as its characters and the one to predict."""
    if not characters:
        return {}
    examples = ["".join(characters[i] for i in row) + "→" + characters[y] for row, y in zip(x, targets, strict=True)]
    return {"character": list(characters), "b": examples}


class _Steps:
    """Collects the steps of one forward and backward pass."""

    def __init__(self, network: Network, norm: Normalize, x: Array, targets: Array) -> None:
        self.network, self.norm, self.x, self.targets = network, norm, x, targets
        self.steps: list[Step] = []
        self.axes: dict[str, tuple[str, ...]] = {}
        logits = network.forward(x, ForwardContext(training=True))
        _, self.dlogits = cross_entropy(logits, targets)
        # Copies: the layers compute again for the finite differences.
        parameters = {name: value.copy() for name, value in network.backward(self.dlogits).items()}
        outputs = network.output_gradients
        self.gradients = {name: parameters[own] for name, own in PARAMETERS.items()} | {
            "logits": self.dlogits,
            "HA": outputs["act1"],
            "HZ": outputs["norm1"],
            "H0": outputs["linear1"],
            "E": outputs["embed"],
        }
        weight, bias = norm.parameters["weight"], norm.parameters["bias"]
        self.inside = explain(norm.out.masked.source, norm.norm, weight=weight, bias=bias, dy=outputs["norm1"])
        self.h0 = self.inside["x"]
        self.values: dict[str, Array] = {name: network.parameters[own].copy() for name, own in PARAMETERS.items()} | {
            "E": network.layers["embed"].forward(x, ForwardContext()),
            "H0": self.h0,
            "μ": self.inside["mean"],
            "σ²": self.inside["var"],
            "HN": self.inside["xhat"],
            "HZ": self.inside["y"],
            "HA": network.layers["act1"].forward(self.inside["y"], ForwardContext()),
            "logits": logits,
        }

    def add(
        self,
        part: Part,
        name: str,
        formula: str,
        values: Array,
        axes: tuple[str, ...],
        check: FiniteDifferences | None = None,
    ) -> None:
        self.steps.append(Step(part, name, formula, np.asarray(values), axes, check=check))

    def add_forward(self) -> None:
        n, ddof = len(self.x), self.norm.norm.ddof
        degrees = "(n - 1)" if ddof else "n"
        epsilon = f"{self.norm.norm.eps:g}"

        def add(name: str, formula: str, *axes: str, values: Array | None = None) -> None:
            self.axes[name] = axes
            self.add("forward", name, formula, self.values[name] if values is None else values, axes)

        add("C", "the lookup table, random at first: one row for each character", "character", "e")
        add("X", "the batch: the last characters of each example", "b", "t", values=self.x)
        add("Y", "the next character of each example", "b", values=self.targets)
        add("E", "C[X], the rows of an example side by side", "b", "e")
        add("W1", "weights of the hidden layer", "e", "h")
        add("b1", "its bias", "h")
        add("H0", "E W1 + b1, the hidden layer before the norm", "b", "h")
        add("μ", f"Σ H0 / n, the mean of each hidden unit over the batch, n = {n}", "h")
        add("σ²", f"Σ (H0 - μ)² / {degrees}, the variance" + (", with Bessel's correction" if ddof else ""), "h")
        add("HN", f"(H0 - μ) / √(σ² + ε), ε = {epsilon}", "b", "h")
        add("γ", "the scale (weight in PyTorch), ones at first", "h")
        add("β", "the shift (bias in PyTorch), zeros at first", "h")
        add("HZ", "γ · HN + β", "b", "h")
        add("HA", "tanh(HZ), the activation", "b", "h")
        add("W2", "weights of the output layer", "h", "character")
        add("b2", "its bias", "character")
        add("logits", "HA W2 + b2", "b", "character")
        onehot = np.zeros(self.dlogits.shape)
        onehot[np.arange(n), self.targets] = 1
        add("Ŷ", "softmax(logits): each row sums to 1", "b", "character", values=self.dlogits * n + onehot)
        add("L", "-Σ log Ŷ[b, Y] / n, the loss", values=np.array(self.loss()))

    def add_backward(self) -> None:
        inside, gradients = self.inside, self.gradients
        degrees = "(n - 1)" if self.norm.norm.ddof else "n"
        gradients |= {"HN": inside["dxhat"], "σ²": inside["dvar"], "μ": inside["dmean"]}

        def add(name: str, formula: str) -> None:
            check = self.check(name)
            self.add("backward", f"d{name}", formula, gradients[name], self.axes[name], check)

        def path(name: str, through: str, formula: str, values: Array) -> None:
            self.add("backward", f"d{name} (through {through})", formula, values, self.axes[name])

        add("logits", "(Ŷ - onehot(Y)) / n")
        add("W2", "HAᵀ dlogits")
        add("b2", "Σ dlogits over b")
        add("HA", "dlogits W2ᵀ")
        add("HZ", "dHA · (1 - HA²)")
        add("γ", "Σ dHZ · HN over b")
        add("β", "Σ dHZ over b")
        add("HN", "dHZ · γ")
        add("σ²", "Σ dHN · (H0 - μ) · (-1/2) · (σ² + ε)^(-3/2) over b")
        path("μ", "HN", "-Σ dHN / √(σ² + ε) over b", inside["dmean (through xhat)"])
        path(
            "μ", "σ²", f"dσ² · Σ (-2) · (H0 - μ) / {degrees} over b, 0 but for rounding", inside["dmean (through var)"]
        )
        add("μ", "the sum of both paths")
        path("H0", "HN", "dHN / √(σ² + ε)", inside["dx (through xhat)"])
        path("H0", "σ²", f"dσ² · 2 · (H0 - μ) / {degrees}", inside["dx (through var)"])
        path("H0", "μ", "dμ / n", inside["dx (through mean)"])
        add("H0", "the sum of all three paths")
        add("W1", "Eᵀ dH0")
        add("b1", "Σ dH0 over b, 0 but for rounding: subtracting μ removes b1")
        add("E", "dH0 W1ᵀ")
        uses = np.bincount(self.x.reshape(-1), minlength=len(self.values["C"]))
        self.add("backward", "uses", "how often X names each row of C", uses, ("character",))
        add("C", "for each row of C, the sum of its rows of dE, one for each use; 0 if it was not used")

    # ---- finite differences ----

    def check(self, name: str) -> FiniteDifferences:
        """The gradient beside (L(value + h) - L(value - h)) / 2h, element by element."""
        loss, gradient = self._loss_of(name), self.gradients[name].reshape(-1)
        # A parameter is changed in the network itself.
        value = self.network.parameters[PARAMETERS[name]] if name in PARAMETERS else self.values[name].copy()
        flat = value.reshape(-1)
        tried = np.unique(np.linspace(0, flat.size - 1, min(flat.size, MOST_CHECKED)).astype(int))
        largest = 0.0
        for i in tried:
            kept = flat[i]
            flat[i] = kept + CHANGE
            above = loss(value)
            flat[i] = kept - CHANGE
            below = loss(value)
            flat[i] = kept
            largest = max(largest, abs((above - below) / (2 * CHANGE) - float(gradient[i])))
        return FiniteDifferences(largest, len(tried), flat.size)

    def loss(self, x: Array | None = None, after: str | None = None) -> float:
        """The loss of the batch; or of x as the output of the layer `after`."""
        names = list(self.network.layers)
        x = self.x if x is None else x
        for name in names[0 if after is None else names.index(after) + 1 :]:
            x = self.network.layers[name].forward(x, ForwardContext(training=True))
        return cross_entropy(x, self.targets)[0]

    def _loss_of(self, name: str) -> Callable[[Array], float]:
        """The loss as a function of one quantity; what it was computed from stays as it is."""
        after = {"E": "embed", "H0": "linear1", "HZ": "norm1", "HA": "act1", "logits": "output"}
        if name in PARAMETERS:
            return lambda _: self.loss()
        if name in after:
            return lambda value: self.loss(value, after[name])
        gamma, beta = self.norm.parameters["weight"], self.norm.parameters["bias"]
        if name == "HN":
            return lambda value: self.loss(gamma * value + beta, "norm1")
        count, ddof = float(len(self.x)), self.norm.norm.ddof

        def with_statistics(mean: Array, m2: Array) -> float:
            moments = Moments(np.full(mean.shape, count), mean, m2)
            return self.loss(forward(self.h0, self.norm.norm, weight=gamma, bias=beta, moments=moments).y, "norm1")

        if name == "σ²":
            return lambda var: with_statistics(self.values["μ"], var * (count - ddof))
        return lambda mean: with_statistics(mean, ((self.h0 - mean) ** 2).sum(0))
