"""Statistics that can be merged: `Moments(count, mean, m2)`.

`m2` is the summed squared deviation, so var = m2 / (count - ddof). The whole library keeps this law:

    Any partition of the valid elements, merged in any order, gives the same Moments.

Sequences, micro-batches, processes, masks, sample weights and running statistics are all uses of `measure`
and `merge`. Both call one function, `weighted_moments`. `measure` weights elements, by 1 or by their sample weight;
`merge` weights means, by their counts, and adds the parts' m2.

Two passes, never E[x²] - E[x]², which loses everything when the mean is large: for N(10⁴, 1) in float32 it
gives a variance of 16. All sums are in float64, in an order that does not depend on padding (`tree_sum`).
References: [chan], [higham].
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.arrays import Floats, as_array, as_floats
from truenorm.core.lengths import LengthsLike
from truenorm.core.mask import MaskedInput, mask_input
from truenorm.core.norm import Norm, as_norm

# Overflow to inf, and NaN from inf - inf, are expected results here: no warnings from NumPy.
ignore_floating_point_errors = np.errstate(all="ignore")

LARGE, SCALE = 2.0**900, 2.0**-100  # values above LARGE are multiplied by SCALE while they are summed


@dataclass(frozen=True, eq=False, init=False)
class Moments:
    """The number of elements, their mean, and the sum of their squared deviations from it.

    Args:
        count: integers, or float64 where elements were weighted
        mean: float64
        m2: float64

    Examples:
        >>> from truenorm import measure
        >>> measure([2.0, 4.0, 9.0], "[c]")
        Moments(count=3, mean=5.0, m2=26.0)
    """

    count: NDArray[Any]
    mean: Floats
    m2: Floats

    def __init__(self, count: ArrayLike, mean: ArrayLike, m2: ArrayLike) -> None:
        mean, m2, count = as_floats(mean, "mean"), as_floats(m2, "m2"), as_array(count, "count")
        count = count.astype(np.int64 if count.dtype.kind in "biu" else np.float64, copy=False)
        if mean.shape != m2.shape or count.shape not in ((), mean.shape):
            raise ValueError(
                f"Moments: all must have one shape, got count {count.shape}, mean {mean.shape} and m2 {m2.shape}."
            )
        if (count < 0).any() or (m2 < 0).any():
            raise ValueError(f"Moments: count and m2 must be >= 0, got minima of {count.min()} and {m2.min()}.")
        object.__setattr__(self, "count", np.broadcast_to(count, mean.shape))
        object.__setattr__(self, "mean", mean)
        object.__setattr__(self, "m2", m2)

    @classmethod
    def from_variance(
        cls, mean: ArrayLike, var: ArrayLike, *, count: ArrayLike | None = None, ddof: int = 0
    ) -> Moments:
        """Moments with this mean and exactly this var(ddof), such as running statistics. count: 1 + ddof unless given.

        >>> Moments.from_variance([1.0], [4.0]).var()
        array([4.])
        """
        number = as_array(1 + ddof if count is None else count, "count")
        return cls(number, mean, as_array(var, "var") * np.maximum(number - ddof, 0))

    @property
    def shape(self) -> tuple[int, ...]:
        """The axes that the normalization keeps."""
        return self.mean.shape

    def var(self, ddof: int = 0) -> Floats:
        """m2 / (count - ddof); 0 where count <= ddof."""
        known = self.count > ddof
        var: Floats = np.divide(self.m2, self.count - ddof, out=np.zeros_like(self.m2), where=known)
        return var

    def ema_update(self, mean: Floats, var: Floats, momentum: float, ddof: int) -> tuple[Floats, Floats] | None:
        """A running mean and variance, updated with these. None if there is no fast way: `Running` computes it."""
        return None

    def __repr__(self) -> str:
        values = (f"{name}={getattr(self, name).tolist()}" for name in ("count", "mean", "m2"))
        return f"Moments({', '.join(values)})"


@ignore_floating_point_errors
def measure(
    x: ArrayLike,
    norm: Norm | str,
    *,
    valid: ArrayLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: ArrayLike | None = None,
    segments: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    along: int | str | None = None,
) -> Moments:
    """The moments of the valid elements of x, for each statistic of the normalization.

    >>> measure([[1.0, 8.0], [3.0, 9.0], [0.0, 0.0]], "[...] c", valid=[True, True, False])
    Moments(count=[2, 2], mean=[2.0, 8.5], m2=[2.0, 0.5])
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
    return measure_masked(masked, norm)


