"""The mask of a tag: where a tensor is padding. Those of a context are kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.tag import BATCH, Axis, Extent, Gaps, Tag, has_role


class Masks:
    """The masks of one context, and other tensors that follow from lengths."""

    def __init__(self) -> None:
        self._masks: dict[Any, Tensor] = {}
        self._gaps: dict[tuple[Any, ...], Gaps] = {}

    def mask(self, tag: Tag, device: torch.device) -> Tensor:
        """Booleans that broadcast to the tensor: True where it is padding."""
        return self._kept((tag.axes, device), lambda: make_mask(tag.axes, partial(self._padding, device)))

    def valid(self, tag: Tag, device: torch.device) -> Tensor:
        """The opposite of `mask`: True where it is not padding."""
        return self._kept(("valid", tag.axes, device), lambda: ~self.mask(tag, device))

    def _padding(self, device: torch.device, extent: Extent, size: int) -> Tensor:
        return self._kept((extent, size, device), lambda: make_padding(extent, size, device))

    def numbers_on(self, numbers: tuple[Any, ...], device: torch.device, dtype: torch.dtype | None = None) -> Tensor:
        """A number for each sequence, such as its length, as a tensor."""
        return self._kept((numbers, device, dtype), lambda: torch.tensor(numbers, device=device, dtype=dtype))

    def _kept(self, key: Any, make: Callable[[], Tensor]) -> Tensor:
        """A tensor of the context. Also one that is made in inference mode may be used with gradients later."""
        found = self._masks.get(key)
        if found is None:
            if torch.is_inference_mode_enabled():
                with torch.inference_mode(False):
                    found = make()
            else:
                found = make()
            self._masks[key] = found
        return found

    def gaps(self, parts: tuple[Any, ...], valid: Callable[[], Tensor]) -> Gaps:
        """Positions with gaps that were put together of these parts. Of the same parts it is the same object."""
        if parts not in self._gaps:
            with torch.inference_mode(False), torch.no_grad():
                self._gaps[parts] = Gaps(valid())
        return self._gaps[parts]

    def share_masks(self, other: Masks) -> None:
        self._masks, self._gaps = other._masks, other._gaps

    def forget_masks(self) -> None:
        self._masks, self._gaps = {}, {}


def make_mask(axes: Sequence[Axis], padding_of: Callable[[Extent, int], Tensor]) -> Tensor:
    """Booleans that broadcast to the tensor: True where it is padding.

    padding_of   the mask (b, t) of positions with these lengths. Mostly the result is a view of it
    """
    factors = [factor for axis in axes for factor in axis]
    rows = next(i for i, factor in enumerate(factors) if factor.role is BATCH)
    count = factors[rows].size
    mask: Tensor | None = None
    for i, (size, role) in enumerate(factors):
        if not isinstance(role, (tuple, Gaps)):
            continue
        padding = padding_of(role, size)
        shape = [1] * len(factors)
        shape[rows], shape[i] = count, size
        padding = (padding if rows < i else padding.T).reshape(shape)
        mask = padding if mask is None else mask | padding
    assert mask is not None
    if not any(len(axis) > 1 for axis in axes):
        return mask
    sizes: list[int] = []
    merged: list[int] = []
    for axis in axes:
        if len(axis) > 1 and has_role(axis):
            sizes += [factor.size for factor in axis]
        else:
            sizes += list(mask.shape[len(sizes) : len(sizes) + len(axis)])
        merged.append(math.prod(sizes[len(sizes) - len(axis) :]))
    return mask.expand(sizes).reshape(merged)


def make_padding(extent: Extent, size: int, device: torch.device) -> Tensor:
    """Where positions are padding, (b, t)."""
    if isinstance(extent, Gaps):
        return ~extent.valid.to(device)
    return torch.arange(size, device=device) >= torch.tensor(extent, device=device)[:, None]
