"""Rules for functions that only move elements: transposes, views, new axes, copies along an axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.calls import tensors_in
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import plain
from truenorm.torch.tracking.registry import attribute, named, rule
from truenorm.torch.tracking.relative_shift import after_view
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Axis, Factor, Tag, has_role, regroup
from truenorm.torch.tracking.tracker import Tracker


def moved(
    tracker: Tracker,
    func: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    order: Callable[[int], Sequence[int]],
) -> Any:
    """The result, with its axes in the order that `order(ndim)` gives."""
    found = tracker.look(args[0])
    result = func(*args, **kwargs)
    if isinstance(found, (Tag, Fresh)):
        found = found.with_axes([found.axes[axis] for axis in order(len(found.axes))])
    tracker.states[result] = found
    return result


def _swapped(ndim: int, first: int, second: int) -> list[int]:
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return order


@rule(*named("transpose swapaxes swapdims transpose_"), reads_inputs=True, repeats=True)
def transpose(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first: Any = args[1] if len(args) > 1 else kwargs.get("dim0", kwargs.get("axis0"))
    second: Any = args[2] if len(args) > 2 else kwargs.get("dim1", kwargs.get("axis1"))
    return moved(tracker, func, args, kwargs, lambda ndim: _swapped(ndim, first, second))


@rule(attribute("mT"), attribute("mH"), reads_inputs=True, repeats=True)
def matrix_transpose(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return moved(tracker, func, args, kwargs, lambda ndim: _swapped(ndim, -2, -1))


@rule(attribute("T"), attribute("H"), *named("t"), reads_inputs=True, repeats=True)
def reverse(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return moved(tracker, func, args, kwargs, lambda ndim: range(ndim)[::-1])


@rule(*named("permute"), reads_inputs=True, repeats=True)
def permute(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    order = numbers(args[1:] or (kwargs["dims"],))
    return moved(tracker, func, args, kwargs, lambda ndim: [axis % ndim for axis in order])


@rule(*named("movedim moveaxis"), reads_inputs=True, repeats=True)
def movedim(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    source = numbers((args[1] if len(args) > 1 else kwargs["source"],))
    destination = numbers((args[2] if len(args) > 2 else kwargs["destination"],))

    def order(ndim: int) -> list[int]:
        places = dict(zip((one % ndim for one in destination), (one % ndim for one in source), strict=True))
        rest = iter([axis for axis in range(ndim) if axis not in places.values()])
        return [places[axis] if axis in places else next(rest) for axis in range(ndim)]

    return moved(tracker, func, args, kwargs, order)


def numbers(given: Sequence[Any]) -> list[int]:
    """Axes or sizes that were given one by one, or as one sequence."""
    first = given[0] if len(given) == 1 else given
    return [int(plain(value)) for value in (first if isinstance(first, (tuple, list)) else given)]


# ---- views ----


@rule(
    *named("view reshape view_as reshape_as flatten unflatten ravel squeeze squeeze_"), reads_inputs=True, repeats=True
)
def view(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The elements in the same order: the batch and the positions survive if no axis cuts through them."""
    found, noted = tracker.look(args[0]), len(tracker.notes.mixed)
    result = func(*args, **kwargs)
    if isinstance(found, Fresh):
        axes = regroup(found.axes, result.shape)
        tracker.states[result] = tracker.unknown(func, found) if axes is None else found.with_axes(axes)
    elif isinstance(found, Tag):
        tag = _viewed(found, result.shape)
        if tag is None and found.is_ragged:
            tracker.lose(result, func, f"from {tuple(args[0].shape)} to {tuple(result.shape)}")
        else:
            tracker.states[result] = tag or MADE
    else:
        tracker.states[result] = found
    after_view(tracker, args[0], found, result, noted)
    return result


def _viewed(tag: Tag, shape: Sequence[int]) -> Tag | None:
    axes = regroup(tag.axes, shape)
    return None if axes is None else Tag(axes, tag.padding)


@rule(*named("unsqueeze unsqueeze_"), reads_inputs=True, repeats=True)
def unsqueeze(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = tracker.look(args[0])
    result = func(*args, **kwargs)
    if isinstance(found, (Tag, Fresh)):
        axis = (args[1] if len(args) > 1 else kwargs["dim"]) % result.dim()
        found = found.with_axes((*found.axes[:axis], (Factor(1),), *found.axes[axis:]))
    tracker.states[result] = found
    return result


@rule(*named("expand expand_as broadcast_to repeat tile"), reads_inputs=True, repeats=True)
def expand(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Copies along axes that are neither the batch nor positions."""
    x = args[0]
    found = tracker.look(x)
    result = func(*args, **kwargs)
    if isinstance(found, (Tag, Fresh)):
        new: list[Axis] = [(Factor(size),) for size in result.shape]
        for axis in range(-x.dim(), 0):
            if x.shape[axis] == result.shape[axis]:
                new[axis] = found.axes[axis]
            elif has_role(found.axes[axis]):
                if isinstance(found, Fresh):
                    tracker.states[result] = tracker.unknown(func, found)
                    return result
                return tracker.lose(result, func, "copies of the batch, or of positions") if found.is_ragged else result
        found = found.with_axes(new)
        if isinstance(found, Tag):
            found = _as_other(tracker, args, kwargs, found) or tracker.states.reopen(found, x.shape)
    tracker.states[result] = found
    return result


def _as_other(tracker: Tracker, args: tuple[Any, ...], kwargs: dict[str, Any], tag: Tag) -> Tag | None:
    """Copies for each position of another tensor, in x.expand_as(other)."""
    other = tracker.tag(args[1] if len(args) > 1 else kwargs.get("other"))
    if other is None or tag.is_ragged or tag.batch != other.batch or len(tag.axes) != len(other.axes):
        return None
    return other.having(tag.padding)


@rule(torch.view_as_real, torch.view_as_complex, reads_inputs=True, repeats=True)
def view_as_pairs(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Real and imaginary parts as a last axis, and back."""
    found = tracker.look(args[0])
    result = func(*args, **kwargs)
    if isinstance(found, (Tag, Fresh)):
        if func is torch.view_as_complex and has_role(found.axes[-1]):
            if isinstance(found, Tag):
                return tracker.lose(result, func, "pairs of positions")
            tracker.states[result] = tracker.unknown(func, found)
            return result
        found = found.with_axes((*found.axes, (Factor(2),)) if func is torch.view_as_real else found.axes[:-1])
    tracker.states[result] = found
    return result


@rule(*named("broadcast_tensors"), reads_inputs=True)
def broadcast_tensors(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    tensors = list(tensors_in(args))
    shape = func(*args, **kwargs)[0].shape
    return tuple(expand(tracker, Tensor.expand, (one, shape), {}) for one in tensors)


@rule(*named("new_zeros new_ones new_empty"), attribute("grad"), reads_inputs=True)
def make_new(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A tensor that only has the dtype and the device of another."""
    result = func(*args, **kwargs)
    tracker.set(result, MADE)
    return result