def measure_masked(masked: MaskedInput, norm: Norm | str) -> Moments:
    """`measure` for input that is masked already."""
    layout = masked.layout
    weight = masked.sample_weight if masked.sample_weight is not None else masked.valid
    moments = weighted_moments(masked.x, weight, layout.reduced, center=as_norm(norm).center)
    return Moments(*(np.broadcast_to(one, layout.statistics_split).reshape(layout.statistics) for one in moments))


@ignore_floating_point_errors
def merge(*parts: Moments) -> Moments:
    """The moments of all parts together. If only one part is not empty, exactly its moments.

    Args:
        parts: of one shape, in any order

    Examples:
        >>> import truenorm as tn
        >>> tn.merge(tn.Moments(3, 4.0, 8.0), tn.Moments(1, 8.0, 0.0))
        Moments(count=4, mean=5.0, m2=20.0)
    """
    if not parts:
        raise ValueError("merge needs at least one Moments, got none.")
    for part in parts:
        if not isinstance(part, Moments):
            raise TypeError(f"merge takes Moments, got {type(part).__name__}. Pass them one by one: merge(one, two).")
    shapes = {part.shape for part in parts}
    if len(shapes) > 1:
        raise ValueError(f"merge needs Moments of one shape, got {' and '.join(map(str, sorted(shapes)))}.")
    counts = np.stack([part.count for part in parts])
    means = np.where(counts > 0, np.stack([part.mean for part in parts]), 0.0)
    within = np.where(counts > 0, np.stack([part.m2 for part in parts]), 0.0)
    count, mean, between = weighted_moments(means, counts, (0,), center=True)
    return Moments(count[0], mean[0], (between + tree_sum(within, (0,)))[0])


def weighted_moments(
    values: Floats, weight: NDArray[Any] | None, axes: tuple[int, ...], *, center: bool
) -> tuple[NDArray[Any], Floats, Floats]:
    """Σ w, Σ w v / Σ w and Σ w (v - mean)², with the axes kept as size 1. Values of weight 0 are not read.

    The mean starts at the largest value, and twice the mean of the remainders is added. Equal values have remainder 0:
    their mean is exactly their value, however large or small (`test_constants_are_exact`), and merging a single part
    returns exactly that part (`test_empty_parts_are_exact`). Values so large that their sum could overflow are summed
    as multiples of 2^100, a power of two so that nothing is rounded. A value that is not finite makes mean and m2 NaN.
    """
    weight = np.ones([1] * values.ndim, np.int64) if weight is None else weight
    weight = weight.astype(np.int64) if weight.dtype == bool else weight
    constant = math.prod(values.shape[axis] for axis in axes if weight.shape[axis] == 1)
    count = tree_sum(weight, tuple(axis for axis in axes if weight.shape[axis] != 1)) * constant

    def total(of: Floats) -> Floats:
        return tree_sum(weight * np.where(weight != 0, of, 0.0), axes)

    if not center:
        squares = total(values**2)
        return count, np.zeros_like(squares), squares
    largest = np.where(weight != 0, np.abs(values), 0.0).max(axis=axes, keepdims=True, initial=0.0)
    scale = np.where(largest > LARGE, SCALE, 1.0)
    scaled = values * scale
    mean = np.where(weight != 0, scaled, -np.inf).max(axis=axes, keepdims=True, initial=-np.inf)
    mean = np.where(count > 0, mean, 0.0)
    for _ in range(2):
        remainder = total(scaled - mean)
        mean = mean + np.divide(remainder, count, out=np.zeros_like(remainder), where=count > 0)
    m2 = total((scaled - mean) ** 2) / scale**2
    return count, mean / scale, m2


def tree_sum(values: NDArray[Any], axes: tuple[int, ...]) -> NDArray[Any]:
    """The sum over the axes, kept as size 1. Zeros after the data do not change its rounding.

    Neighbours are added in pairs, then neighbouring pairs, and so on, axis by axis from the last. Trailing zeros only
    ever add zero to something, so the bits depend neither on the amount of padding nor on the rest of the batch. The
    error grows with log n, not n.

    >>> float(tree_sum(np.array([0.1, 0.2, 0.3]), (0,))[0]) == (0.1 + 0.2) + 0.3
    True
    """
    for axis in sorted(axes, reverse=True):
        level = np.moveaxis(values, axis, 0)
        if not len(level):
            level = np.zeros((1, *level.shape[1:]), level.dtype)
        while len(level) > 1:
            pairs, odd = divmod(len(level), 2)
            above = np.empty((pairs + odd, *level.shape[1:]), level.dtype)
            np.add(level[0 : 2 * pairs : 2], level[1::2], out=above[:pairs])
            above[pairs:] = level[2 * pairs :]
            level = above
        values = np.moveaxis(level, 0, axis)
    return values + 0  # a single -0.0 becomes 0.0, as it does with a zero after it
