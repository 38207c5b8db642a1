"""How far results may be from the reference: the one table of tolerances of the fuzzer, derived from rounding alone.

The reference computes in float64 and has an error too, so the two bounds are added.

u is the unit roundoff of the sums: 2^-53 for float64, 2^-24 for the kernels of narrower dtypes. eta is the smallest
subnormal number. A sum of k additions of values v has an error of at most k u Σ|v| [higham]. The kernels add blocks
of float32 in lanes (`DEPTH` additions at most) and the blocks in float64; sums in float64 may add one by one.

Statistics. n elements of magnitude M = max|x|, deviations d = x - mean, R = max|d|, N = Σ s (n without weights).
A block is summed around an estimate of its mean, which is stored with an error of a ≤ 2 u M + k u R.

    mean    (k + 3) u (mean|d| + a)                    the sum of the deviations, which corrects the estimate
            + (n / 64 + 4) 2^-53 M                     merging blocks, and storing the mean
            + 4 eta + n eta / N                        products with sample weights that underflow
    m2      2 (k + 6) u (m2 + N a²) + 2 (n + N) eta    the squares, their products with weights, and the sum
            + 2 δmean sqrt(N m2) + N δmean²            deviations from a mean that is off by δmean
    N       n 2^-53 N                                  the sum of sample weights; without them N is exact
    rstd    from m2 - δm2 to m2 + δm2, N - δN to N + δN   the function itself, at both ends: no linearization

A value that is not finite makes mean, m2 and y NaN; the derivatives of its statistic are not determined.
If R = 0 all values are equal: m2 is exactly 0. Otherwise m2 - δm2 may reach 0 with eps = 0, and rstd is then not
determined by the data: its bound is infinite, and so are those of all that depends on it.

Results. Each further operation rounds once, so products of a few factors have a relative error of at most 6 u:

    xhat    |d| δrstd + rstd δmean + 6 u |xhat| + rstd u² M      the mean is subtracted in two parts
            + 2 eta                                              of the type of the sums
    y       |weight| δxhat + 6 u (|weight xhat| + |bias|)
    S1, S2  k u Σ|dxhat|,  Σ |dxhat| δxhat + (k + 4) u Σ|dxhat xhat|,  + n eta each: products may underflow
    dx      rstd times the errors of its three terms, 6 u of their sizes, and δrstd times their sizes
            + 4 rstd (1 + s) eta                                 two terms may underflow before they are multiplied by s
            + 4 s |d| eta                                        d, or 2 d, times rstd² S2 / N, which may underflow
    dweight, dbias   like S2 and S1, over the elements of a weight

Activations f of z = weight xhat + bias. z and dy f'(z) may be stored in the dtype of x, which rounds by at most the
distance between neighbours there. |f'| ≤ 1.13 and |f''| ≤ 0.8, but of relu. eps = 2 u:

    y       1.13 (δz + spacing(z)) + 5 eps |y| + 64 eta         f is within 5 units in the last place
    dy f'   |dy| min(0.8 (δz + spacing(z)) + 2.5 eps, 1.3)      f' is within 2.5 eps
            + spacing(dy f') + 2 u |dy f'|                      relu: |dy| where |z| ≤ δz + spacing(z), which bends

At infinite z neither is determined. dy f' takes the place of dy in all that follows, and its error is added to those
of S1, S2, dx, dweight and dbias.

The torch formula leaves derivatives to autograd, which computes Σ dxhat d before it multiplies by rstd, and rstd³ times
that before it divides by N: where these are beyond the largest number, dx of torch is not determined. The torch
operations multiply Σ dy d by the weight and rstd afterwards. Where it is beyond the largest number, dx and dweight of
torch are not determined. Products that underflow add rstd n eta to the error of dweight, nothing where m2 is infinite.

Running statistics, old + momentum (new - old) with new var = m2 / (N - 1):

    mean    δmean + 8 2^-53 max(|old|, |new|)
    var     (δm2 + var δN) / (N - 1) + 8 2^-53 max(|old|, |new|),  δN = n 2^-53 N

and each result is rounded to its dtype, by at most the distance between neighbours there. Beyond the largest number of
a dtype results are inf; they are compared as that number.
"""

from typing import Any, NamedTuple

import numpy as np

from truenorm.core.activation import Activation, activate, derive
from truenorm.core.inputs import Normalized
from truenorm.core.reference import rstd_of

Array = np.ndarray[Any, Any]
WIDE = 2.0**-53
NARROW = 2.0**-24
ETA = 5e-324
NARROW_ETA = 2.0**-149
DEPTH = 80  # 2048 elements in 32 lanes, or 64 rows, and the tree of the lanes
SAFE = 1e-154  # deviations below it have squares below the smallest normal number


