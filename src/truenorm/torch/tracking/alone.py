"""`alone`: a function of each sequence by itself, cut to its length; the results are padded again.

Exact by definition, for functions that have a meaning for one sequence but no quicker rule: adaptive pooling,
interpolation, reflected borders, `flip`, the last position. It calls the function once a sequence.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.tag import BATCH, Factor, Lengths, Padding, Tag, make_tag
from truenorm.torch.tracking.tracker import Tracker

Call = Callable[[Tensor], Tensor]
CallOfRow = Callable[[Tensor, "int | None"], Tensor]


def alone(tracker: Tracker, func: Any, x: Tensor, tag: Tag, call: Call, *, fixed: bool = False) -> Tensor:
    """The results of call(sequence), which keeps the axes of x, or drops the ragged ones.

    fixed   whether each result has the same number of positions, however long the sequence is: those of an empty
            sequence are 0 then, and valid.
    """
    return alone_by_row(tracker, func, x, tag, lambda one, row: call(one), fixed=fixed)


def alone_by_row(tracker: Tracker, func: Any, x: Tensor, tag: Tag, call: CallOfRow, *, fixed: bool = False) -> Tensor:
    """The same for call(sequence, row), which also depends on which one it is; row is None for the whole batch."""
    batch = tag.batch
    if batch is None or set(tag.lengths) != set(tag.extents) or tag.is_merged or tag.has_open:
        result = call(x, None)
        tracker.lose(result, func, "not a batch of sequences with the valid positions first")
        return result
    parts: list[Tensor | None] = []
    for row in range(x.shape[batch]):
        part = x.narrow(batch, row, 1)
        for axis, found in tag.lengths.items():
            part = part.narrow(axis, 0, found[row])
        parts.append(None if part.numel() == 0 else call(part, row))
    some = next((part for part in parts if part is not None), None)
    if some is None or some.dim() != x.dim():
        return _without_positions(tracker, x, tag, parts, call)
    whole = list(
        call(torch.empty_like(x, device="meta"), None).shape
    )  # as without `padded`: other branches have this size
    lengths = {axis: tuple(0 if part is None else part.shape[axis] for part in parts) for axis in tag.lengths}
    for axis, found in lengths.items():
        whole[axis] = max(whole[axis], *found)
    result = torch.cat([_padded(part, [*whole[:batch], 1, *whole[batch + 1 :]], x) for part in parts], batch)
    tracker.set(result, tag.with_lengths({} if fixed else lengths, result.shape, Padding.ZERO))
    return result


def _padded(part: Tensor | None, shape: list[int], x: Tensor) -> Tensor:
    if part is None:
        return x.new_zeros(shape)
    missing = [one for axis in range(part.dim() - 1, -1, -1) for one in (0, shape[axis] - part.shape[axis])]
    return functional.pad(part, missing) if any(missing) else part


def _without_positions(tracker: Tracker, x: Tensor, tag: Tag, parts: list[Tensor | None], call: CallOfRow) -> Tensor:
    """One result for each sequence; 0 for those without positions."""
    some = next((part for part in parts if part is not None), None)
    if some is None:
        result = torch.zeros_like(call(torch.zeros_like(x), None))
        if result.dim() == x.dim():
            lengths = {axis: (0,) * len(found) for axis, found in tag.lengths.items()}
            tracker.set(result, tag.with_lengths(lengths, result.shape, Padding.ZERO))
            return result
    else:
        result = torch.cat([torch.zeros_like(some) if part is None else part for part in parts], _batch_after(tag))
    tracker.set(result, make_tag(result.shape, _batch_after(tag), {}))
    return result


def _batch_after(tag: Tag) -> int:
    """The batch axis when the ragged axes are gone."""
    assert tag.batch is not None
    return tag.batch - sum(axis < tag.batch for axis in tag.extents)


def cat_positions(tracker: Tracker, func: Any, tensors: list[Tensor], axis: int) -> Tensor:
    """Sequences one behind the other: of each tensor the valid positions, and the padding of all at the end."""
    tags = [tracker.tag(one) for one in tensors]
    batch = next((tag.batch for tag in tags if tag is not None and tag.batch is not None), None)
    usable = all(tag is None or (tag.batch == batch and set(tag.extents) == set(tag.lengths) <= {axis}) for tag in tags)
    if batch is None or not usable or any(tag is not None and tag.has_open for tag in tags):
        result = torch.cat(tensors, axis)
        tracker.lose(result, func, "not batches of sequences with the valid positions first")
        return result
    rows = max(one.shape[batch] for one in tensors)
    lengths: list[Lengths] = [
        (one.shape[axis],) * rows if tag is None or axis not in tag.lengths else tag.lengths[axis]
        for one, tag in zip(tensors, tags, strict=True)
    ]
    totals = tuple(map(sum, zip(*lengths, strict=True)))
    size = sum(one.shape[axis] for one in tensors)
    parts = []
    for row in range(rows):
        pieces = [one.narrow(batch, row, 1).narrow(axis, 0, n[row]) for one, n in zip(tensors, lengths, strict=True)]
        part = torch.cat(pieces, axis)
        shape = list(part.shape)
        shape[axis] = size
        parts.append(_padded(part, shape, part))
    result = torch.cat(parts, batch)
    axes = [(Factor(n),) for n in result.shape]
    axes[batch], axes[axis] = (Factor(rows, BATCH),), (Factor(size, totals),)
    tracker.set(result, Tag(tuple(axes), Padding.ZERO))
    return result
