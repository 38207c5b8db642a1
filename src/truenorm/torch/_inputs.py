"""Ragged inputs of every form become a tensor and one `Ragged` value.

`unpack` takes apart the forms that carry their own lengths (`torch.nested`, `PackedSequence`), and sorts rows by their
segments; `repack` puts the result back. `check_ragged` checks the arguments against the shape of x with the code and
messages of `truenorm.core.mask`; `to_mask` turns them into tensors on the device of x, without reading a value there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache, reduce
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from truenorm.core.arrays import refuse_masked
from truenorm.core.layout import Layout, layout_of
from truenorm.core.lengths import is_one_for_each_axis
from truenorm.core.mask import MaskedInput, by_rank, check_given, mask_input
from truenorm.core.norm import Norm
from truenorm.core.packed import check_segments, packed_norm, rows_of
from truenorm.torch import _compat
from truenorm.torch._formula import Mask, Segments

Input = TypeVar("Input", Tensor, PackedSequence)  # a nested tensor is a Tensor
MaskLike = Tensor | NDArray[Any] | Sequence[bool] | Sequence[Sequence[bool]]
VectorLike = Tensor | NDArray[Any] | Sequence[int]
LengthsLike = VectorLike | Sequence[VectorLike]  # one vector, or one for each position axis
WeightLike = Tensor | NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]


class Ragged(NamedTuple):
    """Which elements of x are valid, and how often each counts: tensors on the device of x, None if not given."""

    valid: Tensor | None = None
    lengths: Tensor | None = None  # (b,), or (axes, b): one vector for each position axis
    offsets: Tensor | None = None
    sample_weight: Tensor | None = None

    def change(self, function: Callable[[Tensor], Tensor]) -> Ragged:
        """The same function of all that is given."""
        return Ragged(*(None if one is None else function(one) for one in self))


@dataclass(eq=False, slots=True)
class UnpackedInput:
    """A plain tensor, what is valid of it, and how the result gets the form that x had."""

    x: Tensor
    ragged: Ragged | None = None  # None: everything is valid
    packed: bool = False  # (rows, c): channels come last, whatever the layer expects otherwise
    repack: Callable[[Tensor], Any] | None = None  # None: as it is
    along: int | str | None = None  # the axis that lengths run along; None: the only one there is


def unpack(
    x: Tensor | PackedSequence,
    valid: MaskLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: VectorLike | None = None,
    segments: VectorLike | None = None,
    sample_weight: WeightLike | None = None,
    along: int | str | None = None,
    *,
    sequences: bool = False,
    rows_only: bool = False,
    row_axes: int = 1,
) -> UnpackedInput:
    """x as a plain tensor.

    sequences   each sequence has statistics of its own
    rows_only   each row has: torch's own operators take nested tensors of every layout
    row_axes    how many axes a packed row has at least
    """
    if type(x) is Tensor and offsets is None and segments is None and sample_weight is None and not x.is_nested:
        if valid is None:
            if lengths is None and along is None:
                return UnpackedInput(x)
            if (
                type(lengths) is Tensor
                and lengths.dtype is torch.int64
                and lengths.dim() == 1
                and lengths.device == x.device
            ):
                return UnpackedInput(x, Ragged(None, lengths), along=along)
        elif (
            type(valid) is Tensor
            and valid.dtype is torch.bool
            and valid.layout is torch.strided
            and valid.device == x.device
            and lengths is None
            and along is None
        ):
            return UnpackedInput(x, Ragged(valid))
    if not isinstance(x, Tensor | PackedSequence):
        raise TypeError(f"x: a tensor, a nested tensor or a PackedSequence, got {type(x).__name__}.")
    rows = x.data if isinstance(x, PackedSequence) else x
    given = Ragged(
        None if valid is None else _as_tensor(valid, "valid", rows),
        None if lengths is None else _lengths_tensor(lengths, rows),
        None if offsets is None else _as_tensor(offsets, "offsets", rows),
        None if sample_weight is None else _as_tensor(sample_weight, "sample_weight", rows),
    )
    if isinstance(x, PackedSequence) or x.is_nested:
        _check_alone(given, segments, "a PackedSequence" if isinstance(x, PackedSequence) else "a nested tensor")
    if isinstance(x, PackedSequence):
        return _unpack_packed_sequence(x, given, sequences=sequences)
    if x.is_nested:
        return _unpack_nested(x, given, rows_only)
    if along is not None or segments is not None:
        named = {"valid": valid, "lengths": lengths, "offsets": offsets, "segments": segments}
        check_given([name for name, value in named.items() if value is not None], along)
    if offsets is not None or segments is not None:
        ids = None if segments is None else _as_tensor(segments, "segments", x)
        return _unpack_rows(x, given, ids, sequences=sequences, row_axes=row_axes)
    everything = all(one is None for one in given)
    return UnpackedInput(x, None if everything else given, along=along)


def _lengths_tensor(lengths: LengthsLike, x: Tensor) -> Tensor:
    """(b,), or (axes, b) for one vector for each axis. Of a single tensor rank decides, never size."""
    if not is_one_for_each_axis(lengths):
        found = _as_tensor(lengths, "lengths", x)
        if found.dim() > 1 and found.dtype != torch.bool:
            fix = "Pass lengths.squeeze(1)." if found.shape[1] == 1 else "For several axes pass a tuple of vectors."
            raise ValueError(f"lengths: the shape (b,), got {tuple(found.shape)}. {fix}")
        return found
    vectors = [_as_tensor(one, "lengths", x) for one in lengths]
    if any(one.dim() != 1 or one.shape != vectors[0].shape for one in vectors):
        shapes = ", ".join(str(tuple(one.shape)) for one in vectors)
        raise ValueError(f"lengths: vectors of the shape (b,), one for each position axis, got {shapes}.")
    return torch.stack(vectors)


def _as_tensor(value: Any, name: str, x: Tensor) -> Tensor:
    """A ragged argument as a tensor on the device of x; whole numbers as int64."""
    if isinstance(value, Tensor):
        found = value
    else:
        refuse_masked(value, name)
        found = torch.as_tensor(value, device=x.device)
    check_dense(**{name: found})
    if found.device != x.device:
        raise ValueError(
            f"{name}: on the device of x, {x.device}, got {found.device}. Move it: {name}.to({str(x.device)!r})."
        )
    if name in ("lengths", "offsets", "segments") and not (found.is_floating_point() or found.dtype == torch.bool):
        return found.to(torch.int64).contiguous()
    return found.to(torch.int64) if found.dtype in _UNSIGNED else found


def check_dense(**tensors: Tensor | None) -> None:
    """Raises an error for sparse tensors, of which torch implements few operations."""
    for name, tensor in tensors.items():
        if tensor is not None and tensor.layout != torch.strided:
            raise TypeError(
                f"{name} must be a dense tensor, got the layout {tensor.layout}. Convert it: {name}.to_dense()."
            )


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)  # torch has few operations for these


def _check_alone(given: Ragged, segments: VectorLike | None, form: str) -> None:
    for name, value in (given._asdict() | {"segments": segments}).items():
        if value is not None and name != "sample_weight":
            raise ValueError(f"{name}: not beside {form}, which has lengths of its own. Leave it out.")


def _unpack_nested(x: Tensor, given: Ragged, rows_only: bool) -> UnpackedInput:
    """(b, t*, c) or (b, c, t*): packed rows and their offsets."""
    if rows_only and given.sample_weight is None and (x.layout != torch.jagged or x.dim() != 3):
        return UnpackedInput(x)  # for torch's own operators
    if x.layout != torch.jagged or x.dim() != 3:
        raise ValueError(
            f"x: a nested tensor of the jagged layout and three axes, got {x.layout} and {x.dim()}. "
            "Make it with torch.nested.nested_tensor(parts, layout=torch.jagged)."
        )
    axis = _compat.ragged_axis(x)
    jagged: Any = x  # torch's stubs do not know these methods
    if jagged.lengths() is not None:  # there are gaps between its sequences
        jagged = jagged.contiguous()
    values, offsets = jagged.values(), jagged.offsets()

    def repack(y: Tensor) -> Tensor:
        return torch.nested.nested_tensor_from_jagged(y if axis == 1 else y.transpose(0, 1), offsets, jagged_dim=axis)

    rows = values if axis == 1 else values.transpose(0, 1)
    return UnpackedInput(rows, given._replace(offsets=offsets), packed=True, repack=repack)


def _unpack_packed_sequence(x: PackedSequence, given: Ragged, *, sequences: bool) -> UnpackedInput:
    """Its rows are ordered by step. If each sequence has its own statistics, they are ordered by sequence, and back."""
    _check_batch_sizes(x)
    if not sequences:
        ragged = None if given.sample_weight is None else given
        return UnpackedInput(x.data, ragged, packed=True, repack=lambda y: x._replace(data=y))
    order, offsets = order_by_sequence(x.batch_sizes)
    order = order.to(x.data.device)
    weight = given.sample_weight
    if weight is not None:
        if weight.shape[:1] != order.shape:
            raise ValueError(f"sample_weight: one for each of the {len(order)} packed rows, got {tuple(weight.shape)}.")
        weight = weight.index_select(0, order)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)

    def repack(y: Tensor) -> PackedSequence:
        return x._replace(data=y.index_select(0, back))

    ragged = Ragged(offsets=offsets.to(x.data.device), sample_weight=weight)
    return UnpackedInput(x.data.index_select(0, order), ragged, packed=True, repack=repack)


def _unpack_rows(x: Tensor, given: Ragged, segments: Tensor | None, *, sequences: bool, row_axes: int) -> UnpackedInput:
    """(rows, ...) or (1, rows, ...). If each sequence has its own statistics, rows are ordered by segment, and back."""
    leading = sequences and x.dim() > 1 + row_axes and x.shape[0] == 1
    shape = tuple(x.shape)
    rows, weight = (x.squeeze(0), given.sample_weight) if leading else (x, given.sample_weight)
    if leading and weight is not None:
        if weight.dim() < rows.dim() or weight.shape[0] != 1:
            raise ValueError(
                f"sample_weight: the shape {shape[:-1]}, x without its channel axis, got {tuple(weight.shape)}."
            )
        weight = weight.squeeze(0)
    order = None
    if segments is not None:
        integers = not (segments.is_floating_point() or segments.is_complex() or segments.dtype == torch.bool)
        check_segments(segments, integers, shape, tuple(rows.shape))
        if not sequences:  # it does not matter to which segment a row belongs
            return UnpackedInput(x, None if weight is None else given, packed=True)
        order, offsets = _order_by_segment(segments)
        given = given._replace(offsets=offsets)
    given = given._replace(sample_weight=weight)
    if order is None:
        return UnpackedInput(rows, given, packed=True, repack=(lambda y: y.unsqueeze(0)) if leading else None)
    if weight is not None and weight.shape[:1] == order.shape:
        given = given._replace(sample_weight=weight.index_select(0, order))
    back = torch.zeros_like(order).scatter(0, order, torch.arange(order.shape[0], device=order.device))

    def repack(y: Tensor) -> Tensor:
        return y.index_select(0, back).reshape(shape)

    return UnpackedInput(rows.index_select(0, order), given, packed=True, repack=repack)


def _order_by_segment(ids: Tensor) -> tuple[Tensor | None, Tensor]:
    """The rows, segment by segment, and the offsets of these. No order if the rows are sorted already.

    How many segments there are is a value. Where values cannot be read there are as many offsets as there could be
    segments, and those that do not exist have no rows.
    """
    ids, order = torch.sort(ids) if _compat.is_exporting() else torch.sort(ids, stable=True)  # which ONNX has not
    if values_are_readable(ids):
        counts = torch.unique_consecutive(ids, return_counts=True)[1]
        is_sorted = bool((order[1:] > order[:-1]).all())
    else:
        # Not `ids[1:] != ids[:-1]`, which would make the number of rows a constant of exported programs.
        first = (torch.diff(ids, prepend=ids[:1]) != 0).to(ids.dtype)
        counts = torch.zeros_like(ids).index_add(0, torch.cumsum(first, 0), torch.ones_like(ids))
        is_sorted = False
    offsets = torch.cat([counts.new_zeros(1), torch.cumsum(counts, 0)])
    return None if is_sorted else order, offsets


def _check_batch_sizes(x: PackedSequence) -> None:
    """They say which rows belong to which sequence: if they are wrong, rows are lost or mixed up."""
    sizes = x.batch_sizes
    if not values_are_readable(sizes):
        return
    listed = sizes.tolist()
    if sum(listed) != len(x.data) or min(listed, default=0) < 0 or listed != sorted(listed, reverse=True):
        raise ValueError(
            f"x must have batch_sizes that do not rise and add up to its {len(x.data)} rows, got {listed}. "
            "Make it with torch.nn.utils.rnn.pack_padded_sequence."
        )


def order_by_sequence(batch_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a PackedSequence, sequence by sequence, and the offsets of these.

    >>> order_by_sequence(torch.tensor([3, 2, 1]))  # lengths 3, 2, 1
    (tensor([0, 3, 5, 1, 4, 2]), tensor([0, 3, 5, 6]))
    """
    begins = torch.cumsum(batch_sizes, 0) - batch_sizes  # where each step begins
    lengths = (batch_sizes[None] > torch.arange(int(batch_sizes[0]))[:, None]).sum(1)
    steps = [begins[: int(length)] + i for i, length in enumerate(lengths)]
    return torch.cat(steps), torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])


