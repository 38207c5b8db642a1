"""How a selection meets the compiled kernels. Arranges arrays, computes nothing.

A `Kernel` is what `Norm.view` is to one dtype: a compiled plan, and how x, weight, statistics and ragged arguments
come in and out of the canonical form. Kernels are cached: a call on a small array costs a few microseconds.

What the kernels do not take goes to the reference, knowingly (`find` returns None): ragged arguments that vary along
an axis of weight, such as a `valid` that differs between channels; packed rows whose statistics keep t but not b; empty
arrays; and dtypes other than float16, float32 and float64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from truenorm import _native
from truenorm.inputs import BackwardSums, Inputs, Normalized
from truenorm.moments import Moments
from truenorm.selection import Selection
from truenorm.spec import Norm
from truenorm.view import View

Array = NDArray[Any]
Layout = Literal["columns", "rows", "planes"]
# What a call passes on: lengths, starts, valid, sample_weight. Each None, or flat and contiguous.
Ragged = tuple[Array | None, Array | None, Array | None, Array | None]
EVERYTHING: Ragged = (None, None, None, None)


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled plan for one normalization, shape and dtype."""

    view: View
    plan: _native.Plan
    dtype: np.dtype[Any]
    sequences: int
    extent: int

    @cached_property
    def statistics(self) -> int:
        return math.prod(self.view.statistics)

    @cached_property
    def width(self) -> int:
        return self.view.canonical[2] * self.view.canonical[3]

    # -- x and its like --

    def fold(self, values: Array) -> Array:
        """An array of x's shape as the kernels want it: contiguous, in the order of the runs, in this dtype."""
        if self.view.transposed:
            values = values.reshape(self.view.split).transpose(self.view.order)
        return _aligned(np.ascontiguousarray(values, self.dtype))

    def unfold(self, values: Array, selection: Selection) -> Array:
        """Back to x's shape and dtype (which may be of another byte order)."""
        if self.view.transposed:
            values = values.reshape([self.view.split[i] for i in self.view.order]).transpose(self._back)
        return values.reshape(selection.source.shape).astype(selection.dtype, copy=False)

    @cached_property
    def _back(self) -> tuple[int, ...]:
        return tuple(self.view.order.index(i) for i in range(len(self.view.axes)))

    # -- what covers some axes of x: statistics, weight, positions --

    def fold_part(self, values: Array, split: tuple[int, ...]) -> Array:
        """A flat array of these split sizes, ones where it is constant, in the order of the runs."""
        values = values.reshape(split)
        values = values.transpose(self.view.order) if self.view.transposed else values
        return _aligned(np.ascontiguousarray(values)).reshape(-1)

    def unfold_part(self, values: Array, split: tuple[int, ...]) -> Array:
        if self.view.transposed:
            values = values.reshape([split[i] for i in self.view.order]).transpose(self._back)
        return values

    def table(self, moments: Moments) -> Array:
        """(statistics, 3): count, mean and m2 of each, in the order of the runs."""
        if isinstance(moments, _Measured) and not self.view.transposed and not moments.transposed:
            return moments.table  # both in the pattern's own order
        parts = (moments.count, moments.mean, moments.m2)
        split = self.view.statistics_split
        return np.stack([self.fold_part(np.asarray(one, np.float64), split) for one in parts], axis=-1)

    def moments(self, table: Array, selection: Selection) -> Moments:
        """What a kernel measured."""
        shape, split = self.view.statistics, self.view.statistics_split
        mean, m2 = (self.unfold_part(table[:, i], split).reshape(shape) for i in (1, 2))
        if selection.whole:
            return _Measured(self.full_count, mean, m2, table, self.view.transposed)
        count = self.unfold_part(table[:, 0], split).reshape(shape)
        count = count if selection.times is not None else count.astype(np.int64)
        return _Measured(count, mean, m2, table, self.view.transposed)

    @cached_property
    def full_count(self) -> Array:
        """The count where everything is real."""
        each = math.prod(self.view.axes[i].size for i in self.view.reduced)
        count = np.full(self.view.statistics, each, np.int64)
        count.flags.writeable = False  # it is shared
        return count

    def parameter(self, values: Array | None) -> Array | None:
        if values is None:
            return None
        if values.dtype.char not in "efd" or not values.dtype.isnative:
            values = values.astype(np.float64)
        if self.view.transposed or not (values.flags.c_contiguous and values.flags.aligned):
            values = self.fold_part(values, self.view.weight_split)
        return values

    def gradient(self, values: Array, like: Array | None) -> Array | None:
        if like is None:
            return None
        return self.unfold_part(values, self.view.weight_split).reshape(like.shape).astype(like.dtype)

    def ragged(self, selection: Selection) -> Ragged:
        """Which elements are real, as the kernels take it."""
        if selection.whole:
            return EVERYTHING
        if selection.offsets is not None:
            times = None
            if selection.sample_weight is not None:
                padded = selection.sample_weight.reshape(selection.view.shape[:2])
                times = np.ascontiguousarray(padded[selection.rows], np.float64)
            return np.diff(selection.offsets), selection.offsets[:-1], None, times
        lengths: Array | None = None
        valid: Array | None = None
        weights: Array | None = None
        if selection.lengths is not None and (repeated := self._repeats) is not None:
            lengths = np.repeat(selection.lengths, repeated) if repeated > 1 else selection.lengths
        elif selection.valid is not None:
            valid = self._positions(selection.valid)
        if selection.times is not None:
            weights = self._positions(np.asarray(selection.sample_weight, np.float64))
        return lengths, None, valid, weights

    def _positions(self, values: Array) -> Array:
        """One value for each position, from an array that broadcasts against x."""
        split = tuple(1 if axis.weighted else axis.size for axis in self.view.axes)
        return self.fold_part(np.broadcast_to(values, split), split)

    @cached_property
    def _repeats(self) -> int | None:
        """How often each sample's length stands in a row, one for each sequence; None where t is not the last axis."""
        names = [self.view.axes[i].name for run in (0, 1, 4) for i in self.view.runs[run]]
        sizes = {axis.name: axis.size for axis in self.view.axes}
        if "b" not in names or names[-1:] != ["t"] or sizes["t"] != self.extent or names[0] != "b":
            return None
        return math.prod(sizes[name] for name in names[1:-1])


