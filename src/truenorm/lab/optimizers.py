"""SGD with momentum, Adam, and learning rate schedules.

An optimizer updates all parameters of a network in place, as one flat vector. Everything that it remembers between
steps is in `state`, which a checkpoint stores.
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
    """The learning rate at a step. constant; step: a tenth for the second half; cosine: decays to 0.

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

    def __init__(self, parameters: Array, momentum: float = 0.0) -> None:
        self.momentum = momentum
        self.update = np.empty_like(parameters)
        self.state: dict[str, Array] = {"velocity": np.zeros_like(parameters)} if momentum else {}

    def step(self, parameters: Array, gradients: Array, lr: float) -> None:
        if self.momentum:
            velocity = self.state["velocity"]
            velocity *= velocity.dtype.type(self.momentum)
            velocity += gradients
            gradients = velocity
        parameters -= np.multiply(gradients, parameters.dtype.type(lr), out=self.update)


class Adam:
    """Running mean of the gradients over the root of their running mean square, both bias-corrected [kingma]."""

    def __init__(self, parameters: Array, beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> None:
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.state = {
            "count": np.zeros((), np.int64),
            "mean": np.zeros_like(parameters),
            "square": np.zeros_like(parameters),
        }

    def step(self, parameters: Array, gradients: Array, lr: float) -> None:
        count, mean, square = self.state.values()
        count += 1
        correction1, correction2 = 1 - self.beta1 ** int(count), 1 - self.beta2 ** int(count)
        scalar = parameters.dtype.type
        mean += scalar(1 - self.beta1) * (gradients - mean)
        square += scalar(1 - self.beta2) * (gradients * gradients - square)
        parameters -= scalar(lr / correction1) * mean / (np.sqrt(square / scalar(correction2)) + scalar(self.eps))
