"""Arguments as arrays: every array that a user passes goes through here.

A mask of `numpy.ma` would be lost by `np.asarray`, so masked arrays are refused; so are values that are no numbers.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.floating[Any]]


def as_floats(values: ArrayLike, name: str) -> Floats:
    """The values in float64, or wider where they are wider."""
    array = as_array(values, name)
    return array.astype(np.result_type(float_dtype(array, name), np.float64), copy=False)


def as_array(values: Any, name: str) -> NDArray[Any]:
    """The values as an array. Every argument that is an array goes through here: masks of `numpy.ma` would be lost."""
    if type(values) is np.ndarray:
        return values
    if not (type(values) is list and _NUMBERS.issuperset(map(type, values))):
        refuse_masked(values, name)
    return np.asarray(values)


_NUMBERS = frozenset((int, float, bool))


def refuse_masked(values: Any, name: str) -> None:
    """Raises an error if the values are a masked array of NumPy, or a list that holds one."""
    if _holds_masked_array(values):
        fixes = {
            "x": "Pass np.ma.getdata(x), valid=~np.ma.getmaskarray(x).",
            "valid": "Pass np.ma.filled(valid, False).",
            "sample_weight": "Pass np.ma.filled(sample_weight, 0).",
        }
        fix = fixes.get(name, f"Its mask would be lost: pass np.ma.getdata({name}).")
        raise TypeError(f"{name} must be a plain array, got a masked array. {fix}")


def _holds_masked_array(values: Any) -> bool:
    if isinstance(values, list | tuple):
        return any(map(_holds_masked_array, values))
    return isinstance(values, np.ma.MaskedArray)


def float_dtype(values: NDArray[Any], name: str) -> np.dtype[Any]:
    """The dtype of the results: that of the values, float64 for integers."""
    dtype = values.dtype
    if dtype.kind == "f":
        return dtype
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if not np.can_cast(dtype, np.longdouble):
        raise TypeError(f"{name} must hold real numbers, got dtype {dtype}. Convert it to a float dtype first.")
    return dtype
