"""The three networks, as lists of named layers.

    character_mlp         the next character, given a block of characters  embed, (linear, norm, act)*, output
    sequence_classifier   the class of a padded sequence                   embed, positions, attention, linear, norm,
                                                                           act, mean, output
    table_network         a class or a number for each row of a table      (linear, norm, act)*, output

The norm comes before or after the activation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from truenorm.core import recipes
from truenorm.core.norm import Norm
from truenorm.lab import memory
from truenorm.lab.attention import SelfAttention
from truenorm.lab.layers import (
    GELU,
    Dropout,
    Embedding,
    ForwardContext,
    Layer,
    Linear,
    MeanOverPositions,
    Normalize,
    Positions,
    ReLU,
    Sigmoid,
    StatisticsOver,
    Tanh,
)
from truenorm.lab.memory import NetworkSize

Array = NDArray[Any]
NormName = Literal["none", "batch", "layer", "rms", "group"]
NormAt = Literal["before", "after"]
ActivationName = Literal["tanh", "relu", "sigmoid", "gelu"]
DTypeName = Literal["float32", "float64"]

ACTIVATIONS: dict[ActivationName, Callable[[], Layer]] = {"tanh": Tanh, "relu": ReLU, "sigmoid": Sigmoid, "gelu": GELU}
# Initial weights of std gain / √inputs keep the std of the activations about constant from layer to layer.
GAINS: dict[ActivationName, float] = {"tanh": 5 / 3, "relu": 2**0.5, "sigmoid": 1.0, "gelu": 2**0.5}
NORMAL_PART = 1 << 20  # random numbers that are drawn at once


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """The options that all networks share. The defaults are those of the character network."""

    hidden: int = 100
    depth: int = 1
    activation: ActivationName = "tanh"
    norm: NormName = "batch"
    norm_at: NormAt = "before"
    groups: int = 4
    ddof: Literal[0, 1] = 0
    statistics_over: StatisticsOver = "valid"
    dropout: float = 0.0
    init_scale: float = 1.0  # multiplies the initial weights of the hidden layers
    dtype: DTypeName = "float32"

    def __post_init__(self) -> None:
        for name, choices in (
            ("norm", get_args(NormName)),
            ("norm_at", get_args(NormAt)),
            ("activation", get_args(ActivationName)),
            ("statistics_over", get_args(StatisticsOver)),
            ("dtype", get_args(DTypeName)),
        ):
            if (value := getattr(self, name)) not in choices:
                raise ValueError(f"{name}: {' or '.join(map(repr, choices))}, got {value!r}.")
        for name in ("hidden", "depth", "groups"):
            if (number := getattr(self, name)) < 1:
                raise ValueError(f"{name}: a whole number >= 1, got {number}.")
        if not 0 <= self.dropout < 1:
            raise ValueError(f"dropout: a probability from 0 to below 1, got {self.dropout}.")
        if not 0 < self.init_scale < math.inf:
            raise ValueError(f"init_scale: a finite number > 0, got {self.init_scale}.")

    @property
    def gain(self) -> float:
        """The std of a hidden layer's initial weights is gain / √inputs."""
        return self.init_scale * GAINS[self.activation]