def _aligned(values: Array) -> Array:
    """A view of bytes may start anywhere; the kernels' loads may not."""
    return values if values.flags.aligned else values.copy()


class _Measured(Moments):
    """Moments that a kernel measured, with the table they came in."""

    table: Array
    transposed: bool  # whether the table is in the order of the runs, and not in that of the pattern

    def __init__(self, count: Array, mean: Array, m2: Array, table: Array, transposed: bool) -> None:
        # They need no checks.
        vars(self).update(count=count, mean=mean, m2=m2, table=table, transposed=transposed)

    __reduce__ = None  # type: ignore[assignment]


set_threads = _native.set_threads


def find(selection: Selection) -> Kernel | None:
    """The kernel for this selection; None where there is none."""
    norm, offsets, char = selection.norm, selection.offsets, selection.dtype.char
    if char not in "efd":
        return None
    if selection.whole:
        return _kernel(norm, selection.view.shape, char)
    for i, axis in enumerate(selection.view.axes):
        if axis.weighted and (
            (selection.mask is not None and selection.mask.shape[i] > 1)
            or (selection.times is not None and selection.times.shape[i] > 1)
            or (selection.lengths is not None and axis.name in ("b", "t"))
        ):
            return None
    if offsets is None:
        return _kernel(norm, selection.view.shape, char)
    return _packed_kernel(norm, len(offsets) - 1, selection.source.shape[1], char)


@lru_cache(maxsize=512)
def _kernel(norm: Norm, shape: tuple[int, ...], char: str) -> Kernel | None:
    view = norm.view(shape)
    outer, reduced, _, _, positions = view.canonical
    layout: Layout = "planes" if view.runs[4] else "columns" if view.runs[1] else "rows"
    if layout == "planes":
        sequences, extent = outer * reduced, positions
    else:
        rows = view.runs[1] if layout == "columns" else view.runs[0]
        last = view.axes[rows[-1]] if rows else None
        extent = last.size if last is not None and last.name == "t" else reduced if layout == "columns" else outer
        sequences = outer * reduced // extent if extent else 0
    if 0 in view.canonical:
        return None  # nothing to compute: the reference knows every empty case
    return _make(view, norm, layout, sequences, extent, char)


@lru_cache(maxsize=512)
def _packed_kernel(norm: Norm, samples: int, channels: int, char: str) -> Kernel | None:
    """Packed rows whose samples have statistics of their own: one sequence for each, wherever it starts."""
    view = norm.view((samples, 1, channels))
    if not view.axes[0].reduced and view.axes[1].reduced and not view.transposed and 0 not in view.canonical:
        return _make(view, norm, "columns", samples, 1, char)
    return None


