"""Chooses the implementation of the verbs: the compiled kernels if they were built, else the reference.

`TRUENORM_ENGINE=reference` in the environment, or `use("reference")`, chooses the reference everywhere.
"""

from __future__ import annotations

import os
import warnings
from types import ModuleType
from typing import cast, get_args

from numpy.typing import ArrayLike

from truenorm.core.documentation import RAGGED, described_by
from truenorm.core.inputs import BackwardSums, Normalized, Padding
from truenorm.core.lengths import LengthsLike
from truenorm.core.moments import Moments, merge
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


@described_by(RAGGED)
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

    Args:
        x: numbers of any shape that the pattern fits
        norm: a `Norm`, or its pattern
        valid, lengths, offsets, segments, sample_weight, along: which elements are valid

    Returns:
        `Moments` of the axes that the normalization keeps: (c,) for batch norm. Nothing valid gives count 0, mean 0,
        m2 0. With `center=False` the mean is 0 and m2 is Σ x².

    Examples:
        >>> import truenorm as tn
        >>> tn.measure([[1.0, 8.0], [3.0, 9.0], [0.0, 0.0]], tn.batch(), valid=[True, True, False])
        Moments(count=[2, 2], mean=[2.0, 8.5], m2=[2.0, 0.5])
    """
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


@described_by(RAGGED)
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
    """y = (x - mean) / sqrt(var + eps) * weight + bias, with the statistics of the valid elements only.

    Args:
        x: numbers of any shape that the pattern fits
        norm: a `Norm`, or its pattern
        weight: usually (c,); in general of `norm.view(x.shape).weight_shape`
        bias: the same
        valid, lengths, offsets, segments, sample_weight, along: which elements are valid
        moments: used instead of those of x; `backward` then treats them as constants
        padding: what y holds where x is not valid: "zero", or "keep" for the values of x

    Returns:
        `Normalized`, with y in the shape and dtype of x, and the moments; pass it to `backward`. A constant channel
        gives exactly `bias`, and so does one with too few elements for its `ddof`.

    Examples:
        >>> import numpy as np
        >>> import truenorm as tn
        >>> x = np.array([[[1.0], [3.0]], [[5.0], [np.nan]]])  # (b, t, c); the last position is padding
        >>> out = tn.forward(x, tn.batch(), lengths=[2, 1], weight=[2.0])
        >>> out.moments.mean, out.y.round(3).ravel()
        (array([3.]), array([-2.449,  0.   ,  2.449,  0.   ]))
    """
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


def backward_sums(dy: ArrayLike, out: Normalized) -> BackwardSums:
    """The sums that the gradient needs, over this part only. Add those of the other parts to them.

    Args:
        dy: the gradient of the loss at y, in its shape
        out: what `forward` returned, with the moments of all parts

    Returns:
        `BackwardSums`, which can be added, and which `backward` takes as `sums`

    Examples:
        >>> import numpy as np
        >>> import truenorm as tn
        >>> parts = np.array([[1.0]]), np.array([[2.0], [6.0]])
        >>> moments = tn.merge(*(tn.measure(part, tn.batch()) for part in parts))
        >>> outs = [tn.forward(part, tn.batch(), moments=moments) for part in parts]
        >>> dys = np.array([[1.0]]), np.array([[0.0], [0.0]])
        >>> sums = tn.backward_sums(dys[0], outs[0]) + tn.backward_sums(dys[1], outs[1])
        >>> [tn.backward(dy, out, sums=sums)[0].ravel().round(3).tolist() for dy, out in zip(dys, outs)]
        [[0.176], [-0.22, 0.044]]
    """
    if not isinstance(out, Normalized):
        raise _not_a_result(out)
    return _backend.backward_sums(dy, out)


def backward(dy: ArrayLike, out: Normalized, *, sums: BackwardSums | None = None) -> Gradients:
    """The gradients of a `forward`.

    Args:
        dy: the gradient of the loss at y, in its shape
        out: what `forward` returned
        sums: of all parts together, if x is one part of the data and the moments are those of all: see `backward_sums`

    Returns:
        dx, dweight and dbias; None where there is no weight or bias. Moments that were given to `forward` are
        constants, unless `sums` are given: then dweight and dbias are those of all parts, too.

    Examples:
        >>> import numpy as np
        >>> import truenorm as tn
        >>> out = tn.forward(np.array([[1.0], [2.0], [6.0]]), tn.batch(), weight=[1.0])
        >>> dx, dweight, dbias = tn.backward([[1.0], [0.0], [0.0]], out)
        >>> dx.ravel().round(3), dweight.round(3), dbias
        (array([ 0.176, -0.22 ,  0.044]), array([-0.926]), None)
    """
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
