"""How a masked meets the compiled kernels. Arranges arrays, computes nothing.

A `Kernel` is what `Norm.layout` is to one dtype: a compiled plan, and how x, weight, statistics and ragged arguments
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
from truenorm.core.inputs import BackwardSums, Inputs, Normalized
from truenorm.core.layout import Layout
from truenorm.core.mask import MaskedInput
from truenorm.core.moments import Moments, ignore_floating_point_errors
from truenorm.core.norm import Norm

Array = NDArray[Any]
LayoutKind = Literal["columns", "rows", "planes"]
# What a call passes on: lengths, starts, valid, sample_weight. Each None, or flat and contiguous.
Ragged = tuple[Array | None, Array | None, Array | None, Array | None]
EVERYTHING: Ragged = (None, None, None, None)
_FLOATS = tuple(np.dtype(char) for char in "efd")  # what kernels read and write
_DOUBLE = np.dtype(np.float64)
# The same and bfloat16, which NumPy does not have: there it is the bits of whole numbers.
CHARS = {"e": "float16", "f": "float32", "d": "float64", "H": "bfloat16"}


@dataclass(frozen=True, eq=False)
class Kernel:
    """A compiled plan for one normalization, shape and dtype."""

    layout: Layout
    plan: _native.Plan
    dtype: np.dtype[Any]
    sequences: int
    extent: int
    char: str  # of the dtype, one of CHARS

    @cached_property
    def statistics(self) -> int:
        return math.prod(self.layout.statistics)

    @cached_property
    def width(self) -> int:
        return self.layout.canonical[2] * self.layout.canonical[3]

    # -- x and its like --

    def fold(self, values: Array) -> Array:
        """An array of x's shape as the kernels want it: contiguous, in the order of the axis groups, in this dtype."""
        if self.layout.transposed:
            values = values.reshape(self.layout.split).transpose(self.layout.order)
        if values.dtype is self.dtype and values.flags.carray:
            return values
        return _aligned(_contiguous(values, self.dtype))

    def unfold(self, values: Array, masked: MaskedInput) -> Array:
        """Back to x's shape and dtype (which may be of another byte order)."""
        if self.layout.transposed:
            values = values.reshape([self.layout.split[i] for i in self.layout.order]).transpose(self._back)
        if values.shape != masked.source.shape:
            values = values.reshape(masked.source.shape)
        return values if values.dtype is masked.dtype else values.astype(masked.dtype, copy=False)

    @cached_property
    def _back(self) -> tuple[int, ...]:
        return tuple(self.layout.order.index(i) for i in range(len(self.layout.axes)))

    # -- what covers some axes of x: statistics, weight, positions --

    def fold_part(self, values: Array, split: tuple[int, ...]) -> Array:
        """A flat array of these split sizes, ones where it is constant, in the order of the axis groups."""
        values = values.reshape(split)
        values = values.transpose(self.layout.order) if self.layout.transposed else values
        return _aligned(np.ascontiguousarray(values)).reshape(-1)

    def unfold_part(self, values: Array, split: tuple[int, ...]) -> Array:
        if self.layout.transposed:
            values = values.reshape([split[i] for i in self.layout.order]).transpose(self._back)
        return values

    def table(self, moments: Moments) -> Array:
        """(statistics, 3): count, mean and m2 of each, in the order of the axis groups."""
        measured = vars(moments).get("table")  # of a kernel, in the pattern's own order
        if measured is not None and not self.layout.transposed and not vars(moments)["kernel"].layout.transposed:
            return measured  # type: ignore[no-any-return]
        parts = (moments.count, moments.mean, moments.m2)
        split = self.layout.statistics_split
        return np.stack([self.fold_part(np.asarray(one, np.float64), split) for one in parts], axis=-1)

    def part(self, table: Array, i: int) -> Array:
        """Column i of a table of statistics, as the pattern has them."""
        return self.unfold_part(table[:, i], self.layout.statistics_split).reshape(self.layout.statistics)

    @cached_property
    def full_count(self) -> Array:
        """The count where everything is real."""
        each = math.prod(self.layout.axes[i].size for i in self.layout.reduced)
        count = np.full(self.layout.statistics, each, np.int64)
        count.flags.writeable = False  # it is shared
        return count

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
        """What it wrote, as the parameter has it."""
        if values is None or like is None:
            return None
        if self.layout.transposed or values.shape != like.shape:
            values = self.unfold_part(values, self.layout.weight_split).reshape(like.shape)
        return values if values.dtype is like.dtype else _cast(values, like.dtype)

    def ragged(self, masked: MaskedInput) -> Ragged:
        """Which elements are real, as the kernels take it."""
        if masked.unmasked:
            return EVERYTHING
        if masked.offsets is not None:
            times = None
            if masked.sample_weight is not None:
                padded = masked.sample_weight.reshape(masked.layout.shape[:2])
                times = np.ascontiguousarray(padded[masked.rows], np.float64)
            return np.diff(masked.offsets), masked.offsets[:-1], None, times
        lengths: Array | None = None
        valid: Array | None = None
        weights: Array | None = None
        if masked.lengths is not None and (repeated := self.repeats) is not None:
            lengths = np.repeat(masked.lengths, repeated) if repeated > 1 else masked.lengths
        elif masked.valid is not None:
            valid = self._positions(masked.valid)
        if masked.weights is not None:
            weights = self._positions(np.asarray(masked.sample_weight, np.float64))
        return lengths, None, valid, weights

    def _positions(self, values: Array) -> Array:
        """One value for each position, from an array that broadcasts against x."""
        split = tuple(1 if axis.weighted else axis.size for axis in self.layout.axes)
        return self.fold_part(np.broadcast_to(values, split), split)

    @cached_property
    def repeats(self) -> int | None:
        """How often each sample's length stands in a row, one for each sequence; None where t is not the last axis."""
        names = [self.layout.axes[i].name for group in (0, 1, 4) for i in self.layout.axis_groups[group]]
        sizes = {axis.name: axis.size for axis in self.layout.axes}
        if "b" not in names or names[-1:] != ["t"] or sizes["t"] != self.extent or names[0] != "b":
            return None
        return math.prod(sizes[name] for name in names[1:-1])


