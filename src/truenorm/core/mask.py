"""Which elements are valid: select first, then compute.

Four arguments describe it, and all become a `MaskedInput`: x in float64 with its composed axes split, exactly 0
wherever an element is not valid, and two arrays that broadcast against it.

    valid=          booleans: x without its channel axis, or the rank of x. Rank decides, never size
    lengths=        (b,): the first lengths[b] positions t of sample b
    offsets=        x is packed (rows, c): sample i is the rows offsets[i] to offsets[i+1]
    sample_weight=  how often a position counts in the statistics; 0 leaves it out but still normalises it

Elements are selected with `where` before any arithmetic. Multiplying by a mask would not do: NaN * 0 is NaN.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.layout import Layout
from truenorm.core.norm import Norm, as_norm

Floats = NDArray[np.floating[Any]]
Arrays = TypeVar("Arrays", bound=Any)  # NumPy's, or torch's


@dataclass(eq=False)  # frozen would cost a microsecond a call
class MaskedInput:
    """x and its mask. `valid`, `x` and `sample_weight` are computed on first use."""

    norm: Norm  # of the layout: for packed rows its axes are b, t and c
    layout: Layout
    source: NDArray[Any]  # x as it was given: of layout.shape, or packed rows
    dtype: np.dtype[Any]  # of the results
    mask: NDArray[np.bool_] | None = None  # valid=, with the rank of layout.split
    lengths: NDArray[np.int64] | None = None
    offsets: NDArray[np.int64] | None = None  # of packed rows, which are padded to layout.shape
    weights: Floats | None = None  # sample_weight=, with the rank of layout.split

    @property
    def unmasked(self) -> bool:
        """Whether neither a mask nor sample weights were given: all elements are valid and count once."""
        return self.mask is None and self.lengths is None and self.offsets is None and self.weights is None

    @cached_property
    def rows(self) -> NDArray[np.bool_] | None:
        """(samples, longest): True where padded x holds a packed row."""
        if self.offsets is None:
            return None
        return np.arange(self.layout.shape[1]) < np.diff(self.offsets)[:, None]

    @cached_property
    def valid(self) -> NDArray[np.bool_] | None:
        """Which elements are valid; broadcasts against x. None: all of them."""
        if self.rows is not None:
            return self.rows.reshape(self.layout.spread((*self.rows.shape, 1)))
        return self.mask if self.lengths is None else _mask_of_lengths(self.layout, self.lengths)

    @cached_property
    def x(self) -> Floats:
        """x in the shape layout.split, at least float64, 0 where not valid."""
        return self.arrange(self.source, like="x")

    @cached_property
    def sample_weight(self) -> Floats | None:
        """How much each element counts; broadcasts against x, 0 where not valid. None: all count once."""
        return self.weights if self.valid is None or self.weights is None else np.where(self.valid, self.weights, 0.0)

    def arrange(self, values: ArrayLike, *, like: str = "dy") -> Floats:
        """An array with the shape of x, arranged like `x`: layout.split, 0 where not valid."""
        values = _pad(as_floats(self.same_shape(values, like), like), self.rows).reshape(self.layout.split)
        return values if self.valid is None else np.where(self.valid, values, 0.0)

    def same_shape(self, values: ArrayLike, like: str) -> NDArray[Any]:
        """An array that must have the shape of x."""
        array = as_array(values, like)
        float_dtype(array, like)
        if array.shape != self.source.shape:
            raise ValueError(f"{like} must have the shape of x, {self.source.shape}, got {array.shape}.")
        return array

    def restore(self, values: Floats, *, keep: ArrayLike | None = None) -> Floats:
        """Back to the shape and dtype of x, with 0 (or the values of `keep`) where not valid."""
        if self.valid is not None:
            values = np.where(self.valid, values, 0.0)
        values = values.reshape(self.layout.shape)
        if self.rows is not None:
            return values[self.rows].astype(self.dtype)  # packed rows are all valid
        values = values.astype(self.dtype)
        if keep is None or self.valid is None:
            return values
        valid = np.broadcast_to(self.valid, self.layout.split).reshape(self.layout.shape)
        # `where` returns the byte order of the machine, not that of x.
        return np.where(valid, values, np.asarray(keep, self.dtype)).astype(self.dtype, copy=False)


def mask_input(
    x: ArrayLike,
    norm: Norm | str,
    *,
    valid: ArrayLike | None = None,
    lengths: ArrayLike | None = None,
    offsets: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
) -> MaskedInput:
    """The one place where `valid`, `lengths`, `offsets` and `sample_weight` are read and checked."""
    norm = as_norm(norm)
    source = as_array(x, "x")
    dtype = float_dtype(source, "x")
    if valid is None and lengths is None and offsets is None and sample_weight is None:
        return MaskedInput(norm, norm.view(source.shape), source, dtype)
    named = {"valid": valid, "lengths": lengths, "offsets": offsets}
    given = [name for name, value in named.items() if value is not None]
    if len(given) > 1:
        raise ValueError(
            f"{given[0]}: pass only one of valid, lengths and offsets, got {' and '.join(given)}. "
            "Each of them says which elements are valid."
        )
    shape, bounds = source.shape, None
    if offsets is not None:
        norm, bounds = _check_offsets(norm, shape, offsets)
        shape = shape if bounds is None else (len(bounds) - 1, int(np.diff(bounds).max(initial=0)), shape[1])
    layout = norm.view(shape)
    masked = MaskedInput(
        norm,
        layout,
        source,
        dtype,
        mask=None if valid is None else _mask_of_valid(layout, valid),
        lengths=None if lengths is None else _check_lengths(layout, lengths),
        offsets=bounds,
    )
    if sample_weight is not None:
        masked = replace(masked, weights=_position_weights(layout, sample_weight, masked.rows))
        weights = np.asarray(masked.sample_weight)
        bad = ~(np.isfinite(weights) & (weights >= 0))
        if bad.any():
            worst = weights[bad].flat[0]
            raise ValueError(
                f"sample_weight must be finite and >= 0, got {worst:g}. "
                "A position of weight 2 counts twice, of weight 0 not at all."
            )
    return masked


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


def _mask_of_valid(layout: Layout, valid: ArrayLike) -> NDArray[np.bool_]:
    mask = as_array(valid, "valid")
    if mask.dtype.kind not in "biu":
        raise TypeError(
            f"valid must hold booleans, got dtype {mask.dtype}. Convert it: valid.astype(bool), or valid.bool() in "
            "PyTorch. Weights belong in sample_weight=."
        )
    if mask.dtype.kind != "b":
        if mask.shape == layout.shape[:1] and len(layout.positions) > 1:
            raise ValueError(
                f"valid must have a position axis, got {len(mask)} integers for x of shape {layout.shape}. "
                "The lengths of the samples belong in lengths=."
            )
        if (other := mask[(mask != 0) & (mask != 1)]).size:
            raise ValueError(
                f"valid must hold booleans or the integers 0 and 1, got {other[0]}. Segment ids are not a mask: pass "
                "valid=ids != 0 if 0 marks the padding."
            )
    return by_rank(layout, mask.astype(bool), "valid")


def by_rank(layout: Layout, array: Arrays, name: str) -> Arrays:
    """An array that broadcasts against x. One axis fewer than x: it has no channel axis. Rank decides, never size."""
    full, positions = layout.shape, layout.positions
    fewer = len(full) - (layout.channel is not None)
    shape = array.shape
    if layout.channel is not None and len(shape) == fewer:
        shape = (*shape[: layout.channel], 1, *shape[layout.channel :])
    if len(shape) != len(full) or any(size not in (1, expected) for size, expected in zip(shape, full, strict=True)):
        choices = f"{positions} (x without its channel axis) or {full}" if fewer < len(full) else f"{full}"
        raise ValueError(
            f"{name} must have the shape {choices}, or 1 along some axes, got {array.shape} for x of shape {full}."
        )
    found: Arrays = array.reshape(layout.spread(shape))
    return found


def _position_weights(layout: Layout, sample_weight: ArrayLike, rows: NDArray[np.bool_] | None) -> Floats:
    weights = as_floats(sample_weight, "sample_weight")
    if rows is not None:
        packed = int(rows.sum())
        if weights.shape not in ((packed,), (packed, 1)):
            raise ValueError(
                f"sample_weight must have the shape ({packed},), one for each packed row, got {weights.shape}."
            )
        weights = _pad(weights.reshape(packed, 1), rows)
    weights = by_rank(layout, weights, "sample_weight")
    channels = [i for i, axis in enumerate(layout.axes) if axis.source == layout.channel]
    if any(weights.shape[i] > 1 for i in channels):
        raise ValueError(
            f"sample_weight must have one number for each position, {layout.positions}, got one for each channel too. "
            "Leave the channel axis out, or give it size 1."
        )
    return weights


def _check_lengths(layout: Layout, lengths: ArrayLike) -> NDArray[np.int64]:
    b, t = layout.find("b"), layout.find("t")
    if b is None or t is None:
        names = ", ".join(axis.name for axis in layout.axes)
        raise ValueError(
            f"lengths needs a batch axis b and a position axis t, but x of shape {layout.shape} has the axes {names}. "
            "Use valid= instead, or name the axes in the pattern."
        )
    samples, extent = layout.axes[b].size, layout.axes[t].size
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
        i = outside[0]
        raise ValueError(
            f"lengths must be from 0 to {extent}, the size of axis t, got {counts[i]} at index {i}. "
            "If x was cropped or strided, pass the lengths after that."
        )
    return counts


def _mask_of_lengths(layout: Layout, lengths: NDArray[np.int64]) -> NDArray[np.bool_]:
    def along(name: str) -> list[int]:
        return [axis.size if axis.name == name else 1 for axis in layout.axes]

    steps = np.arange(math.prod(along("t"))).reshape(along("t"))
    return np.asarray(steps < lengths.reshape(along("b")))


def _check_offsets(norm: Norm, shape: tuple[int, ...], offsets: ArrayLike) -> tuple[Norm, NDArray[np.int64] | None]:
    """The normalization of packed rows (rows, c), and the offsets if its statistics depend on them."""
    norm, one_axis = packed_norm(norm, shape)
    array = as_array(offsets, "offsets")
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ValueError(
            f"offsets must be a vector of integers, got shape {array.shape} and dtype {array.dtype}. "
            "Pass the cumulative lengths with a 0 in front."
        )
    bounds = array.astype(np.int64)
    if not (len(bounds) and bounds[0] == 0 and bounds[-1] == shape[0] and (np.diff(bounds) >= 0).all()):
        raise ValueError(
            f"offsets must rise from 0 to {shape[0]}, the number of rows of x, got {bounds.tolist()}. "
            "Pass the cumulative lengths with a 0 in front."
        )
    return norm, None if one_axis else bounds


def packed_norm(norm: Norm, shape: tuple[int, ...]) -> tuple[Norm, bool]:
    """The normalization of packed rows (rows, c), and whether the rows are one axis.

    They are if b and t are both averaged over or both kept: then it does not matter which sequence a row belongs to,
    and the axes are t and c. Otherwise the axes are b, t and c.
    """
    if len(shape) != 2:
        raise ValueError(f"offsets needs packed x of shape (rows, c), got shape {shape}. For padded x pass lengths=.")
    by_name = {piece.name: piece.reduced for axis in norm.axes for piece in axis.pieces}
    hidden = by_name.pop("...", None)
    b, t = by_name.pop("b", hidden), by_name.pop("t", hidden)
    channel = norm.channel
    names = set() if channel is None else {piece.name for piece in channel.pieces}
    if b is None or t is None or channel is None or set(by_name) != names or norm.affine is not None:
        raise ValueError(
            f"offsets needs a pattern with the axes b, t and c only, got {norm!r}. "
            "Packed rows have no other axes: pad x, and pass lengths= or valid=."
        )
    positions = "[t]" if t else "t"
    pattern = f"{positions} {channel}" if b == t else f"{'[b]' if b else 'b'} {positions} {channel}"
    norm = replace(norm, pattern=pattern, sizes={name: norm.sizes[name] for name in names & set(norm.sizes)})
    return norm, b == t


def _pad(values: NDArray[Any], rows: NDArray[np.bool_] | None) -> NDArray[Any]:
    """Packed rows (rows, ...) padded with zeros to (samples, longest, ...)."""
    if rows is None:
        return values
    padded = np.zeros((*rows.shape, *values.shape[1:]), values.dtype)
    padded[rows] = values
    return padded
