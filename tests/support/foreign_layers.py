"""Normalization layers with irregular weights, and data with the channels last: for the interchange of weights."""

import inspect
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch_data import normal

import truenorm.torch as tnt

CHANNELS = 6
LAYERS: dict[str, Callable[[], Any]] = {
    "BatchNorm1d": lambda: tnt.BatchNorm1d(CHANNELS, eps=1e-2, momentum=0.3),
    "BatchNorm2d": lambda: nn.BatchNorm2d(CHANNELS, affine=False),
    "BatchNorm3d": lambda: tnt.BatchNorm3d(CHANNELS, momentum=0.7),
    "BatchNorm1d without bias": lambda: without_bias(),
    "GroupNorm": lambda: tnt.GroupNorm(3, CHANNELS, eps=1e-2),
    "GroupNorm without weights": lambda: tnt.GroupNorm(2, CHANNELS, affine=False),
    "InstanceNorm1d": lambda: tnt.InstanceNorm1d(CHANNELS, eps=1e-2, affine=True),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(CHANNELS),
    "LayerNorm": lambda: tnt.LayerNorm(CHANNELS, eps=1e-2),
    "LayerNorm of two axes": lambda: tnt.LayerNorm((4, CHANNELS)),
    "LayerNorm without bias": lambda: tnt.LayerNorm(CHANNELS, bias=False),
    "RMSNorm": lambda: tnt.RMSNorm(CHANNELS, eps=1e-2),
    "RMSNorm without eps": lambda: tnt.RMSNorm(CHANNELS),
    "RMSNorm of two axes": lambda: tnt.RMSNorm((4, CHANNELS), eps=1e-2),
}


def without_bias() -> Any:
    if "bias" not in inspect.signature(nn.BatchNorm1d).parameters:
        pytest.skip(f"batch norm of torch {torch.__version__} has no argument bias")
    return tnt.BatchNorm1d(CHANNELS, bias=False)


def trained(name: str, seed: int = 0) -> Any:
    """A layer with irregular weights and statistics."""
    layer = LAYERS[name]()
    with torch.no_grad():
        for i, one in enumerate(layer.parameters()):
            one.copy_(normal(*one.shape, seed=seed + i) + 0.5)
        if getattr(layer, "running_mean", None) is not None:
            layer.running_mean.copy_(normal(CHANNELS, seed=seed + 7))
            layer.running_var.copy_(normal(CHANNELS, seed=seed + 8).abs() + 0.1)
            layer.num_batches_tracked.fill_(3)
    return layer


def data(name: str, seed: int = 5) -> Any:
    """Channels last, as Keras and Flax take it."""
    inner = {"2": (3, 4), "3": (2, 3, 2)}.get(next((one for one in name if one.isdigit()), ""), (4,))
    return 2 * normal(5, *inner, CHANNELS, seed=seed) + 1


def run_ours(layer: Any, x: Any) -> Any:
    """On data with the channels last."""
    last = isinstance(layer, nn.LayerNorm | nn.RMSNorm)
    y = layer(x) if last else layer(x.movedim(-1, 1)).movedim(1, -1)
    return y.detach().numpy()
