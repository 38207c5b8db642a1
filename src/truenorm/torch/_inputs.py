"""Ragged inputs of every form become a tensor and one `Ragged` value.

`unpack` takes apart the forms that carry their own lengths (`torch.nested`, `PackedSequence`); `repack` puts the result
back. `check_ragged` checks the arguments against the shape of x with the code and messages of `truenorm.core.mask`;
`to_mask` turns them into tensors on the device of x, without reading a value there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from truenorm.core.layout import layout_of
from truenorm.core.mask import MaskedInput, by_rank, mask_input, packed_norm, refuse_masked
from truenorm.core.norm import Norm
from truenorm.torch import _compat
from truenorm.torch._formula import Mask, Segments

Input = TypeVar("Input", Tensor, PackedSequence)  # a nested tensor is a Tensor
MaskLike = Tensor | NDArray[Any] | Sequence[bool] | Sequence[Sequence[bool]]
LengthsLike = Tensor | NDArray[Any] | Sequence[int]
WeightLike = Tensor | NDArray[Any] | Sequence[float] | Sequence[Sequence[float]]


class Ragged(NamedTuple):
    """Which elements of x are valid, and how often each counts: tensors on the device of x, None if not given."""

    valid: Tensor | None = None
    lengths: Tensor | None = None
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


def unpack(
    x: Tensor | PackedSequence,
    valid: MaskLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: LengthsLike | None = None,
    sample_weight: WeightLike | None = None,
    *,
    sequences: bool = False,
    rows_only: bool = False,
) -> UnpackedInput:
    """x as a plain tensor.

    sequences   each sequence has statistics of its own
    rows_only   each row has: torch's own operators take nested tensors of every layout
    """
    if type(x) is Tensor and valid is None and offsets is None and sample_weight is None and not x.is_nested:
        if lengths is None:
            return UnpackedInput(x)
        if type(lengths) is Tensor and lengths.dtype is torch.int64 and lengths.device == x.device:
            return UnpackedInput(x, Ragged(None, lengths))
    if not isinstance(x, Tensor | PackedSequence):
        raise TypeError(f"x: a tensor, a nested tensor or a PackedSequence, got {type(x).__name__}.")
    rows = x.data if isinstance(x, PackedSequence) else x
    given = Ragged(
        None if valid is None else _as_tensor(valid, "valid", rows),
        None if lengths is None else _as_tensor(lengths, "lengths", rows),
        None if offsets is None else _as_tensor(offsets, "offsets", rows),
        None if sample_weight is None else _as_tensor(sample_weight, "sample_weight", rows),
    )
    if isinstance(x, PackedSequence):
        return _unpack_packed_sequence(x, given, sequences=sequences)
    if x.is_nested:
        return _unpack_nested(x, given, rows_only)
    if offsets is not None and x.dim() != 2:
        shape = tuple(x.shape)
        raise ValueError(f"offsets: x is packed, (rows, c), got shape {shape}. For padded x pass lengths=.")
    everything = all(one is None for one in given)
    return UnpackedInput(x, None if everything else given, packed=offsets is not None)


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
    if name in ("lengths", "offsets") and not (found.is_floating_point() or found.dtype == torch.bool):
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


def _check_alone(given: Ragged, form: str) -> None:
    for name, value in zip(given._fields, given, strict=True):
        if value is not None and name != "sample_weight":
            raise ValueError(f"{name}: not beside {form}, which has lengths of its own. Leave it out.")


def _unpack_nested(x: Tensor, given: Ragged, rows_only: bool) -> UnpackedInput:
    """(b, t*, c) or (b, c, t*): packed rows and their offsets."""
    _check_alone(given, "a nested tensor")
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
    _check_alone(given, "a PackedSequence")
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
        lengths = None if ragged.lengths is None else ragged.lengths.reshape(-1)
        ragged = ragged._replace(lengths=None).change(lambda one: one.unsqueeze(0))._replace(lengths=lengths)
    return UnpackedInput(input.x.unsqueeze(0), ragged)


# ---- ragged arguments against the shape of x ----


def check_ragged(norm: Norm, shape: Sequence[int], ragged: Ragged) -> MaskedInput:
    """What NumPy would make of these arguments. Off the CPU only shapes and dtypes are checked, never values."""
    check_dense(**ragged._asdict())
    _check_types(norm, tuple(shape), ragged)
    source = _array_of_shape(tuple(shape))
    arrays = {
        name: _as_numpy(value, name, source.shape)
        for name, value in zip(ragged._fields, ragged, strict=True)
        if value is not None
    }
    return mask_input(source, norm, **arrays)


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
                "Segment ids are no mask: pass valid=ids > 0 if 0 stands for padding."
            )
    if lengths is None:
        return
    if lengths.dim() == 2 and lengths.shape[1] == 1:
        raise ValueError(f"lengths: the shape (b,), got {tuple(lengths.shape)}. Pass lengths.squeeze(1).")
    if lengths.is_floating_point():
        t = layout_of(norm, shape).find("t")
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
        norm, alike = packed_norm(norm, shape)
        if not alike:
            rows = torch.arange(shape[0], device=x.device)
            samples = torch.searchsorted(offsets.contiguous(), rows, right=True) - 1
            segments = Segments(samples, len(offsets) - 1)
            if not norm.axes[1].pieces[0].reduced:  # "[b] t c": the samples share the statistics of a position
                segments = Segments(rows - offsets.index_select(0, samples), shape[0])
            shape = (1, *shape)
    layout = layout_of(norm, shape) if all(type(size) is int for size in shape) else layout_of.__wrapped__(norm, shape)
    if valid is not None:
        valid = by_rank(layout, valid.to(torch.bool), "valid")
    elif lengths is not None:
        sizes = {name: [axis.size if axis.name == name else 1 for axis in layout.axes] for name in ("b", "t")}
        steps = torch.arange(math.prod(sizes["t"]), device=x.device).reshape(sizes["t"])
        valid = steps < lengths.reshape(sizes["b"])
    if sample_weight is not None:
        if offsets is not None:
            padded = (*layout.shape[:-1], 1) if segments is not None else (-1, 1)
            sample_weight = sample_weight.reshape(padded)
        sample_weight = by_rank(layout, sample_weight, "sample_weight")
    return Mask(norm, layout, valid, sample_weight, segments)
