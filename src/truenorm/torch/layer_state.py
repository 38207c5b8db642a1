"""What a normalization layer holds, apart from the library that it is written in: read from and written into torch's.

`LayerState` follows torch: `momentum` is the weight of the new batch, and arrays have torch's names. `interchange.py`
translates it for other libraries.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from truenorm.core.running import momentum_from_half_life
from truenorm.torch._half_life import HalfLifeOption

Array = NDArray[Any]
Kind = Literal["batch", "layer", "rms", "group"]
BATCH = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
INSTANCE = (nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d)
TENSORS = ("weight", "bias", "running_mean", "running_var")


@dataclass(frozen=True)
class LayerForm:
    """What the tensors of a layer look like. Instance norm is group norm with a group for each channel."""

    kind: Kind
    shape: tuple[int, ...]  # of weight and bias
    groups: int | None = None


@dataclass(frozen=True)
class LayerState:
    form: LayerForm
    eps: float
    momentum: float | None  # of batch norm
    arrays: dict[str, Array]  # some of TENSORS


def form_of(who: str, layer: nn.Module) -> LayerForm:
    """The form of a torch layer; an error if it is none of the five normalizations."""
    if isinstance(layer, LazyModuleMixin):
        raise ValueError(f"{who}: the channels of {type(layer).__name__} are not known yet. Run the model once before.")
    if parametrize.is_parametrized(layer):
        raise ValueError(f"{who}: {type(layer).__name__} computes its weights. Call remove_parametrizations first.")
    if isinstance(layer, BATCH):
        return LayerForm("batch", (layer.num_features,))
    if isinstance(layer, nn.GroupNorm):
        return LayerForm("group", (layer.num_channels,), layer.num_groups)
    if isinstance(layer, INSTANCE):
        if layer.track_running_stats:
            raise ValueError(
                f"{who}: instance norm has no running statistics in other libraries, got track_running_stats=True. "
                "Use False."
            )
        return LayerForm("group", (layer.num_features,), layer.num_features)
    if isinstance(layer, nn.LayerNorm | nn.RMSNorm):
        return LayerForm("layer" if isinstance(layer, nn.LayerNorm) else "rms", tuple(layer.normalized_shape))
    raise TypeError(
        f"{who}: layer must be a batch, layer, group, instance or RMS norm of torch or truenorm, "
        f"got {type(layer).__name__}."
    )


def read_state(who: str, layer: nn.Module, count: int | None = None) -> LayerState:
    """The state of a torch layer, with arrays of at least float32. count: values per channel in a batch."""
    form, source = form_of(who, layer), _as_any(layer)
    if form.kind == "batch" and source.running_mean is None:
        raise ValueError(
            f"{who}: batch norm has running statistics in other libraries, got a layer without. "
            "Use track_running_stats=True."
        )
    half_life = getattr(source, "half_life", None) if isinstance(layer, HalfLifeOption) else None
    if half_life is not None and count is None:
        raise ValueError(
            f"{who}: a half-life is a momentum for batches of a known size, got half_life={half_life} and no count. "
            "Pass count, the values per channel in a batch, or set layer.half_life to None and layer.momentum."
        )
    if form.kind == "batch" and source.momentum is None and half_life is None:
        raise ValueError(
            f"{who}: other libraries have no cumulative average, got momentum=None. Set layer.momentum to a number."
        )
    tensors = {name: getattr(source, name, None) for name in TENSORS}
    arrays = {name: _to_array(one) for name, one in tensors.items() if one is not None}
    eps = source.eps
    if eps is None:  # RMS norm: torch takes that of the dtype in which it sums
        if "weight" not in arrays:
            raise ValueError(
                f"{who}: other libraries have a number as epsilon, got eps=None, which depends on the dtype of x. "
                "Set layer.eps to a number, such as torch.finfo(x.dtype).eps."
            )
        eps = np.finfo(arrays["weight"].dtype).eps
    momentum = source.momentum if form.kind == "batch" else None
    if half_life is not None and count is not None:
        momentum = momentum_from_half_life(half_life, count)
    return LayerState(form, float(eps), momentum, arrays)


def check_arrays(who: str, layer: nn.Module, arrays: dict[str, Array], names: dict[str, str]) -> None:
    """Whether these arrays can be written into a layer. `names` are those that the user knows."""
    for name, array in arrays.items():
        tensor = getattr(layer, name, None)
        if tensor is None:
            raise ValueError(f"{who}: the layer must have a {name} for {names[name]}, got None. Make it with one.")
        if array.shape != tuple(tensor.shape):
            raise ValueError(f"{who}: {names[name]} must have the shape {tuple(tensor.shape)}, got {array.shape}.")
        negative = (array < 0) & (name == "running_var")  # from E[x^2] - E[x]^2: found in published checkpoints
        bad = array[~np.isfinite(array) | negative]
        if bad.size:
            rule = "finite and not negative" if name == "running_var" else "finite"
            raise ValueError(f"{who}: {names[name]} must be {rule}, got {bad[0]:g}. Repair the checkpoint first.")
        most = torch.finfo(tensor.dtype).max
        large = array[np.abs(array) > most]
        if large.size:
            dtype = str(tensor.dtype).removeprefix("torch.")
            raise ValueError(
                f"{who}: {names[name]} must be at most {most:g} for a layer of {dtype}, got {large[0]:g}. "
                "Repair the checkpoint, or use layer.double()."
            )


def write_state(layer: nn.Module, state: LayerState) -> None:
    """Write a state that was checked into a torch layer. A weight that it does not have becomes 1, a bias 0, fixed."""
    target = _as_any(layer)
    with torch.no_grad():
        for name in TENSORS:
            tensor = getattr(target, name, None)
            if tensor is not None and name in state.arrays:
                tensor.copy_(torch.from_numpy(state.arrays[name]))
            elif tensor is not None:
                tensor.fill_(1.0 if name == "weight" else 0.0).requires_grad_(False)
        if state.momentum is not None:
            target.momentum = state.momentum
            if isinstance(layer, HalfLifeOption):
                layer.half_life = None  # momentum applies
            target.num_batches_tracked.zero_()  # other libraries do not count
    target.eps = state.eps


def _to_array(tensor: Tensor) -> Array:
    wide = tensor.dtype if tensor.dtype == torch.float64 else torch.float32
    return np.array(tensor.detach().to("cpu", wide).numpy())


def _as_any(layer: nn.Module) -> Any:
    return layer
