"""Another kind of normalization in the same layer: `convert(model, to=...)`.

    to         from                      becomes
    "group"    batch, instance           GroupNorm
    "layer"    batch, instance, group    Normalize("b [c] ..."): each position by itself, over its channels
    "rms"      batch, instance, group    the same without subtracting the mean
    "frozen"   batch                     batch norm that always uses its running statistics, also in training

All have a weight and a bias for each channel. Layers for which there is no rule keep their kind.

The parameters are the same objects. Running statistics that the new kind does not use are kept aside, out of
`state_dict`, until the layer is reverted. Outputs change: train the model again, or at least fine-tune it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from truenorm.core.norm import Norm
from truenorm.torch._documentation import documented
from truenorm.torch._half_life import VALUES
from truenorm.torch._processes import ProcessExchange
from truenorm.torch.layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    GroupNorm,
    _BatchNorm,
    _InstanceNorm,
)
from truenorm.torch.pattern_layer import Normalize
from truenorm.torch.row_layers import LayerNorm, RMSNorm

Kind = Literal["group", "layer", "rms", "frozen"]
MOST_GROUPS = 32  # the usual number
_TRACKED = ("running_mean", "running_var", "num_batches_tracked", VALUES)


@dataclass
class Original:
    """What a converted layer was: its class, attributes, and buffers that were taken out."""

    cls: type[nn.Module]
    attributes: dict[str, Any] = field(default_factory=dict)
    buffers: dict[str, Any] | None = None
    added: tuple[str, ...] = ()  # names of attributes that the new kind has and the old one had not


class FrozenBatchNorm:
    def train(self, mode: bool = True) -> Any:
        """Always in evaluation: the running statistics are constants."""
        module: Any = super()
        return module.train(False)

    def reset_running_stats(self) -> None:
        """Does nothing: `torch.optim.swa_utils.update_bn` resets all batch norms, and could not fill this one again."""


@documented
class FrozenBatchNorm1d(FrozenBatchNorm, BatchNorm1d):
    """BatchNorm1d that always uses its running statistics and never changes them. weight and bias can be trained.

    `convert(model, to="frozen")` makes it of a batch norm.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: as for `BatchNorm1d`

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.FrozenBatchNorm1d(2).train()
        >>> y = layer(5 + torch.randn(8, 2, 9))
        >>> layer.training, layer.running_mean
        (False, tensor([0., 0.]))
    """


@documented
class FrozenBatchNorm2d(FrozenBatchNorm, BatchNorm2d):
    """BatchNorm2d that always uses its running statistics and never changes them. weight and bias can be trained.

    `convert(model, to="frozen")` makes it of a batch norm.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: as for `BatchNorm2d`

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.FrozenBatchNorm2d(2).train()
        >>> y = layer(5 + torch.randn(8, 2, 5, 7))
        >>> layer.training, layer.running_mean
        (False, tensor([0., 0.]))
    """


@documented
class FrozenBatchNorm3d(FrozenBatchNorm, BatchNorm3d):
    """BatchNorm3d that always uses its running statistics and never changes them. weight and bias can be trained.

    `convert(model, to="frozen")` makes it of a batch norm.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: as for `BatchNorm3d`

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.FrozenBatchNorm3d(2).train()
        >>> y = layer(5 + torch.randn(8, 2, 3, 5, 7))
        >>> layer.training, layer.running_mean
        (False, tensor([0., 0.]))
    """


_FROZEN: dict[type[nn.Module], type[nn.Module]] = {
    BatchNorm1d: FrozenBatchNorm1d,
    BatchNorm2d: FrozenBatchNorm2d,
    BatchNorm3d: FrozenBatchNorm3d,
}


def frozen_class(cls: type[nn.Module]) -> type[nn.Module]:
    """The frozen class of a batch norm; subclasses keep all that they add."""
    return _FROZEN.get(cls) or type(cls.__name__, (FrozenBatchNorm, cls), {})


def check_kind(to: Kind | None, groups: int | None) -> None:
    if to is not None and to not in get_args(Kind):
        raise ValueError(f"convert: to is {', '.join(map(repr, get_args(Kind)))} or None, got {to!r}.")
    if groups is not None and to != "group":
        raise ValueError(f"convert: groups goes with to='group', got to={to!r}.")
    if groups is not None and (not isinstance(groups, int) or isinstance(groups, bool) or groups < 1):
        raise ValueError(f"convert: groups is a whole number >= 1, got {groups!r}.")


def reason_to_keep_kind(layer: nn.Module) -> str | None:
    """Why a layer has to stay what it is: another class would not know what was set on it."""
    if getattr(layer, "frozen", False):
        return "frozen: call thaw(model) first"
    if getattr(layer, "activation", None) is not None:
        return "has an activation, which would be lost: set it to None first"
    # What `together` has left does not count: it only serves recomputations.
    shared = isinstance(vars(layer).get("_exchange"), ProcessExchange)
    return "synchronized: call unsync(model) first" if shared else None


def replace_kind(layer: Any, to: Kind, groups: int | None, name: str, original: Original) -> str | None:
    """Make this truenorm layer one of another kind. Returns why not, if it cannot be; kinds without a rule stay."""
    if (reason := reason_to_keep_kind(layer)) is not None:
        return reason
    if isinstance(layer, LazyModuleMixin):
        return "the number of its channels is not known yet: run the model once before"
    if isinstance(layer, _BatchNorm) and to == "frozen":
        return _freeze(layer, original)
    if to == "frozen" or isinstance(layer, LayerNorm | RMSNorm | Normalize):
        return None
    if isinstance(layer, GroupNorm) and to == "group":
        return None
    if parametrize.is_parametrized(layer):
        return "parametrized: remove_parametrizations first"
    channels = layer.num_features if isinstance(layer, _BatchNorm | _InstanceNorm) else layer.num_channels
    _take_over(layer, _make(layer, to, groups, channels, name), original)
    return None


def restore_kind(layer: nn.Module, original: Original) -> None:
    """Undo `replace_kind`. Buffers that were set aside follow the layer to its device."""
    own = vars(layer)
    for name in original.added:
        own.pop(name, None)
    if original.buffers is not None:
        device = next((one.device for one in layer.parameters()), None)
        kept = {name: one for name, one in own["_buffers"].items() if name not in _TRACKED}
        moved = {
            name: one if one is None or device is None else one.to(device) for name, one in original.buffers.items()
        }
        own["_buffers"].clear()
        own["_buffers"].update(moved | kept)


def _freeze(layer: Any, original: Original) -> str | None:
    if layer.running_mean is None:
        return "without running statistics it cannot be frozen"
    own = vars(layer)
    original.attributes.setdefault("training", own["training"])
    cls = type(layer)
    if not isinstance(layer, FrozenBatchNorm):
        layer.__class__ = frozen_class(cls)
    own["training"] = False
    return None


def _make(layer: Any, to: Kind, groups: int | None, channels: int, name: str) -> nn.Module:
    """A layer of the new kind, without memory: only its class and attributes are used."""
    affine = layer.weight is not None
    if to == "group":
        if groups is not None and channels % groups:
            raise ValueError(f"convert: groups must divide the {channels} channels of {name!r}, got {groups}.")
        count = groups or math.gcd(channels, MOST_GROUPS)
        return GroupNorm(count, channels, eps=layer.eps, affine=affine, device="meta")
    norm = Norm("b [c] ...", eps=layer.eps, center=to == "layer")
    return Normalize(norm, channels, affine=affine, device="meta")


def _take_over(layer: nn.Module, new: nn.Module, original: Original) -> None:
    """The class and attributes of `new`; the parameters stay, running statistics are set aside."""
    own, kept = vars(layer), {*vars(nn.Module()), "padding", "activation", "weight", "bias"}
    for name, value in vars(new).items():
        if name in kept:
            continue
        if name in own:
            original.attributes.setdefault(name, own[name])
        elif name not in original.added:
            original.added += (name,)
        own[name] = value
    buffers = own["_buffers"]
    if original.buffers is None:
        original.buffers = dict(buffers)
    for name in _TRACKED:
        buffers.pop(name, None)
    buffers.update(vars(new)["_buffers"])
    layer.__class__ = type(new)
