"""Forward and backward written out in torch operations: what computes on every device, if no kernel does.

    y  = (x - mean) · rstd · weight + bias
    dx = rstd · (dxhat - Σ dxhat / n - xhat · Σ (dxhat · xhat) / (n - ddof)),    dxhat = dy · weight

Between forward and backward only x, weight and the moments are kept. Under autograd, the definition in `_formula` keeps
three tensors of the size of x, and passes over it three times as often. These are the ideas:

* Operators that read or write tensors of the size of x are in `_passes`, and there are few of them.
* The mean is in two parts, `origin + rest`. float32 holds the difference between x and a float near the mean exactly,
  or nearly so; what the origin is off by is subtracted from that.
* m2 is that of all positions, with zeros for padding, minus what the zeros add. As the origin is the mean up to its
  last digits, this is a correction of rounding errors, and not the difference of two large numbers.
* Everything else is a scalar for each statistic or channel, and is computed beforehand.

Values are never read, so nothing waits for a device. Derivatives of these derivatives are those of the definition.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.core.norm import Norm
from truenorm.torch import _formula
from truenorm.torch._formula import FixedStatistics, Mask, activate, as_table, center_of, spread, total
from truenorm.torch._passes import finish, is_in_place, scale_and_add, select, subtract, total_product

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # dx, dweight, dbias


@dataclass(frozen=True, eq=False)
class Statistics:
    """What x is normalized with: a number for each statistic, which broadcasts against x."""

    origin: Tensor | None  # None: x is not centered
    rest: Tensor | None  # mean - origin; None: 0
    var: Tensor
    rstd: Tensor
    count: Tensor | None = None  # None: the statistics are fixed


# ---- statistics ----


def fixed_statistics(fixed: FixedStatistics, x: Tensor, mask: Mask) -> Statistics:
    dtype = _formula.working_dtype(x)
    mean, var = (one.detach().to(dtype).reshape(mask.layout.statistics_split) for one in (fixed.mean, fixed.var))
    rstd = _formula.rstd_of(var, mask.norm)
    return Statistics(center_of(mean, rstd), None, var, rstd)


def given_statistics(table: Tensor, x: Tensor, mask: Mask) -> Statistics:
    """Those of a table (statistics, 3): of x, or of a whole that x is a part of."""
    dtype, wide = _formula.working_dtype(x), _formula.wire_dtype(x)
    count, mean, m2 = _columns(table.to(wide).reshape(-1, 3), mask)
    var, rstd = _var_and_rstd(count, m2, mask.norm)
    if not mask.norm.center:
        return Statistics(None, None, var.to(dtype), rstd.to(dtype), count.to(dtype))
    mean = center_of(mean, rstd)
    origin = mean.to(dtype)
    rest = None if dtype == wide else (mean - origin.to(wide)).to(dtype)
    return Statistics(origin, rest, var.to(dtype), rstd.to(dtype), count.to(dtype))


def _var_and_rstd(count: Tensor, m2: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """`_formula.var_and_rstd` without what its derivatives need: each operation on a device takes time."""
    few = count <= norm.ddof
    var = torch.where(few, 0.0, m2 / (count - norm.ddof))
    under = (var.sqrt() if norm.eps_at == "std" else var) + norm.eps
    rstd = under.reciprocal() if norm.eps_at == "std" else under.rsqrt()
    return var, torch.where(few if norm.eps > 0 else few | (under <= 0), 0.0, rstd)


def _divide(above: Tensor, below: Tensor) -> Tensor:
    """above / below, and 0 where below is not above 0. NaN stays NaN."""
    return torch.where(below <= 0, 0.0, above / below)


def _columns(table: Tensor, mask: Mask) -> tuple[Tensor, ...]:
    """The columns of a table with a row for each statistic, as they broadcast against x."""
    shape = mask.layout.statistics_split
    if mask.segments is not None:
        shape = (mask.segments.samples, 1, *shape[2:])
    return tuple(one.reshape(shape) for one in table.unbind(-1))


def measure(x: Tensor, mask: Mask) -> Tensor:
    """count, mean and m2 of each statistic side by side (statistics, 3), to be merged."""
    return _measure(x, select(x, x, mask), mask)[0].reshape(-1, 3)


def _measure(x: Tensor, selected: Tensor, mask: Mask) -> tuple[Tensor, Statistics | None, Tensor | None]:
    """The table, the statistics, and x - origin; None for these two if they have to be made from the table."""
    wide = _formula.wire_dtype(x)
    count = _formula.count_of(selected, mask, wide)
    if x.dtype == torch.float64 or mask.segments is not None or mask.sample_weight is not None or not x.numel():
        # The definition: sums of float64 may overflow, and the others need more than plain sums.
        _, mean, m2 = _formula.moments(selected, mask)
        return _shaped(as_table(count, mean.to(wide), m2.to(wide)), mask), None, None
    if not mask.norm.center:
        m2 = total_product(selected, selected, mask).to(wide)
        var, rstd = (one.to(selected.dtype) for one in _var_and_rstd(count, m2, mask.norm))
        found = Statistics(None, None, var, rstd, count.to(selected.dtype))
        return _shaped(as_table(count, torch.zeros_like(m2), m2), mask), found, selected
    n = count.to(selected.dtype)
    origin = _divide(total(selected, mask), n)
    deviations = subtract(selected, origin, mask)
    rest, m2 = _rest_and_m2(deviations, n, mask)
    var, rstd = (one.to(n.dtype) for one in _var_and_rstd(count, m2.to(wide), mask.norm))
    mean = origin.to(wide) + rest.to(wide)
    table = as_table(count, mean, m2.to(wide).expand(mean.shape))
    # Without a deviation y is the bias. `rest` may be off by a rounding error, which 1 / sqrt(eps) would show.
    return _shaped(table, mask), Statistics(origin, rest, var, torch.where(m2 == 0, 0.0, rstd), n), deviations


def _rest_and_m2(deviations: Tensor, count: Tensor, mask: Mask) -> tuple[Tensor, Tensor]:
    """The mean of deviations from an origin that is close to it, and m2. They are 0 where not valid."""
    if deviations.dtype == torch.float64 or not mask.layout.reduced:  # of narrower x: the origin is the mean
        return torch.zeros_like(count), total_product(deviations, deviations, mask)
    var, mean = torch.var_mean(deviations, mask.layout.reduced, correction=0, keepdim=True)
    size = deviations.numel() // max(var.numel(), 1)
    m2 = var * size
    if mask.valid is None:
        return mean, m2
    rest = _divide(mean * size, count)
    added = rest * mean * (size - count)  # by the zeros
    m2 = m2 - added
    noise = 64 * torch.finfo(m2.dtype).eps
    return rest, torch.where(m2 <= noise * added, 0.0, m2)


def _shaped(table: Tensor, mask: Mask) -> Tensor:
    return table.reshape(*_formula.statistics_shape(mask), 3)


def _covers_elements(mask: Mask) -> bool:
    """Whether weight has a value for each element of a statistic, so that weight · rstd would have the size of x."""
    axes = mask.layout.axes
    return all(axes[i].weighted or axes[i].size == 1 for i in mask.layout.reduced)


# ---- forward ----


def forward(
    x: Tensor, mask: Mask, weight: Tensor | None, bias: Tensor | None, fixed: FixedStatistics | None, padding: Padding
) -> tuple[Tensor, Tensor | None]:
    """y, and the table of moments; None where the statistics are fixed."""
    selected = select(x, x, mask)
    table, deviations = None, None
    if fixed is not None:
        statistics = fixed_statistics(fixed, x, mask)
    else:
        table, found, deviations = _measure(x, selected, mask)
        statistics = given_statistics(table, x, mask) if found is None else found
    if deviations is None:
        deviations = subtract(selected, statistics.origin, mask)
    return _apply(x, deviations, statistics, mask, weight, bias, padding), table


def forward_part(
    x: Tensor, mask: Mask, weight: Tensor | None, bias: Tensor | None, table: Tensor, padding: Padding
) -> Tensor:
    """y, with the moments (statistics, 3) of a whole that x is a part of."""
    statistics = given_statistics(table, x, mask)
    deviations = subtract(select(x, x, mask), statistics.origin, mask)
    return _apply(x, deviations, statistics, mask, weight, bias, padding)


def _apply(
    x: Tensor,
    deviations: Tensor,
    statistics: Statistics,
    mask: Mask,
    weight: Tensor | None,
    bias: Tensor | None,
    padding: Padding,
) -> Tensor:
    z = _affine(deviations, statistics, mask, weight, bias, overwrite=True)
    return finish(activate(mask.norm.activation, z), x, mask, x, padding)


def _affine(
    deviations: Tensor,
    statistics: Statistics,
    mask: Mask,
    weight: Tensor | None,
    bias: Tensor | None,
    overwrite: bool = False,
) -> Tensor:
    """What the activation takes, or y if there is none. overwrite: the deviations, in place."""
    scale, rest = spread(statistics.rstd, mask), statistics.rest
    offset = None if rest is None else -spread(rest * statistics.rstd, mask)
    weight, bias = (_parameter(one, deviations, mask) for one in (weight, bias))
    y = deviations
    if weight is not None and _covers_elements(mask):
        y, scale, offset, overwrite = scale_and_add(y, scale, offset, overwrite), weight, None, True
    elif weight is not None:
        scale, offset = scale * weight, None if offset is None else offset * weight
    if bias is not None:
        offset = bias if offset is None else offset + bias
    return scale_and_add(y, scale, offset, overwrite)


def _parameter(values: Tensor | None, like: Tensor, mask: Mask) -> Tensor | None:
    return None if values is None else values.to(like.dtype).reshape(mask.layout.weight_split)


# ---- backward ----


def _derive(mask: Mask, dy: Tensor, z: Tensor) -> Tensor:
    """dy times the derivative of the activation at z, by what autograd calls for these functions; 0 where not valid."""
    aten: Any = torch.ops.aten
    activation = mask.norm.activation
    if activation == "relu":
        found = aten.threshold_backward(dy, z, 0)
    elif activation == "gelu":
        found = aten.gelu_backward(dy, z)
    elif activation == "silu":
        found = aten.silu_backward(dy, z)
    else:
        found = aten.tanh_backward(dy, z.tanh())
    derived: Tensor = found
    return derived if mask.valid is None else torch.where(mask.valid, derived, 0.0)


class _Sums(NamedTuple):
    """Sums over the elements of a statistic that share a weight."""

    dy: Tensor
    dy_xhat: Tensor


def _sum(dy: Tensor, deviations: Tensor, statistics: Statistics, mask: Mask) -> _Sums:
    axes = mask.layout.axes
    inner = tuple(i for i in mask.layout.reduced if not axes[i].weighted)
    rest, rstd = statistics.rest, statistics.rstd
    # Where nothing is valid dy and deviations are 0: the sums are 0 too, also of a statistic that is not finite.
    if not inner and mask.segments is None:  # each element has a weight of its own
        xhat = scale_and_add(deviations, rstd, None if rest is None else -rest * rstd)
        product = torch.mul(dy, xhat, out=xhat if is_in_place(dy) else None)
        return _Sums(dy, product if mask.valid is None else torch.where(mask.valid, product, 0.0))
    first, second = total(dy, mask, inner), total_product(dy, deviations, mask, inner)
    nothing = (rstd == 0) | ((first == 0) & (second == 0))  # where rstd is 0 the sum may be infinite
    second = second if rest is None else second - first * rest
    return _Sums(first, torch.where(nothing, 0.0, second * rstd))


def _statistic_sums(sums: _Sums, weight: Tensor | None, mask: Mask) -> tuple[Tensor, Tensor]:
    """Σ dxhat and Σ dxhat · xhat of each statistic."""
    weighted = tuple(i for i in mask.layout.reduced if mask.layout.axes[i].weighted)

    def of_statistics(values: Tensor) -> Tensor:
        values = values if weight is None else values * weight
        return values.sum(weighted, keepdim=True) if weighted else values

    second = of_statistics(sums.dy_xhat)
    return of_statistics(sums.dy) if mask.norm.center else torch.zeros_like(second), second


def _parameter_gradients(
    sums: _Sums, mask: Mask, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    axes = mask.layout.unweighted
    dweight, dbias = (
        None if like is None else (of.sum(axes) if axes else of.clone()).reshape(like.shape).to(like.dtype)
        for like, of in ((weight, sums.dy_xhat), (bias, sums.dy))
    )
    return dweight, dbias


def _dx(
    dy: Tensor,
    deviations: Tensor,
    statistics: Statistics,
    sums: tuple[Tensor, Tensor] | None,
    mask: Mask,
    weight: Tensor | None,
) -> Tensor:
    """rstd · (dxhat - s · Σ dxhat / n - s · xhat · Σ (dxhat · xhat) / (n - ddof)), s: how often an element counts

    On the CPU in the place of dy.
    """
    norm, rstd, count = mask.norm, statistics.rstd, statistics.count
    scale, slope, offset = spread(rstd, mask), None, None
    if sums is not None and count is not None:
        inner = _divide(sums[1], count - norm.ddof)
        if norm.eps_at == "std":  # the deviation, not its square, is what eps was added to
            std = statistics.var.sqrt()
            inner = inner * torch.where(std > 0, 1 + _divide(torch.full_like(std, norm.eps), std), 0.0)
        slope = -inner * rstd * rstd
        offset = -_divide(sums[0], count) * rstd if norm.center else None
        if statistics.rest is not None:
            offset = -slope * statistics.rest if offset is None else offset - slope * statistics.rest
        slope, offset = spread(slope, mask), None if offset is None else spread(offset, mask)
    if weight is not None and _covers_elements(mask):
        dy = torch.mul(dy, weight, out=dy if is_in_place(dy) else None)
    elif weight is not None:
        scale = scale * weight
    if slope is None:
        return scale_and_add(dy, scale, None, overwrite=True)
    if mask.sample_weight is not None:  # 0 times an infinite sum is 0 here
        counts = mask.sample_weight.to(dy.dtype)
        shared = torch.where(counts == 0, 0.0, counts * scale_and_add(deviations, slope, offset))
        return scale_and_add(dy, scale, shared, overwrite=True)
    dx = scale_and_add(dy, scale, offset, overwrite=True)
    return torch.addcmul(dx, deviations, slope, out=dx if is_in_place(dx) else None)


def backward(
    dy: Tensor,
    x: Tensor,
    mask: Mask,
    weight: Tensor | None,
    bias: Tensor | None,
    statistics: Statistics,
    padding: Padding,
    needed: tuple[bool, ...] = (True, True, True),
) -> Gradients:
    """dx, dweight and dbias; None for what is not needed. bias: any of its form, unless there is an activation."""
    selected, activation = select(dy, x, mask), mask.norm.activation
    like, fixed = weight, statistics.count is None
    sums, deviations, dx, dweight, dbias = None, selected, None, None, None
    if not fixed or needed[1] or activation is not None:
        deviations = subtract(select(x, x, mask), statistics.origin, mask)
    if activation is not None:
        selected = _derive(mask, selected, _affine(deviations, statistics, mask, weight, bias))
    weight = _parameter(weight, selected, mask)
    if (needed[0] and not fixed) or needed[1] or needed[2]:
        sums = _sum(selected, deviations, statistics, mask)
        dweight, dbias = _parameter_gradients(sums, mask, like, bias)
    if needed[0]:
        shared = None if fixed or sums is None else _statistic_sums(sums, weight, mask)
        dx = finish(_dx(selected, deviations, statistics, shared, mask, weight), x, mask, dy, padding)
    return dx, dweight if needed[1] else None, dbias if needed[2] else None


def gradients(
    dy: Tensor,
    x: Tensor,
    mask: Mask,
    weight: Tensor | None,
    bias: Tensor | None,
    fixed: FixedStatistics | None,
    padding: Padding,
    table: Tensor | None = None,
) -> Gradients:
    """The same from fixed statistics, from a table of moments, or from x alone."""
    if fixed is not None:
        statistics = fixed_statistics(fixed, x, mask)
    else:
        statistics = given_statistics(measure(x, mask) if table is None else table, x, mask)
    return backward(dy, x, mask, weight, bias, statistics, padding)


# ---- a part of a batch ----


@dataclass(eq=False)
class OperationsVerbs:
    """What `_pooled` calls, for one x that is a part of a batch."""

    mask: Mask
    padding: Padding

    @property
    def keeps_bias(self) -> bool:
        return self.mask.norm.activation is not None

    def measure(self, x: Tensor) -> Tensor:
        return measure(x, self.mask)

    def forward(self, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return forward_part(x, self.mask, weight, bias, table, self.padding)

    def backward_sums(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        selected, deviations, statistics = self._start(dy, x, table, weight, bias)
        sums = _sum(selected, deviations, statistics, self.mask)
        both = _statistic_sums(sums, _parameter(weight, selected, self.mask), self.mask)
        stacked = torch.stack([one.reshape(-1) for one in both], -1)
        return stacked.to(table.dtype), *_parameter_gradients(sums, self.mask, weight, bias)

    def backward(
        self, dy: Tensor, x: Tensor, table: Tensor, sums: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        selected, deviations, statistics = self._start(dy, x, table, weight, bias)
        first, second = _columns(sums.to(selected.dtype), self.mask)
        weight = _parameter(weight, selected, self.mask)
        dx = _dx(selected, deviations, statistics, (first, second), self.mask, weight)
        return finish(dx, x, self.mask, dy, self.padding)

    def _start(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Statistics]:
        statistics = given_statistics(table, x, self.mask)
        deviations = subtract(select(x, x, self.mask), statistics.origin, self.mask)
        selected = select(dy, x, self.mask)
        if self.keeps_bias:
            z = _affine(deviations, statistics, self.mask, weight, bias)
            selected = _derive(self.mask, selected, z)
        return selected, deviations, statistics
