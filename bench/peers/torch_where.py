"""Another common way to ignore padding: sums over `torch.where`, divided by the number of valid elements."""

from __future__ import annotations

from typing import Any

import torch

from bench.inputs import Inputs
from bench.peers.torch_autograd import Function, differentiate
from bench.suite import Run


def bind(inputs: Inputs) -> Run:
    return differentiate(inputs, where_and_sum(inputs))


def bind_compiled(inputs: Inputs) -> Run:
    return differentiate(inputs, torch.compile(where_and_sum(inputs)))


def where_and_sum(inputs: Inputs) -> Function:
    """Mean first, then the squared deviations. Making the mask and the counts is not timed."""
    assert inputs.split_mask is not None
    mask, count = torch.from_numpy(inputs.split_mask), torch.from_numpy(inputs.count)
    split, axes, affine, eps = inputs.split, inputs.axes, inputs.affine, inputs.case.eps

    def function(x: Any, weight: Any, bias: Any) -> Any:
        wide = x.view(split)
        mean = torch.where(mask, wide, 0.0).sum(axes, keepdim=True) / count
        centered = torch.where(mask, wide - mean, 0.0)
        var = (centered * centered).sum(axes, keepdim=True) / count
        y = centered * torch.rsqrt(var + eps) * weight.view(affine) + bias.view(affine)
        return torch.where(mask, y, 0.0).view(x.shape)

    return function
