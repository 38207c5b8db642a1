"""Rules for indices: x[...], `narrow`, `select`, `index_select`, `repeat_interleave`.

A slice that begins at a position >= 0 takes the same positions of a sequence alone, and its new length is that of
Python's `range`. One that begins at the end, such as x[:, -1], means the last valid position: it is taken alone.

Tensors of indices are followed where they choose sequences, x[order], one position of each, x[rows, lengths - 1], or
valid positions by a mask, x[mask]. Their values are read for that: on a GPU that waits for them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.alone import alone_by_row
from truenorm.torch.tracking.counts import note_mixing, take_counts
from truenorm.torch.tracking.indices import look_up, part_of_input
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import counts_in, has_count, of_sequence
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.relative_shift import after_index
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import (
    BATCH,
    OPEN,
    Axis,
    Cropped,
    Factor,
    Gaps,
    Lengths,
    Lost,
    Padding,
    Tag,
    has_role,
    role_of,
    size_of,
    take_rows,
)
from truenorm.torch.tracking.tracker import Tracker

Args = tuple[Any, ...]


@dataclass(frozen=True)
class Part:
    """What an index counted from the end has taken: inside `padded` it is no plain view of `base`.

    full   the index, if each sequence was cut by itself: the part is a copy. None for x[:, :-1], a view in which the
           last positions of a sequence are padding, although they are valid in x
    """

    base: Tensor
    full: list[Any] | None = None


@rule(Tensor.__getitem__, reads_inputs=True, repeats=True)
def getitem(tracker: Tracker, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
    x, index = args
    noted = len(tracker.notes.mixed)
    result = _part(tracker, func, x, index)
    if len(tracker.shifts):
        after_index(tracker, x, of_sequence(full_index(index, x.dim()), None), result, noted)
    return result


def _part(tracker: Tracker, func: Any, x: Tensor, index: Any) -> Any:
    found = tracker.look(x)
    full = full_index(index, x.dim())
    is_ragged = isinstance(found, Tag) and found.is_ragged
    if take_counts(tracker, func, index) if is_ragged else has_count(index):  # `full` keeps those of each sequence
        index = of_sequence(index, None)
    if isinstance(found, Fresh):
        return part_of_input(tracker, func, x, of_sequence(index, None), full, found)
    if not isinstance(found, Tag):
        _note_end(tracker, func, x, full)
        result = func(x, index)
        tracker.states[result] = look_up(tracker, func, index, 0, result) if found is MADE else found
        return result
    if full is None:
        return by_tensors(tracker, func, x, found, index)
    axes = indexed_axes(found, full)
    if isinstance(axes, tuple):
        result = func(x, index)
        tag = Tag(axes, found.padding)
        if ends_early(found, full):  # the last valid values of x are padding now
            tag = tag.having(min(tag.padding, Padding.FINITE))
            tracker.put_beside(tracker.parts, result, Part(x))
        tracker.states[result] = tag
        return result
    if axes == FROM_THE_END:
        return _from_the_end(tracker, func, x, found, full)
    return tracker.lose(func(x, index), func, axes)


FROM_THE_END = "positions from the end"


def indexed_axes(tag: Tag, full: list[Any]) -> tuple[Axis, ...] | str:
    """The axes of x[full], or why they are not known: FROM_THE_END if each sequence has to be cut by itself."""
    axes: list[Axis] = []
    before = tag.axes
    axis = 0
    for one in full:
        if one is None:
            axes.append((Factor(1),))
            continue
        current, size = before[axis], size_of(before[axis])
        role = role_of(current)
        if has_count(one):
            if isinstance(role, tuple):
                counted = _counted(one, size, role)
                if isinstance(counted, str):
                    return counted
                axes.append((counted,))
                axis += 1
                continue
            one = of_sequence(one, None)
        if one == slice(None):
            axes.append(current)
        elif not has_role(current):
            if isinstance(one, slice):
                axes.append((Factor(len(range(*one.indices(size)))),))
        elif isinstance(one, slice) and role is BATCH and not tag.is_merged:
            rows = range(*one.indices(size))
            before = take_rows(before, rows)
            axes = list(take_rows(tuple(axes), rows))
            axes.append(before[axis])
        elif isinstance(role, tuple) and isinstance(one, slice) and (one.start is None or one.start >= 0):
            positions = range(*one.indices(size))
            lengths = tuple(len(range(*one.indices(n))) for n in role)
            is_crop = not one.start and one.step in (None, 1) and one.stop is not None and 0 <= one.stop <= size
            axes.append((Factor(len(positions), Cropped(lengths) if is_crop else lengths),))
        elif isinstance(role, tuple) and not isinstance(one, slice) and 0 <= one < min(role, default=0):
            pass  # a position that all sequences have
        elif isinstance(role, Gaps) and _before_gaps(role, one):
            if isinstance(one, slice):
                axes.append((Factor(len(range(*one.indices(size))), role.columns(one)),))
        elif isinstance(role, tuple) and (isinstance(one, slice) or one < 0) and tag.batch is not None:
            return FROM_THE_END
        else:
            return "a sequence out of the batch" if role is BATCH else "positions that some sequences do not have"
        axis += 1
    return tuple(axes)


def _note_end(tracker: Tracker, func: Any, x: Tensor, full: list[Any] | None) -> None:
    """Report an index from the end of a table or a tensor that the model has made, such as table[-t:] or steps[-1].

    Not one around the middle, such as distances[n - t : n + t - 1], or to the end of arange(1 - t, t): each pair of
    positions takes its own of these.
    """
    axes = [one for one in full or () if one is not None]
    for axis, one in enumerate(axes):
        begin, end = (one.start, one.stop) if isinstance(one, slice) else (one, None)
        if has_count(begin):
            is_range = x.shape[axis] + 1 in {2 * size for size in tracker.states.sizes} and not tracker.is_constant(x)
            if (end is None and not is_range) or (end is not None and has_count(begin + end)):
                note_mixing(tracker, func, x, (), one)
        elif begin is not None and begin < 0:
            note_mixing(tracker, func, x, [axis])


def _counted(one: Any, size: int, lengths: Lengths) -> Factor | str:
    """What x[one] leaves of positions, if it has numbers of positions in it; or as for `indexed_axes`."""
    if any(len(number.each) != len(lengths) for number in counts_in(one)):
        return "a number of positions of another batch"
    if not isinstance(one, slice) or has_count((one.start, one.step)) or (one.start or 0) < 0:
        return FROM_THE_END
    left = len(range(size)[of_sequence(one, None)])
    new = tuple(len(range(n)[of_sequence(one, row)]) for row, n in enumerate(lengths))
    return FROM_THE_END if max(new, default=0) > left else Factor(left, new)


def _before_gaps(role: Gaps, one: Any) -> bool:
    """Whether an index counts positions that all sequences have, as that of a token before an image."""
    if isinstance(one, slice):
        numbers = [number or 0 for number in (one.start, one.stop)]
        if one.step not in (None, 1):
            return False
    else:
        numbers = [one, one + 1]
    return min(numbers) >= 0 and bool(role.valid[:, : max(numbers)].all())


def _as_tuple(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else (index,)


def full_index(index: Any, ndim: int) -> list[Any] | None:
    """One number or slice for each axis, and None for each new one; None if there is anything else."""
    given = list(_as_tuple(index))
    if not all(one is None or one is ... or isinstance(one, (int, slice)) for one in given):
        return None
    if any(isinstance(one, bool) for one in given):
        return None
    for one in given:
        if isinstance(one, slice) and not all(
            part is None or isinstance(part, int) for part in (one.start, one.stop, one.step)
        ):
            return None
    missing = [slice(None)] * (ndim - sum(one is not None and one is not ... for one in given))
    place = given.index(...) if ... in given else len(given)
    return [*given[:place], *missing, *given[place + 1 :]]


def _from_the_end(tracker: Tracker, func: Any, x: Tensor, tag: Tag, full: list[Any]) -> Any:
    """An index counted from the end of the positions: first the other axes, then these."""
    base = x
    others = tuple(slice(None) if axis in tag.lengths else of_sequence(one, None) for axis, one in enumerate(full))
    if None in full or not all(isinstance(one, slice) for one in others):
        index = of_sequence(tuple(full), None)
        return tracker.lose(func(x, index), func, "positions from the end, together with other axes")
    if any(one != slice(None) for one in others):
        x = getitem(tracker, func, (x, others), {})
        tag = tracker.tag(x) or tag
    index = tuple(one if axis in tag.lengths else slice(None) for axis, one in enumerate(full))
    result = alone_by_row(tracker, func, x, tag, lambda one, row: func(one, of_sequence(index, row)))
    tracker.put_beside(tracker.parts, result, Part(base, full))
    return result


def ends_early(tag: Tag, full: list[Any]) -> bool:
    """Whether the index leaves out the last positions of each sequence."""
    axes = [one for one in full if one is not None]
    return any(
        isinstance(axes[axis], slice) and (has_count(axes[axis]) or (axes[axis].stop or 0) < 0) for axis in tag.lengths
    )


@rule(*named("narrow"), reads_inputs=True, repeats=True)
def narrow(tracker: Tracker, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(("input", "dim", "start", "length"), args, strict=False)), **kwargs}
    axis, start = given["dim"] % given["input"].dim(), given["start"]
    stop = start + given["length"]
    index = (*[slice(None)] * axis, slice(start, stop if of_sequence(start, None) >= 0 or stop < 0 else None))
    return getitem(tracker, Tensor.__getitem__, (given["input"], index), {})


@rule(*named("select"), repeats=True)
def select(tracker: Tracker, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
    one = given["index"] if has_count(given["index"]) else int(given["index"])
    index = (*[slice(None)] * (given["dim"] % given["input"].dim()), one)
    return getitem(tracker, Tensor.__getitem__, (given["input"], index), {})


# ---- tensors of indices ----


def by_tensors(tracker: Tracker, func: Any, x: Tensor, tag: Tag, index: Any) -> Any:
    """x[index] with tensors or lists in the index, whose values are read."""
    tracker.acts += 1
    result = func(x, index)
    if not tag.is_ragged:
        tracker.states[result] = MADE
        return result
    given = [torch.as_tensor(one) if isinstance(one, list) else one for one in _as_tuple(index)]
    place = next((i for i, one in enumerate(given) if one is ...), None)
    if place is not None:
        missing = x.dim() - sum(one.dim() if _is_mask(one) else 1 for one in given) + 1
        given[place : place + 1] = [slice(None)] * missing
    first = given[0]
    if _is_mask(first) and first.dim() > 1 and all(isinstance(one, slice) and one == slice(None) for one in given[1:]):
        return _by_mask(tracker, func, x, tag, first, result)
    chosen = {axis: one for axis, one in enumerate(given) if not (isinstance(one, slice) and one == slice(None))}
    if tag.is_merged or not all(isinstance(one, Tensor) and one.dim() == 1 for one in chosen.values()):
        return tracker.lose(result, func, "an index that is not made of numbers and slices")
    if not any(has_role(tag.axes[axis]) for axis in chosen) and len(chosen) == 1:
        (axis,) = chosen
        tracker.states[result] = tag.with_axis(axis, result.shape[axis])
        return result
    if tag.batch not in chosen or len({*chosen} - {tag.batch, *tag.lengths}) > 0 or len(chosen) > 2:
        return tracker.lose(result, func, "an index that is not made of numbers and slices")
    rows, *others = (_numbers(chosen[axis]) for axis in sorted(chosen, key=lambda axis: axis != tag.batch))
    axes = take_rows(tag.axes, rows)
    if others:
        positions = next(axis for axis in chosen if axis != tag.batch)
        lengths = tag.lengths[positions]
        if not all(0 <= one < lengths[row] for row, one in zip(rows, others[0], strict=True)):
            return tracker.lose(result, func, "positions that some sequences do not have")
        left = [axis for i, axis in enumerate(axes) if i not in (tag.batch, positions)]
        # Indices next to each other leave their axis where they were, others move it to the front.
        assert tag.batch is not None
        where = min(tag.batch, positions) if abs(tag.batch - positions) == 1 else 0
        axes = (*left[:where], axes[tag.batch], *left[where:])
    tracker.states[result] = Tag(axes, tag.padding)
    return result


def _is_mask(one: Any) -> bool:
    return isinstance(one, Tensor) and one.dtype in (torch.bool, torch.uint8)


def _numbers(one: Tensor) -> list[int]:
    return (one.nonzero().flatten() if _is_mask(one) else one).tolist()


def _by_mask(tracker: Tracker, func: Any, x: Tensor, tag: Tag, mask: Tensor, result: Tensor) -> Any:
    """The positions where a mask is True, one below the other: all valid if it is True at no padding."""
    if any(has_role(axis) for axis in tag.axes[mask.dim() :]) or not tag.has_padding:
        return tracker.lose(result, func, "a mask that leaves positions on other axes")
    padding = tracker.mask(tag, x.device)
    padding = padding.reshape(padding.shape[: mask.dim()])  # the axes behind are of size 1
    if bool((padding & mask.to(x.device).bool()).any()):
        return tracker.lose(result, func, "a mask that is True at padding")
    tracker.states[result] = MADE
    return result


@rule(*named("index_select"), reads_inputs=True)
def index_select(tracker: Tracker, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
    x, axis = given["input"], given["dim"] % given["input"].dim()
    found = tracker.look(x)
    if isinstance(found, Tag):
        return getitem(tracker, Tensor.__getitem__, (x, (*[slice(None)] * axis, given["index"])), {})
    if isinstance(found, Fresh):
        return tracker.refuse(func, args, kwargs, found)
    result = func(*args, **kwargs)
    tracker.states[result] = look_up(tracker, func, given["index"], axis, result) if found is MADE else found
    return result


@rule(*named("repeat_interleave"))
def repeat_interleave(tracker: Tracker, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
    """Each element of an axis several times: of positions, the lengths are as many times as long."""
    given = {**dict(zip(("input", "repeats", "dim"), args, strict=False)), **kwargs}
    x, times, dim = given["input"], given.get("repeats"), given.get("dim")
    found = tracker.look(x)
    if not isinstance(found, Tag) or not isinstance(times, int) or dim is None or len(found.axes[dim]) > 1:
        return tracker.call_unknown(func, args, kwargs)
    axis, role = dim % x.dim(), role_of(found.axes[dim])
    result = func(*args, **kwargs)
    if role is BATCH and not found.is_merged:
        axes = take_rows(found.axes, [row for row in range(x.shape[axis]) for _ in range(times)])
    elif role is None or isinstance(role, tuple):
        lengths = None if role is None else tuple(times * n for n in role)
        axes = found.with_axis(axis, result.shape[axis], lengths).axes
    else:
        return tracker.lose(result, func)
    tracker.states[result] = Tag(axes, found.padding)
    return result


@rule(*named("gather"))
def gather(tracker: Tracker, func: Any, args: Args, kwargs: dict[str, Any]) -> Any:
    """Some values of each position, or one position of each sequence: those of an index must be valid."""
    given = {**dict(zip(("input", "dim", "index"), args, strict=False)), **kwargs}
    x, index = given["input"], given["index"]
    found = tracker.look(x)
    if not isinstance(found, Tag) or not found.is_ragged or index.dim() != x.dim():
        return tracker.call_unknown(func, args, kwargs)
    axis = given["dim"] % x.dim()
    own = tracker.look(index)
    if isinstance(own, Tag) and not own.has_open:
        given["index"] = index = tracker.fill(index, own)
    result = func(x, given["dim"], index)
    others = [i for i in range(x.dim()) if i != axis and has_role(found.axes[i])]
    if any(index.shape[i] != x.shape[i] for i in others):
        return tracker.lose(result, func, "an index with fewer sequences or positions")
    if has_role(found.axes[axis]):
        lengths = found.lengths.get(axis)
        if lengths is None or found.batch is None or len(found.extents) > 1:
            return tracker.lose(result, func, "it mixes positions")
        least = tracker.numbers_on(lengths, index.device).reshape(
            [-1 if i == found.batch else 1 for i in range(x.dim())]
        )
        if bool((index >= least).any()):
            return tracker.lose(result, func, "positions that some sequences do not have")
    if isinstance(own, Lost):
        return tracker.lose(result, func, "an index that was lost before")
    axes = list(found.axes)
    if isinstance(own, Tag):  # as many as the index has
        if any(has_role(own.axes[i]) and own.axes[i] != found.axes[i] for i in others):
            return tracker.lose(result, func, "an index with other lengths")
        axes[axis] = own.axes[axis]
    else:
        size = result.shape[axis]
        axes[axis] = (Factor(size, OPEN if size > 1 and size in tracker.states.sizes else None),)
    tracker.states[result] = Tag(tuple(axes), min(found.padding, Padding.FINITE))
    return result
