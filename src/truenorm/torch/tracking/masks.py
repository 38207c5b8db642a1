"""The mask of a tag: where a tensor is padding."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from truenorm.torch.tracking.tag import BATCH, Axis, Gaps, has_role


def make_mask(axes: Sequence[Axis], device: torch.device) -> Tensor:
    """Booleans that broadcast to the tensor: True where it is padding."""
    factors = [factor for axis in axes for factor in axis]
    rows = next(i for i, factor in enumerate(factors) if factor.role is BATCH)
    count = factors[rows].size
    mask: Tensor | None = None
    for i, (size, role) in enumerate(factors):
        if isinstance(role, Gaps):
            valid = role.valid.to(device)
        elif isinstance(role, tuple):
            lengths = torch.tensor(role, device=device)
            valid = torch.arange(size, device=device) < lengths[:, None]
        else:
            continue
        shape = [1] * len(factors)
        shape[rows], shape[i] = count, size
        valid = (valid if rows < i else valid.T).reshape(shape)
        mask = valid if mask is None else mask & valid
    assert mask is not None
    sizes: list[int] = []
    merged: list[int] = []
    for axis in axes:
        if len(axis) > 1 and has_role(axis):
            sizes += [factor.size for factor in axis]
        else:
            sizes += list(mask.shape[len(sizes) : len(sizes) + len(axis)])
        merged.append(math.prod(sizes[len(sizes) - len(axis) :]))
    return ~mask.expand(sizes).reshape(merged)
