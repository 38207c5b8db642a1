"""Running mean and variance: statistics over many batches.

`momentum` chooses one of three ways to combine batches:

    a number   mean += momentum · (batch mean - mean), the same for var     an exponential moving average
    None       the same with 1 / (batches so far)                           every batch has the same weight
    "pooled"   `merge`: every element has the same weight                   the moments of all data seen

Other libraries store the first two. Neither describes the data: an average of variances leaves out how far apart the
means of the batches are. `pooled` is exact, by the law of `moments.py`.

`half_life` is momentum counted in valid elements instead of batches: what was seen before weighs half as much after so
many elements of a channel, however they are cut into batches. Its weight for a batch of n elements, of N so far, is

    (1 - 2^(-n / half_life)) / (1 - 2^(-N / half_life))

The denominator makes the first batch weigh 1: the initial mean 0 and variance 1 never count. It tends to 1, and then
a half-life is a momentum of 1 - 2^(-n / half_life) for batches of n elements (`momentum_from_half_life`).

A batch with a non-finite channel changes nothing and is counted in `skipped`. A channel without a valid element, or
with too few for a variance, stays as it was.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from truenorm.core.arrays import Floats, as_array
from truenorm.core.moments import Moments, merge
from truenorm.core.norm import Norm, as_norm, check_choice

__all__ = [
    "Convention",
    "Running",
    "half_life_from_momentum",
    "keras_convention",
    "momentum_from_half_life",
    "torch_convention",
]


@dataclass(frozen=True)
class Convention:
    """How a library keeps running statistics.

    Args:
        momentum: the weight of the new batch; None for a cumulative average over batches, "pooled" over elements
        ddof: of the stored variance; batches are normalized with the ddof of the norm
        half_life: in elements of a channel, instead of momentum

    Examples:
        >>> import truenorm as tn
        >>> tn.running.torch_convention(momentum=0.25) == tn.running.Convention(0.25, ddof=1)
        True
    """

    momentum: float | Literal["pooled"] | None
    ddof: Literal[0, 1]
    half_life: float | None = None

    def __post_init__(self) -> None:
        check_choice("Convention", "ddof", self.ddof, (0, 1))
        if self.half_life is not None:
            check_half_life("Convention", self.half_life)
            if self.momentum is not None:
                raise ValueError(
                    f"Convention: momentum or half_life, got momentum={self.momentum!r} and "
                    f"half_life={self.half_life!r}. Pass momentum=None with half_life."
                )
        if self.momentum in (None, "pooled"):
            return
        if not (isinstance(self.momentum, float) and 0 <= self.momentum <= 1):
            raise ValueError(
                f"Convention: momentum is a float from 0 to 1, None or 'pooled', got {self.momentum!r}. "
                "It is the weight of the new batch."
            )


def torch_convention(momentum: float | None = 0.1) -> Convention:
    """PyTorch: momentum is the weight of the new batch, the variance is stored with n - 1.

    Args:
        momentum: the weight of the new batch; None for a cumulative average

    Examples:
        >>> import truenorm as tn
        >>> tn.running.torch_convention()
        Convention(momentum=0.1, ddof=1, half_life=None)
    """
    return Convention(momentum, ddof=1)


def keras_convention(momentum: float = 0.99) -> Convention:
    """Keras: momentum is the weight of the old statistics, the variance is stored with n.

    Args:
        momentum: the weight of the old statistics

    Examples:
        >>> import truenorm as tn
        >>> tn.running.keras_convention(0.75)
        Convention(momentum=0.25, ddof=0, half_life=None)
    """
    return Convention(1 - momentum, ddof=0)


# ---- half-lives ----

Library = Literal["torch", "keras"]


def half_life_from_momentum(momentum: float, count: float, library: Library = "torch") -> float:
    """The half-life of a momentum, in elements of a channel.

    Args:
        momentum: between 0 and 1
        count: valid elements of a channel in each batch
        library: whose momentum: in "torch" the weight of the new batch, in "keras" that of the old statistics

    Examples:
        >>> from truenorm import running
        >>> round(running.half_life_from_momentum(0.1, 64), 2)
        421.04
        >>> round(running.half_life_from_momentum(0.9, 64, "keras"), 2)
        421.04
    """
    check_choice("half_life_from_momentum", "library", library, ("torch", "keras"))
    _check_count("half_life_from_momentum", count)
    if not (_is_number(momentum) and 0 < momentum < 1):
        raise ValueError(
            f"half_life_from_momentum: momentum is a number between 0 and 1, got {momentum!r}. "
            "Others have no half-life."
        )
    return -count * math.log(2.0) / (math.log1p(-momentum) if library == "torch" else math.log(momentum))


def momentum_from_half_life(half_life: float, count: float, library: Library = "torch") -> float:
    """The momentum of a half-life.

    Args:
        half_life: in elements of a channel
        count: valid elements of a channel in each batch
        library: whose momentum: in "torch" the weight of the new batch, in "keras" that of the old statistics

    Examples:
        >>> from truenorm import running
        >>> running.momentum_from_half_life(64.0, 64), running.momentum_from_half_life(32.0, 64, "keras")
        (0.5, 0.25)
    """
    check_choice("momentum_from_half_life", "library", library, ("torch", "keras"))
    check_half_life("momentum_from_half_life", half_life)
    _check_count("momentum_from_half_life", count)
    exponent = -count / half_life
    return -math.expm1(exponent * math.log(2.0)) if library == "torch" else 2.0**exponent


def check_half_life(who: str, half_life: object) -> None:
    if not (_is_number(half_life) and 0 < half_life < math.inf):
        raise ValueError(
            f"{who}: half_life is a finite number > 0, got {half_life!r}. It is a number of valid values per channel."
        )


def _check_count(who: str, count: object) -> None:
    if not (_is_number(count) and 0 < count < math.inf):
        raise ValueError(
            f"{who}: count is a finite number > 0, got {count!r}. It is the valid values per channel in a batch."
        )


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, Real) and not isinstance(value, bool)


def _weight_by_half_life(count: NDArray[Any], total: NDArray[Any], half_life: float) -> Floats:
    """The weight of a batch of `count` elements; total: of all batches, with this one. 1 for the first batch."""
    rate = -math.log(2.0) / half_life
    weight: Floats = np.expm1(rate * count) / np.expm1(rate * total)
    return weight


@dataclass(frozen=True, eq=False)
class Running:
    """Running statistics, as an immutable value: `update` returns the next one. `start` makes the first.

    Args:
        mean: one for each channel
        var: the same
        count: elements seen, for each channel
        convention: how a batch changes them
        batches: how many have
        skipped: how many have not, as they were not finite

    Examples:
        >>> import truenorm as tn
        >>> running = tn.running.Running.start((1,), tn.running.Convention("pooled", ddof=0))
        >>> for rows in ([[1.0], [3.0]], [[8.0]]):
        ...     running = running.update(tn.measure(rows, tn.batch()))
        >>> running.mean, running.var, running.batches
        (array([4.]), array([8.66666667]), 2)
        >>> tn.forward([[4.0]], tn.batch(), moments=running.moments(tn.batch())).y  # as in evaluation
        array([[0.]])
    """

    mean: Floats
    var: Floats
    count: NDArray[Any]
    convention: Convention
    batches: int = 0
    skipped: int = 0

    def __post_init__(self) -> None:
        for name in ("mean", "var", "count"):
            object.__setattr__(self, name, as_array(getattr(self, name), name))

    @classmethod
    def start(cls, shape: tuple[int, ...], convention: Convention) -> Running:
        """Mean 0 and variance 1, of this shape: a normalization with these leaves its input (almost) as it is.

        `convention` says how batches change them.
        """
        if not isinstance(convention, Convention):
            raise TypeError(
                f"Running: convention must be a Convention, got {convention!r}. Make one with torch_convention()."
            )
        return cls(np.zeros(shape), np.ones(shape), np.zeros(shape, np.int64), convention)

    def update(self, batch: Moments) -> Running:
        """These statistics after one more batch, measured by `measure`."""
        if not isinstance(batch, Moments):
            raise TypeError(f"Running: moments must be a Moments, got {type(batch).__name__}. Make one with measure().")
        if batch.shape != self.mean.shape:
            raise ValueError(f"Running: moments must have the shape {self.mean.shape}, got {batch.shape}.")
        momentum, ddof = self.convention.momentum, self.convention.ddof
        count = self.count + batch.count
        if (
            isinstance(momentum, float)
            and (updated := batch.ema_update(self.mean, self.var, momentum, ddof)) is not None
        ):
            return self._after(*updated, count)
        pooled = momentum == "pooled"
        if not (np.isfinite(batch.mean) & np.isfinite(batch.m2))[batch.count > 0].all():
            return replace(self, skipped=self.skipped + 1)
        seen = batch.count > (0 if pooled else ddof)
        if not seen.any():
            return self
        if pooled:
            total = merge(Moments.from_variance(self.mean, self.var, count=self.count, ddof=ddof), batch)
            mean, var, seen = total.mean, total.var(ddof), total.count > 0
            if not np.isfinite(var).all():  # both finite, but their sum is not
                return replace(self, skipped=self.skipped + 1)
        else:
            weight: Any = momentum if isinstance(momentum, float) else 1 / (self.batches + 1)
            with np.errstate(all="ignore"):  # in channels without a valid element
                if self.convention.half_life is not None:
                    count = self.count + np.where(seen, batch.count, 0)  # what is left out has no weight later
                    weight = _weight_by_half_life(batch.count, count, self.convention.half_life)
                mean = self.mean + weight * (batch.mean - self.mean)
                var = self.var + weight * (batch.var(ddof) - self.var)
        return self._after(np.where(seen, mean, self.mean), np.where(seen, var, self.var), count)

    def _after(self, mean: Floats, var: Floats, count: NDArray[Any]) -> Running:
        """The statistics after one more batch. `replace` would cost ten microseconds."""
        later = object.__new__(Running)
        later.__dict__.update(
            {
                "mean": np.asarray(mean),
                "var": np.asarray(var),
                "count": np.asarray(count),
                "convention": self.convention,
                "batches": self.batches + 1,
                "skipped": self.skipped,
            }
        )
        return later

    def moments(self, norm: Norm | str) -> Moments:
        """These statistics as the constants of `forward(x, norm, moments=...)`."""
        return Moments.from_variance(self.mean, self.var, ddof=as_norm(norm).ddof)
