"""Which elements are real: select first, then compute.

People say it in four ways, and all become one thing, a `Selection`: x in float64 with its composed axes
split, exactly 0 wherever an element is not real, and two arrays that broadcast against it.

    valid=          booleans: x without its channel axis, or the rank of x. Rank decides, never size
    lengths=        (b,): the first lengths[b] positions t of sample b
    offsets=        x is packed (rows, c): sample i is the rows offsets[i] to offsets[i+1]
    sample_weight=  how often a position counts in the statistics; 0 leaves it out but still normalises it

Selecting by `where`, before any arithmetic, is what makes NaN in the padding harmless: NaN * 0 is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.spec import Norm
from truenorm.view import View

Floats = NDArray[np.floating[Any]]


@dataclass(frozen=True, eq=False)
class Selection:
    """x made ready for arithmetic, and the way back to the form it came in."""

    view: View
    x: Floats  # view.split, at least float64, 0 where not valid
    valid: NDArray[np.bool_] | None  # broadcasts against x; None: everything is real
    sample_weight: Floats | None  # broadcasts against x, 0 where not valid; None: all count once
    dtype: np.dtype[Any]  # of what is returned
    shape: tuple[int, ...]  # x as it was given
    rows: NDArray[np.bool_] | None = None  # (samples, longest): where packed rows go when they are padded

    def arrange(self, values: ArrayLike, *, like: str = "dy") -> Floats:
        """An array of x's own form, selected in the same way."""
        values = as_floats(values, like)
        if values.shape != self.shape:
            raise ValueError(f"{like}: has the shape of x, {self.shape}, got {values.shape}.")
        values = _pad(values, self.rows).reshape(self.view.split)
        return values if self.valid is None else np.where(self.valid, values, 0.0)

    def restore(self, values: Floats, *, keep: ArrayLike | None = None) -> Floats:
        """Back to x's own form and dtype, with 0 (or what `keep` holds) where nothing is valid."""
        if self.valid is not None:
            values = np.where(self.valid, values, 0.0)
        values = values.reshape(self.view.shape)
        if self.rows is not None:
            return values[self.rows].astype(self.dtype)  # packed rows are all valid
        values = values.astype(self.dtype)
        if keep is None or self.valid is None:
            return values
        valid = np.broadcast_to(self.valid, self.view.split).reshape(self.shape)
        return np.where(valid, values, np.asarray(keep, self.dtype))


