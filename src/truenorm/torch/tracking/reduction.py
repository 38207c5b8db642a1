"""Rules for functions that reduce axes: sums, means, maxima, norms.

Over positions, padding is replaced by what the function ignores (0 in a sum, -inf in a maximum), and a mean divides by
the number of valid values. Over other axes each position is computed by itself. Over the sequences as well, the result
is over all valid values of the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.counts import note_mixing
from truenorm.torch.tracking.elementwise import elementwise
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import BATCH, OPEN, Factor, Gaps, Lost, Padding, Tag, has_role
from truenorm.torch.tracking.tracker import Tracker

Args = tuple[Any, ...]
Kwargs = dict[str, Any]

LOWEST, HIGHEST = -math.inf, math.inf
LOW = (torch.float16, torch.bfloat16)
# What each function ignores.
NEUTRAL: dict[str, float] = {
    "sum": 0.0, "nansum": 0.0, "prod": 1.0, "max": LOWEST, "amax": LOWEST, "argmax": LOWEST, "logsumexp": LOWEST,
    "min": HIGHEST, "amin": HIGHEST, "argmin": HIGHEST, "any": 0.0, "all": 1.0, "count_nonzero": 0.0, "norm": 0.0,
    "vector_norm": 0.0, "mean": 0.0, "var": 0.0, "std": 0.0,
}  # fmt: skip
# Zeros in the padding of other axes stay zeros.
KEEP_ZERO = {"sum", "nansum", "prod", "mean", "max", "amax", "min", "amin", "norm", "vector_norm", "var", "std"}
SECOND_IS_DIM = {name for name in NEUTRAL if name not in ("norm", "vector_norm", "var", "std")}

ONE_AXIS = {"max", "min", "argmax", "argmin", "prod"}  # or all of them

FUNCTIONS = [*named(" ".join(NEUTRAL)), torch.linalg.vector_norm]


@rule(*FUNCTIONS)
def reduce(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    name = func.__name__.removeprefix("linalg_")
    x: Tensor = args[0]
    if (len(args) > 1 and isinstance(args[1], Tensor)) or isinstance(kwargs.get("other"), Tensor):
        return elementwise_of_two(tracker, func, args, kwargs)
    found = tracker.look(x)
    rest, options = _options(name, args[1:], kwargs)
    dims = _axes(options.get("dim"), x.dim())
    if not isinstance(found, Tag):
        note_mixing(tracker, func, x, dims)
        result = func(*args, **kwargs)
        tracker.set(result, found if isinstance(found, Lost) else MADE)
        return result
    keepdim = bool(options.get("keepdim", False))
    if not found.is_ragged or not any(has_role(found.axes[dim]) for dim in dims):
        result = func(*args, **kwargs)
        zero = found.padding is not Padding.ZERO or name in KEEP_ZERO
        tracker.set(result, _reduced(found, dims, keepdim, found.padding if zero else Padding.FINITE))
        return result
    why = "a norm of matrices" if name == "norm" and rest == ("nuc",) else _refusal(found, dims)
    if why is not None:
        return tracker.lose(func(*args, **kwargs), func, why)
    result = _masked(tracker, name, func, x, found, dims, rest, options)
    tag = _reduced(found, dims, keepdim, Padding.ANY)
    tracker.set(result, tag)
    return result


@rule(*named("var_mean std_mean"))
def reduce_both(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Two results, each by its own rule."""
    name = func.__name__.removesuffix("_mean")
    _, options = _options(name, args[1:], kwargs)
    spread = tracker.call(getattr(torch, name), args[:1], options)
    options = {key: one for key, one in options.items() if key != "correction"}
    return spread, tracker.call(torch.mean, args[:1], options)


