"""The definition in torch operations: every device, every order of derivative, every transform of `torch.func`.

It computes what the compiled kernels do not: other devices, higher derivatives, patterns without a kernel. Names and
rules are those of `truenorm.core.reference`: elements that are not valid are removed by `where` before any arithmetic,
sums are at least float32, and a variance of 0 gives the bias and no gradient through the deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.core.layout import Layout
from truenorm.core.norm import Norm

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
    selected = _select(_widen(x, mask), mask)
    if fixed is not None:
        mean, var = (one.to(selected.dtype).reshape(mask.layout.statistics_split) for one in (fixed.mean, fixed.var))
        return _apply(x, selected, mask, weight, bias, mean, rstd_of(var, mask.norm), padding), None
    count, mean, m2 = moments(selected, mask)
    y = _apply(x, selected, mask, weight, bias, mean, _deviation(count, m2, mask.norm)[1], padding)
    return y, _table(count, mean, m2).reshape(*_statistics(mask), 3)


def normalize_part(
    x: Tensor, mask: Mask, weight: Tensor | None, bias: Tensor | None, table: Tensor, padding: Padding
) -> Tensor:
    """y, with the moments (statistics, 3) of a whole that x is a part of."""
    count, mean, m2 = _columns(table, x, mask)
    selected = _select(_widen(x, mask), mask)
    return _apply(x, selected, mask, weight, bias, mean, _deviation(count, m2, mask.norm)[1], padding)


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
    """(x - mean) · rstd · weight + bias"""
    layout, valid = mask.layout, mask.valid
    y = (selected - _spread(_center(mean, rstd), mask)) * _spread(rstd, mask)
    y = y if valid is None else torch.where(valid, y, 0.0)  # 0 · NaN would reach the gradient of weight
    if weight is not None:
        y = y * weight.to(y.dtype).reshape(layout.weight_split)
    if bias is not None:
        y = y + bias.to(y.dtype).reshape(layout.weight_split)
    if valid is not None:
        y = torch.where(valid, y, _widen(x, mask) if padding == "keep" else 0.0)
    return y.reshape(x.shape).to(x.dtype)


def _deviation(count: Tensor, m2: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """var and rstd; too few elements have an rstd of 0, so that y is the bias."""
    var = safe_divide(m2, count - norm.ddof)
    return var, torch.where(count > norm.ddof, rstd_of(var, norm), 0.0)


def _table(count: Tensor, mean: Tensor, m2: Tensor) -> Tensor:
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
    offset = -_center(fixed.mean, rstd) * slope
    return slope, offset if bias is None else offset + bias


def gradients(
    dy: Tensor,
    x: Tensor,
    mask: Mask,
    weight: Tensor | None,
    bias: Tensor | None,
    fixed: FixedStatistics | None,
    padding: Padding,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx, dweight and dbias by the formula, where autograd cannot look: inside an operator, or on many dy at once."""
    measured = moments(_select(_widen(x, mask), mask), mask) if fixed is None else None
    terms = _terms(dy, x, mask, weight, measured, fixed)
    sums = None if fixed is not None else _sums(terms, mask)
    return _dx(terms, sums, x, mask, padding), *_parameter_gradients(terms, mask, weight, bias)


