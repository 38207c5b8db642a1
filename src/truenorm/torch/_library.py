"""The same normalization as operators of torch's library, for `torch.compile` and `torch.export`.

A graph calls them with tensors and a normalization written as text; running, they call the function that eager mode
calls. They cost three times an `autograd.Function` to call, so eager mode does not use them.

    truenorm::normalize            -> y, and count, mean and m2 of each statistic (..., 3)
    truenorm::normalize_backward   -> dx, dweight, dbias; empty where there is no such parameter
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.core.layout import layout_of
from truenorm.core.norm import norm_from_text
from truenorm.core.packed import packed_norm, rows_of
from truenorm.torch import _compat, _kernel, _operations
from truenorm.torch._formula import FixedStatistics, wire_dtype
from truenorm.torch._inputs import Ragged, to_mask

TENSORS = (
    "Tensor x, Tensor? weight, Tensor? bias, Tensor? valid, Tensor? lengths, Tensor? offsets, Tensor? sample_weight, "
    "Tensor? mean, Tensor? var"
)
TEXTS = "str norm, str padding"


class Arguments(NamedTuple):
    """The arguments of `normalize`, in the order of its schema."""

    x: Tensor
    weight: Tensor | None
    bias: Tensor | None
    valid: Tensor | None
    lengths: Tensor | None
    offsets: Tensor | None
    sample_weight: Tensor | None
    mean: Tensor | None
    var: Tensor | None
    norm: str
    padding: Padding

    def ragged(self) -> Ragged | None:
        given = Ragged(self.valid, self.lengths, self.offsets, self.sample_weight)
        return None if all(one is None for one in given) else given

    def fixed(self) -> FixedStatistics | None:
        return None if self.mean is None or self.var is None else FixedStatistics(self.mean, self.var)


def _dispatch() -> Any:
    from truenorm.torch import _dispatch  # which imports this module

    return _dispatch


def _refuse_forward_mode() -> None:
    """torch's library ignores the tangents of an operator, and the derivative would be 0."""
    if _compat.in_forward_mode():
        raise RuntimeError(
            "truenorm::normalize: reverse-mode derivatives in a compiled or exported graph, got forward mode. "
            "Call the layer in eager mode."
        )


@torch.library.custom_op("truenorm::normalize", mutates_args=(), schema=f"({TENSORS}, {TEXTS}) -> (Tensor, Tensor)")
def normalize(*values: Any) -> tuple[Tensor, Tensor]:
    _refuse_forward_mode()
    a = Arguments(*values)
    y, table = _compute(a.x, a.norm, a.weight, a.bias, a.ragged(), a.fixed(), a.padding)
    if table is None:
        table = torch.empty(0, dtype=wire_dtype(a.x), device=a.x.device)
    return _with_strides_of(a.x, y), table.clone()


@normalize.register_fake
def _(*values: Any) -> tuple[Tensor, Tensor]:
    _refuse_forward_mode()
    a = Arguments(*values)
    shape = (0,) if a.mean is not None else (*_statistics(a), 3)
    return torch.empty_like(a.x), torch.empty(shape, dtype=wire_dtype(a.x), device=a.x.device)


@torch.library.custom_op(
    "truenorm::normalize_backward",
    mutates_args=(),
    schema=f"(Tensor dy, Tensor table, {TENSORS}, {TEXTS}) -> (Tensor, Tensor, Tensor)",
)
def normalize_backward(dy: Tensor, table: Tensor, *values: Any) -> tuple[Tensor, Tensor, Tensor]:
    a = Arguments(*values)
    found = _compute_backward(dy, a.x, a.norm, a.weight, a.bias, a.ragged(), a.fixed(), a.padding, table)
    dx, dweight, dbias = (a.x.new_empty(0) if one is None else one.contiguous() for one in found)
    return _with_strides_of(a.x, dx), dweight, dbias


@normalize_backward.register_fake
def _(dy: Tensor, table: Tensor, *values: Any) -> tuple[Tensor, Tensor, Tensor]:
    a = Arguments(*values)
    dweight, dbias = (
        a.x.new_empty(0) if one is None else torch.empty(one.shape, dtype=one.dtype, device=one.device)
        for one in (a.weight, a.bias)
    )
    return torch.empty_like(a.x), dweight, dbias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.norm, ctx.padding = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    *tensors, table = ctx.saved_tensors
    found = normalize_backward(dy, table, *tensors, ctx.norm, ctx.padding)
    gradients = [one if like is not None else None for one, like in zip(found, tensors, strict=False)]
    return (*gradients, *[None] * 8)


normalize.register_autograd(_backward, setup_context=_keep)


def _with_strides_of(x: Tensor, values: Tensor) -> Tensor:
    """Values in the memory order of x, which is what the graph expects."""
    like = torch.empty_like(x)
    return values if values.stride() == like.stride() else like.copy_(values)


def _statistics(a: Arguments) -> tuple[Any, ...]:
    """The shape of the statistics. It may contain symbols, so the cache of layouts is not used."""
    norm, shape = norm_from_text(a.norm), tuple(a.x.shape)
    if a.offsets is None:
        return layout_of.__wrapped__(norm, shape).statistics
    rows, norm = rows_of(norm), packed_norm(norm, len(shape))
    if rows is None or rows.alike:
        return layout_of.__wrapped__(norm, shape).statistics
    statistics = layout_of.__wrapped__(norm, (1, *shape)).statistics
    # "b [t] c" has one for each sample, "[b] t c" at most one for each row.
    return (a.offsets.shape[0] - 1 if norm.axes[1].pieces[0].reduced else shape[0], *statistics[1:])


# ---- without autograd ----


def _compute(
    x: Tensor,
    norm: str,
    weight: Tensor | None,
    bias: Tensor | None,
    ragged: Ragged | None,
    fixed: FixedStatistics | None,
    padding: Padding,
) -> tuple[Tensor, Tensor | None]:
    """y, and the table of moments."""
    found = _dispatch().find_call(x, (norm, None), weight, bias, ragged, fixed, padding)
    if isinstance(found, str):
        computed: tuple[Tensor, Tensor | None] = _dispatch().run_operations(
            x, norm_from_text(norm), weight, bias, ragged, fixed, padding, found
        )
        return computed
    x, call, plan, _ = found
    y = _kernel.forward(x, weight, bias, call)
    if fixed is not None:
        return y, None
    return y, _kernel.table_of(call).reshape(*plan.kernel.layout.statistics, 3)


def _compute_backward(
    dy: Tensor,
    x: Tensor,
    norm: str,
    weight: Tensor | None,
    bias: Tensor | None,
    ragged: Ragged | None,
    fixed: FixedStatistics | None,
    padding: Padding,
    table: Tensor,
) -> _operations.Gradients:
    """The gradients of `_compute`, from the table that it returned."""
    found = _dispatch().find_call(x, (norm, None), weight, bias, ragged, fixed, padding)
    if not isinstance(found, str):
        x, call, plan, _ = found
        if fixed is None:
            call.set_moments(table.reshape(-1, 3).numpy())
        gradients = _kernel.backward(x, dy, weight, None if bias is None else bias.dtype, call, plan)
        if gradients is not None:
            return gradients
    mask = to_mask(norm_from_text(norm), x, ragged)
    return _operations.gradients(dy, x, mask, weight, bias, fixed, padding, None if fixed is not None else table)
