"""How a torch peer is run: forward as in training, backward by autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.inputs import Array, Inputs
from bench.process import THREADS
from bench.suite import Run

torch.set_num_threads(THREADS)

# x, weight, bias (None for RMS norm) -> y
Function = Callable[[Any, Any, Any], Any]


def differentiate(inputs: Inputs, function: Function) -> Run:
    """Forward with gradients enabled; backward into fresh gradients, as after `zero_grad`."""
    x, weight = (_leaf(array) for array in (inputs.x, inputs.weight))
    bias = None if inputs.bias is None else _leaf(inputs.bias)
    dy = torch.from_numpy(inputs.dy)
    leaves = [leaf for leaf in (x, weight, bias) if leaf is not None]

    def forward() -> Any:
        return function(x, weight, bias)

    def both() -> tuple[Any, Any, Any, Any]:
        for leaf in leaves:
            leaf.grad = None
        y = function(x, weight, bias)
        y.backward(dy)
        return y, x.grad, weight.grad, None if bias is None else bias.grad

    return Run(forward, both, lambda tensor: tensor.detach().numpy())


def _leaf(array: Array) -> Any:
    return torch.from_numpy(array.copy()).requires_grad_()
