"""The three networks, as lists of named layers.

    character_mlp         the next character after a block of them        embed, (linear, norm, act)*, output
    sequence_classifier   the class of a padded sequence                  embed, positions, attention, linear, norm,
                                                                          act, mean, output
    table_network         a class or a number for each row of a table     (linear, norm, act)*, output

The norm stands before the activation, or after it. `Network.backward` keeps the gradient at the output of every layer
in `flows`, under the layer's name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from truenorm.core import norm as spec
from truenorm.lab.attention import SelfAttention
from truenorm.lab.layers import (
    GELU,
    Dropout,
    Embedding,
    Layer,
    Linear,
    MeanOverPositions,
    Normalize,
    Pass,
    Positions,
    ReLU,
    Sigmoid,
    Tanh,
)

Array = NDArray[Any]
NormName = Literal["none", "batch", "layer", "rms", "group"]
NormAt = Literal["before", "after"]
ActivationName = Literal["tanh", "relu", "sigmoid", "gelu"]
Padding = Literal["valid", "counted"]

ACTIVATIONS: dict[ActivationName, Callable[[], Layer]] = {"tanh": Tanh, "relu": ReLU, "sigmoid": Sigmoid, "gelu": GELU}
# What keeps the spread of activations from layer to layer, for weights of spread 1 / √inputs.
GAINS: dict[ActivationName, float] = {"tanh": 5 / 3, "relu": 2**0.5, "sigmoid": 1.0, "gelu": 2**0.5}


@dataclass(frozen=True, kw_only=True)
class Body:
    """What the networks have in common; the defaults are those of the character network."""

    hidden: int = 100
    depth: int = 1
    activation: ActivationName = "tanh"
    norm: NormName = "batch"
    norm_at: NormAt = "before"
    groups: int = 4
    ddof: Literal[0, 1] = 0
    padding: Padding = "valid"
    dropout: float = 0.0
    gain: float = 1.0  # of the hidden layers' initial weights, times what suits the activation
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for name, choices in (
            ("norm", get_args(NormName)),
            ("norm_at", get_args(NormAt)),
            ("activation", get_args(ActivationName)),
            ("padding", get_args(Padding)),
            ("dtype", ("float32", "float64")),
        ):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}: {' or '.join(map(repr, choices))}, got {value!r}.")
        for name in ("hidden", "depth", "groups"):
            if (number := getattr(self, name)) < 1:
                raise ValueError(f"{name}: a whole number >= 1, got {number}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: a probability from 0 to below 1, got {self.dropout}.")
        if not 0 < self.gain < math.inf:
            raise ValueError(f"gain: a finite number > 0, got {self.gain}.")

    def spread(self) -> float:
        """Of a hidden layer's initial weights, times 1 / √inputs."""
        return self.gain * GAINS[self.activation]


class Network:
    """Layers with names, run one after the other.

    values      all parameters in one vector, which an optimizer moves in one sweep; `parameters` are parts of it
    slopes      their gradients, in the same order; `gradients` are parts of it
    """

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self.layers = dict(layers)
        self.flows: dict[str, Array] = {}
        self.values, self.parameters = self._gathered("parameters")
        self.slopes, self.gradients = self._gathered("gradients")

    def _gathered(self, kind: Literal["parameters", "gradients"]) -> tuple[Array, dict[str, Array]]:
        """The layers' arrays of a kind, moved into one vector; and each of them by its name."""
        own: list[dict[str, Array]] = [getattr(layer, kind) for layer in self.layers.values()]
        whole = np.concatenate([value.reshape(-1) for arrays in own for value in arrays.values()])
        named, begin = {}, 0
        for layer, arrays in zip(self.layers, own, strict=True):
            for name, value in arrays.items():
                arrays[name] = whole[begin : begin + value.size].reshape(value.shape)
                named[f"{layer}.{name}"] = arrays[name]
                begin += value.size
        return whole, named

    def forward(self, x: Array, how: Pass) -> Array:
        for layer in self.layers.values():
            x = layer.forward(x, how)
        return x

    def backward(self, dy: Array) -> dict[str, Array]:
        """The gradients of all parameters, under the parameters' names; the next backward writes over them."""
        for name, layer in reversed(self.layers.items()):
            self.flows[name] = dy
            dy = layer.backward(dy)
        return self.gradients


