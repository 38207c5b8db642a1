"""The definition in torch operations: every device, every order of derivative, every transform of `torch.func`.

It is what the compiled kernels are held to where autograd has to look inside, and what runs where they do not. The
names are those of `truenorm.core.reference`, and so are the rules: what is not real is left out by `where` before any
arithmetic, sums are at least float32, and a variance of 0 gives the bias and no gradient through the deviation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.core.layout import Layout
from truenorm.core.norm import Norm


@dataclass(eq=False)
class Segments:
    """Packed rows that have statistics of their own: `ids` says to which of the samples each row belongs."""

    ids: Tensor  # (rows,)
    samples: int


@dataclass(eq=False)
class Real:
    """Which elements are real, and how often each counts; both broadcast against `layout.split`, None is: all, once."""

    norm: Norm
    layout: Layout
    valid: Tensor | None = None
    times: Tensor | None = None
    segments: Segments | None = None


@dataclass(eq=False)
class Fixed:
    """Statistics that do not depend on x: of the shape of `layout.statistics`."""

    mean: Tensor
    var: Tensor


def normalize(
    x: Tensor, real: Real, weight: Tensor | None, bias: Tensor | None, fixed: Fixed | None, padding: Padding
) -> tuple[Tensor, Tensor | None]:
    """y, and count, mean and m2 of each statistic side by side (..., 3), which carry no gradient; None where fixed."""
    norm, layout, valid = real.norm, real.layout, real.valid
    wide = x.reshape(layout.split).to(working_dtype(x))
    selected = wide if valid is None else torch.where(valid, wide, 0.0)
    table = None
    if fixed is None:
        count, mean, m2 = moments(selected, real)
        var = safe_divide(m2, count - norm.ddof)
        table = torch.stack([count.expand(mean.shape), mean, m2], -1).detach().reshape(*_statistics(real), 3)
    else:
        mean, var = (one.to(wide.dtype).reshape(layout.statistics_split) for one in (fixed.mean, fixed.var))
    y = (selected - _spread(mean, real)) * _spread(rstd_of(var, norm), real)
    if weight is not None:
        y = y * weight.to(y.dtype).reshape(layout.weight_split)
    if bias is not None:
        y = y + bias.to(y.dtype).reshape(layout.weight_split)
    if valid is not None:
        y = torch.where(valid, y, wide if padding == "keep" else 0.0)
    return y.reshape(x.shape).to(x.dtype), table


def gradients(
    dy: Tensor,
    x: Tensor,
    real: Real,
    weight: Tensor | None,
    bias: Tensor | None,
    fixed: Fixed | None,
    padding: Padding,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """dx, dweight and dbias by the formula, where autograd cannot look: inside an operator, or on many dy at once.

    dx = rstd · (dxhat - s · Σ dxhat / n - s · xhat · Σ (dxhat · xhat) / (n - ddof)), s: how often an element counts
    """
    norm, layout, valid = real.norm, real.layout, real.valid
    wide, dwide = (one.reshape(layout.split).to(working_dtype(x)) for one in (x, dy))
    selected, dselected = (one if valid is None else torch.where(valid, one, 0.0) for one in (wide, dwide))
    if fixed is None:
        count, mean, m2 = moments(selected, real)
        var = safe_divide(m2, count - norm.ddof)
    else:
        mean, var = (one.to(wide.dtype).reshape(layout.statistics_split) for one in (fixed.mean, fixed.var))
    rstd = _spread(rstd_of(var, norm), real)
    xhat = (selected - _spread(mean, real)) * rstd
    xhat = xhat if valid is None else torch.where(valid, xhat, 0.0)
    dxhat = dselected if weight is None else dselected * weight.to(wide.dtype).reshape(layout.weight_split)
    dx = dxhat
    if fixed is None:
        times = 1.0 if real.times is None else real.times.to(wide.dtype)
        if norm.center:
            dx = dx - times * _spread(safe_divide(_total(dxhat, real), count), real)
        inner = safe_divide(_total(dxhat * xhat, real), count - norm.ddof)
        if norm.eps_at == "std":  # the deviation, not its square, is what eps was added to
            inner = inner * safe_divide(var.sqrt() + norm.eps, var.sqrt())
        dx = dx - times * xhat * _spread(inner, real)
    dx = dx * rstd
    if valid is not None:
        dx = torch.where(valid, dx, dwide if padding == "keep" else 0.0)
    parts = [
        None
        if like is None
        else (of.sum(layout.unweighted) if layout.unweighted else of).reshape(like.shape).to(like.dtype)
        for like, of in ((weight, dselected * xhat), (bias, dselected))
    ]
    return dx.reshape(x.shape).to(x.dtype), parts[0], parts[1]


def moments(x: Tensor, real: Real) -> tuple[Tensor, Tensor, Tensor]:
    """count, mean and m2, which broadcast against x. `x` is 0 where it is not real."""
    layout = real.layout
    weight = real.times if real.times is not None else real.valid
    if real.times is not None:
        x = torch.where(real.times > 0, x, 0.0)  # what counts for nothing is not read
    if weight is not None:
        weight = weight.to(x.dtype)
        weight = weight if real.valid is None else torch.where(real.valid, weight, 0.0)
        count = _total(weight.expand(layout.split), real)
    elif real.segments is not None:
        count = _total(x.new_ones(()).expand(layout.split), real)
    else:
        count = x.new_full((1,) * len(layout.split), math.prod(layout.split[i] for i in layout.reduced))

    def total(values: Tensor) -> Tensor:
        return _total(values if weight is None else weight * values, real)

    mean = safe_divide(total(x), count) if real.norm.center else torch.zeros_like(total(x))
    centered = x - _spread(mean, real)
    if real.valid is not None:
        centered = torch.where(real.valid, centered, 0.0)
    return count, mean, total(centered * centered)


def rstd_of(var: Tensor, norm: Norm) -> Tensor:
    """1 / sqrt(var + eps), or 1 / (sqrt(var) + eps); 0 where that is 1 / 0, and without a gradient there."""
    if norm.eps_at == "std":
        some = var > 0
        under = torch.where(some, torch.where(some, var, 1.0).sqrt(), 0.0) + norm.eps
        return safe_divide(torch.ones_like(under), under)
    under = var + norm.eps
    some = under > 0
    return torch.where(some, torch.where(some, under, 1.0).rsqrt(), 0.0)


def safe_divide(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and 0 where below is not above 0: also in the gradient."""
    some = below > 0
    return torch.where(some, above / torch.where(some, below, 1.0), 0.0)


def working_dtype(x: Tensor) -> torch.dtype:
    """What is computed in: float64 on the CPU, as everywhere in truenorm; elsewhere at least float32."""
    return torch.float64 if x.device.type == "cpu" or x.dtype == torch.float64 else torch.float32


def _statistics(real: Real) -> tuple[int, ...]:
    found = real.layout.statistics
    return found if real.segments is None else (real.segments.samples, *found[1:])


def _total(values: Tensor, real: Real) -> Tensor:
    """The sum for each statistic, with the axes kept as ones."""
    layout, segments = real.layout, real.segments
    if segments is None:
        return values.sum(layout.reduced, keepdim=True) if layout.reduced else values
    rows = values[0]  # (1, rows, ...)
    sums = rows.new_zeros(segments.samples, *rows.shape[1:]).index_add(0, segments.ids, rows)
    others = [i - 1 for i in layout.reduced if i > 1]
    return (sums.sum(others, keepdim=True) if others else sums)[:, None]


def _spread(statistic: Tensor, real: Real) -> Tensor:
    """A statistic as it broadcasts against x."""
    if real.segments is None or statistic.shape[0] != real.segments.samples:
        return statistic
    return statistic[:, 0].index_select(0, real.segments.ids)[None]
