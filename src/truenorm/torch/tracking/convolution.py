"""Rules for convolutions: padding is set to 0, and lengths follow torch's own arithmetic.

A sequence alone reads zeros behind its last value, if the convolution pads. In a batch that is where its padding is, so
zeros there give the same result, up to the new length

    floor((length + 2 * padding - dilation * (kernel - 1) - 1) / stride) + 1        at least 0
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.calls import name_of, tensors_in
from truenorm.torch.tracking.counts import note_counts
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import plain
from truenorm.torch.tracking.registry import rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import BATCH, Lost, Padding, Tag, has_batch, has_role, make_tag, regroup
from truenorm.torch.tracking.tracker import Tracker


def spread(value: Any, count: int) -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    if type(value) is tuple and len(value) == count and all(type(one) is int for one in value):
        return value
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(plain(one)) for one in (values * count if len(values) == 1 else values))


def convolved(length: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many positions a convolution makes of so many; `padding` is the sum of both sides."""
    return max(0, (length + padding - dilation * (kernel - 1) - 1) // stride + 1)


def positions_of(tracker: Tracker, func: Any, x: Tensor, count: int, several: bool = False) -> Tag | None:
    """The tag of an input (b, c, ...) with this many position axes, for functions that mix neighbours.

    None if there is nothing to keep out. An error if the valid positions are not the first ones.
    several   whether the first axis may also hold several parts of each sequence, as in (b * microphones, c, t)
    """
    if x.dim() == count + 1:  # one sample without a batch axis
        state = tracker.look(x)
        if isinstance(state, Fresh):
            state = tracker.unknown(func, state)
        if isinstance(state, Lost):
            raise tracker.lost_error(x, state, func)
        if not isinstance(state, Tag) or not state.is_ragged:
            return None
        found = state
    else:
        ragged = tracker.positions(x, range(2, count + 2), func)
        if ragged is None:
            return None
        found = ragged
        if found.has_gaps:
            raise ValueError(
                f"padded: {tracker.place(func)} mixes neighbours, so valid positions must come first, got a mask with "
                "padding before or between them. Pad behind the sequences."
            )
        if found.batch == 0 and not found.is_merged and 1 not in found.extents:
            return found
        if several and _is_batch_of_parts(found):
            return found
    raise ValueError(
        f"padded: {tracker.place(func)} reads (b, c, ...) with the batch on axis 0 and positions behind the channels, "
        f"got {tuple(x.shape)} with {where(found)}."
    )


def _is_batch_of_parts(tag: Tag) -> bool:
    """Whether the first axis is the batch with something else, and nothing is merged behind it.

    If that is positions, as in (b * frames, c, h, w), there must be none behind: each is computed by itself.
    """
    first, *others = tag.axes
    behind = any(map(has_role, others))
    return (
        has_batch(first)
        and not (behind and any(factor.role not in (BATCH, None) for factor in first))
        and not has_role(others[0])
        and all(len(one) == 1 for one in others)
    )


def where(tag: Tag) -> str:
    """On which axes the batch and the positions are."""
    if tag.is_merged:
        merged = [i for i, axis in enumerate(tag.axes) if len(axis) > 1 and has_role(axis)]
        return f"the batch or positions and something else together on axis {merged[0]}. Undo this view before"
    return f"the batch on axis {tag.batch} and positions on {sorted(tag.extents)}"


@rule(torch.conv1d, torch.conv2d, torch.conv3d, reads_inputs=True, repeats=True)
def convolution(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    note_counts(tracker, name_of(func), given)
    x, weight = given.pop("input"), given["weight"]
    count = weight.dim() - 2
    tag = positions_of(tracker, func, x, count, several=True)
    if tag is None:
        _check_constant(tracker, func, x)
        return without_positions(tracker, x, func(x, **given))
    stride = spread(given.get("stride", 1), count)
    dilation = spread(given.get("dilation", 1), count)
    kernel: tuple[int, ...] = tuple(weight.shape[2:])
    padding = given.get("padding", 0)
    if padding == "same":
        sides = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    else:
        sides = tuple(2 * one for one in spread(0 if padding == "valid" else padding, count))
    if any(sides[axis - 2] for axis in tag.extents):
        x = tracker.fill(x, tag)
    else:  # no window that lies inside a sequence reads padding; only the gradient of the weight does, times 0
        x, _ = tracker.fill_unless_finite(x, tag)
    result = func(x, **given)

    def length(one: int, i: int) -> int:
        return convolved(one, kernel[i], stride[i], sides[i], dilation[i])

    tracker.set(result, after(tag, result, length))
    return result


@rule(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d, reads_inputs=True)
def transposed(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Each position is spread over a kernel; what lies behind the new length comes from padding, and is padding."""
    names = ("input", "weight", "bias", "stride", "padding", "output_padding", "groups", "dilation")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    note_counts(tracker, name_of(func), given)
    x, weight = given.pop("input"), given["weight"]
    count = weight.dim() - 2
    tag = positions_of(tracker, func, x, count, several=True)
    if tag is None:
        _check_constant(tracker, func, x)
        return without_positions(tracker, x, func(x, **given))
    result = func(tracker.fill(x, tag), **given)
    stride, padding, behind, dilation = (
        spread(given.get(name, default), count)
        for name, default in (("stride", 1), ("padding", 0), ("output_padding", 0), ("dilation", 1))
    )
    kernel: tuple[int, ...] = tuple(weight.shape[2:])

    def length(one: int, i: int) -> int:
        return max(0, (one - 1) * stride[i] - 2 * padding[i] + dilation[i] * (kernel[i] - 1) + behind[i] + 1)

    tracker.set(result, after(tag, result, length))
    return result


@rule(functional.unfold)
def windows(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """(b, c, h, w): the windows that a convolution reads, as (b, c * kernel, windows)."""
    given = {**dict(zip(("input", "kernel_size", "dilation", "padding", "stride"), args, strict=False)), **kwargs}
    note_counts(tracker, name_of(func), given)
    x = given.pop("input")
    tag = positions_of(tracker, func, x, 2)
    if tag is None:
        return without_positions(tracker, x, func(x, **given))
    result = func(tracker.fill(x, tag), **given)
    kernel, dilation, sides, stride = (
        spread(given.get(name, default), 2)
        for name, default in (("kernel_size", 1), ("dilation", 1), ("padding", 0), ("stride", 1))
    )

    def length(one: int, i: int) -> int:
        return convolved(one, kernel[i], stride[i], 2 * sides[i], dilation[i])

    shape = (*result.shape[:2], *(length(x.shape[2 + i], i) for i in range(2)))
    axes = regroup(after(tag, result.new_empty(shape, device="meta"), length).axes, result.shape)
    if axes is None:
        return tracker.lose(result, func, "windows of several position axes")
    tracker.set(result, Tag(axes, Padding.FINITE))
    return result


def _check_constant(tracker: Tracker, func: Any, x: Tensor) -> None:
    """Raises for a tensor that the model has made with as many positions as a padded one: noise, a part of a table."""
    if tracker.look(x) is MADE and x.shape[-1] in tracker.states.sizes and not tracker.is_constant(x):
        raise tracker.open_error(x, func)


def after(tag: Tag, result: Tensor, length: Callable[[int, int], int], padding: Padding = Padding.FINITE) -> Tag:
    """The tag of a result (b, c, ...): length(n, i) is the new length of n positions on the position axis i.

    A sequence without positions stays one.
    """
    lengths = {axis: tuple(length(n, axis - 2) if n else 0 for n in found) for axis, found in tag.lengths.items()}
    return tag.with_lengths(lengths, result.shape, padding)


def without_positions(tracker: Tracker, x: Tensor, result: Any) -> Any:
    """The state of a result whose input is not ragged."""
    found = tracker.look(x)
    for one in tensors_in(result):
        if not isinstance(found, Tag):
            tracker.set(one, found)
        elif found.batch is None or one.shape[found.batch : found.batch + 1] != (found.batch_size,):
            tracker.set(one, MADE)
        else:
            tracker.set(one, make_tag(one.shape, found.batch, {}))
    return result