class Network:
    """Named layers, run one after the other.

    parameters         "layer.name" -> array, a view into `flat_parameters`
    gradients          "layer.name" -> array, a view into `flat_gradients`
    flat_parameters    all parameters in one vector, so that an optimizer updates them in one operation
    flat_gradients     their gradients, in the same order
    output_gradients   layer -> gradient of the loss with respect to the layer's output, from the last backward
    """

    def __init__(self, layers: Mapping[str, Layer]) -> None:
        self.layers = dict(layers)
        self.output_gradients: dict[str, Array] = {}
        self.flat_parameters, self.parameters = self._flatten("parameters")
        self.flat_gradients, self.gradients = self._flatten("gradients")

    def _flatten(self, kind: Literal["parameters", "gradients"]) -> tuple[Array, dict[str, Array]]:
        """Move the layers' arrays into one vector; return it, and its views by name."""
        by_layer: list[dict[str, Array]] = [getattr(layer, kind) for layer in self.layers.values()]
        flat = np.concatenate([value.reshape(-1) for arrays in by_layer for value in arrays.values()])
        views, start = {}, 0
        for layer, arrays in zip(self.layers, by_layer, strict=True):
            for name, value in arrays.items():
                arrays[name] = flat[start : start + value.size].reshape(value.shape)
                views[f"{layer}.{name}"] = arrays[name]
                start += value.size
        return flat, views

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        for layer in self.layers.values():
            x = layer.forward(x, ctx)
        return x

    def backward(self, dy: Array) -> dict[str, Array]:
        """The gradients of all parameters by name. The next backward overwrites them."""
        for name, layer in reversed(self.layers.items()):
            self.output_gradients[name] = dy
            dy = layer.backward(dy)
        return self.gradients


def make_norm(config: ModelConfig, size: int) -> Norm | None:
    """The norm of this configuration for `size` features."""
    match config.norm:
        case "none":
            return None
        case "batch":
            return recipes.batch(ddof=config.ddof)
        case "layer":
            return recipes.layer(ddof=config.ddof)
        case "rms":
            return recipes.rms(eps=1e-5)
        case "group":
            if size % config.groups or size == config.groups:
                raise ValueError(
                    f"groups: must divide the {size} features into groups of two or more, got {config.groups}. "
                    "Choose another --groups or --hidden."
                )
            return recipes.group(config.groups, ddof=config.ddof)


# ---- sizes ----

# Arrays of the size of its output that a hidden layer, its norm, activation and dropout keep, forward and backward.
LAYER_COPIES = 6
ATTENTION_COPIES = 4  # the same for the scores and for each of x, q, k, v, y of self-attention


def character_size(config: ModelConfig, *, vocab_size: int, block: int, embedding: int) -> NetworkSize:
    """The size of `character_mlp`."""
    inputs = block * embedding
    return _size(config, inputs, vocab_size, vocab_size * embedding, 2 * inputs)


def sequence_size(
    config: ModelConfig, *, vocab_size: int, classes: int, max_length: int, embedding: int, heads: int
) -> NetworkSize:
    """The size of `sequence_classifier`."""
    parameters = (vocab_size + max_length) * embedding + (4 * embedding + 1) * embedding
    attention = ATTENTION_COPIES * max_length * (heads * max_length + 5 * embedding)
    return _size(config, embedding, classes, parameters, attention, positions=max_length)


def table_size(config: ModelConfig, *, features: int, outputs: int) -> NetworkSize:
    """The size of `table_network`."""
    return _size(config, features, outputs, 0, features)


def _size(
    config: ModelConfig, inputs: int, outputs: int, parameters: int, values: int, positions: int = 1
) -> NetworkSize:
    """The size of hidden and output layers, and of what is before them."""
    hidden, depth = config.hidden, config.depth
    parameters += inputs * hidden + (depth - 1) * hidden * hidden + hidden * outputs + outputs
    parameters += depth * hidden * (1 if config.norm == "none" else 3)
    values += LAYER_COPIES * (positions * depth * hidden + outputs)
    return NetworkSize(parameters, depth, values, np.dtype(config.dtype).itemsize)


# ---- networks ----


def character_mlp(
    config: ModelConfig, rng: np.random.Generator, *, vocab_size: int = 27, block: int = 3, embedding: int = 2
) -> Network:
    """Logits of the next character, given the last `block` characters: embedding, hidden layers with a norm, output."""
    size = character_size(config, vocab_size=vocab_size, block=block, embedding=embedding)
    memory.require("--block, --embedding, --hidden or --depth", network=size.network_bytes)
    layers: dict[str, Layer] = {
        "embed": Embedding(_normal(rng, (vocab_size, embedding), 1.0, config.dtype), flat=True),
    }
    return Network(layers | _hidden(config, rng, block * embedding) | _output(config, rng, config.hidden, vocab_size))


