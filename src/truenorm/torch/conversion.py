"""`convert` makes truenorm layers of the torch.nn normalization layers of a model, in place; `revert` undoes it.

A layer stays the same object, and only its class changes: truenorm's layers subclass torch's and keep no other state.
So parameters, buffers, flags, hooks, parametrizations, attributes, shared layers and every reference to a layer stay
as they are, optimizers stay valid, and the keys of `state_dict` do not change.

    torch.nn.BatchNorm1d                      truenorm.torch.BatchNorm1d
    a subclass that inherits `forward`        a class of the same name that inherits from both
    a subclass with a `forward` of its own    is left, and reported: only its author knows what it computes

`convert(model, to="group")` also changes what is computed: see `replacement.py`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin
from torch.nn.utils import parametrize

from truenorm.core.inputs import Padding
from truenorm.torch import _runs, layers, lazy, row_layers
from truenorm.torch._half_life import drop_or_keep_half_life
from truenorm.torch._layer_bases import _RaggedLayer, _TrackingLayer
from truenorm.torch._runs import OnSingle
from truenorm.torch.layers import _BatchNorm
from truenorm.torch.replacement import (
    FrozenBatchNorm,
    Kind,
    Original,
    check_kind,
    frozen_class,
    reason_to_keep_kind,
    replace_kind,
    restore_kind,
)
from truenorm.torch.reports import Change, ConversionReport, check_model, name_of

COUNTERPARTS: dict[type[nn.Module], type[nn.Module]] = {
    getattr(nn, name): getattr(module, name)
    for module in (layers, row_layers, lazy)
    for name in vars(module)
    if isinstance(getattr(module, name), type) and hasattr(nn, name)
}
OPTIONS: tuple[str, ...] = ("padding", "on_single", "half_life", "activation")
MARK = "_converted_from"  # in the __dict__ of a converted layer: an Original


def convert(
    model: nn.Module,
    *,
    to: Kind | None = None,
    groups: int | None = None,
    padding: Padding = "zero",
    on_single: OnSingle = "error",
    where: Callable[[str, nn.Module], bool] | None = None,
) -> ConversionReport:
    """Make truenorm layers of all torch.nn normalization layers, in place.

    Parameters, `state_dict` and optimizers stay valid. Either all layers are converted or, if an error is raised, none.

    Args:
        model: its layers change their class, and are the same objects
        to: another kind of normalization: "group", "layer", "rms" or "frozen". None: the same kind
        groups: for to="group"; None: up to 32
        padding: the outputs at padding: "zero", or "keep" the inputs
        on_single: batch norm in training with one value per channel: an "error", or use the "running" statistics
        where: called with name and layer; layers for which it is False are not touched

    Returns:
        `ConversionReport`: which layers were converted, which were left, and why

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU())
        >>> print(tnt.convert(model))
        1 normalization layer converted
          1  BatchNorm1d  truenorm.BatchNorm1d
    """
    check_model("convert", model)
    _runs.check_options(padding, on_single)
    check_kind(to, groups)
    changed: list[Change] = []
    left: list[Change] = []
    before = []
    try:
        for name, layer in list(model.named_modules()):
            if where is not None and not where(name, layer):
                continue
            ours = isinstance(layer, _RaggedLayer)
            reason = None if ours else _reason_to_leave(layer)
            if reason is None and (to is None if ours else _torch_class(layer) is None):
                continue
            was, snapshot = name_of(layer), _Snapshot(layer)
            if reason is None:
                before.append(snapshot)
                reason = _convert_layer(layer, name, padding, on_single, to, groups)
                if reason is not None:
                    snapshot.restore()
            outcome = name_of(layer) if reason is None else reason
            (changed if reason is None else left).append(Change(name, was, outcome))
    except BaseException:
        for snapshot in reversed(before):
            snapshot.restore()
        raise
    return ConversionReport("converted", tuple(changed), tuple(left))


def revert(model: nn.Module) -> ConversionReport:
    """Undo `convert`: every converted layer gets its class back, and everything else that was changed.

    Layers that were truenorm's before are not touched. Parameters and buffers keep what they have learned since.

    Args:
        model: that `convert` has changed

    Returns:
        `ConversionReport`

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU())
        >>> report = tnt.convert(model)
        >>> print(tnt.revert(model))
        1 normalization layer reverted
          1  truenorm.BatchNorm1d  BatchNorm1d
    """
    check_model("revert", model)
    changed, left = [], []
    for name, layer in model.named_modules():
        if MARK not in vars(layer):
            continue
        before = name_of(layer)
        if parametrize.is_parametrized(layer) and not _is_parametrized(vars(layer)[MARK].cls):
            left.append(Change(name, before, "parametrized after it was converted: remove_parametrizations first"))
            continue
        if (reason := reason_to_keep_kind(layer)) is not None:
            left.append(Change(name, before, reason))
            continue
        _revert_layer(layer)
        changed.append(Change(name, before, name_of(layer)))
    return ConversionReport("reverted", tuple(changed), tuple(left))


# ---- one layer ----


class _Snapshot:
    """A layer as it was: class, attributes and buffers."""

    def __init__(self, layer: nn.Module) -> None:
        self.layer, self.cls, self.own = layer, type(layer), dict(vars(layer))
        self.buffers = dict(layer._buffers)
        original: Original | None = self.own.get(MARK)
        self.original = None if original is None else {**vars(original), "attributes": dict(original.attributes)}

    def restore(self) -> None:
        own = vars(self.layer)
        own.clear()
        own.update(self.own)
        own["_buffers"].clear()
        own["_buffers"].update(self.buffers)
        if self.original is not None:
            vars(own[MARK]).update(self.original)
        self.layer.__class__ = self.cls


def _convert_layer(
    layer: nn.Module, name: str, padding: Padding, on_single: OnSingle, to: Kind | None, groups: int | None
) -> str | None:
    """Returns why not, if it cannot be converted."""
    own = vars(layer)
    options = {option: own[option] for option in OPTIONS if option in own}
    original: Original = own.setdefault(MARK, Original(type(layer), options))
    if not isinstance(layer, _RaggedLayer):
        for option in options:
            del own[option]
        layer.__class__ = _ragged_class(layer)
        converted: Any = layer
        own["_norms"] = converted._make_norms()
        if isinstance(layer, _TrackingLayer):
            layer._skip_counter()
        if padding != "zero":
            converted.padding = padding
        if on_single != "error" and isinstance(layer, _BatchNorm):
            converted.on_single = on_single
    return None if to is None else replace_kind(layer, to, groups, name, original)


def _revert_layer(layer: nn.Module) -> None:
    own = vars(layer)
    original: Original = own.pop(MARK)
    restore_kind(layer, original)
    cls = original.cls
    if _is_parametrized(cls):
        cls = _with_properties(cls, layer)
    if issubclass(cls, LazyModuleMixin) and not isinstance(layer, LazyModuleMixin):
        cls = cls.cls_to_become or cls  # its first input came since
    for name in (*OPTIONS, "_exchange", "_stage"):
        own.pop(name, None)
    own.update(original.attributes)
    if not issubclass(cls, _RaggedLayer):
        for name in ("_norms", "_skipped"):
            own.pop(name, None)
    layer.__class__ = cls
    drop_or_keep_half_life(layer, issubclass(cls, _RaggedLayer))


def _reason_to_leave(layer: nn.Module) -> str | None:
    """Why a normalization cannot be converted; None if it can, or is none."""
    if isinstance(layer, torch.jit.ScriptModule):
        original = getattr(layer, "original_name", "")
        return (
            "compiled by torch.jit: convert the model before" if hasattr(nn, original) and "Norm" in original else None
        )
    if isinstance(layer, nn.SyncBatchNorm):
        return "of torch, which counts padding: convert the model before, then call sync(model)"
    base = _torch_class(layer)
    cls: Any = type(layer)
    if base is None:
        name, module = cls.__name__.lower(), cls.__module__
        is_norm = "norm" in name and not module.startswith("torch.") and not any(True for _ in layer.children())
        return "not a torch.nn layer; if it averages over positions, padding counts" if is_norm else None
    if cls.forward is not base.forward or cls.__call__ is not nn.Module.__call__:
        return f"a subclass of {base.__name__} with a forward of its own"
    if "forward" in vars(layer):
        return "its forward was replaced on the instance"
    return None


def _torch_class(layer: nn.Module) -> Any:
    """The torch.nn class of a layer, or that it inherits from; None if it is no normalization of torch.nn."""
    return next((cls for cls in type(layer).__mro__ if cls in COUNTERPARTS), None)


_MADE: dict[type[nn.Module], type[nn.Module]] = {}


def _ragged_class(layer: nn.Module) -> type[nn.Module]:
    """The class that a layer gets. Subclasses of torch's keep all that they add."""
    cls = type(layer)
    if cls in COUNTERPARTS:
        return COUNTERPARTS[cls]
    if _is_parametrized(cls):  # as torch makes it, one for each layer: remove_parametrizations changes the class
        base = cls.__bases__[0]
        ours = COUNTERPARTS.get(base) or _combined(base)
        return type(cls.__name__, (ours,), {name: one for name, one in vars(cls).items() if not name.endswith("__")})
    return _combined(cls)


