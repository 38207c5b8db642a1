"""Rules for normalizations that are called as functions, by code that `convert` cannot change.

They are computed over the valid positions, as truenorm's. Inside a layer of torch.nn that was not converted they stay
as they are: the choice was the user's, and the layer is reported, if it averages over positions.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from truenorm.torch import functional as ragged
from truenorm.torch.tracking.calls import name_of
from truenorm.torch.tracking.convolution import without_positions
from truenorm.torch.tracking.counts import note_counts
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import plain
from truenorm.torch.tracking.registry import rule
from truenorm.torch.tracking.tag import Lost, Padding, Tag, has_role
from truenorm.torch.tracking.tracker import Tracker

BATCH = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
INSTANCE = ("input", "running_mean", "running_var", "weight", "bias", "use_input_stats", "momentum", "eps")
GROUP = ("input", "num_groups", "weight", "bias", "eps")
LAYER = ("input", "normalized_shape", "weight", "bias", "eps")
RMS = ("input", "normalized_shape", "weight", "eps")
KINDS: dict[Any, tuple[Any, tuple[str, ...]]] = {
    functional.batch_norm: (ragged.batch_norm, BATCH),
    functional.instance_norm: (ragged.instance_norm, INSTANCE),
    functional.group_norm: (ragged.group_norm, GROUP),
    functional.layer_norm: (ragged.layer_norm, LAYER),
    functional.rms_norm: (ragged.rms_norm, RMS),
    torch.group_norm: (ragged.group_norm, GROUP),
    torch.layer_norm: (ragged.layer_norm, LAYER),
    torch.rms_norm: (ragged.rms_norm, RMS),
}
TORCH_LAYERS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm)


@rule(*KINDS, reads_inputs=True)
def norm(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    function, names = KINDS[func]
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    x: Tensor = given["input"]
    for name in ("eps", "momentum"):
        if isinstance(given.get(name), float):  # perhaps of the number of positions
            note_counts(tracker, name_of(func), [given[name]])
            given[name] = plain(given[name])
    by_row = "normalized_shape" in given
    tag = _positions(tracker, func, x, x.dim() - len(given["normalized_shape"]) if by_row else None)
    if tag is None:
        return without_positions(tracker, x, func(*args, **kwargs))
    if tag.has_open:
        if not by_row:
            raise tracker.open_error(x, func)
        result = func(*args, **kwargs)
        tracker.set(result, tag)
        return result
    averages = not by_row and bool(given.get("training", given.get("use_input_stats", True)))
    if isinstance(tracker.module, TORCH_LAYERS) or (by_row and isinstance(tracker.module, (nn.LayerNorm, nn.RMSNorm))):
        if averages:
            tracker.notes.not_converted[tracker.module] = None
        result = func(*args, **kwargs)
        tracker.set(result, tag.having(Padding.ANY))
        return result
    given.pop("cudnn_enabled", None)
    valid, lengths = valid_or_lengths(tracker, x, tag, 1 if by_row else 2)
    result = function(**given, valid=valid, lengths=lengths)
    tracker.set(result, tag.having(Padding.ZERO))
    return result


def valid_or_lengths(tracker: Tracker, x: Tensor, tag: Tag, axis: int) -> tuple[Tensor | None, Tensor | None]:
    """What a norm takes: lengths along this axis of x (b, ...) with three axes, which is faster, or else a mask."""
    extent = tag.extents.get(axis)
    if isinstance(extent, tuple) and len(tag.extents) == 1 and tag.batch == 0 and x.dim() == 3:
        return None, tracker.numbers_on(extent, x.device)
    return tracker.valid(tag, x.device), None


def _positions(tracker: Tracker, func: Any, x: Tensor, first: int | None) -> Tag | None:
    """The tag; positions of an input are between batch and channels, or behind both. None if there are none."""
    if first is None and x.dim() > 2 and isinstance(tracker.look(x), Fresh) and not tracker.is_shared(x):
        tracker.positions(x, range(2, x.dim()), func)
    found = tracker.read_rows(x, 1 if first is None else first, func)
    if isinstance(found, Lost) and first is None:
        raise tracker.lost_error(x, found, func)
    if not isinstance(found, Tag) or not found.is_ragged:
        return None
    if first is not None and any(map(has_role, found.axes[first:])):
        raise ValueError(
            f"padded: {tracker.place(func)} normalizes over the batch or positions of {tuple(x.shape)}, so a sequence "
            "alone does not fit it. Normalize over channels only."
        )
    return found
