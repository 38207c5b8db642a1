"""Rules for pooling and interpolation: padding is set to what they ignore, or each sequence is computed alone.

max          -inf
mean, norm   0. The divisors at the right border are those of a sequence alone unless windows may reach beyond it
             (ceil_mode) or borders do not count (count_include_pad=False): these are computed alone
adaptive     windows depend on the length: alone. A mean or maximum over all positions needs no loop
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.alone import alone, alone_by_row
from truenorm.torch.tracking.convolution import after, positions_of, spread, without_positions
from truenorm.torch.tracking.counts import note_mixing, take_counts
from truenorm.torch.tracking.numbers import of_sequence, plain
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.tag import Padding, Tag
from truenorm.torch.tracking.tracker import Tracker

MAX_NAMES = ("input", "kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices")
MEAN_NAMES = ("input", "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
NORM_NAMES = ("input", "norm_type", "kernel_size", "stride", "ceil_mode")


def dimensions(func: Any) -> int:
    """The number of position axes, which its name ends with: max_pool1d_with_indices has one."""
    return int(func.__name__.removesuffix("_with_indices").rstrip("d")[-1])


def pooled(one: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """How many windows so many positions have: the last one begins inside of them."""
    windows = (one + 2 * padding - dilation * (kernel - 1) - 1 + (stride - 1 if ceil_mode else 0)) // stride + 1
    if ceil_mode and (windows - 1) * stride >= one + padding:
        windows -= 1
    return max(0, windows)


def _lengths_after(tag: Tag, result: Tensor, given: dict[str, Any], count: int, padding: Padding) -> Tag:
    kernel = spread(given["kernel_size"], count)
    stride = spread(given.get("stride") or kernel, count)
    sides = spread(given.get("padding", 0), count)
    dilation = spread(given.get("dilation", 1), count)
    ceil_mode = bool(given.get("ceil_mode", False))
    return after(
        tag, result, lambda one, i: pooled(one, kernel[i], stride[i], sides[i], dilation[i], ceil_mode), padding
    )


def _of_constant(tracker: Tracker, func: Any, x: Tensor, given: dict[str, Any]) -> Any:
    """Of a tensor without positions. If the windows depend on their number, a sequence alone has other ones."""
    if not isinstance(tracker.look(x), Tag):
        note_mixing(tracker, func, x, (), given)
    return without_positions(tracker, x, func(x, **of_sequence(given, None)))


def _of_each(tracker: Tracker, func: Any, x: Tensor, tag: Tag, given: dict[str, Any]) -> Any:
    """With windows as long as the sequence: one result for each."""
    result = alone_by_row(tracker, func, x, tag, lambda one, row: func(one, **of_sequence(given, row)))
    made = tracker.tag(result)
    if made is not None and all(set(found) <= {0, 1} for found in made.lengths.values()):
        tracker.set(result, made.with_lengths({}, result.shape, Padding.FINITE))
    return result


@rule(
    *named("max_pool1d max_pool2d max_pool3d"),
    *named("max_pool1d_with_indices max_pool2d_with_indices max_pool3d_with_indices"),
    reads_inputs=True,
)
def max_pool(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(MAX_NAMES, args, strict=False)), **kwargs}
    x, count = given.pop("input"), dimensions(func)
    tag = positions_of(tracker, func, x, count)
    if tag is None:
        return _of_constant(tracker, func, x, given)
    if take_counts(tracker, func, given):
        return _of_each(tracker, func, x, tag, given)
    lowest = -math.inf if x.is_floating_point() else torch.iinfo(x.dtype).min
    result = func(tracker.fill(x, tag, lowest), **given)
    first = result[0] if isinstance(result, tuple) else result
    tracker.set(result, _lengths_after(tag, first, given, count, Padding.ANY))
    return result


@rule(torch.avg_pool1d, functional.avg_pool2d, functional.avg_pool3d, reads_inputs=True)
def mean_pool(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(MEAN_NAMES, args, strict=False)), **kwargs}
    x, count = given.pop("input"), dimensions(func)
    tag = positions_of(tracker, func, x, count)
    if tag is None:
        return _of_constant(tracker, func, x, given)
    if take_counts(tracker, func, given):
        return _of_each(tracker, func, x, tag, given)
    sides = any(spread(given.get("padding", 0), count))
    divisors_differ = given.get("ceil_mode", False) or (sides and not given.get("count_include_pad", True))
    if divisors_differ and given.get("divisor_override") is None:
        return alone(tracker, func, x, tag, lambda one: func(one, **given))
    result = func(tracker.fill(x, tag), **given)
    tracker.set(result, _lengths_after(tag, result, given, count, Padding.FINITE))
    return result


@rule(functional.lp_pool1d, functional.lp_pool2d, functional.lp_pool3d, reads_inputs=True)
def norm_pool(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(NORM_NAMES, args, strict=False)), **kwargs}
    x, count = given.pop("input"), dimensions(func)
    tag = positions_of(tracker, func, x, count)
    if tag is None:
        return without_positions(tracker, x, func(x, **given))
    if given.get("ceil_mode", False):
        return alone(tracker, func, x, tag, lambda one: func(one, **given))
    result = func(tracker.fill(x, tag), **given)
    tracker.set(result, _lengths_after(tag, result, given, count, Padding.ANY))
    return result


# ---- adaptive ----


@rule(
    torch.adaptive_avg_pool1d,
    *named("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"),
    *named("adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d"),
    reads_inputs=True,
)
def adaptive_pool(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(("input", "output_size", "return_indices"), args, strict=False)), **kwargs}
    x, count = given.pop("input"), dimensions(func)
    tag = positions_of(tracker, func, x, count)
    if tag is None:
        return _of_constant(tracker, func, x, given)
    sizes = given["output_size"]
    sizes = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,) * count
    if set(sizes) == {1} and len(tag.lengths) == len(tag.extents) and "avg" in func.__name__:
        return _mean_of_all(tracker, x, tag)
    if take_counts(tracker, func, given):
        return alone_by_row(tracker, func, x, tag, lambda one, row: func(one, **of_sequence(given, row)))
    fixed = all(sizes[axis - 2] is not None for axis in tag.extents)
    return alone(tracker, func, x, tag, lambda one: func(one, **given), fixed=fixed)


def _mean_of_all(tracker: Tracker, x: Tensor, tag: Tag) -> Tensor:
    """The mean over all position axes; 0 without any position."""
    counts = [math.prod(found[row] for found in tag.lengths.values()) for row in range(len(x))]
    plain = math.prod(size for axis, size in enumerate(x.shape) if axis > 1 and axis not in tag.lengths)
    wide = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    divisors = torch.tensor([max(1, one) * plain for one in counts], device=x.device, dtype=wide)
    total = tracker.fill(x, tag).sum(tuple(range(2, x.dim())), keepdim=True, dtype=wide)
    result = (total / divisors.reshape(-1, *[1] * (x.dim() - 1))).to(x.dtype)
    tracker.set(result, tag.with_lengths({}, result.shape, Padding.FINITE))
    return result


# ---- interpolation ----

INTERPOLATE_NAMES = (
    "input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias",
)  # fmt: skip


@rule(*named("interpolate upsample upsample_nearest upsample_bilinear"), reads_inputs=True)
def interpolate(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    given = {**dict(zip(INTERPOLATE_NAMES, args, strict=False)), **kwargs}
    x: Tensor = given.pop("input")
    count = x.dim() - 2
    tag = positions_of(tracker, func, x, count)
    if tag is None:
        result = _of_constant(tracker, func, x, given)
        if (made := tracker.tag(result)) is not None and given.get("scale_factor") is None:
            tracker.set(result, tracker.states.reopen(made, [2, 2, *[1] * count]))
        return result
    scale = given.get("scale_factor")
    mode = given.get("mode", "bilinear" if func is functional.upsample_bilinear else "nearest")
    if take_counts(tracker, func, given):
        return alone_by_row(tracker, func, x, tag, lambda one, row: func(one, **of_sequence(given, row)))
    if scale is None:
        sizes = given["size"]
        sizes = tuple(sizes) if isinstance(sizes, (tuple, list)) else (sizes,) * count
        if tag.has_padding:
            # A constant: for a sequence alone it is the same number. Sizes of padded tensors are no plain numbers.
            return tracker.lose(func(x, **given), func, "size= does not say how the lengths change: use scale_factor=")
        result = func(x, **given)
        tracker.set(result, after(tag, result, lambda _, i: plain(sizes[i]), tag.padding))
        return result
    if not mode.startswith("nearest") or given.get("recompute_scale_factor"):
        return alone(tracker, func, x, tag, lambda one: func(one, **given))
    scales = tuple(scale) if isinstance(scale, (tuple, list)) else (scale,) * count
    if not mode.startswith("nearest"):  # the size stays, and neighbours are read with the weight 0
        x, tag = tracker.fill_unless_finite(x, tag)
    result = func(x, **given)
    # Unless each position becomes as many, the first ones behind a sequence may be copies of its last one. Powers of
    # two are not rounded.
    copies = all(scales[axis - 2] in (1, 2, 4, 8) for axis in tag.extents)
    padding = tag.padding if copies else min(tag.padding, Padding.FINITE)
    tracker.set(result, after(tag, result, lambda one, i: math.floor(one * scales[i]), padding))
    return result