def with_batch_axis(input: UnpackedInput) -> UnpackedInput:
    """One sample (c, ...) as a batch; its ragged arguments have no batch axis either."""
    ragged = input.ragged
    if ragged is not None:
        lengths = ragged.lengths
        if lengths is not None and lengths.dim() < 2:
            lengths = lengths.reshape(-1)
        ragged = ragged._replace(lengths=None).change(lambda one: one.unsqueeze(0))._replace(lengths=lengths)
    along = input.along
    along = along + 1 if isinstance(along, int) and along >= 0 else along
    return UnpackedInput(input.x.unsqueeze(0), ragged, along=along)


# ---- ragged arguments against the shape of x ----


def check_ragged(norm: Norm, shape: Sequence[int], ragged: Ragged) -> MaskedInput:
    """What NumPy would make of these arguments. Off the CPU only shapes and dtypes are checked, never values."""
    check_dense(**ragged._asdict())
    _check_types(norm, tuple(shape), ragged)
    arrays: dict[str, Any] = {
        name: _as_numpy(value, name, shape)
        for name, value in zip(ragged._fields, ragged, strict=True)
        if value is not None
    }
    if ragged.lengths is not None and ragged.lengths.dim() > 1:
        arrays["lengths"] = tuple(arrays["lengths"])
    rows = rows_of(norm) if ragged.offsets is not None else None
    if rows is not None and not rows.alike:  # `unpack` has taken the axis of size 1 in front away
        shape = (1, *shape)
        if "sample_weight" in arrays:
            arrays["sample_weight"] = arrays["sample_weight"][None]
    return mask_input(_array_of_shape(tuple(shape)), norm, **arrays)


