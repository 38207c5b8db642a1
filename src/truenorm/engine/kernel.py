"""A `Kernel`: a compiled plan for one normalization, shape and dtype. Arranges arrays, computes nothing.

It holds a plan, and knows how x, weight, statistics and ragged arguments come into the canonical form and back. Kernels
are cached, so that a call on a small array costs a few microseconds; they hold nothing that grows with the data.

What the kernels do not take is left to the reference (`find` returns None): ragged arguments that vary along an axis
of weight, such as a `valid` that differs between channels; packed rows whose statistics keep t but not b; empty
arrays; and dtypes other than float16, float32 and float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from truenorm import _native
from truenorm.core.layout import Layout
from truenorm.core.mask import MaskedInput
from truenorm.core.moments import Moments, ignore_floating_point_errors
from truenorm.core.norm import Norm

Array = NDArray[Any]
LayoutKind = Literal["columns", "rows", "planes"]
_FLOATS = tuple(np.dtype(char) for char in "efd")  # what kernels read and write
_DOUBLE = np.dtype(np.float64)


class Ragged(NamedTuple):
    """The ragged arguments as a plan takes them: each None, or flat and contiguous."""

    lengths: Array | None = None
    starts: Array | None = None
    valid: Array | None = None
    sample_weight: Array | None = None


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled plan for one normalization, shape and dtype."""

    layout: Layout
    plan: _native.Plan
    dtype: np.dtype[Any]
    sequences: int
    extent: int
    char: str  # of the dtype: a key of _native.FORMATS

    @cached_property
    def statistics(self) -> int:
        return math.prod(self.layout.statistics)

    @cached_property
    def width(self) -> int:
        return self.layout.canonical[2] * self.layout.canonical[3]

    # -- x and its like --

    def fold(self, values: Array) -> Array:
        """An array of x's shape as the kernels take it: contiguous, in the order of the runs, in this dtype."""
        if self.layout.transposed:
            values = values.reshape(self.layout.split).transpose(self.layout.order)
        if values.dtype is self.dtype and values.flags.carray:
            return values
        return _aligned(_contiguous(values, self.dtype))

    def unfold(self, values: Array, masked: MaskedInput) -> Array:
        """Back to x's shape and dtype (which may be of another byte order)."""
        if self.layout.transposed:
            values = values.reshape([self.layout.split[i] for i in self.layout.order]).transpose(self._back)
        values = masked.from_packed(values)
        return values if values.dtype is masked.dtype else values.astype(masked.dtype, copy=False)

    @cached_property
    def _back(self) -> tuple[int, ...]:
        return tuple(self.layout.order.index(i) for i in range(len(self.layout.axes)))

    @cached_property
    def full_count(self) -> Array:
        """The count of each statistic if all of x is valid: one number in memory, seen in this shape, read-only."""
        each = math.prod(self.layout.axes[i].size for i in self.layout.reduced)
        return np.broadcast_to(np.int64(each), self.layout.statistics)

    # -- what covers some axes of x: statistics, weight, positions --

    def fold_part(self, values: Array, split: tuple[int, ...]) -> Array:
        """A flat array of these split sizes (1 along axes where it is constant), in the order of the runs."""
        values = values.reshape(split)
        values = values.transpose(self.layout.order) if self.layout.transposed else values
        return _aligned(np.ascontiguousarray(values)).reshape(-1)

    def unfold_part(self, values: Array, split: tuple[int, ...]) -> Array:
        if self.layout.transposed:
            values = values.reshape([split[i] for i in self.layout.order]).transpose(self._back)
        return values

    def table(self, moments: Moments) -> Array:
        """(statistics, 3): count, mean and m2 of each, in the order of the runs."""
        measured = measured_by(moments)
        if measured is not None and not self.layout.transposed and not measured.layout.transposed:
            table: Array = vars(moments)["table"]
            return table
        parts = (moments.count, moments.mean, moments.m2)
        split = self.layout.statistics_split
        return np.stack([self.fold_part(np.asarray(one, np.float64), split) for one in parts], axis=-1)

    def part(self, table: Array, i: int) -> Array:
        """Column i of a table of statistics, as the pattern has them."""
        return self.unfold_part(table[:, i], self.layout.statistics_split).reshape(self.layout.statistics)

    def parameter(self, values: Array | None) -> Array | None:
        if values is None:
            return None
        if values.dtype not in _FLOATS:
            values = values.astype(np.float64)
        if self.layout.transposed or not values.flags.carray:
            values = self.fold_part(values, self.layout.weight_split)
        return values

    def gradient(self, like: Array | None, dtype: Any = None) -> Array | None:
        """Where a kernel writes the gradient of a parameter: in this dtype, or in the parameter's."""
        if like is None:
            return None
        dtype = like.dtype if dtype is None else dtype
        return np.empty(self.width, dtype if dtype in _FLOATS else np.float64)

    def unfold_gradient(self, values: Array | None, like: Array | None) -> Array | None:
        """A gradient that a kernel wrote, in the shape and dtype of the parameter."""
        if values is None or like is None:
            return None
        if self.layout.transposed or values.shape != like.shape:
            values = self.unfold_part(values, self.layout.weight_split).reshape(like.shape)
        return values if values.dtype is like.dtype else cast(values, like.dtype)

    def ragged(self, masked: MaskedInput) -> Ragged:
        """Which elements are valid, as a plan takes it."""
        if masked.unmasked:
            return Ragged()
        if masked.offsets is not None:
            weights, each = None, self.layout.canonical[1]  # the canonical form has so many rows for each of x
            if masked.sample_weight is not None:
                split = tuple(1 if axis.weighted else axis.size for axis in masked.layout.axes)
                padded = np.broadcast_to(masked.sample_weight, split).reshape(*masked.layout.shape[:2], each)
                weights = np.ascontiguousarray(padded[masked.rows], np.float64).reshape(-1)
            return Ragged(np.diff(masked.offsets) * each, masked.offsets[:-1] * each, None, weights)
        lengths = valid = weights = None
        if masked.lengths is not None and self.spread_of_lengths is not None:
            lengths = self.per_sequence(masked.lengths)
        elif masked.valid is not None:
            valid = self._positions(masked.valid)
        if masked.weights is not None:
            weights = self._positions(np.asarray(masked.sample_weight, np.float64))
        return Ragged(lengths, None, valid, weights)

    def per_sequence(self, lengths: Array) -> Array:
        """The valid rows of each sequence, from the lengths of the samples, which were checked."""
        assert self.spread_of_lengths is not None
        repeats, steps = self.spread_of_lengths
        lengths = lengths if steps == 1 else lengths * steps
        return lengths if repeats == 1 else np.repeat(lengths, repeats)

    def _positions(self, values: Array) -> Array:
        """One value for each position, from an array that broadcasts against x."""
        split = tuple(1 if axis.weighted else axis.size for axis in self.layout.axes)
        return self.fold_part(np.broadcast_to(values, split), split)

    @cached_property
    def spread_of_lengths(self) -> tuple[int, int] | None:
        """How many sequences each sample has, and how many rows each position; None if a plan cannot take lengths, as
        the positions that they count do not lie together."""
        axes, layout = [i for group in (0, 1, 4) for i in self.layout.axis_groups[group]], self.layout
        b, t = layout.find("b"), layout.ragged_axis
        if b is None or t is None or t not in axes[1:] or axes[0] != b:
            return None
        place = axes.index(t)
        repeats, steps = (math.prod(layout.split[i] for i in part) for part in (axes[1:place], axes[place + 1 :]))
        return (repeats, steps) if layout.split[t] * steps == self.extent else None