def _combined(cls: type[nn.Module]) -> type[nn.Module]:
    """A class that inherits from truenorm's layer and from this subclass of torch's."""
    if cls in _MADE:
        return _MADE[cls]
    ours = next(COUNTERPARTS[base] for base in cls.__mro__ if base in COUNTERPARTS)
    made = type(cls.__name__, (ours, cls), {"__module__": cls.__module__, "__reduce_ex__": _reduce})
    if getattr(sys.modules.get(cls.__module__), cls.__qualname__, None) is cls:
        _MADE[cls] = made
    return made


def _is_parametrized(cls: type[nn.Module]) -> bool:
    """Whether this is a class that torch's parametrization made, with a property for each parameter."""
    return cls.__name__ == f"Parametrized{cls.__bases__[0].__name__}"


def _with_properties(cls: type[nn.Module], layer: nn.Module) -> type[nn.Module]:
    """The class, with the properties that the layer's parametrizations have now: some may have been removed since."""
    if not parametrize.is_parametrized(layer):
        return cls.__bases__[0]
    current: Any = layer.parametrizations
    for name in [name for name, one in vars(cls).items() if isinstance(one, property) and name not in current]:
        delattr(cls, name)
    for name in current:
        if name not in vars(cls):
            setattr(cls, name, vars(type(layer))[name])
    return cls


def _reduce(layer: nn.Module, protocol: Any) -> Any:
    """For pickle: the class was made here, and cannot be imported. It is made again from the original."""
    return _remake, (vars(layer)[MARK].cls, isinstance(layer, FrozenBatchNorm)), vars(layer)


def _remake(cls: type[nn.Module], frozen: bool) -> nn.Module:
    layer: nn.Module = cls.__new__(cls)
    made = _ragged_class(layer)
    layer.__class__ = frozen_class(made) if frozen else made
    return layer
