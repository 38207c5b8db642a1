"""The operations of `_operations` as an autograd function, and those around torch's own operators."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.torch import _formula, _operations
from truenorm.torch._formula import FixedStatistics, Mask, activate


class OperationsNorm(torch.autograd.Function):
    """One call. Its backward is not differentiable: if a graph of it is needed, the definition computes it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        mask: Mask,
        fixed: FixedStatistics | None,
        padding: Padding,
    ) -> tuple[Tensor, Tensor | None]:
        y, table = _operations.forward(x, mask, weight, bias, fixed, padding)
        # Without an activation no gradient depends on the values of the bias.
        ctx.save_for_backward(x, weight, table, None if mask.norm.activation is None else bias)
        ctx.context = mask, fixed, padding
        ctx.bias = None if bias is None else torch.empty_like(bias)
        if table is not None:
            ctx.mark_non_differentiable(table)
        ctx.set_materialize_grads(False)
        return y, table

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, _: Any) -> tuple[Tensor | None, ...]:
        if dy is None:
            return (None,) * 6
        x, weight, table, bias = ctx.saved_tensors
        mask, fixed, padding = ctx.context
        needed, bias = ctx.needs_input_grad, ctx.bias if bias is None else bias
        if torch.is_grad_enabled():
            found = _formula.differentiable_gradients(dy, x, mask, weight, bias, fixed, padding, needed)
        else:
            known = (
                _operations.fixed_statistics(fixed, x, mask)
                if table is None
                else _operations.given_statistics(table, x, mask)
            )
            found = _operations.backward(dy, x, mask, weight, bias, known, padding, needed)
        return (*found, None, None, None)


def normalize(
    x: Tensor, mask: Mask, weight: Tensor | None, bias: Tensor | None, fixed: FixedStatistics | None, padding: Padding
) -> tuple[Tensor, Tensor | None]:
    """y, and count, mean and m2 of each statistic side by side (..., 3), without a gradient; None where fixed.

    The caller must not change what the mask and the fixed statistics are made of before backward.
    """
    found: tuple[Tensor, Tensor | None] = _apply_function(x, weight, bias, mask, fixed, padding)
    return found


_apply_function: Any = OperationsNorm.apply


def around(operator: Callable[[Tensor], Tensor], x: Tensor, mask: Mask, padding: Padding) -> Tensor:
    """y of torch's own operator that normalizes each position by itself. autograd keeps what it keeps for that."""
    if mask.valid is None:
        return activate(mask.norm.activation, operator(x))
    split = x.reshape(mask.layout.split)
    y = operator(torch.where(mask.valid, split, 0.0).reshape(x.shape)).reshape(split.shape)
    y = activate(mask.norm.activation, y)
    return torch.where(mask.valid, y, split if padding == "keep" else 0.0).reshape(x.shape)