@ignore_floating_point_errors  # numbers beyond a dtype become inf
def cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """A copy in another dtype."""
    return values.astype(dtype)


@ignore_floating_point_errors
def _contiguous(values: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(values, dtype)


def _aligned(values: Array) -> Array:
    """A layout of bytes may start anywhere; the kernels' loads may not."""
    return values if values.flags.aligned else values.copy()


def measured_by(moments: Moments) -> Kernel | None:
    """The kernel whose table these moments still have."""
    return vars(moments).get("kernel")


class KernelMoments(Moments):
    """Moments that a kernel measured: a table. count, mean and m2 are made from it when they are first used."""

    kernel: Kernel
    table: Array  # (statistics, 3), in the order of the kernel
    weighted: bool  # whether counts are sums of sample weights

    @classmethod
    def of(cls, kernel: Kernel, table: Array, *, weighted: bool, whole: bool = False) -> KernelMoments:
        """Without the checks of `Moments`. x is not kept alive. whole: all of x is valid, so the counts are known."""
        moments = object.__new__(cls)
        moments.__dict__ = {"kernel": kernel, "table": table, "weighted": weighted}
        if whole:  # a training step needs them for the running statistics
            moments.__dict__["count"] = kernel.full_count
        return moments

    def __getattr__(self, name: str) -> Any:
        if name not in ("count", "mean", "m2"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        value: Array = self._count() if name == "count" else self.kernel.part(self.table, 1 if name == "mean" else 2)
        vars(self)[name] = value
        return value

    @property
    def shape(self) -> tuple[int, ...]:
        kernel = vars(self).get("kernel")  # `replace` makes one without
        return self.mean.shape if kernel is None else kernel.layout.statistics

    def ema_update(self, mean: Array, var: Array, momentum: float, ddof: int) -> tuple[Array, Array] | None:
        table = vars(self).get("table")
        plain = mean.dtype is _DOUBLE and var.dtype is _DOUBLE and mean.flags.carray and var.flags.carray
        if table is None or not plain or self.kernel.layout.transposed:
            return None
        moved = np.empty((2, *mean.shape))
        done = _native.ema_update(table, mean, var, momentum, ddof, moved)
        return (moved[0], moved[1]) if done else None

    def _count(self) -> Array:
        count = self.kernel.part(self.table, 0)
        return count if self.weighted else count.astype(np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return Moments, (self.count, self.mean, self.m2)


def find(masked: MaskedInput, char: str | None = None) -> Kernel | None:
    """The kernel for this input; None if there is none. char: of x's dtype, if x is no NumPy array."""
    norm, offsets, char = masked.norm, masked.offsets, char or masked.dtype.char
    if char not in _native.FORMATS:
        return None
    if masked.unmasked:
        return whole_kernel(norm, masked.layout.shape, char)
    layout = masked.layout
    ragged_axes = () if masked.lengths is None else (layout.find("b"), layout.ragged_axis)
    for i, axis in enumerate(layout.axes):
        if axis.weighted and (
            (masked.mask is not None and masked.mask.shape[i] > 1)
            or (masked.weights is not None and masked.weights.shape[i] > 1)
            or i in ragged_axes
        ):
            return None
    if offsets is None:
        return whole_kernel(norm, layout.shape, char)
    return _packed_kernel(norm, len(offsets) - 1, layout.shape[2:], char)


@lru_cache(maxsize=512)
def whole_kernel(norm: Norm, shape: tuple[int, ...], char: str) -> Kernel | None:
    """The kernel for an array of this shape and dtype; None if it has no elements."""
    layout = norm.view(shape)
    outer, reduced, _, _, positions = layout.canonical
    kind: LayoutKind = "planes" if layout.axis_groups[4] else "columns" if layout.axis_groups[1] else "rows"
    if kind == "planes":
        sequences, extent = outer * reduced, positions
    else:
        rows, t = layout.axis_groups[1 if kind == "columns" else 0], layout.ragged_axis
        inner = rows if t not in rows else rows[rows.index(t) :]  # a sequence: t, and what lies within its positions
        extent = math.prod(layout.split[i] for i in inner)
        sequences = outer * reduced // extent if extent else 0
    if 0 in layout.canonical:
        return None  # nothing to compute: the reference handles every empty case
    return _make(layout, norm, kind, sequences, extent, char)


@lru_cache(maxsize=512)
def _packed_kernel(norm: Norm, samples: int, row: tuple[int, ...], char: str) -> Kernel | None:
    """Packed rows whose samples have statistics of their own: one sequence for each sample."""
    layout = norm.view((samples, 1, *row))
    columns = not layout.transposed and not layout.axis_groups[4]
    if columns and not layout.axes[0].reduced and layout.axes[1].reduced and 0 not in layout.canonical:
        return _make(layout, norm, "columns", samples, layout.canonical[1], char)
    return None


def _make(layout: Layout, norm: Norm, kind: LayoutKind, sequences: int, extent: int, char: str) -> Kernel:
    dtype = np.dtype(char)
    plan = _native.Plan(
        kind,
        list(layout.canonical),
        sequences,
        extent,
        _native.FORMATS[char],
        center=norm.center,
        ddof=norm.ddof,
        eps=norm.eps,
        eps_outside=norm.eps_at == "std",
        activation=norm.activation or "",
    )
    return Kernel(layout, plan, dtype, sequences, extent, char)