@ignore_floating_point_errors  # what is beyond a dtype is inf
def _cast(values: Array, dtype: np.dtype[Any]) -> Array:
    """A copy in another dtype."""
    return values.astype(dtype)


@ignore_floating_point_errors
def _contiguous(values: Array, dtype: np.dtype[Any]) -> Array:
    return np.ascontiguousarray(values, dtype)


def _aligned(values: Array) -> Array:
    """A layout of bytes may start anywhere; the kernels' loads may not."""
    return values if values.flags.aligned else values.copy()


class _Measured(Moments):
    """Moments that a kernel measured: a table, out of which count, mean and m2 are made when they are asked for."""

    kernel: Kernel
    table: Array
    whole: bool  # whether everything was real and counted once
    weighted: bool

    @classmethod
    def of(cls, kernel: Kernel, table: Array, masked: MaskedInput) -> _Measured:
        """They need no checks; and they keep no x alive."""
        moments = object.__new__(cls)
        values = moments.__dict__
        values["kernel"], values["table"] = kernel, table
        if masked.unmasked:
            values["whole"], values["count"] = True, kernel.full_count
        else:
            values["whole"], values["weighted"] = False, masked.weights is not None
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
        usual = mean.dtype is _DOUBLE and var.dtype is _DOUBLE and mean.flags.carray and var.flags.carray
        if table is None or not usual or self.kernel.layout.transposed:
            return None
        moved = np.empty((2, *mean.shape))
        done = _native.blend_running(table, mean, var, momentum, ddof, moved)
        return (moved[0], moved[1]) if done else None

    def _count(self) -> Array:
        count = self.kernel.part(self.table, 0)
        return count if self.weighted else count.astype(np.int64)

    def __reduce__(self) -> tuple[Any, ...]:
        return Moments, (self.count, self.mean, self.m2)


native = _native
Call = _native.Call
set_threads = _native.set_threads


def find(masked: MaskedInput, char: str | None = None) -> Kernel | None:
    """The kernel for this masked; None where there is none. char: of x's dtype, where x is no NumPy array."""
    norm, offsets, char = masked.norm, masked.offsets, char or masked.dtype.char
    if char not in CHARS:
        return None
    if masked.unmasked:
        return whole_kernel(norm, masked.layout.shape, char)
    for i, axis in enumerate(masked.layout.axes):
        if axis.weighted and (
            (masked.mask is not None and masked.mask.shape[i] > 1)
            or (masked.weights is not None and masked.weights.shape[i] > 1)
            or (masked.lengths is not None and axis.name in ("b", "t"))
        ):
            return None
    if offsets is None:
        return whole_kernel(norm, masked.layout.shape, char)
    return _packed_kernel(norm, len(offsets) - 1, masked.source.shape[1], char)


