"""One training step of the character network in eager torch: modules, autograd, `torch.optim.SGD`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import cycle

import torch
from torch import nn
from torch.nn import functional

from truenorm.lab.training import Trainer


def bind(trainer: Trainer) -> Callable[[], float]:
    """A step that starts from the trainer's weights and returns the loss of its batch. Batches are converted before."""
    config, start = trainer.config, trainer.network.parameters
    drawn = [trainer.batches[step] for step in range(trainer.batches.steps)]
    batches = cycle([(torch.from_numpy(one.x), torch.from_numpy(one.targets)) for one in drawn])
    table, hidden, out = (start[name] for name in ("embed.table", "linear1.weight", "output.weight"))
    model = nn.Sequential(
        nn.Embedding(*table.shape),
        nn.Flatten(),
        nn.Linear(*hidden.shape),
        nn.BatchNorm1d(config.hidden),
        nn.Tanh(),
        nn.Linear(*out.shape),
    )
    with torch.no_grad():
        for parameter, name in zip(model.parameters(), start, strict=True):
            value = torch.from_numpy(start[name].copy())
            parameter.copy_(value.T if name.startswith(("linear", "output")) and value.ndim == 2 else value)
    optimizer = torch.optim.SGD(model.parameters(), lr=config.lr)

    def train_step() -> float:
        x, targets = next(batches)
        loss = functional.cross_entropy(model(x), targets)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return loss.item()

    return train_step
