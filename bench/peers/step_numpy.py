"""One training step of the character network in plain NumPy, written out line by line without layers."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import numpy as np

from truenorm.lab.training import Trainer

F = np.float32


def bind(trainer: Trainer) -> Callable[[], float]:
    """A step that starts from the trainer's weights and returns the loss of its batch."""
    config = trainer.config
    drawn = [trainer.batches[step] for step in range(trainer.batches.steps)]
    batches = cycle([(one.x, one.targets) for one in drawn])
    table, w1, b1, weight, bias, w2, b2 = (value.copy() for value in trainer.network.parameters.values())
    running_mean, running_var = np.zeros(config.hidden, F), np.ones(config.hidden, F)
    n, lr, rows = config.batch, F(config.lr), np.arange(config.batch)
    share, unbiased, momentum = F(1 / n), F(n / (n - 1)), F(0.1)

    def train_step() -> float:
        nonlocal running_mean, running_var
        x, targets = next(batches)
        e = table[x].reshape(n, -1)
        h0 = e @ w1 + b1
        mean = h0.sum(0) * share
        centered = h0 - mean
        var = (centered * centered).sum(0) * share
        rstd = 1 / np.sqrt(var + F(1e-5))
        hn = centered * rstd
        ha = np.tanh(hn * weight + bias)
        logits = ha @ w2 + b2
        running_mean = running_mean + momentum * (mean - running_mean)
        running_var = running_var + momentum * (var * unbiased - running_var)
        shifted = logits - logits.max(1, keepdims=True)
        dlogits = np.exp(shifted)
        totals = dlogits.sum(1, keepdims=True)
        loss = float((np.log(totals[:, 0]) - shifted[rows, targets]).sum()) / n
        dlogits /= totals
        dlogits[rows, targets] -= 1
        dlogits *= share
        dhz = (dlogits @ w2.T) * (1 - ha * ha)
        dweight, dbias = (dhz * hn).sum(0), dhz.sum(0)
        dh0 = (weight * rstd * share) * (n * dhz - dbias - hn * dweight)
        dtable = np.zeros_like(table)
        np.add.at(dtable, x, (dh0 @ w1.T).reshape(*x.shape, -1))
        for value, gradient in (
            (table, dtable),
            (w1, e.T @ dh0),
            (b1, dh0.sum(0)),
            (weight, dweight),
            (bias, dbias),
            (w2, ha.T @ dlogits),
            (b2, dlogits.sum(0)),
        ):
            value -= lr * gradient
        return loss

    return train_step
