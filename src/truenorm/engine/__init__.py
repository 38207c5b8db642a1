"""Chooses the implementation of the verbs: the compiled kernels if they were built, else the reference.

`TRUENORM_ENGINE=reference` in the environment, or `use("reference")`, chooses the reference everywhere.
"""

from __future__ import annotations

import os
import warnings
from functools import wraps
from types import ModuleType
from typing import cast, get_args

from numpy.typing import ArrayLike

from truenorm.core import reference
from truenorm.core.inputs import BackwardSums, Normalized, Padding
from truenorm.core.lengths import LengthsLike
from truenorm.core.moments import Moments, merge
from truenorm.core.moments import measure as reference_measure
from truenorm.core.norm import Norm, as_norm
from truenorm.engine.backend import Backend, Engine, Gradients, ReferenceBackend
from truenorm.engine.threads import set_threads, threads

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

_backends: dict[Engine, Backend] = {"reference": ReferenceBackend()}
kernels: ModuleType | None
try:
    from truenorm.engine import native as _native_backend
except ImportError:  # not built: the reference does everything
    kernels = None
else:
    kernels = _native_backend
    _backends["native"] = _native_backend.NativeBackend()

_chosen: Engine = "reference"
_backend: Backend = _backends[_chosen]


def use(name: Engine) -> None:
    """Choose the engine for all that follows."""
    global _chosen, _backend
    if name not in get_args(Engine):
        raise ValueError(f"engine must be {' or '.join(map(repr, get_args(Engine)))}, got {name!r}.")
    if name not in _backends:
        raise ValueError(f"engine must be 'reference', got {name!r}, which is not built. Install with a C++ compiler.")
    _chosen, _backend = name, _backends[name]


def engine() -> Engine:
    """The engine in use."""
    return _chosen


def available() -> tuple[Engine, ...]:
    """The engines that are here, the fastest first."""
    return tuple(name for name in get_args(Engine) if name in _backends)


try:
    use(cast(Engine, os.environ.get("TRUENORM_ENGINE") or available()[0]))
except ValueError as error:  # a program that imports truenorm can do nothing about it
    use(available()[0])
    warnings.warn(f"TRUENORM_ENGINE: {error} Using {_chosen!r}.", stacklevel=2)


@wraps(reference_measure)
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
    if isinstance(norm, str):
        norm = as_norm(norm)
    return _backend.measure(
        x,
        norm,
        valid=valid,
        lengths=lengths,
        offsets=offsets,
        segments=segments,
        sample_weight=sample_weight,
        along=along,
    )


@wraps(reference.forward)
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
    if isinstance(norm, str):
        norm = as_norm(norm)
    return _backend.forward(
        x,
        norm,
        weight=weight,
        bias=bias,
        valid=valid,
        lengths=lengths,
        offsets=offsets,
        segments=segments,
        sample_weight=sample_weight,
        along=along,
        moments=moments,
        padding=padding,
    )


@wraps(reference.backward_sums)
def backward_sums(dy: ArrayLike, out: Normalized) -> BackwardSums:
    if not isinstance(out, Normalized):
        raise _not_a_result(out)
    return _backend.backward_sums(dy, out)


@wraps(reference.backward)
def backward(dy: ArrayLike, out: Normalized, *, sums: BackwardSums | None = None) -> Gradients:
    if not isinstance(out, Normalized):
        raise _not_a_result(out)
    if not (sums is None or isinstance(sums, BackwardSums)):
        raise TypeError(
            f"sums must be a BackwardSums, got {type(sums).__name__}. Make one with backward_sums(dy, out)."
        )
    return _backend.backward(dy, out, sums=sums)


def _not_a_result(out: object) -> TypeError:
    return TypeError(f"out must be what forward returned, got {type(out).__name__}. Pass dy first.")


def compiled() -> ModuleType | None:
    """The compiled module if it is in use, else None."""
    return None if _chosen == "reference" or kernels is None else _native_backend.native


def native_build() -> dict[str, str] | None:
    """How the compiled part was built; None if it was not."""
    return None if kernels is None else _native_backend.native.build_info()
