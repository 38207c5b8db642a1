"""Rules for functions that add, join or reorder positions: `pad`, `cat`, `split`, `cumsum`, `flip`."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.alone import alone, alone_by_row, cat_positions
from truenorm.torch.tracking.calls import name_of, tensors_in
from truenorm.torch.tracking.counts import as_count, note_counts, note_mixing, note_places, take_counts
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import of_sequence, plain
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import (
    BATCH,
    OPEN,
    Axis,
    Factor,
    Gaps,
    Lost,
    Padding,
    Role,
    Tag,
    has_role,
    merge_roles,
    padding_in,
    role_of,
    size_of,
    take_rows,
)
from truenorm.torch.tracking.tracker import Tracker

Arguments = tuple[Any, ...]


# ---- parts ----


@rule(*named("chunk split tensor_split unbind split_with_sizes unsafe_chunk unsafe_split hsplit vsplit dsplit"))
def split(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    x = args[0]
    found = tracker.look(x)
    result = func(*args, **kwargs)
    if not isinstance(found, Tag):
        tracker.set(result, found)
        return result
    unbind = func in UNBIND
    place = 1 if unbind else 2
    axis = (args[place] if len(args) > place else kwargs.get("dim", 0)) % x.dim()
    if func.__name__ in SPLIT_ALONG:
        axis = SPLIT_ALONG[func.__name__] if x.dim() > 1 else 0
    if has_role(found.axes[axis]):
        batch = role_of(found.axes[axis]) is BATCH
        if not batch or unbind or found.is_merged:
            return tracker.lose(result, func, "parts of the batch, or of positions")
        begin = 0
        for one in result:
            rows = range(begin, begin + one.shape[axis])
            tracker.states[one] = Tag(take_rows(found.axes, rows), found.padding)
            begin = rows.stop
        return result
    for one in result:
        new: list[Axis] = [] if unbind else [(Factor(one.shape[axis]),)]
        tracker.states[one] = Tag((*found.axes[:axis], *new, *found.axes[axis + 1 :]), found.padding)
    return result


UNBIND = set(named("unbind"))
SPLIT_ALONG = {"hsplit": 1, "vsplit": 0, "dsplit": 2}


@rule(*named("cat concat concatenate"), reads_inputs=True)
def cat(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    tensors = [one for one in tensors_in(args[0]) if one.shape != (0,)]
    states = [tracker.look(one) for one in tensors]
    tags = [one for one in states if isinstance(one, Tag)]
    ndim = tensors[0].dim() if tensors else 1
    axis = (args[1] if len(args) > 1 else kwargs.get("dim", kwargs.get("axis", 0))) % ndim
    inputs = [one for one in states if isinstance(one, Fresh)]
    if inputs and (not any(tag.is_ragged for tag in tags) or any(has_role(tag.axes[axis]) for tag in tags)):
        return tracker.refuse(func, args, kwargs, next((one for one in inputs if one.source.has_values), inputs[0]))
    if not tags:
        return _unfollowed(tracker, func(*args, **kwargs), states)
    if any(isinstance(role_of(tag.axes[axis]), tuple) for tag in tags):
        *others, last_one = states
        if any(isinstance(one, Tag) and has_role(one.axes[axis]) for one in others) or not isinstance(last_one, Tag):
            return cat_positions(tracker, func, tensors, axis)
    result = func(*args, **kwargs)
    if any(isinstance(one, Lost) for one in states):
        return tracker.lose(result, func, "one of them was lost before")
    if any(factor.role is OPEN for tag in tags for factor in tag.axes[axis]):
        return tracker.lose(result, func, "along an axis that may be positions")
    roles = {role_of(tag.axes[axis]) is BATCH for tag in tags}
    if True in roles:
        return _cat_batch(tracker, func, result, states, axis)
    merged = [list(tag.axes) for tag in tags]
    last = merged[-1][axis]
    new = _common(merged, axis)
    if new is None:
        return tracker.lose(result, func, "arguments with different lengths")
    if any(has_role(tag.axes[axis]) and not isinstance(role_of(tag.axes[axis]), tuple) for tag in tags):
        return _cat_masks(tracker, func, result, tensors, new, axis)
    note_places(tracker, func, new, [one for one in tensors if tracker.tag(one) is None])
    role = role_of(last) if states and isinstance(states[-1], Tag) else None
    before = sum(one.shape[axis] for one in tensors[:-1])
    lengths = tuple(before + n for n in role) if isinstance(role, tuple) else None
    new[axis] = (Factor(result.shape[axis], lengths),)
    padding = min(padding_in(tag, new, axis) for tag in tags) if len(tags) == len(tensors) else Padding.ANY
    tracker.states[result] = Tag(tuple(new), padding)
    return result


def _cat_masks(
    tracker: Tracker, func: Any, result: Tensor, tensors: list[Tensor], new: list[Axis], axis: int
) -> Tensor:
    """Positions that have gaps, or those of images in one axis: their mask has gaps too."""
    batch = next((i for i, one in enumerate(new) if role_of(one) is BATCH), None)
    tags = [tracker.tag(one) for one in tensors]
    if batch is None or any(tag is not None and tag.batch != batch for tag in tags):
        lost: Tensor = tracker.lose(result, func, "the sequences share an axis with something else")
        return lost
    rows, device = new[batch], result.device
    parts = [
        tag.axes[axis] if tag is not None else (Factor(one.shape[axis]),)
        for one, tag in zip(tensors, tags, strict=True)
    ]

    def valid() -> Tensor:
        ones = torch.ones(result.shape[batch], 1, dtype=torch.bool, device=device)
        return torch.cat(
            [
                ~tracker.mask(Tag((rows, part)), device) if has_role(part) else ones.expand(-1, size_of(part))
                for part in parts
            ],
            1,
        )

    new[axis] = (Factor(result.shape[axis], tracker.gaps((rows, *parts), valid)),)
    tracker.states[result] = Tag(tuple(new))
    return result


def _common(merged: list[list[Axis]], skipped: int | None) -> list[Axis] | None:
    """The axes that all have, but for one; None if they differ. An axis without a role takes that of another."""
    new = list(merged[0])
    for axes in merged[1:]:
        for i, axis in enumerate(axes):
            joined = new[i] if i == skipped else merge_roles(new[i], axis)
            if joined is None:
                return None
            new[i] = joined
    return new


def _cat_batch(tracker: Tracker, func: Any, result: Tensor, states: list[Any], axis: int) -> Any:
    """Batches one below the other."""
    tags = [one for one in states if isinstance(one, Tag)]
    kinds = {tuple((i, isinstance(extent, Gaps)) for i, extent in tag.extents.items()) for tag in tags}
    if len(tags) < len(states) or len(kinds) > 1 or any(tag.is_merged or tag.has_open for tag in tags):
        return tracker.lose(result, func, "batches, of which some have no lengths")
    roles: dict[int, Role] = {axis: BATCH}
    for i in tags[0].extents:
        gaps = [extent for tag in tags if isinstance(extent := tag.extents[i], Gaps)]
        roles[i] = tuple(n for tag in tags for n in tag.lengths.get(i, ()))
        if gaps:
            roles[i] = tracker.gaps(tuple(gaps), partial(torch.cat, [one.valid for one in gaps]))
    axes = tuple((Factor(size, roles.get(i)),) for i, size in enumerate(result.shape))
    tracker.states[result] = Tag(axes, min(tag.padding for tag in tags))
    return result


@rule(*named("stack"))
def stack(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    tensors = list(tensors_in(args[0]))
    states = [tracker.look(one) for one in tensors]
    tags = [one for one in states if isinstance(one, Tag)]
    result = func(*args, **kwargs)
    if not tags:
        return _unfollowed(tracker, result, states)
    new = _common([list(tag.axes) for tag in tags], None)
    if new is None or any(isinstance(one, Lost) for one in states):
        return tracker.lose(result, func, "arguments with different lengths")
    axis = (args[1] if len(args) > 1 else kwargs.get("dim", 0)) % result.dim()
    padding = min(padding_in(tag, new) for tag in tags) if len(tags) == len(tensors) else Padding.ANY
    new.insert(axis, (Factor(result.shape[axis]),))
    tracker.states[result] = Tag(tuple(new), padding)
    return result


def _unfollowed(tracker: Tracker, result: Tensor, states: list[Any]) -> Tensor:
    lost = next((one for one in states if isinstance(one, Lost)), None)
    tracker.set(result, lost or MADE)
    return result


# ---- more or other positions ----


@rule(functional.pad)
def pad(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Constants behind a sequence: its padding becomes these constants. Reflections of its end: alone."""
    given = {**dict(zip(("input", "pad", "mode", "value"), args, strict=False)), **kwargs}
    x: Tensor = given.pop("input")
    found = tracker.look(x)
    given["pad"] = as_count(tracker, given["pad"])
    amounts = [int(plain(one)) for one in given["pad"]]
    if not isinstance(found, Tag):
        note_mixing(tracker, func, x, (), given["pad"][::2])
        result = func(x, **of_sequence(given, None))
        tracker.states[result] = found
        return result
    sides = {x.dim() - 1 - i: (amounts[2 * i], amounts[2 * i + 1]) for i in range(len(amounts) // 2)}
    sides = {axis: both for axis, both in sides.items() if any(both)}
    ragged = {axis: both for axis, both in sides.items() if has_role(found.axes[axis])}
    mode = given.get("mode", "constant")
    if any(axis not in found.lengths for axis in ragged):
        return tracker.lose(func(x, **of_sequence(given, None)), func, "the batch, or positions with gaps")
    if take_counts(tracker, func, given["pad"]):
        return alone_by_row(tracker, func, x, found, lambda one, row: func(one, **of_sequence(given, row)))
    constant = mode == "constant"
    if not constant and any(right or mode == "circular" for _, right in ragged.values()):
        return alone(tracker, func, x, found, lambda one: func(one, **given))
    value = float(given.get("value") or 0.0) if constant else 0.0
    added = Padding.ZERO if value == 0 else Padding.FINITE if math.isfinite(value) else Padding.ANY
    source, padding = x, found.padding
    if constant and any(right > 0 for _, right in ragged.values()):
        source, padding = tracker.fill(x, found, value), added
    elif sides:
        padding = min(padding, added)
    if any(right < 0 for _, right in ragged.values()):  # the last valid values are padding now
        padding = min(padding, Padding.FINITE)
    result = func(source, **given)
    axes = list(found.axes)
    for axis, both in sides.items():
        lengths = found.lengths.get(axis)
        role = None if lengths is None else tuple(max(0, n + sum(both)) if n else 0 for n in lengths)
        axes[axis] = (Factor(result.shape[axis], role),)
    tracker.states[result] = Tag(tuple(axes), padding)
    return result


@rule(*named("diff"))
def diff(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Differences of neighbours: by the rules of x[1:], x[:-1] and their difference."""
    given = {"n": 1, "dim": -1, **dict(zip(("input", "n", "dim", "prepend", "append"), args, strict=False)), **kwargs}
    x = given["input"]
    if given["n"] != 1 or given.get("prepend") is not None or given.get("append") is not None or x.dtype == torch.bool:
        return tracker.call_unknown(func, args, kwargs)
    axis = [slice(None)] * (given["dim"] % x.dim())
    parts = [tracker.call(Tensor.__getitem__, (x, (*axis, one)), {}) for one in (slice(1, None), slice(None, -1))]
    return tracker.call(torch.sub, tuple(parts), {})


@rule(*named("cumsum cumprod cumsum_ cumprod_ logcumsumexp cummax cummin"), reads_inputs=True)
def cumulate(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Each position depends on those before it, which are valid."""
    x = args[0]
    found = tracker.look(x)
    if isinstance(found, Fresh) and any(isinstance(one, Gaps) for one in tracker.extents):
        return tracker.refuse(func, args, kwargs, found)
    if isinstance(found, Tag) and found.is_ragged:
        axis = (args[1] if len(args) > 1 else kwargs["dim"]) % x.dim()
        if has_role(found.axes[axis]) and axis not in found.lengths:
            return tracker.lose(func(*args, **kwargs), func)
        if not func.__name__.endswith("_"):
            args = (tracker.fill_unless_finite(x, found)[0], *args[1:])
        found = found.having(Padding.ANY)
    result = func(*args, **kwargs)
    tracker.set(result, found)
    return result


@rule(*named("flip fliplr flipud roll"))
def reorder(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """The order of positions is that of a sequence alone. Another order of the batch is not followed."""
    x, found = args[0], tracker.look(args[0])
    if isinstance(found, Tag) and found.is_ragged:
        if any(factor.role is BATCH for axis in _reordered(func, args, kwargs) for factor in found.axes[axis]):
            return tracker.lose(func(*args, **kwargs), func, "another order of the batch")
        note_counts(tracker, name_of(func), (args[1:], kwargs))
        return alone(tracker, func, x, found, lambda one: func(one, *args[1:], **kwargs))
    note_mixing(tracker, func, x, _reordered(func, args, kwargs))
    result = func(*args, **kwargs)
    tracker.set(result, found)
    return result


def _reordered(func: Any, args: Arguments, kwargs: dict[str, Any]) -> list[int]:
    """The axes along which `flip` or `roll` changes the order."""
    x, *rest = args
    if func.__name__ in ("fliplr", "flipud"):
        return [1 if func.__name__ == "fliplr" else 0]
    if func.__name__ == "roll":
        rest = rest[1:]  # the shifts
    dims: Any = kwargs.get("dims", rest[0] if len(rest) == 1 else rest)
    listed = [dims] if isinstance(dims, int) else [*dims]
    return [axis % x.dim() for axis in listed] or list(range(x.dim()))  # roll without axes: all of them, flattened


@rule(Tensor.unfold)
def unfold(tracker: Tracker, func: Any, args: Arguments, kwargs: dict[str, Any]) -> Any:
    """Windows of positions: as many as fit into the sequence."""
    given = {**dict(zip(("input", "dimension", "size", "step"), args, strict=False)), **kwargs}
    x = given["input"]
    note_counts(tracker, name_of(func), [given["size"], given["step"]])
    found = tracker.look(x)
    result = func(*args, **kwargs)
    if isinstance(found, Tag):
        axis = given["dimension"] % x.dim()
        role, size, step = role_of(found.axes[axis]), given["size"], given["step"]
        if has_role(found.axes[axis]) and not isinstance(role, tuple):
            return tracker.lose(result, func)
        lengths = tuple(max(0, (n - size) // step + 1) for n in role) if isinstance(role, tuple) else None
        window = ((Factor(result.shape[axis], lengths),), *found.axes[axis + 1 :], (Factor(size),))
        # A window that is not full is padding, and has valid values.
        padding = found.padding if lengths is None else min(found.padding, Padding.FINITE)
        found = Tag((*found.axes[:axis], *window), padding)
    tracker.states[result] = found
    return result
