"""`reestimate`: running statistics that describe a whole dataset, each value counted once.

An exponential average describes the last batches, and `torch.optim.swa_utils.update_bn` averages the statistics of
batches: a short last batch counts too much, and how far the means of batches are apart is lost. Here the moments of all
batches are merged by their counts, over all ranks. The stored variance has n - 1, as torch's.

    one pass     each layer sees inputs that the layers before normalized with statistics of the batch, as in training
    exact=True   layer by layer: each sees inputs that the layers before normalized with their new statistics, as in
                 evaluation. It takes a pass over the batches for each layer

Only the layers that are measured run in training mode, without gradients; all others, such as dropout, run in
evaluation. Nothing is written before the last batch was seen, and flags are restored whatever happens: an exception, an
interrupt or a loader without batches leave the model as it was.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from truenorm.torch._batch_norms import Named, tracking_batch_norms
from truenorm.torch._batches import Forward, call_model
from truenorm.torch._formula import merge_tables, wire_dtype
from truenorm.torch._processes import Kind, Processes, ProcessExchange
from truenorm.torch._running import DDOF
from truenorm.torch.accumulation import Stage, StagingExchange
from truenorm.torch.reports import check_model


def reestimate(
    model: nn.Module,
    batches: Iterable[Any],
    forward: Forward | None = None,
    *,
    exact: bool = False,
    progress: bool | None = None,
) -> None:
    """Replace the running statistics of all batch norms by those of the values in the batches.

    Frozen layers stay as they are. Layers that are synchronized get the statistics of the batches of all ranks, which
    may have different numbers of them. `num_batches_tracked` becomes the number of batches. Layers that no batch comes
    to stay as they are, too.

    Args:
        model: with truenorm's batch norms: `convert` it first
        batches: inputs of the model, each a tensor, a tuple or list that begins with it, or a dict of arguments
        forward: called with the model and a batch instead, for models with other arguments
        exact: layer by layer, with a pass over the batches for each layer
        progress: whether to show a bar; None: if the standard error is a terminal

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.BatchNorm1d(1)
        >>> tnt.reestimate(layer, [torch.tensor([[1.0], [3.0]]), torch.tensor([[5.0], [5.0], [1.0]])])
        >>> layer.running_mean, round(layer.running_var.item(), 4), layer.num_batches_tracked
        (tensor([3.]), 4.0, tensor(2))
    """
    check_model("reestimate", model)
    if isinstance(model, DistributedDataParallel):  # each forward of the wrapper sends buffers, and ranks may differ
        model = model.module
    layers = tracking_batch_norms("reestimate", model)
    if not layers:
        raise ValueError("reestimate: a model with batch norms whose running statistics are not frozen, got none.")
    before = [(buffer, buffer.clone()) for _, layer in layers for buffer in layer.buffers(recurse=False)]
    with _alone(layers):
        try:
            if exact:
                for one in _in_order(model, layers, batches, forward or call_model):
                    _write(*_measure(model, [one], batches, forward or call_model, progress))
            else:
                _write(*_measure(model, layers, batches, forward or call_model, progress))
        except BaseException:
            with torch.no_grad():
                for buffer, old in before:
                    buffer.copy_(old)
            raise


_measured: WeakSet[Any] = WeakSet()  # the layers that are being measured, in all threads
_lock = threading.Lock()


@contextmanager
def _alone(layers: Named) -> Iterator[None]:
    """Refuses layers that are being measured already: by another thread, or by the call that `forward` is part of."""
    own = {layer for _, layer in layers}
    with _lock:
        if not own.isdisjoint(_measured):
            raise RuntimeError("reestimate: one at a time for each layer, got one that is being measured already.")
        _measured.update(own)
    try:
        yield
    finally:
        with _lock:
            _measured.difference_update(own)


def _measure(
    model: nn.Module, layers: Named, batches: Iterable[Any], forward: Forward, progress: bool | None
) -> tuple[Named, list[Tensor], int]:
    """The layers, the table of each over all batches and ranks, and the number of batches."""
    total: dict[Any, Tensor] = {}
    count = 0
    with _only_these_in_training(model, [layer for _, layer in layers]) as stage:
        for batch in _shown(batches, progress):
            forward(model, batch)
            count += 1
            for layer, table in stage.tables().items():
                total[layer] = merge_tables(torch.stack([total[layer], table])) if layer in total else table
            stage.discard()
    tables = [total[layer] if layer in total else _empty_table(layer) for _, layer in layers]
    tables, count = _over_ranks(layers, tables, count)
    if not count:
        raise ValueError("reestimate: at least one batch, got none. A loader that was used up has to be made again.")
    return layers, tables, count


def _write(layers: Named, tables: list[Tensor], count: int) -> None:
    for (name, _), table in zip(layers, tables, strict=True):
        seen = table[:, 0] > 0
        if bool(seen.any()) and not bool((table[:, 0] > DDOF).any()):
            raise ValueError(f"reestimate: at least two values per channel in all batches, got one at {name!r}.")
        if not bool(torch.isfinite(table[seen]).all()):
            raise ValueError(f"reestimate: finite values in all batches, got others at {name!r}.")
    with torch.no_grad():
        for (name, layer), table in zip(layers, tables, strict=True):
            number, mean, m2 = table.unbind(-1)
            enough = number > DDOF
            var = m2 / (number - DDOF).clamp(min=1.0)
            for buffer, new in ((layer.running_mean, mean), (layer.running_var, var)):
                narrow = new.to(buffer.dtype)
                if not bool(torch.isfinite(narrow[enough]).all()):
                    dtype = str(buffer.dtype).removeprefix("torch.")
                    raise ValueError(
                        f"reestimate: statistics that {dtype} can hold, got larger ones at {name!r}. "
                        "Call model.double() before."
                    )
                buffer.copy_(torch.where(enough, narrow, buffer))
            if layer.half_life is not None:
                values = layer.num_values_tracked
                values.copy_(torch.where(enough, number.to(values.dtype), values))
            if bool((number > 0).any()):  # a layer that was never called stays as it was
                layer.num_batches_tracked.fill_(count)


@contextmanager
def _only_these_in_training(model: nn.Module, layers: list[Any]) -> Iterator[Stage]:
    flags = [(module, module.training) for module in model.modules()]
    singles = [(layer, {key: value for key, value in vars(layer).items() if key == "on_single"}) for layer in layers]
    stage = Stage()
    with ExitStack() as undo:
        for layer in layers:
            undo.enter_context(StagingExchange(layer, stage, shared=False))
        try:
            for module, _ in flags:
                vars(module)["training"] = False
            for layer in layers:  # a batch with one value counts as any other
                vars(layer).update(training=True, on_single="running")
            with torch.no_grad():
                yield stage
        finally:
            for module, training in flags:
                vars(module)["training"] = training
            for layer, single in singles:
                if not single:
                    vars(layer).pop("on_single", None)
                vars(layer).update(single)


def _in_order(model: nn.Module, layers: Named, batches: Iterable[Any], forward: Forward) -> Named:
    """The layers in the order of their first calls, in the first batch of the first rank that has one."""
    if isinstance(batches, Iterator):
        raise ValueError(
            "reestimate: exact=True needs batches several times, got an iterator. Pass a list or a loader."
        )
    names = {layer: name for name, layer in layers}
    order: list[str] = []
    with _only_these_in_training(model, [layer for _, layer in layers]) as stage:
        for batch in batches:
            forward(model, batch)
            break
        order = list(dict.fromkeys(names[one.layer] for one in stage.staged))
    if (processes := _processes_of(layers)) is not None:
        name, layer = layers[0]
        orders = processes.gather_objects(Kind.ORDER, name, order, layer.running_mean)
        order = next((one for one in orders if one), [])
    return sorted(layers, key=lambda pair: order.index(pair[0]) if pair[0] in order else len(order))


def _over_ranks(layers: Named, tables: list[Tensor], count: int) -> tuple[list[Tensor], int]:
    """The same over all ranks, if the layers are synchronized: one collective for all layers."""
    processes = _processes_of(layers)
    if processes is None:
        return tables, count
    name = layers[0][0]
    processes.check_layers(name, tables[0])
    dtype = wire_dtype(tables[0])  # the same on all ranks: on a GPU only empty tables would be float64
    rows = torch.tensor([[count, 0.0, 0.0]], dtype=dtype, device=tables[0].device)
    found = processes.gather_tables(Kind.REESTIMATE, name, torch.cat([rows, *(table.to(dtype) for table in tables)]))
    parts = torch.split(merge_tables(found[:, 1:]), [len(table) for table in tables])
    return list(parts), int(found[:, 0, 0].sum())


def _processes_of(layers: Named) -> Processes | None:
    """Of the layers that are synchronized, if there are several processes."""
    for _, layer in layers:
        exchange = layer._exchange
        if isinstance(exchange, ProcessExchange) and exchange.is_active():
            return exchange.processes
    return None


def _empty_table(layer: Any) -> Tensor:
    mean: Tensor = layer.running_mean
    return mean.new_zeros(len(mean), 3, dtype=wire_dtype(mean))


def _shown(batches: Iterable[Any], progress: bool | None) -> Iterable[Any]:
    """With a bar on the standard error."""
    if progress is None:
        progress = sys.stderr is not None and sys.stderr.isatty()
    if not progress:
        return batches
    from rich.console import Console
    from rich.progress import track

    show: Callable[..., Iterable[Any]] = track
    return show(batches, "Statistics", console=Console(stderr=True), transient=True)