def _check_types(norm: Norm, shape: tuple[int, ...], ragged: Ragged) -> None:
    """Mistakes that are common with tensors, each with its fix in torch."""
    valid, lengths = ragged.valid, ragged.lengths
    if valid is not None and valid.is_floating_point():
        raise TypeError(
            f"valid: booleans, or the integers 0 and 1, got {valid.dtype}. "
            "Pass valid.bool() for a mask of 0 and 1; weights go into sample_weight=."
        )
    if valid is not None and valid.dtype != torch.bool:
        if valid.dim() == 1 and len(shape) > 2:
            raise ValueError(
                f"valid: a mask, got whole numbers of shape {tuple(valid.shape)} for x {shape}. "
                "Lengths go into lengths=: layer(x, lengths=lengths)."
            )
        others = valid[(valid != 0) & (valid != 1)] if values_are_readable(valid) else valid[:0]
        if others.numel():
            raise ValueError(
                f"valid: booleans, or the integers 0 and 1, got {int(others.flatten()[0])}. "
                "Segment ids are no mask: pass valid=ids > 0 if 0 stands for padding, or segments=ids for packed rows."
            )
    if lengths is None:
        return
    if lengths.is_floating_point():
        t = layout_of(norm, shape).ragged_axis
        steps = "T" if t is None else layout_of(norm, shape).axes[t].size
        relative = values_are_readable(lengths) and bool(((lengths >= 0) & (lengths <= 1)).all())
        fix = f"For relative lengths pass (lengths * {steps}).round().long()." if relative else "Pass lengths.long()."
        raise TypeError(f"lengths: whole numbers, got {lengths.dtype}. {fix}")


