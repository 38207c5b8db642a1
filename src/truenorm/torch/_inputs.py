"""Every way of writing ragged data, read once.

`opened` takes a form apart that carries its own lengths (`torch.nested`, `PackedSequence`) and knows how to put the
result back. `described` checks `valid`, `lengths`, `offsets` and `sample_weight` against a shape with the very code and
messages of `truenorm.core.mask`; `real` turns them into tensors on x's device, without looking at a value there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from truenorm.core.layout import layout_of
from truenorm.core.mask import MaskedInput, by_rank, mask_input, packed_norm
from truenorm.core.norm import Norm
from truenorm.torch._formula import Real, Segments


def _as_it_is(y: Tensor) -> Any:
    return y


@dataclass(eq=False, slots=True)
class Opened:
    """A tensor, what is told of it, and how the result becomes what x was."""

    x: Tensor
    told: dict[str, Tensor]
    close: Callable[[Tensor], Any] = _as_it_is
    packed: bool = False  # (rows, c): channels come last, whatever the layer is used to


def opened(
    x: Any,
    valid: Any = None,
    lengths: Any = None,
    offsets: Any = None,
    sample_weight: Any = None,
    *,
    sequences: bool = False,
    rows_only: bool = False,
) -> Opened:
    """x as a plain tensor. Whether each sequence has statistics of its own, or even each row."""
    if valid is None and offsets is None and sample_weight is None and type(x) is Tensor and not x.is_nested:
        if lengths is None:
            return Opened(x, {})
        if type(lengths) is Tensor and lengths.device == x.device and lengths.dtype not in _UNSIGNED:
            return Opened(x, {"lengths": lengths})
    told = {"valid": valid, "lengths": lengths, "offsets": offsets, "sample_weight": sample_weight}
    given = {name: value for name, value in told.items() if value is not None}
    if isinstance(x, PackedSequence):
        return _opened_packed_sequence(x, given, sequences=sequences)
    if isinstance(x, Tensor) and x.is_nested:
        return _opened_nested(x, given, rows_only)
    if not isinstance(x, Tensor):
        raise TypeError(f"x: a tensor, a nested tensor or a PackedSequence, got {type(x).__name__}.")
    packed = "offsets" in given
    if packed and x.dim() != 2:
        shape = tuple(x.shape)
        raise ValueError(f"offsets: x is packed, (rows, c), got shape {shape}. For padded x pass lengths=.")
    return Opened(x, {name: _tensor(value, name, x) for name, value in given.items()}, packed=packed)


def _tensor(value: Any, name: str, x: Tensor) -> Tensor:
    """A ragged argument as a tensor on the device of x."""
    found = value if isinstance(value, Tensor) else torch.as_tensor(value, device=x.device)
    if found.dtype in _UNSIGNED:  # which torch hardly computes with
        found = found.to(torch.int64)
    if found.device != x.device:
        raise ValueError(
            f"{name}: on the device of x, {x.device}, got {found.device}. Move it: {name}.to({str(x.device)!r})."
        )
    return found


_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)


def _alone(given: dict[str, Any], form: str) -> None:
    for name in given:
        if name != "sample_weight":
            raise ValueError(f"{name}: not beside {form}, which says itself what is real. Leave it out.")


def _opened_nested(x: Tensor, given: dict[str, Any], rows_only: bool) -> Opened:
    """(b, t*, c) or (b, c, t*): packed rows and their offsets."""
    _alone(given, "a nested tensor")
    if rows_only and not given and (x.layout != torch.jagged or x.dim() != 3):
        return Opened(x, {})  # torch's own operators know it
    if x.layout != torch.jagged or x.dim() != 3:
        raise ValueError(
            f"x: a nested tensor of the jagged layout and three axes, got {x.layout} and {x.dim()}. "
            "Make it with torch.nested.nested_tensor(parts, layout=torch.jagged)."
        )
    ragged_axis = x._ragged_idx  # type: ignore[attr-defined]
    if x.lengths() is not None:  # type: ignore[attr-defined]  # with holes between its sequences
        x = x.contiguous()
    values, offsets = x.values(), x.offsets()  # type: ignore[attr-defined]
    rows = values if ragged_axis == 1 else values.transpose(0, 1)

    def close(y: Tensor) -> Any:
        found = y if ragged_axis == 1 else y.transpose(0, 1)
        return torch.nested.nested_tensor_from_jagged(found, offsets, jagged_dim=ragged_axis)

    told = {name: _tensor(value, name, x) for name, value in given.items()}
    return Opened(rows, told | {"offsets": offsets}, close, packed=True)


def _opened_packed_sequence(x: PackedSequence, given: dict[str, Any], *, sequences: bool) -> Opened:
    """Its rows stand step by step. Where sequences matter they are put one after the other, and back."""
    _alone(given, "a PackedSequence")
    told = {name: _tensor(value, name, x.data) for name, value in given.items()}
    if not sequences:
        return Opened(x.data, told, lambda y: x._replace(data=y), packed=True)
    order, offsets = by_sequence(x.batch_sizes)
    order = order.to(x.data.device)
    if "sample_weight" in told:
        times = told["sample_weight"]
        if times.shape[:1] != order.shape:
            raise ValueError(f"sample_weight: one for each of the {len(order)} packed rows, got {tuple(times.shape)}.")
        told["sample_weight"] = times.index_select(0, order)
    back = torch.empty_like(order)
    back[order] = torch.arange(len(order), device=order.device)

    def close(y: Tensor) -> PackedSequence:
        return x._replace(data=y.index_select(0, back))

    return Opened(x.data.index_select(0, order), told | {"offsets": offsets.to(x.data.device)}, close, packed=True)


def by_sequence(batch_sizes: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of a PackedSequence, sequence by sequence, and the offsets of these.

    >>> by_sequence(torch.tensor([3, 2, 1]))  # lengths 3, 2, 1
    (tensor([0, 3, 5, 1, 4, 2]), tensor([0, 3, 5, 6]))
    """
    begins = torch.cumsum(batch_sizes, 0) - batch_sizes  # where each step begins
    lengths = (batch_sizes[None] > torch.arange(int(batch_sizes[0]))[:, None]).sum(1)
    steps = [begins[: int(length)] + i for i, length in enumerate(lengths)]
    return torch.cat(steps), torch.cat([lengths.new_zeros(1), torch.cumsum(lengths, 0)])


