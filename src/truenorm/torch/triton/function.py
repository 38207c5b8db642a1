"""The Triton kernels as an autograd function. Between forward and backward only x, weight and the moments are kept."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.core.norm import Norm
from truenorm.torch import _compat, _formula, _operations
from truenorm.torch._formula import FixedStatistics
from truenorm.torch._inputs import Ragged, to_mask
from truenorm.torch.triton.verbs import TritonVerbs


@dataclass(eq=False)
class TritonCall:
    """One call: what computes it, and what the formula needs if a graph of the backward is wanted."""

    x: Tensor  # in the order of the kernels; with the graph that made it
    verbs: TritonVerbs
    norm: Norm  # of x as it was given
    ragged: Ragged | None  # copies
    fixed: FixedStatistics | None
    padding: Padding

    def run(self, weight: Tensor | None, bias: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """y, and count, mean and m2 of each statistic; None if the statistics are fixed."""
        x, table = self.x, self._table()
        del self.x  # autograd saves it, where hooks can see it
        y = apply(x, weight, bias, table, self)
        statistics = self.verbs.plan.layout.statistics
        return y, None if self.fixed is not None else table.reshape(*statistics, 3)

    def _table(self) -> Tensor:
        """(statistics, 3)"""
        if self.fixed is None:
            return self.verbs.measure(self.x.detach())
        mean, var = (one.detach().to(torch.float64).reshape(-1) for one in (self.fixed.mean, self.fixed.var))
        count = torch.full_like(mean, 1.0 + self.norm.ddof)  # so that m2 / (count - ddof) is exactly var
        return torch.stack([count, mean, var], -1)


class TritonNorm(torch.autograd.Function):
    """x normalized. Its backward is not differentiable: if a graph of it is needed, the formula computes it."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, table: Tensor, call: TritonCall
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.table, ctx.call = table, call
        # No gradient depends on the values of the bias, so it is not kept.
        ctx.bias = None if bias is None else torch.empty_like(bias)
        return call.verbs.forward(x, table, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        call, bias, needed = ctx.call, ctx.bias, ctx.needs_input_grad
        if torch.is_grad_enabled() or not _compat.in_plain_eager_mode() or _compat.is_batched_gradient(dy):
            arguments = (dy, x, to_mask(call.norm, x, call.ragged), weight, bias, call.fixed, call.padding)
            if torch.is_grad_enabled():
                return (*_formula.differentiable_gradients(*arguments, needed), None, None)
            return (*_operations.gradients(*arguments), None, None)
        verbs = call.verbs
        sums = dx = dweight = dbias = None
        if call.fixed is None or needed[1] or needed[2]:
            sums, dweight, dbias = verbs.backward_sums(dy, x, ctx.table, weight, bias)
        if needed[0]:
            dx = verbs.backward(dy, x, ctx.table, sums if call.fixed is None else None, weight)
        return dx, dweight, dbias, None, None


# For plain eager mode, which `find` has checked.
apply = _compat.apply_of(TritonNorm)
