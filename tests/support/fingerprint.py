"""Everything that a model is: compare fingerprints to see whether something was changed and not put back."""

from typing import Any

import torch
from torch import nn


def fingerprint(model: nn.Module) -> dict[str, Any]:
    """Identity of layers, parameters, buffers and attributes, their order and values, flags, hooks, classes."""
    found: dict[str, Any] = {}
    for path, layer in model.named_modules(remove_duplicate=False):
        own = vars(layer)
        found[f"{path}: layer"] = id(layer), type(layer), layer.training
        found[f"{path}: attributes"] = [(name, _value(value)) for name, value in own.items()]
        for kind in ("_parameters", "_buffers"):
            found[f"{path}: {kind}"] = [(name, _tensor(one)) for name, one in own[kind].items()]
        found[f"{path}: modules"] = [(name, id(one)) for name, one in own["_modules"].items()]
        found[f"{path}: hooks"] = {
            name: list(value.items()) for name, value in own.items() if "_hooks" in name and value
        }
    found["keys"] = list(model.state_dict())
    return found


def _value(value: Any) -> Any:
    return value if isinstance(value, bool | int | float | str | tuple | type(None)) else id(value)


def _tensor(one: torch.Tensor | None) -> Any:
    if one is None or isinstance(one, nn.UninitializedParameter | nn.parameter.UninitializedBuffer):
        return id(one)
    values = (
        one.detach().cpu().reshape(-1).view(torch.uint8).tolist() if one.device.type != "meta" and one.dim() else None
    )
    return id(one), one.dtype, one.device, one.requires_grad, tuple(one.shape), values
