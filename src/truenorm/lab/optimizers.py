"""How parameters move: `w -= lr · gradient`, with momentum or with Adam, under a schedule of learning rates.

An optimizer changes arrays in place and keeps its own state in `state`, under the parameters' names, so that a run
can be continued from a file.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Schedule = Literal["constant", "step", "cosine"]
OptimizerName = Literal["sgd", "adam"]


def learning_rate(base: float, schedule: Schedule, step: int, steps: int) -> float:
    """constant; step: a tenth for the last half; cosine: down to 0 along half a wave.

    >>> [round(learning_rate(0.1, "step", step, 10), 3) for step in (0, 4, 5, 9)]
    [0.1, 0.1, 0.01, 0.01]
    """
    match schedule:
        case "constant":
            return base
        case "step":
            return base if step < steps / 2 else base / 10
        case "cosine":
            return base * 0.5 * (1 + math.cos(math.pi * step / max(steps, 1)))


class SGD:
    """v = momentum · v + gradient; w -= lr · v."""

    def __init__(self, momentum: float = 0.0) -> None:
        self.momentum = momentum
        self.state: dict[str, Array] = {}

    def step(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], rate: float) -> None:
        for name, value in parameters.items():
            moved = gradients[name]
            if self.momentum:
                moved = self.momentum * self.state[name] + moved if name in self.state else moved.copy()
                self.state[name] = moved
            value -= value.dtype.type(rate) * moved


class Adam:
    """Gradients over the root of their running mean square, both corrected for starting at 0 [kingma]."""

    def __init__(self, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.state: dict[str, Array] = {}

    def step(self, parameters: Mapping[str, Array], gradients: Mapping[str, Array], rate: float) -> None:
        count = self.state.setdefault("count", np.zeros((), np.int64))
        count += 1
        first, second = 1 - self.beta1 ** int(count), 1 - self.beta2 ** int(count)
        for name, value in parameters.items():
            gradient = gradients[name]
            mean = self.state.setdefault(f"mean.{name}", np.zeros_like(value))
            square = self.state.setdefault(f"square.{name}", np.zeros_like(value))
            mean += value.dtype.type(1 - self.beta1) * (gradient - mean)
            square += value.dtype.type(1 - self.beta2) * (gradient * gradient - square)
            value -= value.dtype.type(rate / first) * mean / (np.sqrt(square / second) + self.eps)
