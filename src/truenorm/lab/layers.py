"""Layers, forward and backward side by side, each derived by hand.

A layer keeps what its backward needs from its last forward. `backward(dy)` returns dx and writes the gradients of its
parameters. Arrays are (..., features); how a step is run (training or not, which positions are real) comes in a `Pass`.

    layer.parameters   name -> array, changed in place by an optimizer
    layer.gradients    name -> array, written in place by backward

Every backward is checked against finite differences in float64, and against autograd.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.inputs import Normalized
from truenorm.core.moments import Moments
from truenorm.core.norm import Norm
from truenorm.core.running import Running, torch_convention
from truenorm.engine import backward, compiled, forward

Array = NDArray[Any]
_COMPILED = (np.dtype(np.float32), np.dtype(np.float64))  # what the compiled loops take


@dataclass(eq=False)
class Pass:
    """How a forward is run. `lengths`: the first so many positions of each sample are real; None: all of them."""

    training: bool = False
    lengths: Array | None = None
    rng: np.random.Generator | None = None  # of dropout; None: without it


class Layer(ABC):
    """What all layers share. One without parameters needs only forward and backward."""

    def __init__(self, **parameters: Array) -> None:
        self.parameters: dict[str, Array] = parameters
        self.gradients: dict[str, Array] = {name: np.zeros_like(value) for name, value in parameters.items()}

    @abstractmethod
    def forward(self, x: Array, how: Pass) -> Array:
        """y, keeping what backward needs."""

    @abstractmethod
    def backward(self, dy: Array) -> Array:
        """dx; writes the gradients of the parameters into `gradients`."""


class Embedding(Layer):
    """y = table[x]: one row for each number; a row that is used twice gets both gradients.

    flat   (batch, positions) -> (batch, positions · features): the rows of a sample side by side
    """

    def __init__(self, table: Array, *, flat: bool = False) -> None:
        super().__init__(table=table)
        self.flat = flat

    def forward(self, x: Array, how: Pass) -> Array:
        self.x = x
        y: Array = self.parameters["table"].take(x, 0)
        return y.reshape(len(x), -1) if self.flat else y

    def backward(self, dy: Array) -> Array:
        gradient, x = self.gradients["table"], self.x
        width = gradient.shape[1]
        if dy.size != x.size * width or len(dy) != len(x):
            raise ValueError(f"Embedding: dy of {width} numbers for each of x {x.shape}, got {dy.shape}.")
        if x.size and dy.dtype is gradient.dtype and (native := compiled()) is not None:
            native.add_rows(np.ascontiguousarray(x, np.int64), np.ascontiguousarray(dy), gradient)
            return np.zeros(x.shape, gradient.dtype)
        places = x.reshape(-1, 1) * width + np.arange(width)  # where each number of dy goes in the flat table
        sums = np.bincount(places.reshape(-1), dy.reshape(-1), gradient.size)  # adds up what goes to the same place
        gradient[...] = sums.reshape(gradient.shape)
        return np.zeros(x.shape, gradient.dtype)  # numbers of rows have no gradient


class Positions(Layer):
    """y = x + table[t] at position t: attention by itself does not know what comes first."""

    def __init__(self, table: Array) -> None:
        super().__init__(table=table)

    def forward(self, x: Array, how: Pass) -> Array:
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

    def forward(self, x: Array, how: Pass) -> Array:
        self.shape, self.x = x.shape, _rows(x)
        y: Array = self.x.dot(self.parameters["weight"])
        y += self.parameters["bias"]
        return y if x.ndim == 2 else y.reshape(*x.shape[:-1], -1)

    def backward(self, dy: Array) -> Array:
        dy = _rows(dy)
        np.dot(self.x.T, dy, out=self.gradients["weight"])
        if len(self.ones) != len(dy):
            self.ones = np.ones(len(dy), dy.dtype)
        np.dot(self.ones, dy, out=self.gradients["bias"])  # the sum of rows, in a third of the time
        dx: Array = dy.dot(self.parameters["weight"].T)
        return dx if len(self.shape) == 2 else dx.reshape(self.shape)


def _rows(x: Array) -> Array:
    """(..., features) -> (rows, features): one matrix product for all."""
    return x if x.ndim == 2 else x.reshape(-1, x.shape[-1])


class Normalize(Layer):
    """truenorm's own: the statistics of the batch in training, running ones otherwise (batch norm only).

    counted   let padding enter the statistics, as layers that know no lengths do
    """

    def __init__(self, norm: Norm, size: int, dtype: Any = np.float64, *, running: bool, counted: bool = False) -> None:
        super().__init__(weight=np.ones(size, dtype), bias=np.zeros(size, dtype))
        self.norm, self.counted = norm, counted
        self.running = Running.start((size,), torch_convention()) if running else None
        self.batch: Moments | None = None  # of the last step

    def forward(self, x: Array, how: Pass) -> Array:
        own, running, lengths = self.parameters, self.running, None if self.counted else how.lengths
        fixed = None if running is None or how.training else running.moments(self.norm)
        out = forward(x, self.norm, weight=own["weight"], bias=own["bias"], lengths=lengths, moments=fixed)
        self.out: Normalized = out
        if running is not None and how.training:
            self.batch = out.moments
            self.running = running.update(self.batch)
        return out.y

    def backward(self, dy: Array) -> Array:
        dx, dweight, dbias = backward(dy, self.out)
        assert dweight is not None
        assert dbias is not None
        self.gradients["weight"][...], self.gradients["bias"][...] = dweight, dbias
        return dx


class Tanh(Layer):
    def forward(self, x: Array, how: Pass) -> Array:
        self.y: Array = np.tanh(x)
        return self.y

    def backward(self, dy: Array) -> Array:
        dx: Array = dy * self.y
        dx *= self.y
        return np.subtract(dy, dx, out=dx)  # dy (1 - y²), in one array


class ReLU(Layer):
    def forward(self, x: Array, how: Pass) -> Array:
        self.y: Array = np.maximum(x, 0)
        return self.y

    def backward(self, dy: Array) -> Array:
        return np.where(self.y > 0, dy, 0)


class Sigmoid(Layer):
    """1 / (1 + exp(-x)), as tanh(x / 2) / 2 + 1/2, which cannot overflow."""

    def forward(self, x: Array, how: Pass) -> Array:
        self.y: Array = np.tanh(x * 0.5) * 0.5 + 0.5
        return self.y

    def backward(self, dy: Array) -> Array:
        result: Array = np.multiply(dy, self.y * (1 - self.y))
        return result


class GELU(Layer):
    """x · Φ(x) in its usual approximation, x/2 · (1 + tanh(√(2/π) (x + 0.044715 x³)))."""

    def forward(self, x: Array, how: Pass) -> Array:
        self.x = x
        self.inner: Array = np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))
        result: Array = np.multiply(0.5 * x, 1 + self.inner)
        return result

    def backward(self, dy: Array) -> Array:
        slope = math.sqrt(2 / math.pi) * (1 + 3 * 0.044715 * self.x**2)
        result: Array = np.multiply(dy, 0.5 * (1 + self.inner) + 0.5 * self.x * (1 - self.inner**2) * slope)
        return result


class Dropout(Layer):
    """In training each number is 0 with this probability, and the others grow so that the mean stays."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, x: Array, how: Pass) -> Array:
        self.kept: Array | None = None
        if not how.training or how.rng is None or self.probability == 0:
            return x
        kept = how.rng.random(x.shape) >= self.probability
        self.kept = kept.astype(x.dtype) / x.dtype.type(1 - self.probability)
        return x * self.kept

    def backward(self, dy: Array) -> Array:
        return dy if self.kept is None else dy * self.kept


