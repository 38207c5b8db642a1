"""Layers with forward and backward side by side, each derived by hand.

A layer keeps what its backward needs from its last forward. `backward(dy)` returns dx and writes the gradients of its
parameters. Arrays are (..., features). A `ForwardContext` says whether the network is training and which positions
are valid.

    layer.parameters   name -> array, updated in place by an optimizer
    layer.gradients    name -> array, written in place by backward

Every backward is checked against finite differences in float64, and against autograd.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from truenorm.core.inputs import Normalized
from truenorm.core.moments import Moments
from truenorm.core.norm import Norm
from truenorm.core.running import Running, torch_convention
from truenorm.engine import backward, compiled, forward

Array = NDArray[Any]
StatisticsOver = Literal["valid", "all"]
_COMPILED = (np.dtype(np.float32), np.dtype(np.float64))  # the dtypes of the compiled loops


@dataclass(eq=False)
class ForwardContext:
    """The settings of one forward pass.

    lengths   the first `lengths[b]` positions of sample b are valid; None: all positions
    rng       for dropout; None turns dropout off
    """

    training: bool = False
    lengths: Array | None = None
    rng: np.random.Generator | None = None


class Layer(ABC):
    """Base class. A layer without parameters implements only forward and backward."""

    def __init__(self, **parameters: Array) -> None:
        self.parameters: dict[str, Array] = parameters
        self.gradients: dict[str, Array] = {name: np.zeros_like(value) for name, value in parameters.items()}

    @abstractmethod
    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        """Return y, and keep what backward needs."""

    @abstractmethod
    def backward(self, dy: Array) -> Array:
        """Return dx, and write the gradients of the parameters into `gradients`."""


class Embedding(Layer):
    """y = table[x]: one row for each index. The gradients of a row that is used twice are added.

    flat   concatenate the rows of a sample: (batch, positions) -> (batch, positions · features)
    """

    def __init__(self, table: Array, *, flat: bool = False) -> None:
        super().__init__(table=table)
        self.flat = flat

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.x = x
        y: Array = self.parameters["table"].take(x, 0)
        return y.reshape(len(x), -1) if self.flat else y

    def backward(self, dy: Array) -> Array:
        gradient, x = self.gradients["table"], self.x
        width = gradient.shape[1]
        if dy.size != x.size * width or len(dy) != len(x):
            raise ValueError(f"Embedding: dy has {width} values for each index of x {x.shape}, got {dy.shape}.")
        if x.size and dy.dtype is gradient.dtype and (native := compiled()) is not None:
            native.add_rows(np.ascontiguousarray(x, np.int64), np.ascontiguousarray(dy), gradient)
            return np.zeros(x.shape, gradient.dtype)
        flat_index = x.reshape(-1, 1) * width + np.arange(width)  # of each value of dy in the flattened table
        sums = np.bincount(flat_index.reshape(-1), dy.reshape(-1), gradient.size)
        gradient[...] = sums.reshape(gradient.shape)
        return np.zeros(x.shape, gradient.dtype)  # indices have no gradient


class Positions(Layer):
    """Learned position embedding: y = x + table[t] at position t. Attention alone ignores the order."""

    def __init__(self, table: Array) -> None:
        super().__init__(table=table)

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        return x + self.parameters["table"][: x.shape[1]]

    def backward(self, dy: Array) -> Array:
        gradient = self.gradients["table"]
        gradient[: dy.shape[1]] = dy.sum(0)
        gradient[dy.shape[1] :] = 0
        return dy


class Linear(Layer):
    """y = x W + b."""

    def __init__(self, weight: Array, bias: Array) -> None:
        super().__init__(weight=weight, bias=bias)
        self.ones = np.ones(0, weight.dtype)

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.shape, self.x = x.shape, _rows(x)
        y: Array = self.x.dot(self.parameters["weight"])
        y += self.parameters["bias"]
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], -1)

    def backward(self, dy: Array) -> Array:
        dy = _rows(dy)
        np.dot(self.x.T, dy, out=self.gradients["weight"])
        if len(self.ones) != len(dy):
            self.ones = np.ones(len(dy), dy.dtype)
        np.dot(self.ones, dy, out=self.gradients["bias"])  # sums over rows, three times as fast as sum(0)
        dx: Array = dy.dot(self.parameters["weight"].T)
        return dx if len(self.shape) == 2 else dx.reshape(self.shape)


def _rows(x: Array) -> Array:
    """(..., features) -> (rows, features), for a single matrix product."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