class Bounds(NamedTuple):
    """The largest allowed error of each result, in its shape. inf: not determined."""

    mean: Array
    m2: Array
    y: Array
    dx: Array
    dweight: Array | None
    dbias: Array | None
    autograd_overflows: Array  # where: for dx of the torch formula
    torch_sums: Array | None  # what sums of torch operations add to the error of dweight


def bounds(out: Normalized, dy: Array, unit: float, dtype: str) -> Bounds:
    """How far results with sums of this unit roundoff may be from `out` and its gradients, which have an error too.

    dtype: in which intermediate results may be stored
    """
    with np.errstate(all="ignore"):
        pairs = zip(_bounds(out, dy, unit, dtype), _bounds(out, dy, WIDE, "float64"), strict=True)
        sums: list[Any] = [None if one is None or other is None else one + other for one, other in pairs]
        return Bounds(*sums)


def _bounds(out: Normalized, dy: Array, u: float, dtype: str) -> Bounds:
    masked, norm, layout = out.masked, out.norm, out.masked.layout
    axes, split = layout.reduced, layout.statistics_split
    count, mean, m2 = (np.asarray(one, float).reshape(split) for one in _parts(out))
    x = masked.x
    s = np.broadcast_to(_weights(out), x.shape)
    valid = np.broadcast_to(True if masked.valid is None else masked.valid, x.shape)
    counted = s > 0
    d = np.where(valid, np.abs(x - mean), 0.0)

    def over(values: Array) -> Array:
        return np.asarray(values.sum(axis=axes, keepdims=True))

    def most(values: Array) -> Array:
        return np.asarray(
            np.where(counted & np.isfinite(values), values, 0.0).max(axis=axes, keepdims=True, initial=0.0)
        )

    n = over(counted.astype(float))
    dcount = n * WIDE * count if masked.sample_weight is not None else np.zeros_like(count)
    k = depth(n, u)
    largest, spread = most(np.abs(x)), most(d)
    if out.given is None:
        a = 2 * u * largest + k * u * spread
        off = (k + 3) * u * (_ratio(over(_times(s, d)), count) + a) + (n / 64 + 4) * WIDE * largest
        off = np.where(spread > 0, off, 0.0) + 4 * ETA + _ratio(n * ETA, count)
        off = off if norm.center else np.zeros_like(off)
        squares = 2 * (k + 6) * u * (m2 + count * a**2) + 2 * (n + count) * ETA
        dm2 = np.where(most(np.abs(x) if not norm.center else d) > 0, squares, 0.0)
        dm2 = dm2 + np.where(spread > 0, 2 * off * np.sqrt(count * m2) + count * off**2, 0.0) * norm.center
    else:
        off, dm2 = np.zeros(split), np.zeros(split)
    rstd = rstd_of(out.moments, norm).reshape(split)
    low, high = (_rstd(np.maximum(m2 + sign * dm2, 0.0), count - sign * dcount, out) for sign in (1, -1))
    drstd = np.maximum(np.abs(high - rstd), np.abs(rstd - low)) + 4 * u * rstd
    drstd, high = (np.where(rstd == 0, np.where(dm2 > 0, one, 0.0), one) for one in (drstd, np.maximum(high, rstd)))

    xhat = np.where(rstd == 0, 0.0, d * rstd)
    dxhat_error = _times(d, drstd) + _times(high, off) + 6 * u * xhat + rstd * u**2 * largest
    eta = ETA if u == WIDE else NARROW_ETA
    dxhat_error = dxhat_error + 2 * eta
    weight, bias = (_parameter(out, name) for name in ("weight", "bias"))
    dxhat_error = np.where(np.isinf(xhat) & np.isfinite(x), np.inf, dxhat_error)  # of given moments: it overflows
    y = np.abs(weight) * dxhat_error + 6 * u * (np.abs(weight) * xhat + np.abs(bias))
    y = np.where(np.isinf(dxhat_error), np.inf, y)

    xhat_signed = np.where(rstd == 0, 0.0, np.where(valid, x - mean, 0.0) * rstd)
    signed_g, dg = masked.arrange(dy), np.zeros(1)
    if norm.activation is not None:
        y, signed_g, dg = _activated(norm.activation, xhat_signed * weight + bias, y, signed_g, u, dtype)
    g = np.abs(signed_g)
    dxhat = g * np.abs(weight)
    signed = signed_g * weight
    k = depth(over(valid.astype(float)), u)
    ddxhat = np.where(valid, dg * np.abs(weight), 0.0)
    s1, s2 = np.abs(over(signed)), np.abs(over(signed * xhat_signed))
    e1 = k * u * over(dxhat) + n * eta + over(ddxhat)
    e2 = over(_times(dxhat, dxhat_error)) + (k + 4) * u * over(dxhat * xhat) + n * eta
    e2 = e2 + over(_times(ddxhat, xhat + dxhat_error))
    freedom = count - norm.ddof
    factor, dfactor = _factor(m2, dm2, freedom, out)
    through_mean = s * _ratio(s1, count) * norm.center
    through_var = s * xhat * _ratio(s2, freedom) * factor
    errors = s * _ratio(e1, count) * norm.center + s * factor * _ratio(_times(s2, dxhat_error) + xhat * e2, freedom)
    errors = errors + s * xhat * _ratio(s2, freedom) * dfactor
    errors = errors + through_mean * _ratio(dcount, count) + through_var * _ratio(dcount, freedom)
    if out.given is not None:
        through_mean, through_var, errors = np.zeros_like(dxhat), np.zeros_like(dxhat), np.zeros_like(dxhat)
    terms = dxhat + through_mean + through_var
    dx = (
        _times(high, 6 * u * terms + errors + ddxhat + 4 * (1 + s) * eta)
        + _times(drstd, terms)
        + 4 * _times(s, _times(d, np.asarray(ETA)))
    )
    # rstd² leaves float64: eps is 0 and the squared deviations are subnormal. Or the sums do, of finite values, which
    # kernels may multiply by the weight afterwards; or the coefficient by which they multiply d.
    coefficient = high * (high * (factor * _ratio(s2 + e2, freedom)))
    lost = (rstd > 1 / SAFE) | (np.isfinite(x) & np.isfinite(m2) & ~np.isfinite(xhat * _ratio(s2, freedom) * factor))
    lost |= np.isfinite(m2) & (~np.isfinite(coefficient) | ~np.isfinite(over(g * xhat)))
    # A value that is not finite makes the outputs of its statistic NaN, and their derivatives undefined.
    wrong = valid & ~np.isfinite(x)
    lost |= np.asarray(wrong.any(axis=axes, keepdims=True))
    dx = np.where(lost & (out.given is None), np.inf, dx)

    k = depth(np.asarray(valid.sum(axis=layout.unweighted, keepdims=True), float), u)
    dg = np.where(valid, dg, 0.0)
    dweight = (_times(g, dxhat_error) + _times(dg, xhat + dxhat_error)).sum(layout.unweighted, keepdims=True)
    dweight = dweight + (k + 4) * u * _times(g, xhat).sum(layout.unweighted, keepdims=True) + k * eta
    dweight = np.where((valid & lost & (out.given is None)).any(layout.unweighted, keepdims=True), np.inf, dweight)
    some_rstd = np.where(np.isnan(high), 0.0, high)  # NaN if m2 is infinite: rstd is below 1e-153 there
    overflows = ~np.isfinite(over(g * d)) & np.isfinite(m2)
    some_rstd = np.where(overflows, np.inf, some_rstd)
    underflows = np.where(valid, _times(some_rstd, np.asarray(eta)), 0.0).sum(layout.unweighted, keepdims=True)
    high_cubed = np.maximum(high, 1.0) ** 3
    dbias = k * u * g.sum(layout.unweighted, keepdims=True) + dg.sum(layout.unweighted, keepdims=True)
    statistics, shape = layout.statistics, layout.weight_shape or ()
    return Bounds(
        off.reshape(statistics),
        dm2.reshape(statistics),
        _restore(out, y),
        _restore(out, dx),
        None if out.weight is None else dweight.reshape(shape),
        None if out.bias is None else dbias.reshape(shape),
        _restore(out, (~np.isfinite(over(dxhat * d) * high_cubed) & np.isfinite(m2)) | overflows),
        None if out.weight is None else underflows.reshape(shape),
    )


