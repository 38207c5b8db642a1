"""`freeze` makes the running statistics of a model constants, also in training; `thaw` undoes it.

A frozen layer normalizes with its running statistics and never changes them. The mark is an attribute of the layer that
`forward` reads, and `training` is not touched: `model.train()` and `model.eval()` do what they always do, copies and
pickles are frozen too, and `thaw` has nothing to guess. `load_state_dict` still loads into frozen layers.

    statistics   running mean and variance
    weight       `requires_grad` of the weight becomes False; `thaw` gives it back its old value
    bias         the same for the bias

The layers are those with running statistics: batch norms, and instance norms and `Normalize` that track them. Layers of
torch.nn are refused, as they would be thawed by the next `model.train()`: `convert` the model first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.utils import parametrize

from truenorm.torch._batch_norms import refuse_lazy
from truenorm.torch._layer_bases import _TrackingLayer
from truenorm.torch.layers import _BatchNorm
from truenorm.torch.reports import Change, ConversionReport, check_model, name_of

REQUIRED_GRAD = "_required_grad"  # in the __dict__ of a layer: by name, whether its parameters required a gradient


def freeze(
    model: nn.Module,
    statistics: bool = True,
    weight: bool = False,
    bias: bool = False,
    *,
    where: Callable[[str, nn.Module], bool] | None = None,
) -> ConversionReport:
    """Make running statistics constants, and parameters too if asked to, until `thaw`.

    Either all layers are frozen or, if an error is raised, none. What was frozen before stays frozen.

    Args:
        model: with truenorm's layers: `convert` it first
        statistics: running mean and variance
        weight: the weights too: their `requires_grad` becomes False
        bias: the same for the biases
        where: called with name and layer; layers for which it is False are not touched

    Returns:
        `ConversionReport`

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> print(tnt.freeze(nn.Sequential(nn.Linear(4, 8), tnt.BatchNorm1d(8)), weight=True))
        1 normalization layer frozen
          1  truenorm.BatchNorm1d  statistics, weight
    """
    check_model("freeze", model)
    found: list[tuple[str, Any]] = [
        (name, layer)
        for name, layer in model.named_modules()
        if (where is None or where(name, layer))
        and isinstance(layer, _NormBase | _TrackingLayer)
        and (isinstance(layer, TorchBatchNorm) or vars(layer)["track_running_stats"])
    ]
    for name, layer in found:
        _check_layer(name, layer, statistics)
    names = [name for name, wanted in (("weight", weight), ("bias", bias)) if wanted]
    # All are read before any is changed: layers may share a parameter, also with one that was frozen before.
    earlier = _flags_before(model)
    before = [
        {part: [earlier.get(id(one), one.requires_grad) for one in _parameters(layer, part)] for part in names}
        for _, layer in found
    ]
    changed = []
    for (name, layer), was in zip(found, before, strict=True):
        own = vars(layer)
        if statistics:
            own["frozen"] = True
        if was:
            own[REQUIRED_GRAD] = was | own.get(REQUIRED_GRAD, {})
        for part in was:
            for parameter in _parameters(layer, part):
                parameter.requires_grad_(False)
                parameter.grad = None  # an optimizer would still apply it
        done = [*(["statistics"] if statistics else []), *(part for part, flags in was.items() if flags)]
        changed.append(Change(name, name_of(layer), ", ".join(done)))
    return ConversionReport("frozen", tuple(changed), ())


def thaw(model: nn.Module) -> ConversionReport:
    """Undo `freeze`: statistics follow the data again in training, and parameters get back their `requires_grad`.

    Args:
        model: that `freeze` has changed

    Returns:
        `ConversionReport`

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> model = nn.Sequential(nn.Linear(4, 8), tnt.BatchNorm1d(8))
        >>> report = tnt.freeze(model)
        >>> print(tnt.thaw(model))
        1 normalization layer thawed
          1  truenorm.BatchNorm1d  statistics
    """
    check_model("thaw", model)
    found = [
        (name, one) for name, one in model.named_modules() if not vars(one).keys().isdisjoint(("frozen", REQUIRED_GRAD))
    ]
    for name, layer in found:
        for part, flags in vars(layer).get(REQUIRED_GRAD, {}).items():
            if len(list(_parameters(layer, part))) != len(flags):
                raise ValueError(
                    f"thaw: the {part} of {name!r} as it was frozen, got one that was parametrized since, or is no "
                    "longer. Undo this first."
                )
    changed = []
    for name, layer in found:
        own: dict[str, Any] = vars(layer)
        was: dict[str, list[bool]] = own.pop(REQUIRED_GRAD, {})
        for part, flags in was.items():
            for parameter, flag in zip(_parameters(layer, part), flags, strict=True):
                parameter.requires_grad_(flag)
        done = [*(["statistics"] if own.pop("frozen", False) else []), *(part for part, flags in was.items() if flags)]
        changed.append(Change(name, name_of(layer), ", ".join(done)))
    return ConversionReport("thawed", tuple(changed), ())


def _flags_before(model: nn.Module) -> dict[int, bool]:
    """By the id of each parameter that is frozen: whether it required a gradient before."""
    return {
        id(parameter): flag
        for layer in model.modules()
        for part, flags in vars(layer).get(REQUIRED_GRAD, {}).items()
        for parameter, flag in zip(_parameters(layer, part), flags, strict=False)  # parametrized since, perhaps
    }


def _check_layer(name: str, layer: nn.Module, statistics: bool) -> None:
    if not isinstance(layer, _TrackingLayer):
        raise ValueError(
            f"freeze: layers of truenorm, got torch.nn.{type(layer).__name__} at {name!r}. "
            "Call convert(model) first, or leave it out with where=."
        )
    refuse_lazy("freeze", name, layer)
    if statistics and isinstance(layer, _BatchNorm) and layer._buffers.get("running_mean") is None:
        raise ValueError(
            f"freeze: batch norms with running statistics, got {type(layer).__name__} at {name!r} without. "
            "Leave it out with where=, or pass statistics=False."
        )


def _parameters(layer: Any, part: str) -> Iterator[Tensor]:
    """The parameters that the weight or bias of a layer is made of: none, itself, or those of its parametrization."""
    if parametrize.is_parametrized(layer, part):
        yield from layer.parametrizations[part].parameters()
    elif (parameter := getattr(layer, part, None)) is not None:
        yield parameter
