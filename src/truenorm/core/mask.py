"""Which elements are valid: select first, then compute.

Five arguments describe it, at most one of the first four, and all become a `MaskedInput`: x in float64 with its
composed axes split, exactly 0 wherever an element is not valid, and two arrays that broadcast against it.

    valid=          booleans: x without its channel axis, or the rank of x. Rank decides, never size
    lengths=        (b,): the first lengths[b] positions of sample b; several vectors, or along=: see `lengths.py`
    offsets=        x is packed (rows, c): sample i is the rows offsets[i] to offsets[i+1]; see `packed.py`
    segments=       x is packed, and rows with the same id are one sample
    sample_weight=  how often a position counts in the statistics; 0 leaves it out but still normalises it

Elements are selected with `where` before any arithmetic. Multiplying by a mask would not do: NaN * 0 is NaN.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm.core.arrays import Floats, as_array, as_floats, float_dtype
from truenorm.core.layout import Layout, Shape
from truenorm.core.lengths import LengthsLike, check_lengths, mask_of_lengths, norm_along
from truenorm.core.norm import Norm, as_norm
from truenorm.core.packed import check_offsets, check_rows, order_by_segment, packed_norm, pad

Arrays = TypeVar("Arrays", bound=Any)  # NumPy's, or torch's


@dataclass(eq=False)  # frozen would cost a microsecond a call
class MaskedInput:
    """x and its mask. `valid`, `x` and `sample_weight` are computed on first use."""

    norm: Norm  # of the layout: for packed rows its axes are b, t and c
    layout: Layout
    source: NDArray[Any]  # x as it was given: of layout.shape, or packed rows
    dtype: np.dtype[Any]  # of the results
    mask: NDArray[np.bool_] | None = None  # valid=, with the rank of layout.split
    lengths: NDArray[np.int64] | None = None  # (b,), along layout.ragged_axis
    offsets: NDArray[np.int64] | None = None  # of packed rows, which are padded to layout.shape
    order: NDArray[np.int64] | None = None  # the rows of source, sample by sample; None if they are
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
            return self.rows.reshape([axis.size if axis.source < 2 else 1 for axis in self.layout.axes])  # b and t
        return self.mask if self.lengths is None else mask_of_lengths(self.layout, self.lengths)

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
        values = self.to_packed(as_floats(self.same_shape(values, like), like))
        values = (values if self.rows is None else pad(values, self.rows)).reshape(self.layout.split)
        return values if self.valid is None else np.where(self.valid, values, 0.0)

    def to_packed(self, values: NDArray[Any]) -> NDArray[Any]:
        """An array with the shape of x as packed rows, sample by sample; as it is if there are no offsets."""
        if self.offsets is None:
            return values
        values = values.reshape(self.offsets[-1], *self.layout.shape[2:])
        return values if self.order is None else values[self.order]

    def from_packed(self, values: NDArray[Any]) -> NDArray[Any]:
        """The inverse of `to_packed`."""
        if self.order is not None:
            in_order = values.reshape(len(self.order), *self.layout.shape[2:])
            values = np.empty_like(in_order)
            values[self.order] = in_order
        return values.reshape(self.source.shape)

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
            return self.from_packed(values[self.rows].astype(self.dtype))  # packed rows are all valid
        values = self.from_packed(values.astype(self.dtype))
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
    lengths: LengthsLike | None = None,
    offsets: ArrayLike | None = None,
    segments: ArrayLike | None = None,
    sample_weight: ArrayLike | None = None,
    along: int | str | None = None,
) -> MaskedInput:
    """The one place where `valid`, `lengths`, `offsets`, `segments` and `sample_weight` are read and checked."""
    norm = as_norm(norm)
    source = as_array(x, "x")
    dtype = float_dtype(source, "x")
    named = {"valid": valid, "lengths": lengths, "offsets": offsets, "segments": segments}
    given = [name for name, value in named.items() if value is not None]
    if not given and sample_weight is None and along is None:
        return MaskedInput(norm, norm.view(source.shape), source, dtype)
    check_given(given, along)
    if offsets is not None or segments is not None:
        masked = _mask_rows(source, norm, dtype, offsets, segments)
    else:
        layout = norm.view(source.shape)
        if along is not None:
            norm = norm_along(norm, source.ndim, along)
            layout = norm.view(source.shape)
        masked = MaskedInput(norm, layout, source, dtype, mask=None if valid is None else _mask_of_valid(layout, valid))
        if lengths is not None:
            counts = check_lengths(layout, lengths, along)
            several = counts.ndim > 1
            masked.mask = mask_of_lengths(layout, counts) if several else None
            masked.lengths = None if several else counts
    if sample_weight is not None:
        masked = replace(masked, weights=_position_weights(masked, sample_weight))
        weights = np.asarray(masked.sample_weight)
        bad = ~(np.isfinite(weights) & (weights >= 0))
        if bad.any():
            worst = weights[bad].flat[0]
            raise ValueError(
                f"sample_weight must be finite and >= 0, got {worst:g}. "
                "A position of weight 2 counts twice, of weight 0 not at all."
            )
    return masked


def check_given(given: list[str], along: int | str | None = None) -> None:
    """Raises an error if arguments of these names cannot be given together."""
    if len(given) > 1:
        raise ValueError(
            f"{given[0]}: pass only one of valid, lengths, offsets and segments, got {' and '.join(given)}. "
            "Each of them says which elements are valid, and to which sample they belong."
        )
    if along is not None and given != ["lengths"]:
        raise ValueError("along says which axis lengths run along, got no lengths. Pass lengths= with it.")


def _mask_rows(
    source: NDArray[Any], norm: Norm, dtype: np.dtype[Any], offsets: ArrayLike | None, segments: ArrayLike | None
) -> MaskedInput:
    """Packed rows: they need offsets only if it matters which sample a row belongs to."""
    shape: Shape = source.shape
    rows, inner = check_rows(norm, shape, "segments" if offsets is None else "offsets")
    order = None
    if offsets is not None:
        bounds = check_offsets(offsets, shape, inner)
    elif segments is not None:
        order, bounds = order_by_segment(segments, shape, inner)
        order = None if (np.diff(order) > 0).all() else order
    norm = packed_norm(norm, len(inner))
    if rows.alike:
        return MaskedInput(norm, norm.view(shape), source, dtype)
    padded = (len(bounds) - 1, int(np.diff(bounds).max(initial=0)), *inner[1:])
    return MaskedInput(norm, norm.view(padded), source, dtype, offsets=bounds, order=order)


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
                "valid=ids != 0 if 0 marks the padding, or segments=ids for packed rows."
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


def _position_weights(masked: MaskedInput, sample_weight: ArrayLike) -> Floats:
    weights, layout = as_floats(sample_weight, "sample_weight"), masked.layout
    if masked.rows is not None:
        weights = pad(_row_weights(masked, weights), masked.rows)
    weights = by_rank(layout, weights, "sample_weight")
    channels = [i for i, axis in enumerate(layout.axes) if axis.source == layout.channel]
    if any(weights.shape[i] > 1 for i in channels):
        raise ValueError(
            f"sample_weight must have one number for each position, {layout.positions}, got one for each channel too. "
            "Leave the channel axis out, or give it size 1."
        )
    return weights


def _row_weights(masked: MaskedInput, weights: Floats) -> Floats:
    """The weights of packed rows, sample by sample: (rows, ...), with 1 for the channels."""
    rows, *others = (int(np.asarray(masked.rows).sum()), *masked.layout.shape[2:])
    assert masked.layout.channel is not None  # of packed rows it is behind b and t
    channel, leading = masked.layout.channel - 1, masked.source.ndim > 1 + len(others)
    fits = not leading or weights.shape[:1] == (1,)
    found = weights[0] if leading and fits else weights
    found = np.expand_dims(found, channel) if found.ndim == len(others) else found
    fits = fits and found.ndim == 1 + len(others) and len(found) == rows
    if not fits or any(size not in (1, most) for size, most in zip(found.shape[1:], others, strict=True)):
        expected = (*[1] * leading, rows, *(size for i, size in enumerate(others, 1) if i != channel))
        raise ValueError(f"sample_weight must have the shape {expected}, one for each packed row, got {weights.shape}.")
    return found if masked.order is None else found[masked.order]
