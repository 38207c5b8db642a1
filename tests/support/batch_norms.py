"""Batch norms as they are after training: odd statistics and parameters."""

from typing import Any

import torch
from torch import nn

import truenorm.torch as tnt

TorchNorm = {1: nn.BatchNorm1d, 2: nn.BatchNorm2d, 3: nn.BatchNorm3d}
OwnNorm = {1: tnt.BatchNorm1d, 2: tnt.BatchNorm2d, 3: tnt.BatchNorm3d}


def fill(model: Any) -> Any:
    """Odd statistics and parameters, among them a negative and a zero weight and a zero variance."""
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for one in model.parameters():
            one.copy_(torch.randn(one.shape, generator=generator, dtype=torch.float64))
        for layer in model.modules():
            if isinstance(layer, nn.modules.batchnorm._BatchNorm) and layer.running_mean is not None:
                layer.running_mean.copy_(2 * torch.randn(layer.num_features, generator=generator))
                assert layer.running_var is not None
                layer.running_var.copy_(0.2 + 3 * torch.rand(layer.num_features, generator=generator))
                layer.running_var[-1] = 0.0
                layer.eps = 3e-3
                if layer.affine:
                    layer.weight[0], layer.weight[1], layer.weight[2] = -1.5, 0.0, 1e-20
    return model.eval()


def norm(dims: int, size: int, own: bool = False, **options: Any) -> Any:
    return (OwnNorm if own else TorchNorm)[dims](size, **options)
