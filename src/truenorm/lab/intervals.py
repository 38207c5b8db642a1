"""Confidence intervals of a mean over seeds, by Student's t distribution.

With five or ten seeds a bootstrap interval is too narrow: it is made of few different values. The t interval is
right for normal effects of any number, so effects that are ratios are measured as logarithms.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from functools import lru_cache


def t_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The confidence interval of the mean of two or more values.

    >>> low, high = t_interval([1.0, 2.0, 3.0])
    >>> round(low, 3), round(high, 3)
    (-0.484, 4.484)
    """
    mean, n = statistics.fmean(values), len(values)
    half = t_quantile(n - 1, level) * statistics.stdev(values) / math.sqrt(n)
    return mean - half, mean + half


@lru_cache(maxsize=64)
def t_quantile(freedom: int, level: float) -> float:
    """The t such that a variable of Student's distribution lies between -t and t with probability `level`."""
    low, high = 0.0, 1.0
    while probability_within(high, freedom) < level:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if probability_within(middle, freedom) < level else (low, middle)
    return high


def probability_within(t: float, freedom: int) -> float:
    """The probability of -t to t: a finite sum for whole degrees of freedom (Abramowitz and Stegun, 26.7.3, 26.7.4)."""
    angle = math.atan(t / math.sqrt(freedom))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cosine**2 * (power - 1) / power
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