def elementwise_of_two(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """torch.max(x, y) and torch.min(x, y)."""
    return elementwise(tracker, torch.maximum if func.__name__ == "max" else torch.minimum, args, kwargs)


# ---- arguments ----


def _options(name: str, rest: Args, kwargs: Kwargs) -> tuple[Args, Kwargs]:
    """Positional arguments that are not options, and all options under one name each."""
    options = dict(kwargs)
    if "axis" in options:
        options["dim"] = options.pop("axis")
    if name in SECOND_IS_DIM:
        options |= dict(zip(("dim", "keepdim"), rest, strict=False))
        return (), options
    if name in ("norm", "vector_norm"):
        order, *rest_of = rest or (options.pop("p", options.pop("ord", 2)),)
        options |= dict(zip(("dim", "keepdim", "dtype"), rest_of, strict=False))
        return (order,), options
    if rest and isinstance(rest[0], bool):  # var(unbiased)
        options["correction"] = int(rest[0])
    else:
        options |= dict(zip(("dim", "unbiased", "keepdim"), rest, strict=False))
    if "unbiased" in options:
        options["correction"] = int(options.pop("unbiased"))
    return (), options


def _axes(dim: Any, ndim: int) -> tuple[int, ...]:
    if dim is None or (isinstance(dim, (tuple, list)) and not dim):
        return tuple(range(ndim))
    return tuple(one % ndim for one in ((dim,) if isinstance(dim, int) else dim))


def _refusal(tag: Tag, dims: Sequence[int]) -> str | None:
    """Why the reduction has no result with known positions."""
    factors = [factor for i, axis in enumerate(tag.axes) if i not in dims for factor in axis]
    merged = any(len(axis) > 1 and any(factor.role is BATCH for factor in axis) for axis in tag.axes)
    if any(factor.role is OPEN for dim in dims for factor in tag.axes[dim]):
        return "an axis that may be positions"
    over_batch = any(factor.role is BATCH for dim in dims for factor in tag.axes[dim])
    left = any(factor.role is not None and factor.role is not BATCH for factor in factors)
    if over_batch and left:
        return "it mixes sequences at each position"
    if merged and len(dims) < len(tag.axes):
        return "the sequences share an axis with something else"
    return None


def _reduced(tag: Tag, dims: Sequence[int], keepdim: bool, padding: Padding) -> Any:
    """The tag of the result; MADE if no sequence is left in it."""
    axes = tuple((Factor(1),) if i in dims else axis for i, axis in enumerate(tag.axes) if keepdim or i not in dims)
    return Tag(axes, padding) if any(factor.role is BATCH for axis in axes for factor in axis) else MADE


# ---- values ----


def _masked(
    tracker: Tracker, name: str, func: Any, x: Tensor, tag: Tag, dims: tuple[int, ...], rest: Args, options: Kwargs
) -> Any:
    """The reduction over valid values."""
    filled = tracker.fill(x, tag, _neutral(name, x.dtype, rest))
    if name in ("mean", "var", "std"):
        return _moments(tracker, name, x, filled, tag, dims, options)
    options = {**options, "dim": dims[0] if len(dims) == 1 else dims}
    if len(dims) == x.dim() and name in ONE_AXIS:
        del options["dim"]
        options.pop("keepdim", None)
    result = func(filled, *rest, **options)
    if not tag.may_be_empty(*dims) or _neutral(name, x.dtype, rest) in (0.0, 1.0):
        return result
    # Without any value: 0, and no gradient. The -inf of an empty maximum would become NaN in a layer behind it.
    empty = _count(tracker, tag, dims, x.device) == 0
    empty = empty if options.get("keepdim") else empty.squeeze(dims)
    if isinstance(result, Tensor):
        return result.masked_fill(empty, 0)
    return type(result)((result[0].masked_fill(empty, 0), result[1]))


def _neutral(name: str, dtype: torch.dtype, rest: Args) -> float:
    value = NEUTRAL[name]
    if name in ("norm", "vector_norm") and isinstance(rest[0], (int, float)) and rest[0] < 0:
        value = HIGHEST  # the smallest absolute value, or a mean of reciprocals
    if math.isinf(value) and not dtype.is_floating_point:
        limits = torch.iinfo(dtype) if dtype != torch.bool else None
        return float(value > 0) if limits is None else limits.min if value < 0 else limits.max
    return value


def _moments(
    tracker: Tracker, name: str, x: Tensor, filled: Tensor, tag: Tag, dims: tuple[int, ...], options: Kwargs
) -> Tensor:
    """Mean, variance or deviation: divided by the number of valid values."""
    keepdim = bool(options.get("keepdim", False))
    dtype = options.get("dtype") or x.dtype
    wide = torch.float32 if dtype in LOW else dtype  # as torch: a sum may be larger than the largest float16
    count = _count(tracker, tag, dims, x.device)
    moment = filled.sum(dims, keepdim=True, dtype=wide) / count.clamp(min=1)
    if name != "mean":
        correction = options.get("correction", 1)
        deviation = tracker.fill(x - moment, tag.having(Padding.ANY))
        degrees = (count - (1 if correction is None else correction)).clamp(min=0)
        moment = deviation.square().sum(dims, keepdim=True) / degrees
        if tag.may_be_empty(*dims):
            moment = moment.masked_fill(count == 0, 0)
        if name == "std":  # its gradient is 0 where it is 0, as torch's is
            moment = moment.masked_fill(moment == 0, 1).sqrt().masked_fill(moment == 0, 0)
    return (moment if keepdim else moment.squeeze(dims)).to(dtype)


def _count(tracker: Tracker, tag: Tag, dims: tuple[int, ...], device: torch.device) -> Tensor:
    """How many values each result is over, with axes of size 1: known from the lengths, without reading the mask."""
    factors = [factor for dim in dims for factor in tag.axes[dim]]
    per_sequence = torch.ones((), dtype=torch.int64, device=device)
    for factor in factors:
        if isinstance(factor.role, Gaps):
            per_sequence = per_sequence * factor.role.valid.sum(1).to(device)
        elif isinstance(factor.role, tuple):
            per_sequence = per_sequence * tracker.numbers_on(factor.role, device)
        elif factor.role is not BATCH:
            per_sequence = per_sequence * factor.size
    if any(factor.role is BATCH for factor in factors):
        return per_sequence.sum().reshape([1] * len(tag.axes))
    shape = [1] * len(tag.axes)
    if tag.batch is not None:
        shape[tag.batch] = -1
    return per_sequence.reshape(shape)
