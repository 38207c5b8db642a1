"""The verbs on compiled kernels, and on the reference for what the kernels do not take.

Each verb first tries the direct way: arrays that a kernel can read as they are. It leaves out the checks of the general
way, which are half the cost of a small call, and returns None if anything is unusual: the general way handles that case
and raises the errors. The kernel itself checks whether arrays are contiguous, aligned and of a known dtype.
"""

from __future__ import annotations

from typing import Unpack

import numpy as np
from numpy.typing import ArrayLike

from truenorm import _native
from truenorm.core import reference
from truenorm.core.arrays import as_array
from truenorm.core.inputs import PADDINGS, BackwardSums, Inputs, Normalized, Padding, check_inputs
from truenorm.core.lengths import LengthsLike
from truenorm.core.mask import MaskedInput, mask_input
from truenorm.core.moments import Moments, ignore_floating_point_errors, measure_masked
from truenorm.core.norm import Norm
from truenorm.engine.backend import Gradients, RaggedArguments
from truenorm.engine.kernel import Array, Kernel, KernelMoments, cast, find, whole_kernel
from truenorm.engine.threads import threads

__all__ = ["Call", "Kernel", "NativeBackend", "find", "native", "set_threads", "whole_kernel"]

native = _native
Call = _native.Call
set_threads = _native.set_threads
_measure_masked = ignore_floating_point_errors(measure_masked)


class NativeBackend:
    """The compiled kernels."""

    def measure(self, x: ArrayLike, norm: Norm, **ragged: Unpack[RaggedArguments]) -> Moments:
        set_threads(threads())
        masked = mask_input(x, norm, **ragged)
        kernel = find(masked)
        if kernel is None:
            return _measure_masked(masked, norm)
        table = np.empty((kernel.statistics, 3))
        kernel.plan.measure(kernel.fold(masked.to_packed(masked.source)), table, **kernel.ragged(masked)._asdict())
        return KernelMoments.of(kernel, table, weighted=masked.weights is not None)

    def forward(
        self,
        x: ArrayLike,
        norm: Norm,
        *,
        weight: ArrayLike | None,
        bias: ArrayLike | None,
        valid: ArrayLike | None,
        lengths: LengthsLike | None,
        offsets: ArrayLike | None,
        segments: ArrayLike | None,
        sample_weight: ArrayLike | None,
        along: int | str | None,
        moments: Moments | None,
        padding: Padding,
    ) -> Normalized:
        set_threads(threads())
        plain = offsets is None and segments is None and sample_weight is None and along is None
        if plain and valid is None and moments is None:
            out = _forward_directly(x, norm, weight, bias, lengths, padding)
            if out is not None:
                return out
        masked = mask_input(
            x,
            norm,
            valid=valid,
            lengths=lengths,
            offsets=offsets,
            segments=segments,
            sample_weight=sample_weight,
            along=along,
        )
        inputs = check_inputs(masked, norm, weight, bias, moments, padding)
        kernel = find(masked)
        return reference.forward_inputs(inputs) if kernel is None else _forward(kernel, inputs)

    def backward_sums(self, dy: ArrayLike, out: Normalized) -> BackwardSums:
        set_threads(threads())
        kernel = find(out.masked)
        return reference.backward_sums(dy, out) if kernel is None else _backward_sums(kernel, dy, out)

    def backward(self, dy: ArrayLike, out: Normalized, *, sums: BackwardSums | None) -> Gradients:
        set_threads(threads())
        if sums is None:
            gradients = _backward_directly(dy, out)
            if gradients is not None:
                return gradients
        kernel = find(out.masked)
        if kernel is None:
            return reference.backward(dy, out, sums=sums)
        return _backward(kernel, dy, out) if sums is None else _backward_with_sums(kernel, dy, out, sums)