def norm_of(body: Body, size: int) -> spec.Norm | None:
    """The body's norm for so many features."""
    match body.norm:
        case "none":
            return None
        case "batch":
            return spec.batch(ddof=body.ddof)
        case "layer":
            return spec.layer(ddof=body.ddof)
        case "rms":
            return spec.rms(eps=1e-5)
        case "group":
            if size % body.groups or size == body.groups:
                raise ValueError(
                    f"groups: divide the {size} features into parts of two or more, got {body.groups}. "
                    "Choose another --groups or --hidden."
                )
            return spec.group(body.groups, ddof=body.ddof)


def character_mlp(
    body: Body, rng: np.random.Generator, *, alphabet: int = 27, block: int = 3, embedding: int = 2
) -> Network:
    """Which character follows a block of them: an embedding, hidden layers with a norm, logits."""
    layers: dict[str, Layer] = {
        "embed": Embedding(_normal(rng, (alphabet, embedding), 1.0, body.dtype), flat=True),
    }
    return Network(layers | _hidden(body, rng, block * embedding) | _output(body, rng, body.hidden, alphabet))


def sequence_classifier(
    body: Body,
    rng: np.random.Generator,
    *,
    alphabet: int,
    classes: int,
    extent: int,
    embedding: int = 16,
    heads: int = 2,
) -> Network:
    """A class for each padded sequence of character numbers: embedding, self-attention, a hidden layer with a norm."""
    spread = embedding**-0.5
    layers: dict[str, Layer] = {
        "embed": Embedding(_normal(rng, (alphabet, embedding), 1.0, body.dtype)),
        "positions": Positions(np.zeros((extent, embedding), body.dtype)),
        "attention": SelfAttention(
            _normal(rng, (embedding, 3 * embedding), spread, body.dtype),
            _normal(rng, (embedding, embedding), spread, body.dtype),
            np.zeros(embedding, body.dtype),
            heads,
        ),
        "linear1": _linear(rng, embedding, body.hidden, body.spread(), body.dtype),
        **_around_activation(body, body.hidden, "1"),
        "mean": MeanOverPositions(),
    }
    network = Network(layers | _output(body, rng, body.hidden, classes))
    # Last, so that more padding changes no other number at the start.
    network.parameters["positions.table"][...] = _normal(rng, (extent, embedding), 1.0, body.dtype)
    return network


def table_network(body: Body, rng: np.random.Generator, *, features: int, outputs: int) -> Network:
    """Rows of features to logits of classes, or to one number."""
    return Network(_hidden(body, rng, features) | _output(body, rng, body.hidden, outputs))


def _hidden(body: Body, rng: np.random.Generator, inputs: int) -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    for number in range(1, body.depth + 1):
        layers[f"linear{number}"] = _linear(rng, inputs, body.hidden, body.spread(), body.dtype)
        layers |= _around_activation(body, body.hidden, str(number))
        inputs = body.hidden
    return layers


def _around_activation(body: Body, size: int, number: str) -> dict[str, Layer]:
    layers: dict[str, Layer] = {f"act{number}": ACTIVATIONS[body.activation]()}
    norm = norm_of(body, size)
    if norm is not None:
        dtype, counted = np.dtype(body.dtype), body.padding == "counted"
        own = {f"norm{number}": Normalize(norm, size, dtype, running=body.norm == "batch", counted=counted)}
        layers = own | layers if body.norm_at == "before" else layers | own
    if body.dropout:
        layers[f"dropout{number}"] = Dropout(body.dropout)
    return layers


def _output(body: Body, rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, Layer]:
    # A tenth of the usual spread: at the start no class is far ahead, so that the loss begins near log(outputs).
    return {"output": _linear(rng, inputs, outputs, 0.1, body.dtype)}


def _linear(rng: np.random.Generator, inputs: int, outputs: int, gain: float, dtype: str) -> Linear:
    return Linear(_normal(rng, (inputs, outputs), gain * inputs**-0.5, dtype), np.zeros(outputs, dtype))


def _normal(rng: np.random.Generator, shape: tuple[int, ...], spread: float, dtype: str) -> Array:
    return (rng.standard_normal(shape) * spread).astype(dtype)