class Normalize(Layer):
    """A truenorm normalization. Batch norm uses batch statistics in training, running statistics in evaluation.

    statistics_over   "valid": only valid positions; "all": padding too, as in layers that take no lengths
    """

    def __init__(
        self,
        norm: Norm,
        size: int,
        dtype: Any = np.float64,
        *,
        running: bool,
        statistics_over: StatisticsOver = "valid",
    ) -> None:
        super().__init__(weight=np.ones(size, dtype), bias=np.zeros(size, dtype))
        self.norm, self.statistics_over = norm, statistics_over
        self.running = Running.start((size,), torch_convention()) if running else None
        self.batch_moments: Moments | None = None  # of the last training step

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        running, lengths = self.running, ctx.lengths if self.statistics_over == "valid" else None
        weight, bias = self.parameters["weight"], self.parameters["bias"]
        fixed = None if running is None or ctx.training else running.moments(self.norm)
        out = forward(x, self.norm, weight=weight, bias=bias, lengths=lengths, moments=fixed)
        self.out: Normalized = out
        if running is not None and ctx.training:
            self.batch_moments = out.moments
            self.running = running.update(out.moments)
        return out.y

    def backward(self, dy: Array) -> Array:
        dx, dweight, dbias = backward(dy, self.out)
        assert dweight is not None
        assert dbias is not None
        self.gradients["weight"][...], self.gradients["bias"][...] = dweight, dbias
        return dx


class Tanh(Layer):
    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.y: Array = np.tanh(x)
        return self.y

    def backward(self, dy: Array) -> Array:
        dx: Array = dy * self.y
        dx *= self.y
        return np.subtract(dy, dx, out=dx)  # dy (1 - y²), without another temporary array


class ReLU(Layer):
    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.y: Array = np.maximum(x, 0)
        return self.y

    def backward(self, dy: Array) -> Array:
        return np.where(self.y > 0, dy, 0)


class Sigmoid(Layer):
    """1 / (1 + exp(-x)), as tanh(x / 2) / 2 + 1/2, which cannot overflow."""

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.y: Array = np.tanh(x * 0.5) * 0.5 + 0.5
        return self.y

    def backward(self, dy: Array) -> Array:
        result: Array = np.multiply(dy, self.y * (1 - self.y))
        return result


class GELU(Layer):
    """x · Φ(x) in the tanh approximation, x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.x = x
        self.inner: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        result: Array = np.multiply(0.5 * x, 1 + self.inner)
        return result

    def backward(self, dy: Array) -> Array:
        dinner = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * self.x**2)
        result: Array = np.multiply(dy, 0.5 * (1 + self.inner) + 0.5 * self.x * (1 - self.inner**2) * dinner)
        return result


class Dropout(Layer):
    """In training each value is set to 0 with this probability, and the others are scaled by 1 / (1 - probability)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.mask: Array | None = None
        if not ctx.training or ctx.rng is None or self.probability == 0:
            return x
        kept = ctx.rng.random(x.shape) >= self.probability
        self.mask = kept.astype(x.dtype) / x.dtype.type(1 - self.probability)
        return x * self.mask

    def backward(self, dy: Array) -> Array:
        return dy if self.mask is None else dy * self.mask


class MeanOverPositions(Layer):
    """(batch, positions, features) -> (batch, features): the mean over the valid positions."""

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        self.weights: Array = _mean_weights(x.shape[:2], ctx.lengths, x.dtype)
        x = np.where(self.weights[:, :, None] > 0, x, 0)  # NaN · 0 is NaN
        return (self.weights[:, None, :] @ x)[:, 0]

    def backward(self, dy: Array) -> Array:
        result: Array = np.multiply(self.weights[:, :, None], dy[:, None, :])
        return result


def _mean_weights(shape: tuple[int, ...], lengths: Array | None, dtype: Any) -> Array:
    """(batch, positions): 1 / length at valid positions, 0 elsewhere; all 0 for length 0."""
    batch, positions = shape
    lengths = np.full(batch, positions) if lengths is None else lengths
    valid = np.arange(positions) < lengths[:, None]
    weights: Array = valid / np.maximum(lengths, 1)[:, None]
    return weights.astype(dtype)


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Array]:
    """The mean of -log softmax(logits)[target], and its gradient: (probabilities - onehot) / n."""
    if targets.shape != logits.shape[:1] or targets.dtype.kind not in "iu":
        raise ValueError(
            f"cross_entropy: targets are one integer class for each of the {len(logits)} rows, "
            f"got {targets.dtype} of shape {targets.shape}."
        )
    if logits.dtype in _COMPILED and logits.size and (native := compiled()) is not None:
        dlogits: Array = np.empty(logits.shape, logits.dtype)
        loss = native.cross_entropy(np.ascontiguousarray(logits), np.ascontiguousarray(targets, np.int64), dlogits)
        return loss, dlogits
    n = len(targets)
    if n and targets.min() < 0:
        raise IndexError(f"cross_entropy: targets are classes >= 0, got {targets.min()}.")
    rows = np.arange(n)
    shifted = logits - np.maximum.reduce(logits, 1, keepdims=True)  # avoids overflow in exp
    dlogits = np.exp(shifted)
    totals = np.add.reduce(dlogits, 1, keepdims=True)
    loss = float(np.add.reduce(np.log(totals), None) - np.add.reduce(shifted[rows, targets])) / n
    dlogits /= totals * logits.dtype.type(n)
    dlogits[rows, targets] -= 1 / n
    return loss, dlogits


def squared_error(predicted: Array, targets: Array) -> tuple[float, Array]:
    """The mean of (predicted - target)² over (n, 1), and its gradient."""
    error = predicted - targets.reshape(predicted.shape).astype(predicted.dtype)
    return float((error * error).mean()), 2 * error / error.size
