"""How parameters move: `w -= lr · gradient`, with momentum or with Adam, under a schedule of learning rates.

An optimizer moves one vector in place, all parameters of a network at once, and keeps what it remembers in `state`, so
that a run can be continued from a file.
"""

from __future__ import annotations

import math
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

    def __init__(self, like: Array, momentum: float = 0.0) -> None:
        self.momentum = momentum
        self.moved = np.empty_like(like)
        self.state: dict[str, Array] = {"velocity": np.zeros_like(like)} if momentum else {}

    def step(self, values: Array, gradients: Array, rate: float) -> None:
        if self.momentum:
            velocity = self.state["velocity"]
            velocity *= velocity.dtype.type(self.momentum)
            velocity += gradients
            gradients = velocity
        values -= np.multiply(gradients, values.dtype.type(rate), out=self.moved)


class Adam:
    """Gradients over the root of their running mean square, both corrected for starting at 0 [kingma]."""

    def __init__(self, like: Array, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.state = {"count": np.zeros((), np.int64), "mean": np.zeros_like(like), "square": np.zeros_like(like)}

    def step(self, values: Array, gradients: Array, rate: float) -> None:
        count, mean, square = self.state.values()
        count += 1
        first, second = 1 - self.beta1 ** int(count), 1 - self.beta2 ** int(count)
        number = values.dtype.type
        mean += number(1 - self.beta1) * (gradients - mean)
        square += number(1 - self.beta2) * (gradients * gradients - square)
        values -= number(rate / first) * mean / (np.sqrt(square / number(second)) + number(self.eps))
