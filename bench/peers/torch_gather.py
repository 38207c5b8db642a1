"""What people write today: take the real rows out, normalise them, put them back."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from bench.peers.torch_autograd import differentiate
from bench.problem import Problem
from bench.suite import Run


def bind(problem: Problem) -> Run:
    """Batch norm, channels last. The mask is ready-made."""
    assert problem.mask is not None
    mask, eps = torch.from_numpy(problem.mask[..., 0]), problem.case.eps

    def gather_and_scatter(x: Any, weight: Any, bias: Any) -> Any:
        rows = F.batch_norm(x[mask], None, None, weight, bias, training=True, eps=eps)
        y = torch.zeros_like(x)
        y[mask] = rows
        return y

    return differentiate(problem, gather_and_scatter)