def _activated(
    activation: Activation, z: Array, dz: Array, dy: Array, u: float, dtype: str
) -> tuple[Array, Array, Array]:
    """The bound of activation(z), and dy times its derivative with a bound. dz: the bound of z."""
    dz = dz + spacing(z, dtype)
    y, g = activate(activation, z), derive(activation, dy, z)
    bend = np.where(np.abs(z) <= dz, 1.0, 0.0) if activation == "relu" else np.minimum(0.8 * dz + 5 * u, 1.3)
    dg = _times(np.abs(dy), bend) + spacing(g, dtype) + 2 * u * np.abs(g)
    bound, eta = 1.13 * dz + 10 * u * np.abs(y), ETA if u == WIDE else NARROW_ETA
    lost = np.isinf(z) | np.isnan(dz)  # at an infinite z it is the limit, or NaN, as of 0 * inf
    return np.where(lost, np.inf, bound + 64 * eta), np.where(lost, 0.0, g), np.where(lost, np.inf, dg)


def depth(n: Array, u: float) -> Array:
    """How many additions a value of a sum of n takes part in, at most."""
    return (n if u == WIDE else np.minimum(n, DEPTH)) + 8


def spacing(values: Array, dtype: str) -> Array:
    """The distance between neighbours around these values."""
    if dtype == "bfloat16":
        return np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 2.0**-126))) - 7)
    most = np.finfo(dtype).max
    return np.asarray(np.spacing(np.minimum(np.abs(values), most).astype(dtype)), float)


