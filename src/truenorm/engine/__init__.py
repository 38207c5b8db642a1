"""The one place that chooses an implementation of the five verbs: compiled kernels where they are, else the reference.

`TRUENORM_ENGINE=reference` in the environment, or `use("reference")`, chooses the reference everywhere.
"""

from __future__ import annotations

import os
import sys
import warnings
from functools import wraps
from types import ModuleType
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core import reference
from truenorm.core.inputs import BackwardSums, Normalized, Padding, check_inputs
from truenorm.core.mask import MaskedInput, mask_input
from truenorm.core.moments import Moments, measure_masked, merge
from truenorm.core.moments import measure as reference_measure
from truenorm.core.norm import Norm

__all__ = [
    "backward",
    "backward_sums",
    "engine",
    "forward",
    "measure",
    "merge",
    "native_build",
    "set_threads",
    "threads",
    "use",
]

Engine = Literal["native", "reference"]

kernels: ModuleType | None
try:
    from truenorm.engine import native as _kernels

    kernels = _kernels
except ImportError:  # not built: the reference does everything
    kernels = None

_chosen: Engine = "reference"


def use(name: Engine) -> None:
    """Choose the engine for all that follows."""
    global _chosen
    if name not in get_args(Engine):
        raise ValueError(f"engine: {' or '.join(map(repr, get_args(Engine)))}, got {name!r}.")
    if name == "native" and kernels is None:
        raise ValueError(
            "engine: 'native' was not built here, got 'native'. Install with a C++ compiler, or use 'reference'."
        )
    _chosen = name


def engine() -> Engine:
    """The engine in use."""
    return _chosen


def available() -> tuple[Engine, ...]:
    """The engines that are here, the fastest first."""
    return ("reference",) if kernels is None else ("native", "reference")


try:
    use(os.environ.get("TRUENORM_ENGINE") or available()[0])  # type: ignore[arg-type]
except ValueError as error:  # a program that imports truenorm can do nothing about it
    use(available()[0])
    warnings.warn(f"TRUENORM_ENGINE: {error} Going on with {_chosen!r}.", stacklevel=2)


def _kernel(masked: MaskedInput) -> Any:
    if _chosen == "reference" or kernels is None:
        return None
    kernels.set_threads(threads())
    return kernels.find(masked)


def _checked(out: Normalized) -> Normalized:
    if not isinstance(out, Normalized):
        raise TypeError(f"backward: dy and what forward returned, got {type(out).__name__} as the second.")
    return out


@wraps(reference_measure)
def measure(
    x: ArrayLike,
    norm: Norm,
    *,
    valid: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> Moments:
    masked = mask_input(x, norm, valid=valid, lengths=lengths, offsets=offsets, sample_weight=sample_weight)
    kernel = _kernel(masked)
    if kernel is None:
        with np.errstate(all="ignore"):
            return measure_masked(masked, norm)
    return kernels.measure_masked(kernel, masked)  # type: ignore[union-attr, no-any-return]


@wraps(reference.forward)
def forward(
    x: ArrayLike,
    norm: Norm,
    *,
    weight: ArrayLike | None = None,
    bias: ArrayLike | None = None,
    valid: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    moments: Moments | None = None,
    padding: Padding = "zero",
) -> Normalized:
    plain = valid is None and lengths is None and offsets is None and sample_weight is None and moments is None
    if plain and padding == "zero" and _chosen == "native" and isinstance(norm, Norm):
        kernels.set_threads(threads())  # type: ignore[union-attr]
        if (out := kernels.forward_directly(x, norm, weight, bias)) is not None:  # type: ignore[union-attr]
            return out  # type: ignore[no-any-return]
    masked = mask_input(x, norm, valid=valid, lengths=lengths, offsets=offsets, sample_weight=sample_weight)
    inputs = check_inputs(masked, norm, weight, bias, moments, padding)
    kernel = _kernel(masked)
    return reference.forward_inputs(inputs) if kernel is None else kernels.forward_inputs(kernel, inputs)  # type: ignore[union-attr]


@wraps(reference.backward_sums)
def backward_sums(dy: ArrayLike, out: Normalized) -> BackwardSums:
    kernel = _kernel(_checked(out).masked)
    return reference.backward_sums(dy, out) if kernel is None else kernels.backward_sums(kernel, dy, out)  # type: ignore[union-attr]


@wraps(reference.backward)
def backward(
    dy: ArrayLike, out: Normalized, *, sums: BackwardSums | None = None
) -> tuple[NDArray[Any], NDArray[Any] | None, NDArray[Any] | None]:
    _checked(out)
    if sums is None and _chosen == "native":
        kernels.set_threads(threads())  # type: ignore[union-attr]
        if (found := kernels.backward_directly(dy, out)) is not None:  # type: ignore[union-attr]
            return found  # type: ignore[no-any-return]
    kernel = _kernel(out.masked)
    if kernel is None:
        return reference.backward(dy, out, sums=sums)
    return kernels.backward(kernel, dy, out, sums)  # type: ignore[union-attr, no-any-return]


def compiled() -> Any:
    """The compiled part, where it is here and in use; else None."""
    return None if _chosen == "reference" or kernels is None else kernels.native


def native_build() -> dict[str, str] | None:
    """How the compiled part was built; None where it was not."""
    if kernels is None:
        return None
    from truenorm import _native

    return _native.build_info()


def threads() -> int:
    """How many threads a call uses: as told, else as many as torch where it is loaded, else as this process may."""
    if _told is not None:
        return _told
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    return _processors


def set_threads(count: int | None) -> None:
    """Use this many threads; None goes back to the default. No result depends on it."""
    global _told
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024):
        raise ValueError(f"threads: a whole number from 1 to 1024, or None, got {count!r}.")
    _told = count


_told: int | None = None
_processors = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