def backward_sums(
    dy: Tensor, x: Tensor, mask: Mask, weight: Tensor | None, bias: Tensor | None, table: Tensor
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """Σ dxhat and Σ dxhat · xhat of each statistic side by side (statistics, 2), dweight and dbias.

    table (statistics, 3): of x, or of a whole that x is a part of
    """
    terms = _terms(dy, x, mask, weight, _columns(table, x, mask), None)
    sums = torch.stack([one.reshape(-1) for one in _sums(terms, mask)], -1)
    return sums, *_parameter_gradients(terms, mask, weight, bias)


def backward(
    dy: Tensor, x: Tensor, mask: Mask, weight: Tensor | None, table: Tensor, sums: Tensor, padding: Padding
) -> Tensor:
    """dx, with the moments and sums of a whole that x is a part of."""
    terms = _terms(dy, x, mask, weight, _columns(table, x, mask), None)
    return _dx(terms, _columns(sums, x, mask), x, mask, padding)


def _columns(table: Tensor, x: Tensor, mask: Mask) -> tuple[Tensor, ...]:
    """The columns of a table with a row for each statistic, as they broadcast against x."""
    return tuple(one.reshape(mask.layout.statistics_split) for one in table.to(working_dtype(x)).unbind(-1))


@dataclass(eq=False)
class _Terms:
    """What all gradients are made of. count and var belong to statistics, the others broadcast against x."""

    count: Tensor | None  # None: the statistics are fixed
    var: Tensor
    rstd: Tensor
    xhat: Tensor
    dy: Tensor  # wide
    dselected: Tensor  # 0 where not valid
    dxhat: Tensor


def _terms(
    dy: Tensor,
    x: Tensor,
    mask: Mask,
    weight: Tensor | None,
    measured: tuple[Tensor, ...] | None,
    fixed: FixedStatistics | None,
) -> _Terms:
    """measured: count, mean and m2, unless the statistics are fixed."""
    norm, layout, valid = mask.norm, mask.layout, mask.valid
    wide, dwide = (_widen(one, mask, x) for one in (x, dy))
    selected, dselected = _select(wide, mask), _select(dwide, mask)
    count = None
    if measured is not None:
        count, mean, m2 = measured
        var, rstd = _deviation(count, m2, norm)
    else:
        assert fixed is not None
        mean, var = (one.to(wide.dtype).reshape(layout.statistics_split) for one in (fixed.mean, fixed.var))
        rstd = rstd_of(var, norm)
    mean, rstd = _spread(_center(mean, rstd), mask), _spread(rstd, mask)
    xhat = (selected - mean) * rstd
    xhat = xhat if valid is None else torch.where(valid, xhat, 0.0)
    dxhat = dselected if weight is None else dselected * weight.to(wide.dtype).reshape(layout.weight_split)
    return _Terms(count, var, rstd, xhat, dwide, dselected, dxhat)


def _sums(terms: _Terms, mask: Mask) -> tuple[Tensor, ...]:
    return _total(terms.dxhat, mask), _total(terms.dxhat * terms.xhat, mask)


def _dx(terms: _Terms, sums: tuple[Tensor, ...] | None, x: Tensor, mask: Mask, padding: Padding) -> Tensor:
    """rstd · (dxhat - s · Σ dxhat / n - s · xhat · Σ (dxhat · xhat) / (n - ddof)), s: how often an element counts"""
    norm, dx = mask.norm, terms.dxhat
    if sums is not None and terms.count is not None:
        shared = torch.zeros_like(dx)
        if norm.center:
            shared = shared + _spread(safe_divide(sums[0], terms.count), mask)
        inner = safe_divide(sums[1], terms.count - norm.ddof)
        if norm.eps_at == "std":  # the deviation, not its square, is what eps was added to
            std = terms.var.sqrt()
            inner = inner * torch.where(std > 0, 1 + safe_divide(torch.full_like(std, norm.eps), std), 0.0)
        shared = shared + terms.xhat * _spread(inner, mask)
        if mask.sample_weight is not None:  # 0 times an infinite sum is 0 here
            counts = mask.sample_weight.to(dx.dtype)
            shared = torch.where(counts == 0, 0.0, counts * shared)
        dx = dx - shared
    dx = dx * terms.rstd
    if mask.valid is not None:
        dx = torch.where(mask.valid, dx, terms.dy if padding == "keep" else 0.0)
    return dx.reshape(x.shape).to(x.dtype)


def _parameter_gradients(
    terms: _Terms, mask: Mask, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    axes = mask.layout.unweighted
    dweight, dbias = (
        None if like is None else (of.sum(axes) if axes else of).reshape(like.shape).to(like.dtype)
        for like, of in ((weight, terms.dselected * terms.xhat), (bias, terms.dselected))
    )
    return dweight, dbias


def measure(x: Tensor, mask: Mask) -> Tensor:
    """count, mean and m2 of each statistic side by side (statistics, 3), without a gradient, to be merged."""
    wide = _widen(x, mask)
    count, mean, m2 = moments(_select(wide, mask), mask)
    dtype = wire_dtype(x)
    if count.dtype != dtype:  # float32 counts up to 2^24
        count = _count(wide, mask, dtype)
    return _table(count, mean.to(dtype), m2.to(dtype)).reshape(-1, 3)


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


def _widen(values: Tensor, mask: Mask, x: Tensor | None = None) -> Tensor:
    """x, or an array of its shape, as it is computed with."""
    return values.reshape(mask.layout.split).to(working_dtype(values if x is None else x))


def _select(values: Tensor, mask: Mask) -> Tensor:
    return values if mask.valid is None else torch.where(mask.valid, values, 0.0)


def moments(x: Tensor, mask: Mask) -> tuple[Tensor, Tensor, Tensor]:
    """count, mean and m2, which broadcast against x. `x` is 0 where it is not mask."""
    weight = mask.sample_weight if mask.sample_weight is not None else mask.valid
    if mask.sample_weight is not None:
        x = torch.where(mask.sample_weight > 0, x, 0.0)  # elements of weight 0 are not read
    if weight is not None:
        weight = weight.to(x.dtype)
        weight = weight if mask.valid is None else torch.where(mask.valid, weight, 0.0)
    count = _count(x, mask, x.dtype)

    def total(values: Tensor) -> Tensor:
        return _total(values if weight is None else weight * values, mask)

    if not mask.norm.center:
        squares = total(x * x)
        return count, torch.zeros_like(squares), squares
    scale = _scale(x, mask)
    scaled = x * _spread(scale, mask)
    # Twice, so that the mean of equal values is exactly their value. The first mean only moves the origin.
    about = safe_divide(total(scaled), count).detach()
    mean = about + safe_divide(total(_selected(scaled - _spread(about, mask), mask)), count)
    centered = _selected(scaled - _spread(mean, mask), mask)
    return count, mean / scale, total(centered * centered) / (scale * scale)


def _count(x: Tensor, mask: Mask, dtype: torch.dtype) -> Tensor:
    """The number of valid elements, or the sum of their weights."""
    layout = mask.layout
    weight = mask.sample_weight if mask.sample_weight is not None else mask.valid
    if weight is not None:
        weight = weight.to(dtype)
        weight = weight if mask.valid is None else torch.where(mask.valid, weight, 0.0)
        return _total(weight.expand(layout.split), mask)
    if mask.segments is not None:
        return _total(x.new_ones((), dtype=dtype).expand(layout.split), mask)
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


def _center(mean: Tensor, rstd: Tensor) -> Tensor:
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
    """What is computed in: float64 on the CPU, as everywhere in truenorm; elsewhere at least float32."""
    return torch.float64 if x.device.type == "cpu" or x.dtype == torch.float64 else torch.float32


def wire_dtype(values: Tensor) -> torch.dtype:
    """What moments are merged and sent in: float64, where the device has it. Counts up to 2^53 are exact."""
    return torch.float32 if values.device.type == "mps" else torch.float64


def _statistics(mask: Mask) -> tuple[int, ...]:
    found = mask.layout.statistics
    return found if mask.segments is None else (mask.segments.samples, *found[1:])


def _total(values: Tensor, mask: Mask) -> Tensor:
    """The sum for each statistic, with the axes kept as ones."""
    layout, segments = mask.layout, mask.segments
    if segments is None:
        return values.sum(layout.reduced, keepdim=True) if layout.reduced else values
    rows = values[0]  # (1, rows, ...)
    sums = rows.new_zeros(segments.samples, *rows.shape[1:]).index_add(0, segments.ids, rows)
    others = [i - 1 for i in layout.reduced if i > 1]
    return (sums.sum(others, keepdim=True) if others else sums)[:, None]


def _spread(statistic: Tensor, mask: Mask) -> Tensor:
    """A statistic as it broadcasts against x."""
    if mask.segments is None or statistic.shape[0] != mask.segments.samples:
        return statistic
    return statistic[:, 0].index_select(0, mask.segments.ids)[None]


# ---- a part of a batch ----


@dataclass(eq=False)
class FormulaVerbs:
    """What `_pooled` calls, for one x that is a part of a batch."""

    mask: Mask
    padding: Padding

    def measure(self, x: Tensor) -> Tensor:
        return measure(x, self.mask)

    def forward(self, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return normalize_part(x, self.mask, weight, bias, table, self.padding)

    def backward_sums(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        sums, dweight, dbias = backward_sums(dy, x, self.mask, weight, bias, table)
        return sums.to(table.dtype), dweight, dbias

    def backward(self, dy: Tensor, x: Tensor, table: Tensor, sums: Tensor, weight: Tensor | None) -> Tensor:
        return backward(dy, x, self.mask, weight, table, sums, self.padding)