@lru_cache(maxsize=512)
def whole_kernel(norm: Norm, shape: tuple[int, ...], char: str) -> Kernel | None:
    """The kernel for an array of this shape and dtype; None where it has no elements."""
    layout = norm.view(shape)
    outer, reduced, _, _, positions = layout.canonical
    kind: LayoutKind = "planes" if layout.axis_groups[4] else "columns" if layout.axis_groups[1] else "rows"
    if kind == "planes":
        sequences, extent = outer * reduced, positions
    else:
        rows = layout.axis_groups[1] if kind == "columns" else layout.axis_groups[0]
        last = layout.axes[rows[-1]] if rows else None
        extent = last.size if last is not None and last.name == "t" else reduced if kind == "columns" else outer
        sequences = outer * reduced // extent if extent else 0
    if 0 in layout.canonical:
        return None  # nothing to compute: the reference knows every empty case
    return _make(layout, norm, kind, sequences, extent, char)


@lru_cache(maxsize=512)
def _packed_kernel(norm: Norm, samples: int, channels: int, char: str) -> Kernel | None:
    """Packed rows whose samples have statistics of their own: one sequence for each, wherever it starts."""
    layout = norm.view((samples, 1, channels))
    if not layout.axes[0].reduced and layout.axes[1].reduced and not layout.transposed and 0 not in layout.canonical:
        return _make(layout, norm, "columns", samples, 1, char)
    return None


def _make(layout: Layout, norm: Norm, kind: LayoutKind, sequences: int, extent: int, char: str) -> Kernel:
    dtype = np.dtype(char)
    options = (norm.center, norm.ddof, norm.eps, norm.eps_at == "std")
    plan = _native.Plan(kind, list(layout.canonical), sequences, extent, CHARS[char], *options)
    return Kernel(layout, plan, dtype, sequences, extent, char)


def measure_masked(kernel: Kernel, masked: MaskedInput) -> Moments:
    """The twin of `moments.measure_masked`."""
    table = np.empty((kernel.statistics, 3))
    kernel.plan.measure(kernel.fold(masked.source), table, *kernel.ragged(masked))
    return _Measured.of(kernel, table, masked)


def forward_inputs(kernel: Kernel, inputs: Inputs) -> Normalized:
    """The twin of `reference.forward_inputs`."""
    masked = inputs.masked
    x = kernel.fold(masked.source)
    y = np.empty_like(x)
    given = inputs.given is not None
    table = np.empty((kernel.statistics, 3)) if inputs.given is None else kernel.table(inputs.given)
    kernel.plan.forward(
        x,
        y,
        table,
        kernel.parameter(inputs.weight),
        kernel.parameter(inputs.bias),
        *kernel.ragged(masked),
        inputs.padding == "keep",
        given,
    )
    moments = _Measured.of(kernel, table, masked) if inputs.given is None else inputs.given
    return Normalized.of(inputs, kernel.unfold(y, masked), moments)


def forward_directly(x: ArrayLike, norm: Norm, weight: ArrayLike | None, bias: ArrayLike | None) -> Normalized | None:
    """`forward` of the usual call: arrays that a kernel takes as they are, all of x real. None where they are not.

    It leaves out every detour of the other way, and half of what a small call costs: 6 of 13 microseconds. The kernel
    itself looks whether arrays are contiguous, aligned and of a dtype that it knows.
    """
    if type(x) is not np.ndarray or (dtype := x.dtype).char not in "efd":
        return None
    kernel = whole_kernel(norm, x.shape, dtype.char)
    if kernel is None or kernel.layout.transposed:
        return None
    layout = kernel.layout
    for one in (weight, bias):
        if one is not None and (
            type(one) is not np.ndarray or one.shape != layout.weight_shape or one.dtype.kind != "f"
        ):
            return None
    y, table = np.empty(x.shape, dtype), np.empty((kernel.statistics, 3))
    try:
        kernel.plan.forward(x, y, table, weight, bias, None, None, None, None, False, False)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    masked = MaskedInput(norm, layout, x, dtype)
    out = object.__new__(Normalized)
    out.__dict__ = {
        "norm": norm,
        "masked": masked,
        "weight": weight,
        "bias": bias,
        "given": None,
        "padding": "zero",
        "y": y,
        "moments": _Measured.of(kernel, table, masked),
    }
    return out


