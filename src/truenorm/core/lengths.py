"""`lengths` and `along`: how many positions of each sample are valid, and along which axis.

    lengths=l                    (b,): along t, or along the only position axis besides b
    lengths=(heights, widths)    one vector (b,) for each position axis, in the order of x
    lengths=l, along="w"         along this axis of several: its name in the pattern, or its number in x

A tuple of vectors is one for each axis; a single array or list always has the shape (b,). An array of two axes and a
list of lists are refused: for as many samples as axes, (axes, b) and (b, axes) would look the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import count
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.arrays import as_array
from truenorm.core.layout import Layout, write_out
from truenorm.core.norm import CHANNEL, Norm
from truenorm.core.pattern import PatternAxis, Piece

BATCH, TIME = "b", "t"
LengthsLike = ArrayLike | Sequence[ArrayLike]  # one vector, or one for each position axis


def is_one_for_each_axis(lengths: Any) -> bool:
    """Whether this is a tuple of vectors, and not one vector. A list of vectors could be either: it is refused."""
    nested = isinstance(lengths, list | tuple) and any(
        isinstance(one, list | tuple) or getattr(one, "ndim", 0) > 0 for one in lengths
    )
    if nested and isinstance(lengths, list):
        raise ValueError(
            "lengths must be one vector, or a tuple with one vector for each position axis, got a list of vectors, "
            "which could be one for each axis or for each sample. "
            "Pass lengths=(heights, widths), or a flat list for one axis."
        )
    return nested


def check_lengths(layout: Layout, lengths: Any, along: int | str | None = None) -> NDArray[np.int64]:
    """(b,) along `layout.ragged_axis`, or (axes, b) for all position axes. along: as it was given."""
    b, names = layout.find(BATCH), ", ".join(axis.name for axis in layout.axes)
    positions = layout.position_axes
    if b is None or not (positions or layout.ragged_axis is not None):
        raise ValueError(
            f"lengths needs a batch axis b and a position axis t, but x of shape {layout.shape} has the axes {names}. "
            "Use valid= instead, or name the axes in the pattern."
        )
    listed = ", ".join(layout.axes[i].name for i in positions)
    if is_one_for_each_axis(lengths):
        if along is not None:
            raise ValueError(
                f"along goes with one vector of lengths, got {len(lengths)}. Leave it out: they are one for each axis."
            )
        if len(lengths) != len(positions):
            raise ValueError(
                f"lengths must be one vector for each position axis of x of shape {layout.shape} ({listed}), "
                f"got {len(lengths)}. Pass one for each, or one with along=."
            )
        return np.stack([_check_vector(layout, one, b, i) for one, i in zip(lengths, positions, strict=True)])
    if layout.ragged_axis is None:
        raise ValueError(
            f"lengths must be one vector for each position axis of x of shape {layout.shape} ({listed}), "
            "got one array. Pass a tuple of vectors, or say with along= which axis it runs along, or use valid=."
        )
    return _check_vector(layout, lengths, b, layout.ragged_axis, along)


def _check_vector(layout: Layout, lengths: Any, b: int, axis: int, along: int | str | None = None) -> NDArray[np.int64]:
    samples, extent = layout.axes[b].size, layout.axes[axis].size
    array = as_array(lengths, "lengths")
    kind = array.dtype.kind
    if kind == "b":
        raise ValueError("lengths must hold integers, got dtype bool. A mask belongs in valid=.")
    if array.shape != (samples,):
        fix = " Pass lengths.squeeze(1)." if array.shape == (samples, 1) else ""
        raise ValueError(f"lengths must have the shape ({samples},), one for each sample, got {array.shape}.{fix}")
    if array.size and kind not in "iu":
        fix = "Convert it: lengths.astype(int), or lengths.long() in PyTorch."
        if kind == "f" and array.min() >= 0 and 0 < array.max() <= 1:
            fix = (
                f"If they are relative, from 0 to 1, pass (lengths * {extent}).round().astype(int), or "
                f"(lengths * {extent}).round().long() in PyTorch."
            )
        raise ValueError(f"lengths must hold integers, got dtype {array.dtype}. {fix}")
    counts = array.astype(np.int64)
    outside = np.flatnonzero((counts < 0) | (counts > extent))
    if outside.size:
        i, name = outside[0], layout.axes[axis].name if along is None else along
        raise ValueError(
            f"lengths must be from 0 to {extent}, the size of axis {name}, got {counts[i]} at index {i}. "
            "If x was cropped or strided, pass the lengths after that."
        )
    return counts


def mask_of_lengths(layout: Layout, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    """The valid elements, from what `check_lengths` returned; broadcasts against x."""
    if lengths.ndim > 1:
        axes = layout.position_axes
    else:
        assert layout.ragged_axis is not None
        axes = (layout.ragged_axis,)

    def only(axis: int | None) -> list[int]:
        return [one.size if i == axis else 1 for i, one in enumerate(layout.axes)]

    valid = np.ones((), bool)
    for axis, counts in zip(axes, np.atleast_2d(lengths), strict=True):
        steps = np.arange(layout.axes[axis].size).reshape(only(axis))
        valid = valid & (steps < counts.reshape(only(layout.find(BATCH))))
    return np.asarray(valid)


@lru_cache(maxsize=512, typed=True)
def norm_along(norm: Norm, rank: int, along: int | str) -> Norm:
    """The same normalization, in which the axis that lengths run along has the name t.

    >>> norm_along(Norm("[b h w] c"), 4, "w")
    Norm('[b] [h] [t] c')
    >>> norm_along(Norm("b c [...]"), 4, -1)
    Norm('b c [p2] [t]')
    """
    written = write_out(norm, rank)
    channel = next((i for i, axis in enumerate(written) if CHANNEL in axis.names), None)
    choices: dict[int | str, str] = {}
    for i, axis in enumerate(written):
        if i != channel and BATCH not in axis.names and len(axis.pieces) == 1:
            choices[i] = choices[i - rank] = axis.names[0]
        choices |= {name: name for name in axis.names if name == TIME or (i != channel and name != BATCH)}
    known = isinstance(along, str) or (isinstance(along, Integral) and not isinstance(along, bool))
    if not known or along not in choices:
        numbers = [str(i) for i in choices if isinstance(i, int) and i >= 0]
        names = [name for axis in norm.axes for name in axis.names if name in choices]
        raise ValueError(
            f"along must be a position axis of x, by number ({', '.join(numbers)}) or by its name in the pattern "
            f"({', '.join(names) or 'it has none'}), got {along!r}."
        )
    target, taken = choices[along], {name for axis in written for name in axis.names}
    spare = next(name for i in count() if (name := f"p{i}") not in taken)
    renamed = {target: TIME} if target == TIME else {target: TIME, TIME: spare}
    return _rename(norm, written, renamed)


def _rename(norm: Norm, written: tuple[PatternAxis, ...], names: Mapping[str, str]) -> Norm:
    axes = [
        replace(axis, pieces=tuple(Piece(names.get(piece.name, piece.name), piece.reduced) for piece in axis.pieces))
        for axis in written
    ]
    covered = [tuple(names.get(name, name) for name in one) for one in norm.affine_axes]
    affine = " ".join(f"({' '.join(one)})" for one in covered)
    return replace(
        norm,
        pattern=" ".join(map(str, axes)),
        sizes={names.get(name, name): size for name, size in norm.sizes.items()},
        affine=None if norm.affine is None else affine,
    )
