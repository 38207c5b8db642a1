"""`accumulate`: one update of the running statistics for several forwards, from the values of all of them.

Micro-batches of gradient accumulation each update the running statistics, with a weight of `momentum` each, and from
the variance within each only. Inside of `accumulate` forwards only stage their moments. They are merged, and the
running statistics are updated once, as if all had been one batch:

    with accumulate(model): ...                       at the end of the context
    with accumulate(model, optimizer=optimizer): ...  after each step of the optimizer

Each forward is still normalized with its own statistics: `together` is for those of the whole. A forward that is
repeated by activation checkpointing counts once. An exception discards what is staged. With an optimizer, so does a
step that a gradient scaler skips: the gradients that it would have used are gone when the next backward comes to a
layer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from truenorm.torch import _compat, _running
from truenorm.torch._pooled import Exchange
from truenorm.torch._processes import merge_tables
from truenorm.torch.conversion import _check_model
from truenorm.torch.layers import _BatchNorm


class accumulate:  # noqa: N801 - called like a function, as torch.no_grad
    """Update the running statistics once, from all forwards inside: at the end, or after each step of the optimizer.

    >>> from truenorm.torch import BatchNorm1d
    >>> layer = BatchNorm1d(1, momentum=1.0)
    >>> with accumulate(layer):
    ...     _ = layer(torch.tensor([[1.0], [3.0]])), layer(torch.tensor([[5.0], [5.0], [1.0]]))
    >>> layer.running_mean, round(layer.running_var.item(), 4), layer.num_batches_tracked
    (tensor([3.]), 4.0, tensor(1))
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        _check_model("accumulate", model)
        self.model, self.optimizer = model, optimizer
        self.stage = Stage(follow_gradients=optimizer is not None)
        self._layers: list[tuple[Any, Exchange | None]] = []
        self._hook: Any = None

    def __enter__(self) -> accumulate:
        if self._layers:
            raise RuntimeError("accumulate: one context at a time, got one that is entered already. Make a new one.")
        self._layers = [
            (layer, vars(layer).get("_exchange"))
            for layer in self.model.modules()
            if isinstance(layer, _BatchNorm) and layer.track_running_stats
        ]
        for layer, exchange in self._layers:
            vars(layer)["_exchange"] = StagingExchange(layer, self.stage, exchange)
        if self.optimizer is not None:
            self._hook = self.optimizer.register_step_post_hook(self._after_step)
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        if self._hook is not None:
            self._hook.remove()
        for layer, exchange in self._layers:
            if exchange is None:
                vars(layer).pop("_exchange", None)
            else:
                vars(layer)["_exchange"] = exchange
        self._layers = []
        if kind is None and self.optimizer is None:
            self.stage.commit()
        self.stage.discard()

    def _after_step(self, optimizer: Any, *_: Any) -> None:
        found_inf = getattr(optimizer, "found_inf", None)  # of optimizers that skip the step themselves
        if found_inf is None or not bool(found_inf):
            self.stage.commit()
        self.stage.discard()


@dataclass(eq=False)
class Staged:
    """The moments of one forward, and the number of the backward pass that came to it."""

    layer: Any
    table: Tensor
    backward: int | None = None


class Stage:
    """Moments that wait to be merged."""

    def __init__(self, follow_gradients: bool = False) -> None:
        self.staged: list[Staged] = []
        self.follow_gradients = follow_gradients

    def add(self, layer: Any, table: Tensor) -> Staged:
        self.staged.append(Staged(layer, table))
        return self.staged[-1]

    def backward_begins(self, one: Staged) -> None:
        """Before the gradients of a forward are computed. If those of an earlier pass are gone, its step is skipped."""
        current = _compat.backward_pass()
        parameters = [p for p in one.layer.parameters(recurse=False) if p.requires_grad]
        if self.follow_gradients and parameters and all(p.grad is None for p in parameters):
            self.staged = [other for other in self.staged if other.backward in (None, current)]
        one.backward = current

    def tables(self) -> dict[Any, Tensor]:
        """The moments of each layer, over all that is staged."""
        found: dict[Any, list[Tensor]] = {}
        for one in self.staged:
            found.setdefault(one.layer, []).append(one.table)
        return {layer: merge_tables(torch.stack(tables)) for layer, tables in found.items()}

    def commit(self) -> None:
        with torch.no_grad():
            for layer, table in self.tables().items():
                _, _, mean, var, counter = layer._state()
                done = _running.update(table, mean, var, layer._weight_of_batch(counter), counter)
                if done == _running.NOT_FINITE:
                    layer.skipped_batches += 1

    def discard(self) -> None:
        self.staged = []


class StagingExchange(Exchange):
    """The exchange of one layer whose moments are staged. within: another exchange, which comes first."""

    def __init__(self, layer: Any, stage: Stage, within: Exchange | None) -> None:
        self.layer, self.stage, self.within = layer, stage, within
        self.last: Staged | None = None

    def updates_running(self) -> bool:
        return False

    def pool(self, table: Tensor, weighted: bool, differentiable: bool) -> tuple[Tensor, bool]:
        if self.within is not None and self.within.is_active():
            table, weighted = self.within.pool(table, weighted, differentiable)
        self.last = None if _running.recomputing() else self.stage.add(self.layer, table.detach().clone())
        return table, weighted

    def watch(self, y: Tensor) -> None:
        one, output = self.last, cast("Any", y)
        if one is not None and y.requires_grad:
            output.register_hook(lambda _: self.stage.backward_begins(one))
