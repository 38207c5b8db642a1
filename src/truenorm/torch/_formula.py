"""The definition in torch operations: every device, every order of derivative, every transform of `torch.func`.

Autograd differentiates it, so it computes what needs that: higher derivatives, transforms, gradients of statistics and
of sample_weight, and graphs. `_operations` has the first derivative written out. Names and rules are those of
`truenorm.core.reference`: elements that are not valid are removed by `where` before any arithmetic, sums are at least
float32, and a variance of 0 gives the bias and no gradient through the deviation.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.core.inputs import Padding
from truenorm.core.layout import Layout
from truenorm.core.norm import Norm
from truenorm.torch import _compat

LARGE, SCALE = 2.0**900, 2.0**-100  # as in truenorm.core.moments


@dataclass(eq=False)
class Segments:
    """Packed rows that share statistics with some others: those of a sample, or those of a position."""

    ids: Tensor  # (rows,): to which statistic each row belongs
    samples: int  # how many there are, at most


@dataclass(eq=False)
class Mask:
    """Which elements are valid, and how often each counts; both broadcast against `layout.split`. None: all, once."""

    norm: Norm
    layout: Layout
    valid: Tensor | None = None
    sample_weight: Tensor | None = None
    segments: Segments | None = None


@dataclass(eq=False)
class FixedStatistics:
    """Statistics that do not depend on x: of the shape of `layout.statistics`."""

    mean: Tensor
    var: Tensor


def normalize(
    x: Tensor, mask: Mask, weight: Tensor | None, bias: Tensor | None, fixed: FixedStatistics | None, padding: Padding
) -> tuple[Tensor, Tensor | None]:
    """y, and count, mean and m2 of each statistic side by side (..., 3), which carry no gradient; None where fixed."""
    selected = select(widen(x, mask), mask)
    if fixed is not None:
        mean, var = (one.to(selected.dtype).reshape(mask.layout.statistics_split) for one in (fixed.mean, fixed.var))
        return _apply(x, selected, mask, weight, bias, mean, rstd_of(var, mask.norm), padding), None
    count, mean, m2 = moments(selected, mask)
    y = _apply(x, selected, mask, weight, bias, mean, var_and_rstd(count, m2, mask.norm)[1], padding)
    return y, as_table(count, mean, m2).to(wire_dtype(x)).reshape(*statistics_shape(mask), 3)


def differentiable_gradients(
    dy: Tensor,
    x: Tensor,
    mask: Mask,
    weight: Tensor | None,
    bias: Tensor | None,
    fixed: FixedStatistics | None,
    padding: Padding,
    needed: tuple[bool, ...],
) -> tuple[Tensor | None, ...]:
    """dx, dweight and dbias with a graph of their own, for derivatives of higher order.

    bias: any of its form, unless there is an activation.
    """
    if bias is not None:
        bias = torch.zeros_like(bias).requires_grad_() if mask.norm.activation is None else bias.view_as(bias)
    # Aliases: gradients must not flow on to what weight was made of, and hooks must not run twice.
    x, weight = x.view_as(x), weight if weight is None else weight.view_as(weight)
    y, _ = normalize(x, mask, weight, bias, fixed, padding)
    inputs = [one for one, wanted in zip((x, weight, bias), needed, strict=False) if wanted and one is not None]
    derivatives = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
    return tuple(next(derivatives) if wanted else None for wanted in needed[:3])


def _apply(
    x: Tensor,
    selected: Tensor,
    mask: Mask,
    weight: Tensor | None,
    bias: Tensor | None,
    mean: Tensor,
    rstd: Tensor,
    padding: Padding,
) -> Tensor:
    """activation((x - mean) · rstd · weight + bias)"""
    layout, valid = mask.layout, mask.valid
    y = (selected - spread(center_of(mean, rstd), mask)) * spread(rstd, mask)
    y = y if valid is None else torch.where(valid, y, 0.0)  # 0 · NaN would reach the gradient of weight
    if weight is not None:
        y = y * weight.to(y.dtype).reshape(layout.weight_split)
    if bias is not None:
        y = y + bias.to(y.dtype).reshape(layout.weight_split)
    y = activate(mask.norm.activation, y)
    if valid is not None:
        y = torch.where(valid, y, widen(x, mask) if padding == "keep" else 0.0)
    return _compat.reshape(y, x.shape).to(x.dtype)


def activate(activation: str | None, z: Tensor) -> Tensor:
    """activation(z), as `truenorm.core.activation` defines it."""
    return z if activation is None else _ACTIVATIONS[activation](z)


_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}


def var_and_rstd(count: Tensor, m2: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """var and rstd; too few elements have an rstd of 0, so that y is the bias."""
    var = safe_divide(m2, count - norm.ddof)
    return var, torch.where(count > norm.ddof, rstd_of(var, norm), 0.0)


def as_table(count: Tensor, mean: Tensor, m2: Tensor) -> Tensor:
    """Side by side (..., 3), without a gradient."""
    return torch.stack([count.expand(mean.shape), mean, m2], -1).detach()


def slope_and_offset(
    fixed: FixedStatistics, norm: Norm, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """A normalization with fixed statistics as slope · x + offset, one of each a statistic.

    The layers compute (x - mean) · rstd · weight + bias instead, in which a constant channel gives exactly its bias.
    """
    rstd = rstd_of(fixed.var, norm)
    slope = rstd if weight is None else rstd * weight
    offset = -center_of(fixed.mean, rstd) * slope
    return slope, offset if bias is None else offset + bias


def merge_tables(tables: Tensor) -> Tensor:
    """(parts, channels, 3) -> (channels, 3): `truenorm.core.moments.merge` for tensors, in float64."""
    count, mean, m2 = tables.to(wire_dtype(tables)).unbind(-1)
    some = count > 0
    mean, m2 = torch.where(some, mean, 0.0), torch.where(some, m2, 0.0)
    total = count.sum(0)
    scale = torch.where(mean.abs().amax(0) > LARGE, SCALE, 1.0).to(mean.dtype)
    mean = mean * scale
    center = torch.where(total > 0, torch.where(some, mean, -torch.inf).amax(0), 0.0)
    for _ in range(2):  # twice, so that equal means have exactly that mean
        center = center + safe_divide((count * torch.where(some, mean - center, 0.0)).sum(0), total)
    between = (count * torch.where(some, mean - center, 0.0) ** 2).sum(0) / (scale * scale)
    return torch.stack([total, center / scale, m2.sum(0) + between], -1)


def widen(x: Tensor, mask: Mask) -> Tensor:
    """x as it is computed with."""
    return x.reshape(mask.layout.split).to(working_dtype(x))


def select(values: Tensor, mask: Mask) -> Tensor:
    return values if mask.valid is None else torch.where(mask.valid, values, 0.0)


def moments(x: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
    """count, mean and m2, which broadcast against x. `x` is 0 where it is not mask."""
    weight = mask.sample_weight
    if weight is not None:
        x = torch.where(weight > 0, x, 0.0)  # elements of weight 0 are not read
        weight = weight.to(x.dtype)
        weight = weight if mask.valid is None else torch.where(mask.valid, weight, 0.0)
    count = count_of(x, mask, x.dtype)

    def weighted_total(values: Tensor) -> Tensor:
        return total(values if weight is None else weight * values, mask)

    if not mask.norm.center:
        squares = weighted_total(x * x)
        return count, torch.zeros_like(squares), squares
    scale = _scale(x, mask)
    scaled = x * spread(scale, mask)
    # Twice, so that the mean of equal values is exactly their value. The first mean only moves the origin.
    about = safe_divide(weighted_total(scaled), count).detach()
    mean = about + safe_divide(weighted_total(_selected(scaled - spread(about, mask), mask)), count)
    centered = _selected(scaled - spread(mean, mask), mask)
    return count, mean / scale, weighted_total(centered * centered) / (scale * scale)


def count_of(x: Tensor, mask: Mask, dtype: torch.dtype) -> Tensor:
    """The number of valid elements, or the sum of their weights."""
    layout = mask.layout
    weight = mask.sample_weight if mask.sample_weight is not None else mask.valid
    if weight is not None:
        weight = weight.to(dtype)
        weight = weight if mask.valid is None else torch.where(mask.valid, weight, 0.0)
        if mask.segments is not None:
            return total(weight.expand(layout.split), mask)
        # Along the other axes the mask is constant: multiplied by their size, not expanded.
        own = tuple(i for i in layout.reduced if type(weight.shape[i]) is not int or weight.shape[i] != 1)
        return total(weight, mask, own) * math.prod(layout.split[i] for i in layout.reduced if i not in own)
    if mask.segments is not None:
        return total(x.new_ones((), dtype=dtype).expand(layout.split), mask)
    return x.new_full((1,) * len(layout.split), math.prod(layout.split[i] for i in layout.reduced), dtype=dtype)


def _selected(values: Tensor, mask: Mask) -> Tensor:
    """0 where not valid, or of weight 0."""
    values = values if mask.valid is None else torch.where(mask.valid, values, 0.0)
    return values if mask.sample_weight is None else torch.where(mask.sample_weight > 0, values, 0.0)


def _scale(x: Tensor, mask: Mask) -> Tensor:
    """2^-100 for statistics of values so large that their sum could overflow, else 1: as in the reference."""
    if x.dtype != torch.float64 or x.numel() == 0:
        return x.new_ones((1,) * x.dim())
    size, layout, segments = x.detach().abs(), mask.layout, mask.segments
    if segments is None:
        largest = size.amax(layout.reduced, keepdim=True) if layout.reduced else size
    else:
        rows = size[0]
        ids = segments.ids.reshape(-1, *[1] * (rows.dim() - 1)).expand(rows.shape)
        largest = rows.new_zeros(segments.samples, *rows.shape[1:]).scatter_reduce(0, ids, rows, "amax")
        others = [i - 1 for i in layout.reduced if i > 1]
        largest = (largest.amax(others, keepdim=True) if others else largest)[:, None]
    return torch.where(largest > torch.finfo(x.dtype).max * 2.0**-100, 2.0**-100, 1.0).to(x.dtype)


def center_of(mean: Tensor, rstd: Tensor) -> Tensor:
    """What is subtracted from x. Without a deviation every finite x gives 0, also where x - mean would overflow."""
    return torch.where(rstd == 0, 0.0, mean)


def rstd_of(var: Tensor, norm: Norm) -> Tensor:
    """1 / sqrt(var + eps), or 1 / (sqrt(var) + eps); 0 where that is 1 / 0 or 1 / inf, and without a gradient there."""
    if norm.eps_at == "std":
        some = ~((var <= 0) | (var == math.inf))  # NaN stays NaN
        inside = torch.where(some, var, 1.0)
        std = inside.detach().sqrt() * _relative(inside).sqrt()
        under = torch.where(some, std, torch.where(var <= 0, 0.0, var)) + norm.eps
        some = ~((under <= 0) | (under == math.inf))
        inside = torch.where(some, under, 1.0)
        return torch.where(some, inside.detach().reciprocal() * _relative(inside).reciprocal(), 0.0)
    under = var + norm.eps
    some = ~((under <= 0) | (under == math.inf))
    inside = torch.where(some, under, 1.0)
    return torch.where(some, inside.detach().rsqrt() * _relative(inside).rsqrt(), 0.0)


def _relative(values: Tensor) -> Tensor:
    """1, with the gradient of values / constant. A power of it has the derivatives of that power, but no rstd³ in
    them, which float64 does not hold for deviations beyond 1e±103."""
    return values / values.detach()


def safe_divide(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and 0 where below is not above 0: also in the gradient. NaN stays NaN."""
    some = ~(below <= 0)
    return torch.where(some, above / torch.where(some, below, 1.0), 0.0)