def select(
    x: ArrayLike,
    norm: Norm,
    *,
    valid: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> Selection:
    """The one place where `valid`, `lengths`, `offsets` and `sample_weight` are read and checked."""
    named = {"valid": valid, "lengths": lengths, "offsets": offsets}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise ValueError(
            f"{given[0]}: at most one of valid, lengths and offsets, got {' and '.join(given)}. "
            "Each of them says which elements are real: choose one."
        )
    dtype = float_dtype(x, "x")
    x = as_floats(x, "x")
    shape = x.shape
    rows: NDArray[np.bool_] | None = None
    if offsets is not None:
        norm, rows = _packing(norm, x.shape, offsets)
        x = _pad(x, rows)
    view = norm.view(x.shape)
    real: NDArray[np.bool_] | None = None
    if lengths is not None:
        real = _mask_of_lengths(view, lengths)
    elif rows is not None:
        real = rows.reshape(view.spread((*rows.shape, 1)))
    elif valid is not None:
        real = _mask_of_valid(view, valid)
    times = None if sample_weight is None else _times(view, sample_weight, rows)
    x = x.reshape(view.split)
    if real is not None:
        x = np.where(real, x, 0.0)
        times = times if times is None else np.where(real, times, 0.0)
    if times is not None and not (np.isfinite(times) & (times >= 0)).all():
        bad = times[~(np.isfinite(times) & (times >= 0))].flat[0]
        raise ValueError(f"sample_weight: finite and >= 0, got {bad:g}. A position of weight 2 counts twice.")
    return Selection(view, x, real, times, dtype, shape, rows)


def as_floats(values: ArrayLike, name: str) -> Floats:
    """The values in float64, or wider where they are wider."""
    array = np.asarray(values)
    return array.astype(np.result_type(float_dtype(array, name), np.float64), copy=False)


def float_dtype(values: ArrayLike, name: str) -> np.dtype[Any]:
    """The dtype that results have: the values' own, float64 for integers."""
    dtype = np.asarray(values).dtype
    if dtype.kind in "biu":
        return np.dtype(np.float64)
    if dtype.kind in "cOSUMm" or not np.can_cast(dtype, np.longdouble):
        raise TypeError(f"{name}: real numbers, got dtype {dtype}. Convert it to a float dtype first.")
    return dtype


def _mask_of_valid(view: View, valid: ArrayLike) -> NDArray[np.bool_]:
    mask = np.asarray(valid)
    if mask.dtype.kind not in "biu":
        raise TypeError(f"valid: booleans or integers, got {mask.dtype}. Weights go into sample_weight.")
    return _by_rank(view, mask.astype(bool), "valid")


def _by_rank(view: View, array: NDArray[Any], name: str) -> NDArray[Any]:
    """Rank decides: one axis fewer than x is x without its channel axis; each axis is x's or 1."""
    full, positions = view.shape, view.positions
    fewer = len(full) - (view.channel is not None)
    shape = array.shape
    if view.channel is not None and len(shape) == fewer:
        shape = (*shape[: view.channel], 1, *shape[view.channel :])
    if len(shape) != len(full) or any(one not in (1, of) for one, of in zip(shape, full, strict=True)):
        choices = f"{positions} (x without its channel axis) or {full}" if fewer < len(full) else f"{full}"
        raise ValueError(f"{name}: the shape {choices}, each axis equal or 1, got {array.shape} for x {full}.")
    return array.reshape(view.spread(shape))


def _times(view: View, sample_weight: ArrayLike, rows: NDArray[np.bool_] | None) -> Floats:
    times = as_floats(sample_weight, "sample_weight")
    if rows is not None:
        packed = int(rows.sum())
        if times.shape not in ((packed,), (packed, 1)):
            raise ValueError(f"sample_weight: one for each of the {packed} packed rows, got shape {times.shape}.")
        times = _pad(times.reshape(packed, 1), rows)
    times = _by_rank(view, times, "sample_weight")
    channels = [i for i, axis in enumerate(view.axes) if axis.source == view.channel]
    if any(times.shape[i] > 1 for i in channels):
        raise ValueError(
            f"sample_weight: one number for each position {view.positions}, got one for each channel too. "
            "Leave the channel axis out, or let it have size 1."
        )
    return times


def _integers(values: ArrayLike, name: str) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(f"{name}: a row of whole numbers, got shape {array.shape} and dtype {array.dtype}.")
    return array.astype(np.int64)


def _mask_of_lengths(view: View, lengths: ArrayLike) -> NDArray[np.bool_]:
    counts = _integers(lengths, "lengths")
    b, t = view.find("b"), view.find("t")
    if b is None or t is None:
        names = ", ".join(axis.name for axis in view.axes)
        raise ValueError(
            f"lengths: axes b and t to count in, got x {view.shape} with the axes {names}. "
            "Name them in the pattern, or pass valid=, which works for every shape."
        )
    samples, extent = view.axes[b].size, view.axes[t].size
    if len(counts) != samples:
        raise ValueError(f"lengths: one for each of the {samples} samples, got {len(counts)}.")
    outside = np.flatnonzero((counts < 0) | (counts > extent))
    if outside.size:
        i = outside[0]
        raise ValueError(f"lengths: from 0 to the {extent} positions of x, got {counts[i]} at index {i}.")
    ones = [1] * len(view.axes)
    ends = counts.reshape([*ones[:b], samples, *ones[b + 1 :]])
    steps = np.arange(extent).reshape([*ones[:t], extent, *ones[t + 1 :]])
    return np.asarray(steps < ends)


def _packing(norm: Norm, shape: tuple[int, ...], offsets: ArrayLike) -> tuple[Norm, NDArray[np.bool_] | None]:
    """The normalization of packed rows (rows, c), and where each row goes if they have to be padded.

    Where b and t are treated alike, sequences do not matter: the rows are one axis. Otherwise each
    sequence has statistics of its own, and the rows are padded to (b, t, c).
    """
    ends = _integers(offsets, "offsets")
    if len(shape) != 2:
        raise ValueError(f"offsets: x is packed, (rows, c), got shape {shape}. For padded x pass lengths=.")
    if not (len(ends) and ends[0] == 0 and ends[-1] == shape[0] and (np.diff(ends) >= 0).all()):
        raise ValueError(
            f"offsets: rise from 0 to the {shape[0]} rows of x, got {ends.tolist()}. "
            "They are the cumulative lengths, with a 0 in front."
        )
    by_name = {piece.name: piece.reduced for axis in norm.axes for piece in axis.pieces}
    hidden = by_name.pop("...", None)
    b, t = by_name.pop("b", hidden), by_name.pop("t", hidden)
    channel = norm.channel
    names = set() if channel is None else {piece.name for piece in channel.pieces}
    if b is None or t is None or channel is None or set(by_name) != names or norm.affine is not None:
        raise ValueError(
            f"offsets: a pattern with the axes b, t and c only, got {norm!r}. "
            "Packed rows have no other axes: pad x, and pass lengths= or valid=."
        )
    alone = "[t]" if t else "t"
    pattern = f"{alone} {channel}" if b == t else f"{'[b]' if b else 'b'} {alone} {channel}"
    norm = replace(norm, pattern=pattern, sizes={name: norm.sizes[name] for name in names & set(norm.sizes)})
    counts = np.diff(ends)
    longest = counts.max(initial=0)
    return norm, None if b == t else np.arange(longest) < counts[:, None]


def _pad(values: NDArray[Any], rows: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Packed rows (rows, ...) at their places in (samples, longest, ...), 0 elsewhere."""
    if rows is None:
        return values
    padded = np.zeros((*rows.shape, *values.shape[1:]), values.dtype)
    padded[rows] = values
    return padded