def described(norm: Norm, x: Tensor, told: dict[str, Tensor]) -> MaskedInput:
    """The masked that NumPy would make of it. Off the CPU only shapes and dtypes are checked, never values."""
    source = _stand_in(x.shape)
    return mask_input(source, norm, **{name: _as_numpy(value, name, source.shape) for name, value in told.items()})


@lru_cache(maxsize=256)
def _stand_in(shape: tuple[int, ...]) -> NDArray[Any]:
    """An array of this shape: all that is looked at."""
    return np.broadcast_to(np.zeros((), np.float32), shape)


def may_look(value: Tensor) -> bool:
    """Whether its numbers may be looked at: they are here, and nothing is only being traced or transformed."""
    return value.device.type == "cpu" and not (
        torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active()
    )


def _as_numpy(value: Tensor, name: str, shape: Sequence[int]) -> Any:
    if may_look(value):
        return value.detach().numpy() if value.dtype != torch.bfloat16 else value.detach().float().numpy()
    if name == "offsets":  # whatever they hold: from 0 to the rows
        return np.array([0] + [shape[0]] * (len(value) - 1))
    dtype = "float32" if value.dtype == torch.bfloat16 else str(value.dtype).removeprefix("torch.")
    return np.broadcast_to(np.zeros((), dtype), tuple(value.shape))


def real(norm: Norm, x: Tensor, told: dict[str, Tensor]) -> Real:
    """What is real, as tensors. Everything that can be known from shapes was checked by `described`."""
    segments = None
    shape = tuple(x.shape)
    if (offsets := told.get("offsets")) is not None:
        norm, alike = packed_norm(norm, shape)
        if not alike:
            rows = torch.arange(shape[0], device=x.device)
            segments = Segments(torch.searchsorted(offsets.contiguous(), rows, right=True) - 1, len(offsets) - 1)
            shape = (1, *shape)
    layout = layout_of(norm, shape) if all(type(size) is int for size in shape) else layout_of.__wrapped__(norm, shape)
    valid = told.get("valid")
    if valid is not None:
        valid = by_rank(layout, valid.to(torch.bool), "valid")
    elif (lengths := told.get("lengths")) is not None:
        sizes = {name: [axis.size if axis.name == name else 1 for axis in layout.axes] for name in ("b", "t")}
        steps = torch.arange(math.prod(sizes["t"]), device=x.device).reshape(sizes["t"])
        valid = steps < lengths.reshape(sizes["b"])
    times = told.get("sample_weight")
    if times is not None:
        if offsets is not None:
            times = times.reshape(*layout.shape[:-1], 1) if segments is not None else times.reshape(-1, 1)
        times = by_rank(layout, times, "sample_weight")
    return Real(norm, layout, valid, times, segments)
