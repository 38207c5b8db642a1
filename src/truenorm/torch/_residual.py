"""`residual=`: layer and RMS norm of x + residual. They return the sum as well, as the next residual.

    y, total = norm(x, residual=residual)       total = x + residual, y = norm(total)

A kernel reads x and residual and writes both results; in backward it adds the gradient of the sum where it writes dx,
which is the gradient of x and of residual. If there is none, these are the two lines above.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from truenorm.core.inputs import Padding
from truenorm.torch import _compat, _kernel
from truenorm.torch._dispatch import find_call
from truenorm.torch._inputs import Input, UnpackedInput
from truenorm.torch._norms import Norms, norms_along


def normalize_sum(
    x: Input,
    residual: Input,
    unpack: Callable[[Input], UnpackedInput],
    normalize: Callable[[UnpackedInput], Tensor],
    norms: Norms,
    weight: Tensor | None,
    bias: Tensor | None,
    padding: Padding,
    shape: tuple[int, ...],
) -> tuple[Any, Any]:
    """y, and x + residual. normalize: what the layer does without a residual."""
    _check(x, residual)
    if type(x) is Tensor and not x.is_nested and x.dtype is residual.dtype:
        found = _by_kernel(unpack(x), residual, norms, weight, bias, padding, shape)
        if found is not None:
            return found
    total: Any = x._replace(data=x.data + residual.data) if isinstance(x, PackedSequence) else x + residual
    unpacked = unpack(total)
    y = normalize(unpacked)
    return y if unpacked.repack is None else unpacked.repack(y), total


def _check(x: Any, residual: Any) -> None:
    if isinstance(x, PackedSequence) or isinstance(residual, PackedSequence):
        if type(x) is not type(residual):
            raise TypeError(f"residual: in the form of the input, {type(x).__name__}, got {type(residual).__name__}.")
    elif not isinstance(residual, Tensor):
        raise TypeError(f"residual: a tensor in the shape of the input, got {type(residual).__name__}.")
    elif not x.is_nested and x.shape != residual.shape:
        raise ValueError(f"residual: the shape of the input, {tuple(x.shape)}, got {tuple(residual.shape)}.")


def _by_kernel(
    input: UnpackedInput,
    residual: Tensor,
    norms: Norms,
    weight: Tensor | None,
    bias: Tensor | None,
    padding: Padding,
    shape: tuple[int, ...],
) -> tuple[Any, Any] | None:
    """None if there is no kernel that reads both."""
    if input.repack is not None or not _kernel.is_readable(residual):
        return None
    if input.along is not None:
        norms = norms_along(norms, input.x.dim(), input.along)
    found = find_call(input.x, norms, weight, bias, input.ragged, None, padding)
    if isinstance(found, str):
        return None
    x, call, plan, ragged = found
    groups = plan.kernel.layout.axis_groups
    if plan.weight_shape != shape or groups[1] or groups[4]:  # the layout of the kernel is not that of rows
        return None
    residual = _kernel.in_order(residual, call.channels_last)
    apply = _apply if _kernel.nodes is None else _kernel.nodes.apply_to_sum
    y, total = apply(x, residual, weight, bias, (call, plan, ragged, padding, False))
    return y, total


class SumNorm(torch.autograd.Function):
    """One call of a kernel. Only the sum is kept, and what `KernelNorm` keeps beside x."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, context: _kernel.Context
    ) -> tuple[Tensor, Tensor]:
        y, total = torch.empty_like(x), torch.empty_like(x)
        if not context[0].forward(x, y, weight, bias, residual, total):
            raise RuntimeError(_kernel.CHANGED)
        ctx.save_for_backward(total, weight, None if context[1].norm.activation is None else bias)
        ctx.context, ctx.bias_dtype = context, None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        return y, total

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dtotal: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling():  # as for `KernelNorm`
            found: tuple[Tensor | None, ...] = _backward_in_eager_mode(ctx, dy, dtotal)
            return found
        if dy is None:
            return dtotal, dtotal, None, None, None
        total, weight, bias = ctx.saved_tensors
        by_sum = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        needed = by_sum, *ctx.needs_input_grad[2:4]
        more = dtotal if by_sum else None
        dx, *others = _kernel.differentiate(ctx.context, total, dy, weight, bias, ctx.bias_dtype, needed, more)
        return dx, dx, *others, None


_disable: Any = torch.compiler.disable
_backward_in_eager_mode = _disable(SumNorm.backward)

# For plain eager mode, which `find_call` has checked.
_apply = _compat.apply_of(SumNorm)