def _make(view: View, norm: Norm, layout: Layout, sequences: int, extent: int, char: str) -> Kernel:
    dtype = np.dtype(char)
    options = (norm.center, norm.ddof, norm.eps, norm.eps_at == "std")
    plan = _native.Plan(layout, list(view.canonical), sequences, extent, dtype.name, *options)
    return Kernel(view, plan, dtype, sequences, extent)


def measure_selection(kernel: Kernel, selection: Selection) -> Moments:
    """The twin of `moments.measure_selection`."""
    table = np.empty((kernel.statistics, 3))
    kernel.plan.measure(kernel.fold(selection.source), table, *kernel.ragged(selection))
    return kernel.moments(table, selection)


def forward_inputs(kernel: Kernel, inputs: Inputs) -> Normalized:
    """The twin of `reference.forward_inputs`."""
    selection = inputs.selection
    x = kernel.fold(selection.source)
    y = np.empty_like(x)
    given = inputs.given is not None
    table = np.empty((kernel.statistics, 3)) if inputs.given is None else kernel.table(inputs.given)
    kernel.plan.forward(
        x,
        y,
        table,
        kernel.parameter(inputs.weight),
        kernel.parameter(inputs.bias),
        *kernel.ragged(selection),
        inputs.padding == "keep",
        given,
    )
    moments = kernel.moments(table, selection) if inputs.given is None else inputs.given
    return Normalized(**vars(inputs), y=kernel.unfold(y, selection), moments=moments)


def backward_sums(kernel: Kernel, dy: ArrayLike, out: Normalized) -> BackwardSums:
    """The twin of `reference.backward_sums`."""
    _, table, dweight, dbias = _backward(kernel, dy, out, None, write=False)
    return kernel_sums(kernel, table, dweight, dbias, out)


def kernel_sums(kernel: Kernel, table: Array, dweight: Array, dbias: Array, out: Normalized) -> BackwardSums:
    split, shape = kernel.view.statistics_split, kernel.view.statistics
    weights = kernel.view.weight_split, kernel.view.weight_shape or ()
    return BackwardSums(
        dxhat=kernel.unfold_part(table[:, 0], split).reshape(shape),
        dxhat_xhat=kernel.unfold_part(table[:, 1], split).reshape(shape),
        dweight=None if out.weight is None else kernel.unfold_part(dweight, weights[0]).reshape(weights[1]),
        dbias=None if out.bias is None else kernel.unfold_part(dbias, weights[0]).reshape(weights[1]),
    )


def backward(
    kernel: Kernel, dy: ArrayLike, out: Normalized, sums: BackwardSums | None
) -> tuple[Array, Array | None, Array | None]:
    """The twin of `reference.backward`."""
    dx, _, dweight, dbias = _backward(kernel, dy, out, sums, write=True)
    assert dx is not None
    if sums is None:
        return dx, kernel.gradient(dweight, out.weight), kernel.gradient(dbias, out.bias)
    return (
        dx,
        None if out.weight is None or sums.dweight is None else sums.dweight.astype(out.weight.dtype),
        None if out.bias is None or sums.dbias is None else sums.dbias.astype(out.bias.dtype),
    )


def _backward(
    kernel: Kernel, dy: ArrayLike, out: Normalized, sums: BackwardSums | None, *, write: bool
) -> tuple[Array | None, Array, Array, Array]:
    selection = out.selection
    x, dy = kernel.fold(selection.source), kernel.fold(selection.same_shape(dy, "dy"))
    dx = np.empty_like(x) if write else None
    dweight, dbias = np.empty((2, kernel.width))
    if sums is None:
        table = np.empty((kernel.statistics, 2))
    else:
        split = kernel.view.statistics_split
        table = np.stack([kernel.fold_part(one, split) for one in (sums.dxhat, sums.dxhat_xhat)], axis=-1)
    kernel.plan.backward(
        x,
        dy,
        dx,
        kernel.table(out.moments),
        kernel.parameter(out.weight),
        table,
        dweight,
        dbias,
        *kernel.ragged(selection),
        out.padding == "keep",
        sums is not None,
        out.given is not None and sums is None,
    )
    return None if dx is None else kernel.unfold(dx, selection), table, dweight, dbias
