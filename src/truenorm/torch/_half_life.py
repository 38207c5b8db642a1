"""`half_life` of batch norms: momentum that is counted in valid values per channel instead of batches.

After `half_life` values of a channel, what was seen before weighs half as much, however the values are cut into
batches, micro-batches or ranks. The first batch weighs 1, so the initial mean 0 and variance 1 never count. The
formula is that of `truenorm.core.running`.

    num_values_tracked   a buffer (channels,): the valid values that have moved the statistics, in at least float32. It
                         is there only while half_life is set, so the keys of other layers are torch's
    infinite             what it is where nobody has counted: statistics that were loaded from a checkpoint without it,
                         or that momentum has moved before. They count as those of a long training

`momentum` stays as it was, unused, and applies again when half_life is set to None.
"""

from __future__ import annotations

import inspect
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.parameter import UninitializedBuffer

from truenorm.core.running import check_half_life

VALUES = "num_values_tracked"


class HalfLife(NamedTuple):
    """In place of a momentum: the weight of a batch depends on its count."""

    half_life: float
    values: Tensor  # the buffer, which is moved with the others

    def weight_of(self, count: Tensor, total: Tensor) -> Tensor:
        """The weight of a batch of `count` values; total: of all batches, with this one."""
        rate = -math.log(2.0) / self.half_life
        return torch.expm1(rate * count) / torch.expm1(rate * total)

    def effective_count(self) -> Tensor:
        """How many values the statistics describe: all that came, at first, and half_life / ln 2 in the end."""
        rate = math.log(2.0) / self.half_life
        return -torch.expm1(-rate * self.values) / rate


class HalfLifeOption:
    """The option of a layer: its attribute, its buffer, and how both are loaded, reset and shown."""

    half_life: float | None = None
    num_values_tracked: Tensor  # if half_life is set
    momentum: float | None
    _buffers: dict[str, Any]

    def __init__(self, *args: Any, half_life: float | None = None, **kwargs: Any) -> None:
        layer: Any = super()
        layer.__init__(*args, **kwargs)
        if half_life is None:
            return
        given = inspect.signature(layer.__init__).bind(*args, **kwargs).arguments
        if "momentum" in given:
            raise ValueError(
                f"{type(self).__name__}: momentum or half_life, got momentum={given['momentum']!r} and "
                f"half_life={half_life!r}. Pass one of them."
            )
        self.half_life = half_life

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "half_life":
            self._set_half_life(value)
        else:
            super().__setattr__(name, value)

    def _set_half_life(self, half_life: float | None) -> None:
        own, buffers, who = vars(self), self._buffers, type(self).__name__
        if half_life is None:
            own.pop("half_life", None)
            buffers.pop(VALUES, None)
            return
        check_half_life(who, half_life)
        mean, counter = buffers.get("running_mean"), buffers.get("num_batches_tracked")
        if mean is None or counter is None:
            raise ValueError(
                f"{who}: half_life is for running statistics, got a layer without. Use track_running_stats=True."
            )
        if buffers.get(VALUES) is None:
            wide = torch.float64 if mean.dtype == torch.float64 else torch.float32
            layer: Any = self
            lazy: Any = UninitializedBuffer
            if isinstance(mean, UninitializedBuffer):
                layer.register_buffer(VALUES, lazy(device=mean.device, dtype=wide))
            else:
                layer.register_buffer(VALUES, _uncounted(counter).to(mean.device, wide).repeat(mean.shape))
        own["half_life"] = float(half_life)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """A checkpoint without the buffer was made with momentum."""
        mean, counter, values = (
            state_dict.get(prefix + name) for name in ("running_mean", "num_batches_tracked", VALUES)
        )
        if self.half_life is not None and values is None and isinstance(mean, Tensor):
            counter = torch.tensor(1) if counter is None else counter
            state_dict[prefix + VALUES] = _uncounted(counter).repeat(mean.shape)
        module: Any = super()
        module._load_from_state_dict(state_dict, prefix, *args)

    def _weight_by_half_life(self) -> HalfLife | None:
        return None if self.half_life is None else HalfLife(self.half_life, self.num_values_tracked)

    def extra_repr(self) -> str:
        """half_life in the place of the momentum that is not used."""
        layer: Any = super()
        text: str = layer.extra_repr()
        if self.half_life is None:
            return text
        return text.replace(f"momentum={self.momentum}", f"half_life={self.half_life}")


def _uncounted(counter: Tensor) -> Tensor:
    """Values of statistics that only batches were counted for: none, or infinitely many."""
    return torch.where(counter > 0, torch.inf, 0.0)


def drop_or_keep_half_life(layer: Any, is_ours: bool) -> None:
    """For a layer that was given back its class and attributes: the buffer goes with the attribute."""
    own = vars(layer)
    if not is_ours:
        own["_buffers"].pop(VALUES, None)
    elif (half_life := own.pop("half_life", None)) is not None:
        layer.half_life = half_life
    elif isinstance(layer, HalfLifeOption):
        layer.half_life = None
