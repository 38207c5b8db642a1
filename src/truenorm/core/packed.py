"""Packed rows: `offsets` and `segments`. x has one axis for the rows of all samples instead of b and t.

    offsets=    (samples + 1,): sample i is the rows offsets[i] to offsets[i + 1]
    segments=   (rows,): rows with the same id are one sample. The ids are any integers, sorted or not, with or without
                gaps; sample i is the i-th smallest id

x is (rows, c), or has the other axes of the pattern behind its rows, such as (rows, heads, c) for (b, t, heads, c). It
may have an axis of size 1 in front: (1, rows, c). Rows that b and t treat alike (both averaged over or both kept, as in
batch, layer and RMS norm) are one axis, and it does not matter which sample a row belongs to. Otherwise rows with
segments are sorted by id, in their order within each, and have offsets from then on.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count, islice
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.arrays import as_array
from truenorm.core.layout import Shape
from truenorm.core.norm import Norm
from truenorm.core.pattern import PatternAxis


@dataclass(frozen=True)
class Rows:
    """How a pattern meets packed rows."""

    b: bool  # whether b is averaged over
    t: bool
    others: tuple[PatternAxis, ...]  # the axes besides b and t; "..." among them stands for any number

    @property
    def alike(self) -> bool:
        """Whether it does not matter which sample a row belongs to."""
        return self.b == self.t

    @property
    def named(self) -> int:
        """How many axes a row has at least."""
        return sum(not axis.hidden for axis in self.others)

    @property
    def hidden(self) -> bool:
        """Whether a row may have more."""
        return any(axis.hidden for axis in self.others)


@lru_cache(maxsize=512)
def rows_of(norm: Norm) -> Rows | None:
    """None if b and t cannot be merged to rows."""
    reduced = {piece.name: piece.reduced for axis in norm.axes for piece in axis.pieces}
    hidden = reduced.get("...")
    positions = [axis for axis in norm.axes if axis is not norm.channel and "b" not in axis.names]
    t = "t"
    if t not in reduced and hidden is None and len(positions) == 1:
        t = positions[0].names[0]  # the only position axis, as for lengths
    b_reduced, t_reduced = reduced.get("b", hidden), reduced.get(t, hidden)
    merged = {"b", t}
    others = tuple(axis for axis in norm.axes if not set(axis.names) <= merged)
    covered = {name for names in norm.affine_axes for name in names}
    mixed = any(set(axis.names) & merged for axis in others) or covered & merged
    if norm.channel is None or b_reduced is None or t_reduced is None or mixed:
        return None
    return Rows(b_reduced, t_reduced, others)


def check_rows(norm: Norm, shape: Shape, name: str) -> tuple[Rows, Shape]:
    """The rows of packed x, and its shape without an axis of size 1 in front, unless the rows are alike."""
    rows = rows_of(norm)
    if rows is None:
        raise ValueError(
            f"{name} needs a pattern with axes b and t and channels c of their own, got {norm!r}. "
            "Packed rows merge b and t: pad x, and pass lengths= or valid=."
        )
    inner = packed_shape(rows, shape)
    extra = len(inner) - 1 - rows.named
    leading = int(rows.alike and shape[:1] == (1,))
    if extra < 0 or (extra > leading and not rows.hidden):
        expected = ", ".join(["rows", *(axis.names[0] if len(axis.pieces) == 1 else "c" for axis in rows.others)])
        raise ValueError(
            f"{name} needs packed x of shape ({expected}) or (1, {expected}), got shape {shape}. "
            "For padded x pass lengths=."
        )
    return rows, inner


def packed_shape(rows: Rows, shape: Shape) -> Shape:
    """(rows, ...): without an axis of size 1 in front. If rows are alike it is one more axis, and stays."""
    leading = not rows.alike and len(shape) > 1 + rows.named and shape[0] == 1
    return shape[1:] if leading else shape


@lru_cache(maxsize=512)
def packed_norm(norm: Norm, rank: int) -> Norm:
    """The normalization of packed x of this rank: axes t, ... if rows are alike, else b, t, ...

    >>> packed_norm(Norm("b [...] c"), 3)
    Norm('b [t] [p0] c')
    >>> packed_norm(Norm("[b t] c"), 2)
    Norm('[t] c')
    """
    rows = rows_of(norm)
    assert rows is not None  # `check_rows` was called
    names = {name for axis in rows.others for name in axis.names}
    spare = (name for i in count() if (name := f"p{i}") not in names)
    extra = rank - 1 - rows.named
    written = [_write("t", rows.t)]
    if not rows.alike or (extra and not rows.hidden):  # the rows are alike, and an axis of size 1 is in front of them
        written.insert(0, _write("b", rows.b))
    for axis in rows.others:
        if axis.hidden:
            written += [_write(name, axis.pieces[0].reduced) for name in islice(spare, extra)]
        else:
            written.append(str(axis))
    sizes = {name: size for name, size in norm.sizes.items() if name in names}
    return replace(norm, pattern=" ".join(written), sizes=sizes)


def _write(name: str, reduced: bool) -> str:
    return f"[{name}]" if reduced else name


def check_offsets(offsets: ArrayLike, shape: Shape, inner: Shape) -> NDArray[np.int64]:
    """The offsets of x of this shape, whose rows are the first axis of `inner`."""
    array = as_array(offsets, "offsets")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"offsets must be a vector of integers, got shape {array.shape} and dtype {array.dtype}. "
            "Pass the cumulative lengths with a 0 in front."
        )
    bounds = array.astype(np.int64)
    if not (len(bounds) and bounds[0] == 0 and bounds[-1] in _rows(shape, inner) and (np.diff(bounds) >= 0).all()):
        raise ValueError(
            f"offsets must rise from 0 to {_rows(shape, inner)[0]}, the number of rows of x, got {bounds.tolist()}. "
            "Pass the cumulative lengths with a 0 in front."
        )
    return bounds


def check_segments(ids: Any, integers: bool, shape: Shape, inner: Shape) -> None:
    """Raises an error unless these are ids of the rows of x: of an array or a tensor only shape and dtype are read."""
    rows = _rows(shape, inner)
    if not integers:
        raise ValueError(f"segments must hold integers, got dtype {ids.dtype}. A mask belongs in valid=.")
    if len(ids.shape) != 1 or all(ids.shape[0] != one for one in rows):  # not `in`: sizes may be symbols
        raise ValueError(
            f"segments must have the shape ({rows[0]},), one id for each row of x of shape {tuple(shape)}, "
            f"got {tuple(ids.shape)}."
        )


def _rows(shape: Shape, inner: Shape) -> tuple[int, ...]:
    """How many rows x may have. (1, n, c) has n, or 1 with n heads: if rows are alike, that does not matter."""
    return tuple(shape[1::-1]) if len(shape) > 2 and shape[0] == 1 and len(inner) == len(shape) else (inner[0],)


def order_by_segment(segments: ArrayLike, shape: Shape, inner: Shape) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The rows, segment by segment, and the offsets of these.

    >>> order_by_segment([7, 2, 7, 2, 2], (5, 3), (5, 3))
    (array([1, 3, 4, 0, 2]), array([0, 3, 5]))
    """
    ids = as_array(segments, "segments")
    check_segments(ids, ids.dtype.kind in "iu" or not ids.size, shape, inner)
    counts = np.unique(ids, return_counts=True)[1]
    return np.argsort(ids, kind="stable"), np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)


def pad(values: NDArray[Any], rows: NDArray[np.bool_]) -> NDArray[Any]:
    """Packed rows (rows, ...) padded with zeros to (samples, longest, ...)."""
    padded = np.zeros((*rows.shape, *values.shape[1:]), values.dtype)
    padded[rows] = values
    return padded
