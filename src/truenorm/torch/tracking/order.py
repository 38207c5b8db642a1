"""Rules for functions of the order of values: `sort`, `topk`, `median`, `quantile`.

Along positions each sequence is computed alone. Along other axes each position is computed by itself. Without an axis
the result is that of all valid values of the batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.alone import alone_by_row
from truenorm.torch.tracking.calls import name_of
from truenorm.torch.tracking.counts import note_mixing, take_counts
from truenorm.torch.tracking.numbers import has_count, of_sequence
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Factor, Tag, has_role
from truenorm.torch.tracking.tracker import Tracker

# The arguments behind the first one.
ARGUMENTS: dict[str, tuple[str, ...]] = {
    "sort": ("dim", "descending"), "argsort": ("dim", "descending"), "topk": ("k", "dim", "largest", "sorted"),
    "kthvalue": ("k", "dim", "keepdim"), "mode": ("dim", "keepdim"), "median": ("dim", "keepdim"),
    "nanmedian": ("dim", "keepdim"), "quantile": ("q", "dim", "keepdim"), "nanquantile": ("q", "dim", "keepdim"),
}  # fmt: skip
OF_ALL = {"median", "nanmedian", "quantile", "nanquantile"}  # if no axis is given
ONE_RESULT = {"argsort", "quantile", "nanquantile"}  # the others return values and their indices
KEEPS_AXIS = {"sort", "argsort", "topk"}


@rule(*named(" ".join(ARGUMENTS)))
def in_order(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name, x = func.__name__, args[0]
    given = {**dict(zip(ARGUMENTS[name], args[1:], strict=False)), **kwargs}
    found = tracker.look(x)
    several = isinstance(given.get("q"), (list, tuple)) or (isinstance(given.get("q"), Tensor) and given["q"].dim() > 0)
    if not isinstance(found, Tag):
        dim = given.get("dim", None if name in OF_ALL else -1)
        note_mixing(tracker, func, x, range(x.dim()) if dim is None else [dim], given.get("k"))
    if not isinstance(found, Tag) or several:
        return tracker.call_unknown(func, args, kwargs)
    dim = given.pop("dim", None if name in OF_ALL else -1)
    if dim is None:
        return _of_all(tracker, func, x, found, given)
    axis = dim % x.dim()
    keepdim = bool(given.pop("keepdim", False))
    places = (None,) if name in ONE_RESULT else (0, 1)
    if has_role(found.axes[axis]):
        _check_number(tracker, func, found, axis, given.get("k"))
        results = [_of_each(tracker, func, x, found, {**given, "dim": axis}, place) for place in places]
    else:
        made = func(x, **of_sequence({**given, "dim": axis}, None))
        results = [_at(made, place) for place in places]
        for one in results:
            left = ((Factor(one.shape[axis]),),) if name in KEEPS_AXIS else ()
            tracker.states[one] = Tag((*found.axes[:axis], *left, *found.axes[axis + 1 :]))
    if keepdim:
        results = [tracker.call(torch.unsqueeze, (one, axis), {}) for one in results]
    return results[0] if name in ONE_RESULT else getattr(torch.return_types, name)(results)


def _at(made: Any, place: int | None) -> Tensor:
    """One result of several, or the only one."""
    found: Tensor = made if place is None else made[place]
    return found


def _of_each(tracker: Tracker, func: Any, x: Tensor, tag: Tag, given: dict[str, Any], place: int | None) -> Tensor:
    """Of each sequence alone. A number of values is one for all, unless it is made of numbers of positions."""
    fixed = "k" in given and not take_counts(tracker, func, given["k"])
    return alone_by_row(
        tracker, func, x, tag, lambda one, row: _at(func(one, **of_sequence(given, row)), place), fixed=fixed
    )


def _check_number(tracker: Tracker, func: Any, tag: Tag, axis: int, number: Any) -> None:
    """Raises where a sequence alone has too few positions as well."""
    lengths = [n for n in tag.lengths.get(axis, ()) if n]
    if number is not None and not has_count(number) and lengths and number > min(lengths):
        raise ValueError(
            f"padded: {tracker.place(func)} takes {number} positions of each sequence by {name_of(func)}, got a "
            f"sequence of {min(lengths)}. Take at most as many as the shortest one has."
        )


def _of_all(tracker: Tracker, func: Any, x: Tensor, tag: Tag, given: dict[str, Any]) -> Any:
    """Over all valid values of the batch."""
    if tag.has_open or given.pop("keepdim", False):
        return tracker.call_unknown(func, (x,), given)
    if tag.has_padding:
        x = x[tracker.valid(tag, x.device).expand(x.shape)]
    result = func(x, **given)
    tracker.set(result, MADE)
    return result
