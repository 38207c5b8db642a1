"""Rules for assignments: x[index] = value, and functions that change a tensor in place, perhaps through a view of it.

An assignment is followed where it means the same for a sequence alone:

    o[:, :, :-1] = y[:, :, 1:]   counted from the end: each sequence by itself
    y[:, :, -1].zero_()          inside `padded` y[:, :, -1] is a copy: it is written back
    y[:, :, :-1].mul_(2)         the last valid positions of y are padding of this view: they keep their values
                                 (both also with inplace=True and out=)
    o[:, :8] = y                 a constant that gets all positions of y has the positions of y

Otherwise the tensor is lost. Everything else that shares its memory is lost as well when its positions become other
ones: o[:, :, ::2].copy_(y) loses o.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch._compat import version_of
from truenorm.torch.tracking.indexing import FROM_THE_END, ends_early, full_index, indexed_axes
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import of_sequence
from truenorm.torch.tracking.registry import REPEATS, RULES, Rule, rule
from truenorm.torch.tracking.states import State
from truenorm.torch.tracking.tag import Axis, Cropped, Factor, Lost, Padding, Tag, broadcast, has_role
from truenorm.torch.tracking.tracker import Tracker

Args = tuple[Any, ...]
Kwargs = dict[str, Any]
# These change what torch knows of a tensor, not the memory that it shares with others.
OF_ONE_TENSOR = {
    "transpose_", "t_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "requires_grad_", "detach_", "rename_",
    "share_memory_", "as_strided_", "resize_", "resize_as_", "set_",
}  # fmt: skip


def follow_writes() -> None:
    """Wrap the rules of all functions that write in place. Called when all other rules are registered."""
    names = [name for name in dir(Tensor) if name.endswith("_") and not name.startswith("_")]
    for name in [name for name in names if name not in OF_ONE_TENSOR]:
        for place in (Tensor, torch, functional):
            function = getattr(place, name, None)
            if callable(function):
                RULES[function] = partial(write, RULES.get(function, Tracker.call_unknown))
                REPEATS.discard(function)


def write(inner: Rule, tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A function that changes a tensor, by its own rule; then what it means for tensors that share memory.

    The tensor is the first argument, or `out`, whose values before do not count.
    """
    out = kwargs.get("out")
    x = args[0] if out is None and args else out
    if not isinstance(x, Tensor):
        return inner(tracker, func, args, kwargs)
    before = tracker.look(x) if out is None else tracker.states.get(x)
    parts = [(view, tracker.parts.get(view)) for view in tracker.parts]
    in_view = any(part.full is None and shares_memory(x, view) for view, part in parts)
    if in_view and isinstance(before, Tag) and before.has_padding:
        result = _write_valid(inner, tracker, func, args, kwargs, x, before)
    else:
        result = inner(tracker, func, args, kwargs)
    after = tracker.look(x)
    if _positions(after) is not None and _positions(after) != _positions(before):
        for other in tracker.states:
            if other is not x and shares_memory(x, other):
                tracker.lose(other, func, "written through another tensor with the same memory")
    elif version_of(x) < 0:  # in inference mode torch does not count changes, by which `States` notices them
        for other in tracker.states:
            state = tracker.states.get(other)
            if other is not x and isinstance(state, Tag) and shares_memory(x, other):
                tracker.states[other] = state.having(Padding.ANY)
    for copy, part in parts:
        if part.full is None:
            continue
        if shares_memory(x, copy):
            write(_assign, tracker, Tensor.__setitem__, (part.base, tuple(part.full), copy), {})
        elif shares_memory(x, part.base) and not any(copy is one for one in args):
            tracker.lose(copy, func, "it changes a tensor of which positions from the end were taken before")
    return result


def _write_valid(inner: Rule, tracker: Tracker, func: Any, args: Args, kwargs: Kwargs, x: Tensor, tag: Tag) -> Any:
    """Write into a copy, and then its valid values into x: what the function keeps for its backward stays as it is."""
    copy = x.clone()
    tracker.states[copy] = tag
    if kwargs.get("out") is None:
        args = (copy, *args[1:])
    else:
        kwargs = {**kwargs, "out": copy}
    result = inner(tracker, func, args, kwargs)
    after = tracker.look(copy)
    if isinstance(after, Tag):
        x.copy_(torch.where(tracker.mask(after, x.device), x, copy))
        after = after.having(Padding.ANY)
    else:
        x.copy_(copy)
    tracker.states[x] = after
    return x if result is copy else result


def _positions(state: State | None) -> Any:
    """What differs between states with other positions; None without positions."""
    if isinstance(state, Tag):
        return state.axes if state.is_ragged else None
    return Lost if isinstance(state, Lost) and not state.is_prepared else None


def shares_memory(x: Tensor, other: Tensor) -> bool:
    """Whether two tensors are, or are views of, the same memory."""
    if x is other:
        return True
    try:
        pointer = x.untyped_storage().data_ptr()
        return pointer != 0 and pointer == other.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):  # tensors without memory, as sparse ones
        return False


