"""Indices that are inputs of the model, and indices of inputs: what `x[index]` and `index_select` do with them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.calls import tensors_in
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import numbers_in
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Axis, Factor, Lost, Padding, Tag
from truenorm.torch.tracking.tracker import Tracker


def part_of_input(tracker: Tracker, func: Any, x: Tensor, index: Any, full: list[Any] | None, found: Fresh) -> Any:
    """x[index] of a tensor whose positions are not known yet: slices, and new axes.

    full   the index of each axis; None if it is made of anything but numbers and slices
    """
    if full is None:
        return tracker.refuse(func, (x, index), {}, found)
    axes: list[Axis] = []
    axis = 0
    for one in full:
        if one is None:
            axes.append((Factor(1),))
            continue
        origin = found.origin(axis)
        if one == slice(None):
            axes.append(found.axes[axis])
        elif all(factor.role is None for factor in found.axes[axis]):
            if isinstance(one, slice):
                axes.append((Factor(len(range(*one.indices(x.shape[axis])))),))
        elif isinstance(one, slice) and origin is not None and _begins_at_the_same(one):
            axes.append((Factor(len(range(*one.indices(x.shape[axis]))), origin.sliced(one)),))
        else:
            return tracker.refuse(func, (x, index), {}, found)
        axis += 1
    result = func(x, index)
    tracker.states[result] = found.with_axes(axes)
    return result


def _begins_at_the_same(part: slice) -> bool:
    """Whether a slice begins at the same position of each sequence, with the same steps."""
    return next(numbers_in((part.start, part.step)), None) is None and (part.start is None or part.start >= 0)


def look_up(tracker: Tracker, func: Any, index: Any, axis: int, result: Tensor) -> Any:
    """The state of rows of a table, such as weight[tokens]: the axes of the tokens take the place of an axis."""
    used = list(tensors_in(index))
    found = next((state for one in used if not isinstance(state := tracker.look(one), type(MADE))), MADE)
    if isinstance(found, Lost):
        return Lost(found.where if found.is_mask else tracker.notes.lost(func.__name__, tracker.module, "lost tokens"))
    if not isinstance(found, (Tag, Fresh)):
        return MADE
    if not isinstance(index, Tensor) or index.dtype == torch.bool:
        if isinstance(found, Fresh):
            return tracker.unknown(func, found)
        where = (
            tracker.notes.lost(func.__name__, tracker.module, "an index of several parts") if found.is_ragged else ""
        )
        return Lost(where) if where else MADE
    axes: list[Axis] = [(Factor(size),) for size in result.shape]
    axes[axis : axis + index.dim()] = found.axes
    return found.with_axes(axes).having(Padding.FINITE) if isinstance(found, Tag) else found.with_axes(axes)