def sequence_classifier(
    config: ModelConfig,
    rng: np.random.Generator,
    *,
    vocab_size: int,
    classes: int,
    max_length: int,
    embedding: int = 16,
    heads: int = 2,
) -> Network:
    """Logits of a class for each padded sequence: embedding, self-attention, a hidden layer with a norm, output."""
    std = embedding**-0.5
    layers: dict[str, Layer] = {
        "embed": Embedding(_normal(rng, (vocab_size, embedding), 1.0, config.dtype)),
        "positions": Positions(np.zeros((max_length, embedding), config.dtype)),
        "attention": SelfAttention(
            _normal(rng, (embedding, 3 * embedding), std, config.dtype),
            _normal(rng, (embedding, embedding), std, config.dtype),
            np.zeros(embedding, config.dtype),
            heads,
        ),
        "linear1": _linear(rng, embedding, config.hidden, config.gain, config.dtype),
        **_activation_and_norm(config, config.hidden, "1"),
        "mean": MeanOverPositions(),
    }
    network = Network(layers | _output(config, rng, config.hidden, classes))
    # Drawn last, so that max_length does not change the other initial weights.
    network.parameters["positions.table"][...] = _normal(rng, (max_length, embedding), 1.0, config.dtype)
    return network


def table_network(config: ModelConfig, rng: np.random.Generator, *, features: int, outputs: int) -> Network:
    """Logits of a class, or one number, for each row of features."""
    return Network(_hidden(config, rng, features) | _output(config, rng, config.hidden, outputs))


def _hidden(config: ModelConfig, rng: np.random.Generator, inputs: int) -> dict[str, Layer]:
    layers: dict[str, Layer] = {}
    for number in range(1, config.depth + 1):
        layers[f"linear{number}"] = _linear(rng, inputs, config.hidden, config.gain, config.dtype)
        layers |= _activation_and_norm(config, config.hidden, str(number))
        inputs = config.hidden
    return layers


def _activation_and_norm(config: ModelConfig, size: int, number: str) -> dict[str, Layer]:
    layers: dict[str, Layer] = {f"act{number}": ACTIVATIONS[config.activation]()}
    norm = make_norm(config, size)
    if norm is not None:
        normalize = Normalize(
            norm,
            size,
            np.dtype(config.dtype),
            running=config.norm == "batch",
            statistics_over=config.statistics_over,
        )
        named = {f"norm{number}": normalize}
        layers = named | layers if config.norm_at == "before" else layers | named
    if config.dropout:
        layers[f"dropout{number}"] = Dropout(config.dropout)
    return layers


def _output(config: ModelConfig, rng: np.random.Generator, inputs: int, outputs: int) -> dict[str, Layer]:
    # Small weights give nearly equal logits, so that the loss starts near log(outputs).
    return {"output": _linear(rng, inputs, outputs, 0.1, config.dtype)}


def _linear(rng: np.random.Generator, inputs: int, outputs: int, gain: float, dtype: str) -> Linear:
    return Linear(_normal(rng, (inputs, outputs), gain * inputs**-0.5, dtype), np.zeros(outputs, dtype))


def _normal(rng: np.random.Generator, shape: tuple[int, ...], std: float, dtype: str) -> Array:
    """Normal numbers, drawn in parts: Ctrl-C interrupts, and there is no float64 copy. The parts do not change them."""
    drawn = np.empty(math.prod(shape), dtype)
    for start in range(0, drawn.size, NORMAL_PART):
        part = drawn[start : start + NORMAL_PART]
        part[...] = rng.standard_normal(part.size) * std
    return drawn.reshape(shape)
