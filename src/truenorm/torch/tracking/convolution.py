"""Rules for convolutions: padding is set to 0, and lengths follow torch's own arithmetic.

A sequence alone reads zeros behind its last value, if the convolution pads. In a batch that is where its padding is, so
zeros there give the same result, up to the new length

    floor((length + 2 * padding - dilation * (kernel - 1) - 1) / stride) + 1        at least 0
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.registry import rule
from truenorm.torch.tracking.tag import Gaps, Lengths, Padding, Tag
from truenorm.torch.tracking.tracker import Tracker


def spread(value: Any, count: int) -> tuple[int, ...]:
    """One number for all axes, or one for each."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return tuple(int(one) for one in (values * count if len(values) == 1 else values))


def convolved(length: int, kernel: int, stride: int, padding: int, dilation: int) -> int:
    """How many positions a convolution makes of so many; `padding` is the sum of both sides."""
    return max(0, (length + padding - dilation * (kernel - 1) - 1) // stride + 1)


def positions_of(tracker: Tracker, func: Any, x: Tensor, count: int) -> Tag | None:
    """The tag of an input (b, c, ...) with this many position axes, for functions that mix neighbours.

    None if there is nothing to keep out. An error if the valid positions are not the first ones.
    """
    if x.dim() == count + 1:  # one sample without a batch axis
        found = tracker.tag(x)
        if found is None or not found.is_ragged:
            return None
    else:
        found = tracker.positions(x, set(range(2, count + 2)), func)
        if found is None:
            return None
        gaps = any(isinstance(factor.role, Gaps) for axis in found.axes for factor in axis)
        if gaps:
            raise ValueError(
                f"padded: {tracker.place(func)} mixes neighbours, so valid positions must come first, got a mask with "
                "padding before or between them. Pad behind the sequences."
            )
        if found.batch == 0 and not found.is_merged and 1 not in found.extents:
            return found
    raise ValueError(
        f"padded: {tracker.place(func)} reads (b, c, ...) with the batch on axis 0 and positions behind the channels, "
        f"got {tuple(x.shape)} with the batch on axis {found.batch} and positions on {sorted(found.extents)}."
    )


@rule(torch.conv1d, torch.conv2d, torch.conv3d, functional.conv1d, functional.conv2d, functional.conv3d)
def convolution(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = ("input", "weight", "bias", "stride", "padding", "dilation", "groups")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x, weight = given.pop("input"), given["weight"]
    count = weight.dim() - 2
    tag = positions_of(tracker, func, x, count)
    if tag is None:
        result = func(x, **given)
        tracker.set(result, state_without_positions(tracker, x, result))
        return result
    result = func(tracker.fill(x, tag), **given)
    stride = spread(given.get("stride", 1), count)
    dilation = spread(given.get("dilation", 1), count)
    kernel = tuple(weight.shape[2:])
    padding = given.get("padding", 0)
    if padding == "same":
        sides = tuple(d * (k - 1) for d, k in zip(dilation, kernel, strict=True))
    else:
        sides = tuple(2 * one for one in spread(0 if padding == "valid" else padding, count))
    lengths: dict[int, Lengths] = {
        axis: tuple(
            convolved(one, kernel[axis - 2], stride[axis - 2], sides[axis - 2], dilation[axis - 2]) if one else 0
            for one in extent
        )
        for axis, extent in tag.lengths.items()
    }
    tracker.set(result, tag.with_lengths(lengths, result.shape, Padding.FINITE))
    return result


def state_without_positions(tracker: Tracker, x: Tensor, result: Tensor) -> Any:
    """The state of a result whose input is not ragged."""
    found = tracker.look(x)
    if isinstance(found, Tag):
        return tag_of_batch(found, result)
    return found


def tag_of_batch(tag: Tag, result: Tensor) -> Any:
    from truenorm.torch.tracking.tag import make_tag
    from truenorm.torch.tracking.tracker import MADE

    if tag.batch is None or tag.batch >= result.dim() or tag.batch_size != result.shape[tag.batch]:
        return MADE
    return make_tag(result.shape, tag.batch, {})