def greatest(dtype: str) -> float:
    """The largest finite number."""
    return 3.3895313892515355e38 if dtype == "bfloat16" else float(np.finfo(dtype).max)


def compare(found: Array, expected: Array, bound: Array, dtype: str, name: str) -> tuple[int, int]:
    """Asserts that the results agree. Returns how many numbers were compared, and how many are not determined."""
    with np.errstate(all="ignore"):
        found, expected = np.asarray(found, float), np.asarray(expected, float)
        assert found.shape == expected.shape, f"{name}: shape {found.shape}, not {expected.shape}"
        most = greatest(dtype)
        one, two = np.clip(found, -most, most), np.clip(expected, -most, most)
        allowed = np.broadcast_to(bound, expected.shape) + spacing(two, dtype)
        lost = np.isinf(bound) | np.isinf(allowed) | (np.isnan(bound) & ~np.isnan(expected))
        unknown = np.broadcast_to(lost, expected.shape)
        right = (np.abs(one - two) <= allowed) | (np.isnan(found) & np.isnan(expected)) | unknown
        right |= found == expected
    if not right.all():
        i = np.unravel_index(int(np.argmin(right)), right.shape)
        at = f"{name}{list(map(int, i))}" if i else name
        raise AssertionError(f"{at} is {found[i]!r}, not {expected[i]!r}, allowed {allowed[i]:.3g} ({dtype})")
    return int(right.size - unknown.sum()), int(unknown.sum())


# ---- pieces ----


def _parts(out: Normalized) -> tuple[Any, Any, Any]:
    return out.moments.count, out.moments.mean, out.moments.m2


def _weights(out: Normalized) -> Array:
    masked = out.masked
    if masked.sample_weight is not None:
        return np.asarray(masked.sample_weight, float)
    return np.ones(1) if masked.valid is None else masked.valid.astype(float)


def _parameter(out: Normalized, name: str) -> Array:
    values = getattr(out, name)
    if values is None:
        return np.asarray(1.0 if name == "weight" else 0.0)
    return np.asarray(values, float).reshape(out.masked.layout.weight_split)


def _restore(out: Normalized, values: Array) -> Array:
    """Bounds in the shape of x: padding is exact."""
    masked = out.masked
    values = np.broadcast_to(values, masked.layout.split)
    if masked.valid is not None:
        values = np.where(masked.valid, values, 0.0)
    values = values.reshape(masked.layout.shape)
    return values if masked.rows is None else masked.from_packed(values[masked.rows])


def _rstd(m2: Array, count: Array, out: Normalized) -> Array:
    """rstd of another m2; inf where nothing is divided by."""
    norm = out.norm
    var = _ratio(m2, count - norm.ddof)
    deviation = np.sqrt(var + norm.eps) if norm.eps_at == "var" else np.sqrt(var) + norm.eps
    return np.where(count > norm.ddof, 1 / deviation, 0.0)


def _factor(m2: Array, dm2: Array, freedom: Array, out: Normalized) -> tuple[Array, Array]:
    """1 + eps / std of eps_at="std", and its error."""
    if out.norm.eps_at == "var":
        return np.ones_like(m2), np.zeros_like(m2)

    def at(m2: Array) -> Array:
        std = np.sqrt(_ratio(m2, freedom))
        return np.where(std > 0, 1 + out.norm.eps / std, 0.0)

    middle, low, high = at(m2), at(m2 + dm2), at(np.maximum(m2 - dm2, 0.0))
    lost = (m2 > 0) & (m2 <= dm2)  # std may be 0
    return middle, np.where(lost, np.inf, np.maximum(np.abs(high - middle), np.abs(middle - low)))


def _ratio(above: Any, below: Array) -> Array:
    return np.where(below > 0, above / np.where(below > 0, below, 1.0), 0.0)


def _times(one: Array, two: Array) -> Array:
    """The product; 0 · inf is 0: what is exactly 0 has no error."""
    return np.where((one == 0) | (two == 0), 0.0, one * two)
