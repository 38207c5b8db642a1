"""Passes over x: the operators of `_operations` that read or write tensors of its size.

On devices their number counts: x is read through one `where`, which also widens it, and a mask is never expanded over
channels. What it multiplies is a statistic, as in `addcmul(x, valid, -mean)`.

On the CPU most of the time goes into memory that was never used before, and into operators that torch does not
vectorize. There `select` makes a copy, what follows happens in place, and `zero_outside` clears bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.torch import _compat, _formula
from truenorm.torch._formula import Mask, spread, total


def is_in_place(values: Tensor) -> bool:
    """Whether the functions below that say so overwrite values; not if these are batches of tensors for a vmap."""
    return values.is_cpu and not _compat.may_be_batched(values)


def select(values: Tensor, x: Tensor, mask: Mask) -> Tensor:
    """x, or values of its shape, as they are computed with; 0 where not valid. If in place, a copy."""
    values, dtype = values.reshape(mask.layout.split), _formula.working_dtype(x)
    if is_in_place(x):
        return zero_outside(values.to(dtype, copy=True), mask)
    if mask.valid is None:
        return values.to(dtype)
    return torch.where(mask.valid, values, values.new_zeros((1,) * values.dim(), dtype=dtype))


def zero_outside(values: Tensor, mask: Mask) -> Tensor:
    """0 where not valid. In place, where clearing the bits takes a fifth of the time of `where`."""
    if mask.valid is None:
        return values
    if not is_in_place(values):
        return torch.where(mask.valid, values, 0.0)
    dtype = _BITS[values.element_size()]
    values.view(dtype).bitwise_and_(-mask.valid.to(dtype))
    return values


_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def subtract(selected: Tensor, origin: Tensor | None, mask: Mask) -> Tensor:
    """x - origin, and 0 where not valid. In place."""
    if origin is None:
        return selected
    origin = spread(origin, mask)
    if is_in_place(selected):
        return zero_outside(selected.sub_(origin), mask)
    if mask.valid is None:
        return selected - origin
    return torch.addcmul(selected, mask.valid.to(selected.dtype), origin, value=-1)


def scale_and_add(values: Tensor, scale: Tensor, offset: Tensor | None, overwrite: bool = False) -> Tensor:
    """values · scale + offset. overwrite: in place."""
    if not is_in_place(values):
        return values * scale if offset is None else torch.addcmul(offset, values, scale)
    # Not `addcmul`, which is not vectorized if two of its operands are constant along a row.
    found = torch.mul(values, scale, out=values if overwrite else None)
    return found if offset is None else found.add_(offset)


def finish(values: Tensor, x: Tensor, mask: Mask, outside: Tensor, padding: Padding) -> Tensor:
    """Values in the dtype and shape of x. Where not valid they are 0, or those of `outside`. In place."""
    values = values.to(x.dtype)
    if mask.valid is not None and padding == "keep":
        return torch.where(mask.valid, values, outside.reshape(values.shape)).reshape(x.shape)
    return zero_outside(values, mask).reshape(x.shape)


def total_product(a: Tensor, b: Tensor, mask: Mask, axes: tuple[int, ...] | None = None) -> Tensor:
    """total(a · b). On the CPU in blocks: memory that was never used before costs more time than the arithmetic."""
    axes = mask.layout.reduced if axes is None else axes
    if not is_in_place(a) or mask.segments is not None or a.numel() <= _BLOCK:
        return total(a * b, mask, axes)
    samples = max(1, _BLOCK * a.shape[0] // a.numel())
    parts = [total(p * q, mask, axes) for p, q in zip(torch.split(a, samples), torch.split(b, samples), strict=True)]
    return torch.cat(parts).sum(0, keepdim=True) if 0 in axes else torch.cat(parts)


_BLOCK = 2**17  # elements: 1 MB of float64, for which several threads are used