@lru_cache(maxsize=256)
def _array_of_shape(shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of this shape; nothing else of it is used."""
    return np.broadcast_to(np.zeros((), np.float32), shape)


def values_are_readable(value: Tensor) -> bool:
    """Whether values can be read without a device synchronisation, outside of any tracing or transform."""
    return (
        value.device.type == "cpu"
        and not _compat.has_own_dispatch(value)
        and not (torch.compiler.is_compiling() or _compat.transform_is_active())
    )


def _as_numpy(value: Tensor, name: str, shape: Sequence[int]) -> Any:
    if values_are_readable(value):
        return value.detach().numpy() if value.dtype != torch.bfloat16 else value.detach().float().numpy()
    if name == "offsets":  # any valid ones: from 0 to the number of rows
        return np.array([0] + [shape[0]] * (len(value) - 1))
    dtype = "float32" if value.dtype == torch.bfloat16 else str(value.dtype).removeprefix("torch.")
    return np.broadcast_to(np.zeros((), dtype), tuple(value.shape))


def to_mask(norm: Norm, x: Tensor, ragged: Ragged | None) -> Mask:
    """The valid elements as tensors. `check_ragged` has checked all that follows from shapes."""
    segments = None
    shape = tuple(x.shape)
    valid, lengths, offsets, sample_weight = ragged or Ragged()
    if offsets is not None:
        found = rows_of(norm)
        norm = packed_norm(norm, len(shape))
        if found is not None and not found.alike:
            rows = torch.arange(shape[0], device=x.device)
            if _compat.is_exporting():  # ONNX has no search
                samples = (rows[:, None] >= offsets[1:]).sum(1)
            else:
                samples = torch.searchsorted(offsets.contiguous(), rows, right=True) - 1
            segments = Segments(samples, offsets.shape[0] - 1)
            if not norm.axes[1].pieces[0].reduced:  # "[b] t c": the samples share the statistics of a position
                segments = Segments(rows - offsets.index_select(0, samples), shape[0])
            shape = (1, *shape)
    layout = layout_of(norm, shape) if all(type(size) is int for size in shape) else layout_of.__wrapped__(norm, shape)
    if valid is not None:
        valid = by_rank(layout, valid.to(torch.bool), "valid")
    elif lengths is not None:
        valid = _mask_of_lengths(layout, lengths)
    if sample_weight is not None:
        sample_weight = sample_weight if segments is None else sample_weight.unsqueeze(0)
        sample_weight = by_rank(layout, sample_weight, "sample_weight")
    return Mask(norm, layout, valid, sample_weight, segments)


def _mask_of_lengths(layout: Layout, lengths: Tensor) -> Tensor:
    """`truenorm.core.lengths.mask_of_lengths` for tensors."""
    several = lengths.dim() > 1
    axes = layout.position_axes if several else (layout.ragged_axis,)

    def only(axis: int | None) -> list[int]:
        return [one.size if i == axis else 1 for i, one in enumerate(layout.axes)]

    found = []
    for axis, counts in zip(axes, lengths.unbind() if several else (lengths,), strict=True):
        steps = torch.arange(math.prod(only(axis)), device=lengths.device).reshape(only(axis))
        found.append(steps < counts.reshape(only(layout.find("b"))))
    return reduce(torch.logical_and, found)
