"""How a torch peer is run: leaves with gradients, forward as in training, backward by autograd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from bench.problem import Array, Problem
from bench.process import THREADS
from bench.suite import Run

torch.set_num_threads(THREADS)

# x, weight, bias (None for RMS norm) -> y
Function = Callable[[Any, Any, Any], Any]


def differentiate(problem: Problem, function: Function) -> Run:
    """Forward records what backward needs; backward fills fresh gradients, as after `zero_grad`."""
    x, weight = (_leaf(array) for array in (problem.x, problem.weight))
    bias = None if problem.bias is None else _leaf(problem.bias)
    dy = torch.from_numpy(problem.dy)
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
