"""Normalization, forward and backward, in NumPy: the definition that every other implementation is tested against.

Forward, for the elements that share one statistic (count N, sample weights s, 1 without):

    mean = Σ s x / N                  var = Σ s (x - mean)² / (N - ddof)
    rstd = 1 / sqrt(var + eps)        or 1 / (sqrt(var) + eps)
    xhat = (x - mean) · rstd          y = xhat · weight + bias, and the activation of that, if there is one

Backward: dy is the loss's gradient at y, or at what the activation takes; d + name is its gradient at name.

    dbias = Σ dy        dweight = Σ dy · xhat        dxhat = dy · weight
    x reaches the loss on three paths: itself, through mean, and through var (that is, through rstd).
      itself         dxhat · rstd
      through mean   dmean = -rstd · Σ dxhat                  mean holds s / N of x
      through var    dvar  = Σ dxhat · (x - mean) · drstd/dvar   var holds 2 s (x - mean) / (N - ddof) of x
    (mean also moves var, but by Σ s (x - mean) = 0.) With drstd/dvar = -rstd³/2 the three add up to

    dx = rstd · (dxhat - s · Σ dxhat / N - s · xhat · Σ (dxhat · xhat) / (N - ddof))

So elements depend on each other only through two sums for each statistic, `Σ dxhat` and `Σ dxhat · xhat`.
`docs/derivation.md` takes the steps one by one; `explanation/steps.py` shows each with its numbers.
References: [ioffe], [ba], [zhang].
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.activation import activate, derive
from truenorm.core.arrays import Floats
from truenorm.core.inputs import BackwardSums, Inputs, Normalized, Padding, check_inputs
from truenorm.core.lengths import LengthsLike
from truenorm.core.mask import MaskedInput, mask_input
from truenorm.core.moments import Moments, ignore_floating_point_errors, measure_masked, tree_sum
from truenorm.core.norm import Norm


def forward(
    x: ArrayLike,
    norm: Norm | str,
    *,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: ArrayLike | None = None,
    segments: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    along: int | str | None = None,
    moments: Moments | None = None,
    padding: Padding = "zero",
) -> Normalized:
    """y = (x - mean) · rstd · weight + bias, with the statistics of the valid elements only.

    weight, bias   of `norm.view(x.shape).weight_shape`: usually (c,)
    valid, lengths, offsets, segments, sample_weight, along   which elements are valid: see `truenorm.core.mask`
    moments        used instead of those of x; `backward` then treats them as constants
    padding        what y holds where x is not valid: "zero", or "keep" for the values of x

    y has the shape and dtype of x. A constant channel gives exactly `bias`, and so does one with too few
    elements for its `ddof`.

    >>> import truenorm as tn
    >>> table = [[7.0, 5.0, 4.0], [2.0, 3.0, 4.0], [1.0, 2.0, 3.0], [7.0, 5.0, 6.0], [3.0, 3.0, 4.0]]
    >>> out = tn.forward(table, tn.batch(), weight=[2.0, 1.0, 1.0], bias=[0.0, 0.0, 5.0])
    >>> out.moments.mean
    array([4. , 3.6, 4.2])
    >>> out.y.mean(axis=0).round(12) + 0
    array([0., 0., 5.])
    """
    masked = mask_input(
        x,
        norm,
        valid=valid,
        lengths=lengths,
        offsets=offsets,
        segments=segments,
        sample_weight=sample_weight,
        along=along,
    )
    return forward_inputs(check_inputs(masked, norm, weight, bias, moments, padding))


@ignore_floating_point_errors
def forward_inputs(inputs: Inputs) -> Normalized:
    """`forward` for arguments that are checked already."""
    masked = inputs.masked
    moments = measure_masked(masked, inputs.norm) if inputs.given is None else inputs.given
    y = activate(inputs.norm.activation, _affine(inputs, _xhat(masked, moments, inputs.norm)))
    y = masked.restore(y, keep=masked.source if inputs.padding == "keep" else None)
    return Normalized.of(inputs, y, moments)


@ignore_floating_point_errors
def backward_sums(dy: ArrayLike, out: Normalized) -> BackwardSums:
    """The sums that the gradient needs, over this part only. Add those of the other parts to them."""
    layout, xhat = out.masked.layout, _xhat(out.masked, out.moments, out.norm)
    dy = _before_activation(dy, xhat, out)
    dxhat = _dxhat(dy, out)
    dweight, dbias = (tree_sum(one, layout.unweighted).reshape(layout.weight_shape or ()) for one in (dy * xhat, dy))
    return BackwardSums(
        dxhat=tree_sum(dxhat, layout.reduced).reshape(layout.statistics),
        dxhat_xhat=tree_sum(dxhat * xhat, layout.reduced).reshape(layout.statistics),
        dweight=None if out.weight is None else dweight,
        dbias=None if out.bias is None else dbias,
    )


@ignore_floating_point_errors
def backward(
    dy: ArrayLike, out: Normalized, *, sums: BackwardSums | None = None
) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
    """dx, dweight and dbias (None where there is no weight or bias).

    Moments that were given are constants. With `sums` they are not: x is then one part of the data, and the moments and
    `sums` belong to all parts together. dweight and dbias are then those of all parts, too.

    >>> import truenorm as tn
    >>> x = np.array([[1.0], [2.0], [6.0]])
    >>> tn.backward([[1.0], [0.0], [0.0]], tn.forward(x, tn.batch(eps=0)))[0].round(6).ravel() + 0
    array([ 0.176347, -0.220433,  0.044087])
    """
    constant = out.given is not None and sums is None
    sums = backward_sums(dy, out) if sums is None else sums
    layout, s = out.masked.layout, out.masked.sample_weight
    xhat = _xhat(out.masked, out.moments, out.norm)
    dx = _dxhat(_before_activation(dy, xhat, out), out)
    if not constant:
        count = out.moments.count
        through_mean = _ratio(sums.dxhat, count) if out.norm.center else np.zeros(layout.statistics)
        through_var = _ratio(sums.dxhat_xhat, count - out.norm.ddof) * _eps_outside(out.moments, out.norm)
        shared = through_mean.reshape(layout.statistics_split) + xhat * through_var.reshape(layout.statistics_split)
        dx = dx - (shared if s is None else np.where(s == 0, 0.0, s * shared))  # 0 times an infinite sum is 0 here
    dx = dx * rstd_of(out.moments, out.norm).reshape(layout.statistics_split)
    dx = out.masked.restore(dx, keep=dy if out.padding == "keep" else None)
    return dx, _like(out.weight, sums.dweight), _like(out.bias, sums.dbias)


def rstd_of(moments: Moments, norm: Norm) -> Floats:
    """rstd: the one place where eps and ddof are applied. 0 where there is nothing to divide by."""
    var = moments.var(norm.ddof)
    deviation = np.sqrt(var + norm.eps) if norm.eps_at == "var" else np.sqrt(var) + norm.eps
    known = (moments.count > norm.ddof) & (deviation != 0)
    return np.divide(1.0, deviation, out=np.zeros_like(deviation), where=known)


def _eps_outside(moments: Moments, norm: Norm) -> Floats:
    """-2 · drstd/dvar / rstd³: 1 for sqrt(var + eps), 1 + eps / std for std + eps; 0 where m2 is 0."""
    std = np.sqrt(moments.var(norm.ddof))
    if norm.eps_at == "var":
        return np.ones_like(std)
    return np.where(std > 0, 1 + _ratio(np.full_like(std, norm.eps), std), 0.0)  # not inf / inf


def _xhat(masked: MaskedInput, moments: Moments, norm: Norm) -> Floats:
    """(x - mean) · rstd and not x · scale + shift, so that a constant channel gives exactly 0.

    Without a deviation (rstd is 0) every finite x gives 0: the mean is not subtracted, as x - mean could overflow.
    """
    split, rstd = masked.layout.statistics_split, rstd_of(moments, norm)
    mean = np.where(rstd == 0, 0.0, moments.mean)
    xhat = (masked.x - mean.reshape(split)) * rstd.reshape(split) + 0.0  # not -0.0
    return xhat if masked.valid is None else np.where(masked.valid, xhat, 0.0)


def _affine(inputs: Inputs, xhat: Floats) -> Floats:
    """xhat · weight + bias"""
    split = inputs.masked.layout.weight_split
    y = xhat if inputs.weight is None else xhat * inputs.weight.reshape(split)
    return y if inputs.bias is None else y + inputs.bias.reshape(split)


def _before_activation(dy: ArrayLike, xhat: Floats, out: Normalized) -> Floats:
    """The gradient at what the activation takes: 0 where not valid."""
    arranged = out.masked.arrange(dy)
    return derive(out.norm.activation, arranged, _affine(out, xhat))


def _dxhat(dy: Floats, out: Normalized) -> Floats:
    """The gradient at xhat, from an arranged `dy`: 0 where not valid."""
    return dy if out.weight is None else dy * out.weight.reshape(out.masked.layout.weight_split)


def _ratio(above: Floats, below: NDArray[Any]) -> Floats:
    """above / below, 0 where below is not positive."""
    ratio: Floats = np.divide(above, below, out=np.zeros_like(above), where=below > 0)
    return ratio


def _like(parameter: NDArray[Any] | None, gradient: Floats | None) -> NDArray[Any] | None:
    return None if parameter is None or gradient is None else gradient.astype(parameter.dtype)
