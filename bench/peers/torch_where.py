"""The other thing people write today: sums over `torch.where`, divided by how many are real."""

from __future__ import annotations

from typing import Any

import torch

from bench.peers.torch_autograd import Function, differentiate
from bench.problem import Problem
from bench.suite import Run


def bind(problem: Problem) -> Run:
    return differentiate(problem, where_and_sum(problem))


def bind_compiled(problem: Problem) -> Run:
    return differentiate(problem, torch.compile(where_and_sum(problem)))


def where_and_sum(problem: Problem) -> Function:
    """Two passes, as a careful person writes it. The mask and the counts are ready-made."""
    assert problem.split_mask is not None
    mask, count = torch.from_numpy(problem.split_mask), torch.from_numpy(problem.count)
    split, axes, affine, eps = problem.split, problem.axes, problem.affine, problem.case.eps

    def function(x: Any, weight: Any, bias: Any) -> Any:
        wide = x.view(split)
        mean = torch.where(mask, wide, 0.0).sum(axes, keepdim=True) / count
        centered = torch.where(mask, wide - mean, 0.0)
        var = (centered * centered).sum(axes, keepdim=True) / count
        y = centered * torch.rsqrt(var + eps) * weight.view(affine) + bias.view(affine)
        return torch.where(mask, y, 0.0).view(x.shape)

    return function