class MeanOverPositions(Layer):
    """(batch, positions, features) -> (batch, features): the mean over the positions that are real."""

    def forward(self, x: Array, how: Pass) -> Array:
        self.share: Array = shares(x.shape[:2], how.lengths, x.dtype)
        x = np.where(self.share[:, :, None] > 0, x, 0)  # NaN · 0 is NaN
        return (self.share[:, None, :] @ x)[:, 0]

    def backward(self, dy: Array) -> Array:
        result: Array = np.multiply(self.share[:, :, None], dy[:, None, :])
        return result


def shares(shape: tuple[int, ...], lengths: Array | None, dtype: Any) -> Array:
    """(batch, positions): 1 / length at positions that are real, 0 elsewhere; nothing real gives 0."""
    batch, positions = shape
    lengths = np.full(batch, positions) if lengths is None else lengths
    real = np.arange(positions) < lengths[:, None]
    found: Array = real / np.maximum(lengths, 1)[:, None]
    return found.astype(dtype)


def cross_entropy(logits: Array, targets: Array) -> tuple[float, Array]:
    """The mean of -log softmax(logits)[target], and its gradient: (probabilities - onehot) / n."""
    if targets.shape != logits.shape[:1] or targets.dtype.kind not in "iu":
        raise ValueError(
            f"cross_entropy: a class, a whole number, for each of the {len(logits)} rows, "
            f"got {targets.dtype} of shape {targets.shape}."
        )
    if logits.dtype in _COMPILED and logits.size and (native := compiled()) is not None:
        dlogits: Array = np.empty(logits.shape, logits.dtype)
        loss = native.cross_entropy(np.ascontiguousarray(logits), np.ascontiguousarray(targets, np.int64), dlogits)
        return loss, dlogits
    n = len(targets)
    if n and targets.min() < 0:
        raise IndexError("targets: numbers of classes.")
    rows = np.arange(n)
    shifted = logits - np.maximum.reduce(logits, 1, keepdims=True)  # so that no exp overflows
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