def working_dtype(x: Tensor) -> torch.dtype:
    """What is computed in: float64 on the CPU, as everywhere in truenorm; elsewhere at least float32, as in exported
    programs, which may run anywhere."""
    wide = x.dtype == torch.float64 or (x.device.type == "cpu" and not _compat.is_exporting())
    return torch.float64 if wide else torch.float32


def wire_dtype(values: Tensor) -> torch.dtype:
    """What moments are merged and sent in: float64, where the device has it. Counts up to 2^53 are exact."""
    return torch.float32 if values.device.type == "mps" else torch.float64


def statistics_shape(mask: Mask) -> tuple[int, ...]:
    found = mask.layout.statistics
    return found if mask.segments is None else (mask.segments.samples, *found[1:])


def total(values: Tensor, mask: Mask, axes: tuple[int, ...] | None = None) -> Tensor:
    """The sum for each statistic, or over some of its axes, with these kept as ones."""
    axes, segments = mask.layout.reduced if axes is None else axes, mask.segments
    if segments is None:
        return values.sum(axes, keepdim=True) if axes else values
    rows = values[0]  # (1, rows, ...)
    sums = rows.new_zeros(segments.samples, *rows.shape[1:]).index_add(0, segments.ids, rows)
    others = [i - 1 for i in axes if i > 1]
    return (sums.sum(others, keepdim=True) if others else sums)[:, None]


def spread(statistic: Tensor, mask: Mask) -> Tensor:
    """A statistic as it broadcasts against x."""
    if mask.segments is None or statistic.shape[0] != mask.segments.samples:
        return statistic
    return statistic[:, 0].index_select(0, mask.segments.ids)[None]