def _forward_directly(
    x: ArrayLike,
    norm: Norm,
    weight: ArrayLike | None,
    bias: ArrayLike | None,
    lengths: LengthsLike | None,
    padding: Padding,
) -> Normalized | None:
    """`forward` of a whole x, or of the first steps of each sample."""
    if type(x) is not np.ndarray or (dtype := x.dtype).char not in "efd" or not isinstance(norm, Norm):
        return None
    kernel = whole_kernel(norm, x.shape, dtype.char)
    if kernel is None or kernel.layout.transposed or padding not in PADDINGS:
        return None
    layout, shape = kernel.layout, kernel.layout.weight_shape
    if weight is not None and (type(weight) is not np.ndarray or weight.shape != shape or weight.dtype.kind != "f"):
        return None
    if bias is not None and (type(bias) is not np.ndarray or bias.shape != shape or bias.dtype.kind != "f"):
        return None
    y, table = np.empty(x.shape, dtype), np.empty((kernel.statistics, 3))
    try:
        if lengths is None:
            kernel.plan.forward(x, y, table, weight=weight, bias=bias)
            masked = MaskedInput(norm, layout, x, dtype)
        else:
            counts = np.array(as_array(lengths, "lengths"))  # a copy: `backward` needs these values
            repeats, steps = kernel.spread_of_lengths or (0, 0)
            # The plan checks the lengths, which must not be multiplied before.
            if steps != 1 or counts.dtype.kind not in "iu" or counts.shape != (kernel.sequences // repeats,):
                return None
            counts = counts.astype(np.int64, copy=False)
            rows, keep = kernel.per_sequence(counts), padding == "keep"
            kernel.plan.forward(x, y, table, weight=weight, bias=bias, lengths=rows, keep_padding=keep)
            masked = MaskedInput(norm, layout, x, dtype, lengths=counts)
    except (TypeError, ValueError):
        return None
    out = object.__new__(Normalized)
    out.__dict__ = {
        "norm": norm,
        "masked": masked,
        "weight": weight,
        "bias": bias,
        "given": None,
        "padding": padding,
        "y": y,
        "moments": KernelMoments.of(kernel, table, weighted=False, whole=lengths is None),
    }
    return out


def _forward(kernel: Kernel, inputs: Inputs) -> Normalized:
    """The general way. Moments are measured, or given."""
    masked, given = inputs.masked, inputs.given
    x = kernel.fold(masked.to_packed(masked.source))
    y = np.empty_like(x)
    table = np.empty((kernel.statistics, 3)) if given is None else kernel.table(given)
    kernel.plan.forward(
        x,
        y,
        table,
        weight=kernel.parameter(inputs.weight),
        bias=kernel.parameter(inputs.bias),
        **kernel.ragged(masked)._asdict(),
        keep_padding=inputs.padding == "keep",
        given=given is not None,
    )
    moments = KernelMoments.of(kernel, table, weighted=masked.weights is not None) if given is None else given
    return Normalized.of(inputs, kernel.unfold(y, masked), moments)


def _backward_directly(dy: ArrayLike, out: Normalized) -> Gradients | None:
    """`backward` of what `_forward_directly` returned for a whole x."""
    x, weight, bias, measured = out.masked.source, out.weight, out.bias, vars(out.moments)
    kernel: Kernel | None = measured.get("kernel")
    if kernel is None or out.given is not None or not out.masked.unmasked:
        return None
    if kernel is not whole_kernel(out.masked.norm, x.shape, kernel.char):  # moments of another normalization
        return None
    if kernel.layout.transposed or type(dy) is not np.ndarray or dy.shape != x.shape:
        return None
    dx, sums = np.empty(x.shape, kernel.dtype), np.empty((kernel.statistics, 2))
    dweight = None if weight is None else np.empty(weight.shape, weight.dtype)
    dbias = None if bias is None else np.empty(bias.shape, bias.dtype)
    try:
        kernel.plan.backward(
            x, dy, dx, measured["table"], sums=sums, weight=weight, bias=bias, dweight=dweight, dbias=dbias
        )
    except (TypeError, ValueError):
        return None
    return dx, dweight, dbias


def _backward_sums(kernel: Kernel, dy: ArrayLike, out: Normalized) -> BackwardSums:
    table, shape = np.empty((kernel.statistics, 2)), kernel.layout.weight_shape or ()
    dweight, dbias = (kernel.gradient(one, np.dtype(np.float64)) for one in (out.weight, out.bias))
    _run_backward(kernel, dy, out, dx=None, sums=table, dweight=dweight, dbias=dbias)
    split = kernel.layout.weight_split
    return BackwardSums(
        dxhat=kernel.part(table, 0),
        dxhat_xhat=kernel.part(table, 1),
        dweight=None if dweight is None else kernel.unfold_part(dweight, split).reshape(shape),
        dbias=None if dbias is None else kernel.unfold_part(dbias, split).reshape(shape),
    )


def _backward(kernel: Kernel, dy: ArrayLike, out: Normalized) -> Gradients:
    dx, table = np.empty(out.masked.source.shape, kernel.dtype), np.empty((kernel.statistics, 2))
    dweight, dbias = kernel.gradient(out.weight), kernel.gradient(out.bias)
    _run_backward(kernel, dy, out, dx=dx, sums=table, dweight=dweight, dbias=dbias)
    dweight, dbias = kernel.unfold_gradient(dweight, out.weight), kernel.unfold_gradient(dbias, out.bias)
    return kernel.unfold(dx, out.masked), dweight, dbias


def _backward_with_sums(kernel: Kernel, dy: ArrayLike, out: Normalized, sums: BackwardSums) -> Gradients:
    """dx of a part of a whole, from the sums of the whole."""
    dx, split = np.empty(out.masked.source.shape, kernel.dtype), kernel.layout.statistics_split
    table = np.stack([kernel.fold_part(one, split) for one in (sums.dxhat, sums.dxhat_xhat)], axis=-1)
    _run_backward(kernel, dy, out, dx=dx, sums=table, given=True)
    dweight = None if out.weight is None or sums.dweight is None else cast(sums.dweight, out.weight.dtype)
    dbias = None if out.bias is None or sums.dbias is None else cast(sums.dbias, out.bias.dtype)
    return kernel.unfold(dx, out.masked), dweight, dbias


def _run_backward(
    kernel: Kernel,
    dy: ArrayLike,
    out: Normalized,
    *,
    dx: Array | None,
    sums: Array,
    dweight: Array | None = None,
    dbias: Array | None = None,
    given: bool = False,
) -> None:
    kernel.plan.backward(
        kernel.fold(out.masked.to_packed(out.masked.source)),
        kernel.fold(out.masked.to_packed(out.masked.same_shape(dy, "dy"))),
        dx,
        kernel.table(out.moments),
        sums=sums,
        weight=kernel.parameter(out.weight),
        bias=kernel.parameter(out.bias),
        dweight=dweight,
        dbias=dbias,
        **kernel.ragged(out.masked)._asdict(),
        keep_padding=out.padding == "keep",
        given=given,
        constant=out.given is not None and not given,
    )
