"""`sync` lets the batch norms of a model share their statistics between processes; `unsync` undoes it.

    with torch.distributed initialised     the moments of all ranks' batches are merged, by their counts
    without, or with one process           nothing changes

Counts may differ, ranks may have empty batches, and masks and lengths apply. In evaluation nothing is exchanged. All
backends of torch.distributed work, gloo on the CPU too. DistributedDataParallel averages gradients over ranks; batch
norm exchanges only what dx needs. See `_pooled.py` for what is computed, `_processes.py` for what is sent.

`merge_running` is for models that were trained without: it merges the running statistics of all ranks once.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from truenorm.torch._batch_norms import batch_norms, tracking_batch_norms
from truenorm.torch._formula import merge_tables, wire_dtype
from truenorm.torch._half_life import HalfLife
from truenorm.torch._processes import Kind, Processes, ProcessExchange
from truenorm.torch.microbatches import ThreadExchange
from truenorm.torch.reports import Change, ConversionReport, check_model, name_of


def sync(model: nn.Module, process_group: Any = None) -> ConversionReport:
    """Share the statistics of batch norms between processes, with masks and lengths, on any backend.

    Call it on all ranks, before or after DistributedDataParallel wraps the model.

    Args:
        model: with truenorm's batch norms: `convert` it first
        process_group: of torch.distributed; None: all processes

    Returns:
        `ConversionReport`

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> print(tnt.sync(nn.Sequential(nn.Linear(4, 8), tnt.BatchNorm1d(8))))
        1 normalization layer synchronized
          1  truenorm.BatchNorm1d  over all processes
    """
    layers = batch_norms("sync", model)
    for path, layer in layers:
        if isinstance(layer._exchange, ThreadExchange) and layer._exchange.is_needed():
            raise RuntimeError(
                f"sync: layers whose micro-batches are done, got {path!r}. Call it after together, and its backward."
            )
    name = _name_of_group("sync", process_group)
    processes = Processes([(name, layer.num_features) for name, layer in layers], name, process_group)
    for i, (_, layer) in enumerate(layers):
        layer.__dict__["_exchange"] = ProcessExchange(processes, i)
    over = "over all processes" if name is None else f"over the group {name!r}"
    return ConversionReport("synchronized", tuple(Change(name, name_of(one), over) for name, one in layers), ())


def unsync(model: nn.Module) -> ConversionReport:
    """Undo `sync`: each process has its own statistics again.

    Args:
        model: that `sync` has changed

    Returns:
        `ConversionReport`

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> model = nn.Sequential(nn.Linear(4, 8), tnt.BatchNorm1d(8))
        >>> report = tnt.sync(model)
        >>> print(tnt.unsync(model))
        1 normalization layer unsynchronized
          1  truenorm.BatchNorm1d  over this process
    """
    check_model("unsync", model)
    changed = []
    for name, layer in model.named_modules():
        if isinstance(vars(layer).get("_exchange"), ProcessExchange):
            del vars(layer)["_exchange"]
            changed.append(Change(name, name_of(layer), "over this process"))
    return ConversionReport("unsynchronized", tuple(changed), ())


def merge_running(model: nn.Module, process_group: Any = None) -> None:
    """Merge the running statistics of all ranks, each weighted by how many batches it has seen; with a half-life, by
    how many values its statistics describe.

    Afterwards all ranks have the same: mean and variance of the ranks' distributions taken together, which includes how
    far their means are apart, and the sum of their `num_batches_tracked`. Ranks that have seen none count nothing.
    Frozen layers stay as they are.

    It is for ranks that were trained with statistics of their own: DistributedDataParallel would keep those of rank 0
    and drop the others. Batches should be of similar size. Call it on all ranks.

    Args:
        model: with truenorm's batch norms
        process_group: of torch.distributed; None: all processes

    Examples:
        >>> import truenorm.torch as tnt
        >>> tnt.merge_running(tnt.BatchNorm1d(8))  # with a single process nothing changes
    """
    named = tracking_batch_norms("merge_running", model)
    names, layers = [(name, layer.num_features) for name, layer in named], [layer for _, layer in named]
    processes = Processes(names, _name_of_group("merge_running", process_group), process_group)
    if processes.size() < 2 or not layers:
        return
    tables = [_running_table(layer) for layer in layers]
    processes.check_layers(names[0][0], tables[0])
    found = processes.gather_tables(Kind.MERGE, names[0][0], torch.cat(tables))
    merged = torch.cat([merge_tables(found[..., :3]), found[..., 3:].sum(0)], -1)
    with torch.no_grad():
        for layer, table in zip(layers, torch.split(merged, [len(one) for one in tables]), strict=True):
            count, mean, m2, batches, values = table.unbind(-1)
            seen = count > 0
            layer.running_mean.copy_(torch.where(seen, mean.to(layer.running_mean.dtype), layer.running_mean))
            var = m2 / torch.where(seen, count, 1.0)
            layer.running_var.copy_(torch.where(seen, var.to(layer.running_var.dtype), layer.running_var))
            layer.num_batches_tracked.copy_(batches[0])
            if layer.half_life is not None:
                layer.num_values_tracked.copy_(values)


def _name_of_group(who: str, group: Any) -> str | None:
    if group is None:
        return None
    if not hasattr(group, "group_name"):  # what torch.distributed.new_group returns to ranks that are no members
        raise ValueError(
            f"{who}: process_group must be a group that this process is in, got {group!r}. Pass the group of this rank."
        )
    return str(group.group_name)


def _running_table(layer: Any) -> Tensor:
    """(channels, 5): count, mean and m2 of what a layer has seen, the number of batches, and that of values.

    As many elements as batches were seen; with a half-life, as many as the statistics describe.
    """
    mean = layer.running_mean
    mean = mean.to(wire_dtype(mean))
    batches = layer.num_batches_tracked.to(mean.device, mean.dtype).expand(mean.shape)
    count, values = batches, torch.zeros_like(batches)
    if layer.half_life is not None:
        values = layer.num_values_tracked.to(mean.dtype)
        count = HalfLife(layer.half_life, values).effective_count()
    return torch.stack([count, mean, count * layer.running_var.to(mean.dtype), batches, values], -1)