@rule(Tensor.data.__set__)  # type: ignore[attr-defined]
def set_data(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """x.data = value"""
    x, value = args
    found = tracker.look(value)
    func(x, value)
    tracker.states[x] = found


# ---- x[index] = value ----


@rule(Tensor.__setitem__)
def setitem(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    write(_assign, tracker, func, args, kwargs)


def _assign(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> None:
    x, index, value = args
    found = tracker.look(x)
    given = tracker.look(value) if isinstance(value, Tensor) else None
    ragged = given if isinstance(given, Tag) and given.is_ragged else None
    state: State | str
    if isinstance(found, Tag) and found.is_ragged:
        state = _into_positions(tracker, func, x, found, index, value, ragged)
    else:
        func(x, index, value)
        axes = None if ragged is None or isinstance(found, Fresh) else _axes_from(x, found, index, ragged)
        state = "a part of a tensor gets values of a ragged one" if axes is None else Tag(axes)
        state = found if ragged is None else state
    if isinstance(given, Lost) and not given.is_prepared:
        state = "values whose positions are not known"
    if isinstance(state, str):
        tracker.lose(x, func, state)
    else:
        tracker.states[x] = state


def _into_positions(
    tracker: Tracker, func: Any, x: Tensor, tag: Tag, index: Any, value: Any, ragged: Tag | None
) -> State | str:
    """Assign into a ragged tensor. Returns its state afterwards, or why that is not known."""
    full = full_index(index, x.dim())
    axes = None if full is None else indexed_axes(tag, full)
    if full is not None and (axes == FROM_THE_END or ends_early(tag, full)):
        if _assign_alone(tracker, func, x, tag, full, value):
            return tag.having(Padding.ANY)
        func(x, index, value)
        return "positions from the end, of a part of the batch or with values of other lengths"
    func(x, index, value)
    if ragged is not None:
        if not isinstance(axes, tuple):
            return "values of a ragged tensor, at positions that not all sequences have"
        shape = tuple(x[index].shape)
        if len(ragged.axes) > len(shape) or broadcast([Tag(tuple(map(_fixed, axes))), ragged], shape) is None:
            return "values of other lengths"
    return tag.having(Padding.ANY)


def _fixed(axis: Axis) -> Axis:
    """What is written into x[..., :stop] is written up to there, however long the values are."""
    return tuple(Factor(one.size, tuple(one.role)) if isinstance(one.role, Cropped) else one for one in axis)


def _places(full: list[Any]) -> list[int | None]:
    """For each axis of x[full] the axis of x; None for a new one."""
    places: list[int | None] = []
    axis = 0
    for one in full:
        if one is None or isinstance(one, slice):
            places.append(None if one is None else axis)
        axis += one is not None
    return places


def _axes_from(x: Tensor, found: State, index: Any, ragged: Tag) -> tuple[Axis, ...] | None:
    """The axes of a tensor without positions that gets all positions of another one; None if it gets a part of them."""
    full = full_index(index, x.dim())
    if full is None:
        return None
    axes: list[Axis] = list(found.axes) if isinstance(found, Tag) else [(Factor(size),) for size in x.shape]
    places, slices = _places(full), [of_sequence(one, None) for one in full if one is not None]
    for i, new in enumerate(ragged.axes):
        if not has_role(new):
            continue
        behind = len(ragged.axes) - i
        place = places[-behind] if behind <= len(places) else None
        if place is None or range(*slices[place].indices(x.shape[place])) != range(x.shape[place]):
            return None
        if has_role(axes[place]) and axes[place] != new:
            return None
        axes[place] = new
    return tuple(axes)


def _assign_alone(tracker: Tracker, func: Any, x: Tensor, tag: Tag, full: list[Any], value: Any) -> bool:
    """Assign to each sequence, cut to its length. Returns False, and changes nothing, if that has no meaning."""
    batch, places = tag.batch, _places(full)
    if batch is None or batch not in places or tag.is_merged or set(tag.lengths) != set(tag.extents):
        return False
    slices = [one for one in full if one is not None]
    if slices[batch] != slice(None):
        return False
    assignments = []
    for row in range(x.shape[batch]):
        part = x.narrow(batch, row, 1)
        for axis, lengths in tag.lengths.items():
            part = part.narrow(axis, 0, lengths[row])
        if part.numel() == 0:
            continue
        one = value
        index = of_sequence(tuple(full), row)
        if isinstance(value, Tensor):
            one = _row_of(value, tracker.tag(value), row, part[index].shape, places, tag)
        if one is None:
            return False
        assignments.append((part, index, one))
    for part, index, one in assignments:
        func(part, index, one)
    return True


def _row_of(
    value: Tensor, given: Tag | None, row: int, shape: torch.Size, places: list[int | None], tag: Tag
) -> Tensor | None:
    """What a sequence gets of a value that broadcasts to the batch; None if that has other lengths."""
    one = value
    for i, size in enumerate(value.shape):
        behind = value.dim() - i
        place = places[-behind] if behind <= len(places) else None
        role = given is not None and has_role(given.axes[i])
        if place is not None and place == tag.batch:
            one = one if size == 1 else one.narrow(i, row, 1)
        elif place is not None and place in tag.lengths:
            wanted = shape[-behind]
            if role and (given is None or given.lengths.get(i, ())[row : row + 1] != (wanted,)):
                return None
            if size != 1 or role:
                if size < wanted:
                    return None
                one = one.narrow(i, 0, wanted)
        elif role:
            return None
    return one
