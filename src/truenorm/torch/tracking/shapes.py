"""Rules for functions that only move elements: transposes, views, new axes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from truenorm.torch.tracking.registry import attribute, named, rule
from truenorm.torch.tracking.tag import Tag
from truenorm.torch.tracking.tracker import Tracker


def moved(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], order: Any) -> Any:
    """The result, with its axes in the order that `order(ndim)` gives."""
    x = args[0]
    found = tracker.look(x)
    result = func(*args, **kwargs)
    if isinstance(found, Tag):
        found = Tag(tuple(found.axes[axis] for axis in order(len(found.axes))), found.padding)
    tracker.states[result] = found
    return result


def _swapped(ndim: int, first: int, second: int) -> list[int]:
    order = list(range(ndim))
    order[first], order[second] = order[second], order[first]
    return order


@rule(*named("transpose swapaxes swapdims transpose_"))
def transpose(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    first: Any = args[1] if len(args) > 1 else kwargs.get("dim0", kwargs.get("axis0"))
    second: Any = args[2] if len(args) > 2 else kwargs.get("dim1", kwargs.get("axis1"))
    return moved(tracker, func, args, kwargs, lambda ndim: _swapped(ndim, first, second))


@rule(attribute("mT"), attribute("mH"))
def matrix_transpose(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return moved(tracker, func, args, kwargs, lambda ndim: _swapped(ndim, -2, -1))


@rule(attribute("T"), attribute("H"), *named("t"))
def reverse(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return moved(tracker, func, args, kwargs, lambda ndim: range(ndim)[::-1])


@rule(*named("permute"))
def permute(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    order = numbers(args[1:] or (kwargs["dims"],))
    return moved(tracker, func, args, kwargs, lambda ndim: [axis % ndim for axis in order])


@rule(*named("movedim moveaxis"))
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
    values = given[0] if len(given) == 1 and not isinstance(given[0], (int, torch.SymInt)) else given
    return [int(value) for value in values]