def backward_directly(dy: ArrayLike, out: Normalized) -> tuple[Array, Array | None, Array | None] | None:
    """`backward` of the same."""
    moments, x, weight, bias = out.moments, out.masked.source, out.weight, out.bias
    kernel: Kernel | None = vars(moments).get("kernel")
    if kernel is None or out.given is not None or not out.masked.unmasked or not moments.whole:  # type: ignore[attr-defined]
        return None
    if kernel is not whole_kernel(out.masked.norm, x.shape, kernel.dtype.char):  # moments of another normalization
        return None
    if kernel.layout.transposed or type(dy) is not np.ndarray or dy.shape != x.shape:
        return None
    dx, sums = np.empty(x.shape, kernel.dtype), np.empty((kernel.statistics, 2))
    dweight = None if weight is None else np.empty(weight.shape, weight.dtype)
    dbias = None if bias is None else np.empty(bias.shape, bias.dtype)
    try:
        kernel.plan.backward(
            x, dy, dx, vars(moments)["table"], weight, sums, dweight, dbias, None, None, None, None, False, False, False
        )
    except (TypeError, ValueError):
        return None
    return dx, dweight, dbias


def backward_sums(kernel: Kernel, dy: ArrayLike, out: Normalized) -> BackwardSums:
    """The twin of `reference.backward_sums`."""
    table, shape = np.empty((kernel.statistics, 2)), kernel.layout.weight_shape or ()
    dweight, dbias = (kernel.gradient(one, np.dtype(np.float64)) for one in (out.weight, out.bias))
    _backward(kernel, dy, out, None, table, dweight, dbias, given=False)
    split = kernel.layout.weight_split
    return BackwardSums(
        dxhat=kernel.part(table, 0),
        dxhat_xhat=kernel.part(table, 1),
        dweight=None if dweight is None else kernel.unfold_part(dweight, split).reshape(shape),
        dbias=None if dbias is None else kernel.unfold_part(dbias, split).reshape(shape),
    )


def backward(
    kernel: Kernel, dy: ArrayLike, out: Normalized, sums: BackwardSums | None
) -> tuple[Array, Array | None, Array | None]:
    """The twin of `reference.backward`."""
    masked, weight, bias = out.masked, out.weight, out.bias
    dx = np.empty(masked.source.shape, kernel.dtype)
    if sums is None:
        table = np.empty((kernel.statistics, 2))
        dweight, dbias = kernel.gradient(weight), kernel.gradient(bias)
        _backward(kernel, dy, out, dx, table, dweight, dbias, given=False)
        dweight, dbias = kernel.unfold_gradient(dweight, weight), kernel.unfold_gradient(dbias, bias)
    else:
        split = kernel.layout.statistics_split
        table = np.stack([kernel.fold_part(one, split) for one in (sums.dxhat, sums.dxhat_xhat)], axis=-1)
        _backward(kernel, dy, out, dx, table, None, None, given=True)
        dweight = None if weight is None or sums.dweight is None else _cast(sums.dweight, weight.dtype)
        dbias = None if bias is None or sums.dbias is None else _cast(sums.dbias, bias.dtype)
    return kernel.unfold(dx, masked), dweight, dbias


def _backward(
    kernel: Kernel,
    dy: ArrayLike,
    out: Normalized,
    dx: Array | None,
    sums: Array,
    dweight: Array | None,
    dbias: Array | None,
    *,
    given: bool,
) -> None:
    masked = out.masked
    kernel.plan.backward(
        kernel.fold(masked.source),
        kernel.fold(masked.same_shape(dy, "dy")),
        dx,
        kernel.table(out.moments),
        kernel.parameter(out.weight),
        sums,
        dweight,
        dbias,
        *kernel.ragged(masked),
        out.padding == "keep",
        given,
        out.given is not None and not given,
    )
