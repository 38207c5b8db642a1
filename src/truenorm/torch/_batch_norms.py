"""The batch norms of a model, for functions that change which values their statistics describe.

Layers of torch.nn are refused: they would go on as before, and nobody would notice.
"""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as TorchBatchNorm
from torch.nn.modules.lazy import LazyModuleMixin

from truenorm.torch.layers import _BatchNorm
from truenorm.torch.replacement import FrozenBatchNorm
from truenorm.torch.reports import check_model

Named = list[tuple[str, Any]]  # name and layer


def batch_norms(who: str, model: nn.Module) -> Named:
    """All of them. who: the function that asks, for its errors."""
    check_model(who, model)
    found: Named = []
    for name, layer in model.named_modules():
        if not isinstance(layer, TorchBatchNorm):
            continue
        if not isinstance(layer, _BatchNorm):
            raise ValueError(
                f"{who}: layers of truenorm, got torch.nn.{type(layer).__name__} at {name!r}. "
                "Call convert(model) first."
            )
        refuse_lazy(who, name, layer)
        found.append((name, layer))
    return found


def refuse_lazy(who: str, name: str, layer: nn.Module) -> None:
    if isinstance(layer, LazyModuleMixin):
        raise ValueError(
            f"{who}: the channels of {type(layer).__name__} at {name!r} are not known yet. Run the model once before."
        )


def tracking_batch_norms(who: str, model: nn.Module) -> Named:
    """Those whose running statistics may change: not the frozen ones."""
    return [
        (name, layer)
        for name, layer in batch_norms(who, model)
        if layer.track_running_stats
        and layer.running_mean is not None
        and not (layer.frozen or isinstance(layer, FrozenBatchNorm))
    ]
