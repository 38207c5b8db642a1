"""An oracle: normalization, forward and backward, in plain Python loops, to test the library against.

An oracle that shares code with the library would share its errors. So this file imports nothing of the library
and computes differently: no canonical form, no merging of statistics, no vectorised sums, no simplified
gradient. NumPy only holds the arrays; all arithmetic is on Python floats, and every sum is `math.fsum`, which
rounds once. The gradient is the chain rule as on paper, one line for each path from x to y. It is slow, and
meant for small arrays.

    count = Σ s        mean = Σ s·x / count        m2 = Σ s·(x - mean)²        var = m2 / (count - ddof)
    rstd = 1 / sqrt(var + eps)   or   1 / (sqrt(var) + eps)
    xhat = (x - mean)·rstd        y = xhat·weight + bias, or an activation of that

Sums run over the valid elements that share a statistic; s is the sample weight, or 1. With `center=False` the
mean is 0.
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

Array = np.ndarray[Any, Any]
Index = tuple[int, ...]
Moments = dict[Index, tuple[float, float, float]]  # index over the kept axes -> (count, mean, m2)


@dataclass(frozen=True)
class Case:
    """One normalization of one shape, with composed axes already split.

    Group norm of (b=2, t=3, c=6) in 2 groups: weight_axes=(2, 3), so weight and bias have shape (2, 3), and
    axes=[("b", 2, False), ("t", 3, True), ("g", 2, False), ("c", 3, True)].
    """

    axes: Sequence[tuple[str, int, bool]]  # (name, size, reduced)
    weight_axes: tuple[int, ...] = ()  # indices into axes
    eps: float = 1e-5
    center: bool = True
    ddof: int = 0
    eps_at: Literal["var", "std"] = "var"
    activation: str | None = None

    @property
    def shape(self) -> Index:
        return tuple(size for _, size, _ in self.axes)

    def groups(self, valid: Array | None) -> dict[Index, list[Index]]:
        """The valid positions that share each statistic; an empty list where none is valid."""
        kept = [axis for axis, (_, _, reduced) in enumerate(self.axes) if not reduced]
        groups: dict[Index, list[Index]] = {key: [] for key in positions([self.shape[axis] for axis in kept])}
        for index in positions(self.shape):
            if valid is None or valid[index]:
                groups[tuple(index[axis] for axis in kept)].append(index)
        return groups

    def parameter_index(self, index: Index) -> Index:
        return tuple(index[axis] for axis in self.weight_axes)

    def variance(self, count: float, m2: float) -> float:
        return m2 / (count - self.ddof) if count > self.ddof else 0.0

    def rstd(self, count: float, m2: float) -> float:
        """0 where there is no deviation to divide by, so that y is the bias."""
        if count <= self.ddof:
            return 0.0
        var = self.variance(count, m2)
        denominator = math.sqrt(var + self.eps) if self.eps_at == "var" else math.sqrt(var) + self.eps
        return 0.0 if denominator == 0.0 else 1.0 / denominator


def _gelu(z: float) -> tuple[float, float]:
    p = math.erfc(-z / math.sqrt(2)) / 2
    return z * p, p + z * math.exp(-z * z / 2) / math.sqrt(2 * math.pi)


def _silu(z: float) -> tuple[float, float]:
    s = 1 / (1 + math.exp(-z))
    return z * s, s + z * s * (1 - s)


# The value at z, and the derivative there.
ACTIVATIONS: dict[str | None, Callable[[float], tuple[float, float]]] = {
    None: lambda z: (z, 1.0),
    "relu": lambda z: (z, 1.0) if z > 0 else (0.0, 0.0),
    "gelu": _gelu,
    "silu": _silu,
    "tanh": lambda z: (math.tanh(z), 1 - math.tanh(z) ** 2),
}


def positions(shape: Sequence[int]) -> Iterator[Index]:
    """Every index into an array of this shape, the last axis fastest."""
    return itertools.product(*(range(size) for size in shape))


def oracle_moments(x: Array, case: Case, *, valid: Array | None = None, sample_weight: Array | None = None) -> Moments:
    """Count, mean and summed squared deviation of each statistic; count is an int without sample weights."""
    _check_shapes(case, x, valid, sample_weight)
    moments: Moments = {}
    for key, members in case.groups(valid).items():
        # Elements of weight 0 are left out: 0 * inf would be NaN.
        pairs = [(s, float(x[i])) for i in members if (s := _weight_of(sample_weight, i)) != 0.0]
        count = len(pairs) if sample_weight is None else math.fsum(s for s, _ in pairs)
        if count == 0:
            moments[key] = (count, 0.0, 0.0)
        elif not case.center:
            moments[key] = (count, 0.0, math.fsum(s * v * v for s, v in pairs))
        else:
            # Twice, because each product s * x is rounded at the size of the offset; s * (x - guess) is not.
            guess = math.fsum(s * v for s, v in pairs) / count
            mean = guess + math.fsum(s * (v - guess) for s, v in pairs) / count
            # The mean is still rounded to a float, which makes Σ s·(x - mean)² too large by count·error²:
            # by 0.5 % where the offset is 1e15 deviations. The error is known, so take it off.
            error = math.fsum(s * (v - mean) for s, v in pairs) / count
            m2 = math.fsum(s * (v - mean) * (v - mean) for s, v in pairs) - count * error * error
            moments[key] = (count, mean, m2)
    return moments


def oracle_forward(
    x: Array,
    case: Case,
    *,
    weight: Array | None = None,
    bias: Array | None = None,
    valid: Array | None = None,
    sample_weight: Array | None = None,
    moments: Moments | None = None,
    padding: Literal["zero", "keep"] = "zero",
) -> tuple[Array, Moments]:
    """y as float64, and the moments that it was computed with: those given, else those of x."""
    _check_shapes(case, x, valid, sample_weight)
    if moments is None:
        moments = oracle_moments(x, case, valid=valid, sample_weight=sample_weight)
    y = _at_padding(x, padding)
    for key, members in case.groups(valid).items():
        count, mean, m2 = moments[key]
        rstd = case.rstd(count, m2)
        for index in members:
            xhat = (float(x[index]) - mean) * rstd
            y[index], _ = _activated(case, xhat, case.parameter_index(index), weight, bias)
    return y, moments


def oracle_backward(
    dy: Array,
    x: Array,
    case: Case,
    *,
    weight: Array | None = None,
    bias: Array | None = None,
    valid: Array | None = None,
    sample_weight: Array | None = None,
    moments: Moments | None = None,
    padding: Literal["zero", "keep"] = "zero",
    constant: bool = False,
) -> tuple[Array, Array, Array]:
    """dx, dweight and dbias, as float64; where weight and bias are None, as if they were 1 and 0.

    `constant=True`: the moments do not depend on x. Otherwise moments, if given, must be those of x. The bias
    only matters to an activation.
    """
    _check_shapes(case, x, valid, sample_weight)
    _check_shapes(case, dy)
    if moments is None:
        moments = oracle_moments(x, case, valid=valid, sample_weight=sample_weight)
    dx = _at_padding(dy, padding)
    parameter_shape = [case.shape[axis] for axis in case.weight_axes]
    dweight_terms: dict[Index, list[float]] = {at: [] for at in positions(parameter_shape)}
    dbias_terms: dict[Index, list[float]] = {at: [] for at in positions(parameter_shape)}

    for key, members in case.groups(valid).items():
        count, mean, m2 = moments[key]
        var, rstd = case.variance(count, m2), case.rstd(count, m2)
        deviation = {i: float(x[i]) - mean for i in members}
        s = {i: _weight_of(sample_weight, i) for i in members}

        # y = activation(z), z = xhat·weight + bias
        dxhat = {}
        for i in members:
            at = case.parameter_index(i)
            dz = float(dy[i]) * _activated(case, deviation[i] * rstd, at, weight, bias)[1]
            dbias_terms[at].append(dz)
            dweight_terms[at].append(dz * deviation[i] * rstd)
            dxhat[i] = dz * (1.0 if weight is None else float(weight[at]))

        # xhat = (x - mean)·rstd, and rstd is a function of var. The path counts as 0 at m2 = 0, which is a
        # minimum of var, with slope 0, and a kink of sqrt(var), with none.
        drstd = math.fsum(dxhat[i] * deviation[i] for i in members)
        if constant or m2 == 0.0 or rstd == 0.0:
            dvar = 0.0
        elif case.eps_at == "var":
            dvar = drstd * -0.5 * rstd * rstd * rstd
        else:
            dvar = drstd * -rstd * rstd / (2.0 * math.sqrt(var))

        # mean reaches y through xhat, and through var: var = Σ s·(x - mean)² / (count - ddof)
        dmean = 0.0
        if case.center and not constant and rstd != 0.0:
            dmean += math.fsum(-dxhat[i] * rstd for i in members)
            dvar_dmean = -2.0 * math.fsum(s[i] * deviation[i] for i in members) / (count - case.ddof)
            dmean += dvar * dvar_dmean

        for i in members:
            through_xhat = dxhat[i] * rstd
            # If dvar or dmean is 0, the count may be 0, too.
            through_var = dvar * 2.0 * s[i] * deviation[i] / (count - case.ddof) if dvar else 0.0
            through_mean = dmean * s[i] / count if dmean else 0.0
            dx[i] = math.fsum([through_xhat, through_var, through_mean])

    dweight, dbias = np.zeros(parameter_shape), np.zeros(parameter_shape)
    for at in positions(parameter_shape):
        dweight[at], dbias[at] = math.fsum(dweight_terms[at]), math.fsum(dbias_terms[at])
    return dx, dweight, dbias


def finite_difference(f: Callable[[Array], Array], x: Array, dy: Array, h: float) -> Array:
    """The gradient of Σ dy·f(x) for each element of x, by central differences of step h."""
    gradient = np.zeros(x.shape)
    for index in positions(x.shape):
        up, down = np.array(x, dtype=np.float64), np.array(x, dtype=np.float64)
        up[index], down[index] = float(x[index]) + h, float(x[index]) - h
        y_up, y_down = f(up), f(down)
        # Subtract before summing: the two sums would agree in most of their digits.
        terms = (float(dy[at]) * (float(y_up[at]) - float(y_down[at])) for at in positions(dy.shape))
        gradient[index] = math.fsum(terms) / (2.0 * h)
    return gradient


def _check_shapes(case: Case, *arrays: Array | None) -> None:
    # Indexing a larger array raises no error, and the result would be wrong.
    for array in arrays:
        if array is not None and array.shape != case.shape:
            raise ValueError(f"oracle: arrays have the split shape {case.shape}, got {array.shape}.")


def _activated(case: Case, xhat: float, at: Index, weight: Array | None, bias: Array | None) -> tuple[float, float]:
    """y, and its derivative by what the activation takes."""
    w = 1.0 if weight is None else float(weight[at])
    b = 0.0 if bias is None else float(bias[at])
    return ACTIVATIONS[case.activation](xhat * w + b)


def _weight_of(sample_weight: Array | None, index: Index) -> float:
    return 1.0 if sample_weight is None else float(sample_weight[index])


def _at_padding(array: Array, padding: Literal["zero", "keep"]) -> Array:
    """The output before its valid elements are written."""
    return np.zeros(array.shape) if padding == "zero" else np.array(array, dtype=np.float64)
