"""Numbers and text of plain types, whatever class of their own they had.

What compares equal shares an entry of a cache: 1, 1.0, True and NumPy's numbers, or text and members of an enumeration.
"""

from __future__ import annotations

import math
from numbers import Real


def plain_float(value: object) -> float:
    """NaN for what is not a number, or is a larger one than floats have."""
    try:
        return float(value) if isinstance(value, Real) and not isinstance(value, bool) else math.nan
    except OverflowError:
        return math.nan


def plain_text(text: str) -> str:
    """Text without the class of its own that it may have, such as NumPy's or an enumeration's."""
    return str.__str__(text)
