"""`accumulate`: one update of the running statistics for several forwards, from the values of all of them.

Micro-batches of gradient accumulation each update the running statistics, with a weight of `momentum` each, and from
the variance within each only. Inside of `accumulate` forwards only stage their moments. They are merged, and the
running statistics are updated once, as if all had been one batch:

    with accumulate(model): ...                       at the end of the context
    with accumulate(model, optimizer=optimizer): ...  after each step of the optimizer

Each forward is still normalized with its own statistics: `together` is for those of the whole. A forward that is
repeated by activation checkpointing counts once. An exception discards what is staged.

With an optimizer, so does a step that a gradient scaler skips: its parameters had gradients, and none of them has one
when the next backward begins. That is not noticed, and the moments count with the next step, if gradients are set to 0
instead of None, or if they are not accumulated by autograd in the parameters of the optimizer, as with FSDP.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from truenorm.torch import _compat, _running
from truenorm.torch._batch_norms import batch_norms
from truenorm.torch._formula import merge_tables
from truenorm.torch._pooled import Exchange
from truenorm.torch.layers import _BatchNorm


class accumulate:  # noqa: N801 - called like a function, as torch.no_grad
    """Update the running statistics once, from all forwards inside: at the end, or after each step of the optimizer.

    Args:
        model: with truenorm's batch norms: `convert` it first
        optimizer: update after each of its steps; None: once, at the end of the context

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.BatchNorm1d(1, momentum=1.0)
        >>> with tnt.accumulate(layer):
        ...     _ = layer(torch.tensor([[1.0], [3.0]])), layer(torch.tensor([[5.0], [5.0], [1.0]]))
        >>> layer.running_mean, round(layer.running_var.item(), 4), layer.num_batches_tracked
        (tensor([3.]), 4.0, tensor(1))
    """

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer | None = None) -> None:
        batch_norms("accumulate", model)
        self.model, self.optimizer = model, optimizer
        self.stage = Stage()
        self._undo = ExitStack()
        self._entered = False

    def __enter__(self) -> accumulate:
        if self._entered:
            raise RuntimeError("accumulate: one context at a time, got one that is entered already. Make a new one.")
        layers = [layer for _, layer in batch_norms("accumulate", self.model) if layer.track_running_stats]
        with ExitStack() as undo:  # also if something fails on the way
            if self.optimizer is not None:
                parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
                self.stage.parameters = [p for p in parameters if p.requires_grad]
                undo.callback(self.optimizer.register_step_post_hook(self._after_step).remove)
                for hook in self.stage.follow_gradients():
                    undo.callback(hook.remove)
            for layer in layers:
                undo.enter_context(StagingExchange(layer, self.stage))
            self._undo = undo.pop_all()
        self._entered = True
        return self

    def __exit__(self, kind: Any, *_: Any) -> None:
        self._undo.close()
        self._entered = False
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
    """The moments of one forward, and the number of the backward pass that came to it.

    seen_by_hook   whether a hook on its output says so; else it is taken for a part of the next pass
    """

    layer: Any
    table: Tensor
    backward: int | None = None
    seen_by_hook: bool = False


class Stage:
    """Moments that wait to be merged. parameters: those of an optimizer, to see when a step was skipped."""

    def __init__(self, parameters: list[Any] | None = None) -> None:
        self.staged: list[Staged] = []
        self.parameters = parameters or []
        self.backward = -1  # the number of the last backward pass
        self.has_gradients = False  # whether autograd has accumulated some since the last step

    def add(self, layer: Any, table: Tensor) -> Staged:
        self.staged.append(Staged(layer, table))
        return self.staged[-1]

    def follow_gradients(self) -> Iterator[Any]:
        """Registers hooks on the parameters: before a gradient is accumulated, and after."""
        for parameter in self.parameters:
            yield parameter.register_hook(lambda _: self.backward_runs())
            yield parameter.register_post_accumulate_grad_hook(self._gradient_is_there)

    def backward_runs(self, one: Staged | None = None) -> None:
        """In a backward, before any gradient of it is accumulated the first time. one: the forward it has come to."""
        current = _compat.backward_pass()
        if current != self.backward:
            self.backward = current
            if self.has_gradients and all(p.grad is None for p in self.parameters):  # gone, without a step
                self.staged = [other for other in self.staged if other.backward is None]
                self.has_gradients = False
            for other in self.staged:
                if other.backward is None and not other.seen_by_hook:
                    other.backward = current
        if one is not None:
            one.backward = current

    def _gradient_is_there(self, _: Any) -> None:
        self.has_gradients = True

    def tables(self) -> dict[Any, Tensor]:
        """The moments of each layer, over all that is staged."""
        found: dict[Any, list[Tensor]] = {}
        for one in self.staged:
            found.setdefault(one.layer, []).append(one.table)
        return {layer: merge_tables(torch.stack(tables)) for layer, tables in found.items()}

    def commit(self) -> None:
        """Update the running statistics. A layer that was frozen, or lost them, since its forward is left out."""
        tables = self.tables()
        changed = [layer for layer in tables if not isinstance(layer, _BatchNorm)]
        with torch.no_grad():
            for layer, table in tables.items():
                if layer in changed or layer.frozen or layer.running_mean is None:
                    continue
                _, _, mean, var, counter = layer._state()
                skipped = layer._skip_counter()
                done = _running.update(table, mean, var, layer._weight_of_batch(counter), counter, skipped)
                if done == _running.NOT_FINITE:
                    layer.skipped_batches += 1
        if changed:
            raise RuntimeError(
                f"accumulate: layers of truenorm until the moments are used, got {type(changed[0]).__name__} that was "
                "converted or reverted since its forward. All other layers are up to date."
            )

    def discard(self) -> None:
        self.staged, self.has_gradients = [], False


class StagingExchange(Exchange):
    """While this context lasts, the moments of one layer are staged, after the exchange that the layer has.

    shared   whether that exchange takes part

    Contexts need not nest, as those of generators and threads: each removes itself, wherever it is.
    """

    def __init__(self, layer: Any, stage: Stage, shared: bool = True) -> None:
        self.layer, self.stage, self.shared = layer, stage, shared
        self.last: Staged | None = None
        self.before: StagingExchange | None = None  # of a context that was entered before

    def __enter__(self) -> None:
        self.before = self.layer._stage
        vars(self.layer)["_stage"] = self

    def __exit__(self, *_: Any) -> None:
        own: dict[str, Any] = vars(self.layer)
        newer: StagingExchange | None = None
        found = own.get("_stage")
        while found is not None and found is not self:
            newer, found = found, found.before
        if found is None:  # the layer was restored to what it was before
            return
        if newer is not None:
            newer.before = self.before
        elif self.before is not None:
            own["_stage"] = self.before
        else:
            del own["_stage"]

    def __reduce__(self) -> Any:
        """None: the copy of a layer, or its pickle, is not inside the context."""
        return type(None), ()

    def updates_running(self) -> bool:
        return False

    def pool(self, table: Tensor, weighted: bool, differentiable: bool) -> tuple[Tensor, bool]:
        exchange, first = self.layer._exchange, True
        if self.shared and exchange is not None and exchange.is_active():
            table, weighted = exchange.pool(table, weighted, differentiable)
            first = exchange.updates_running()  # one of those that share the layer
        counts = first and not _running.recomputing()
        self.last = self.stage.add(self.layer, table.detach().clone()) if counts else None
        return table, weighted

    def take_back(self) -> None:
        if self.last in self.stage.staged:
            self.stage.staged.remove(self.last)

    def watch(self, y: Tensor) -> None:
        one, output = self.last, cast("Any", y)
        if one is not None and y.requires_grad and self.stage.parameters:
            one.seen_by_hook = True
            output.register_hook(lambda _: self.stage.backward_runs(one))
