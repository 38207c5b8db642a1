"""How a graph of `torch.compile` calls a normalization: as an operator, or as the torch operations that it consists of.

Both take tensors, and the normalization written as text. `_dispatch` chooses.

    truenorm::normalize            -> y, and count, mean and m2 of each statistic (..., 3)
    truenorm::normalize_backward   -> dx, dweight, dbias; empty where there is no such parameter
    inline                         -> y, and the same, as nodes that the compiler fuses with their neighbours

Running, the operators call the function that eager mode calls, and check values as it does. They cost three times an
`autograd.Function` to call, so eager mode does not use them.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from truenorm.core.inputs import Padding
from truenorm.core.layout import layout_of
from truenorm.core.norm import norm_from_text
from truenorm.core.packed import packed_norm, rows_of
from truenorm.torch import _compat, _formula, _kernel, _operations, _operations_function
from truenorm.torch._formula import FixedStatistics, wire_dtype
from truenorm.torch._inputs import Ragged, UnpackedInput, check_ragged, to_mask

TENSORS = (
    "Tensor x, Tensor? weight, Tensor? bias, Tensor? valid, Tensor? lengths, Tensor? offsets, Tensor? sample_weight, "
    "Tensor? mean, Tensor? var"
)
TEXTS = "str norm, str padding, bool refuse_single"


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
    refuse_single: bool  # whether statistics of one value are an error

    def ragged(self) -> Ragged | None:
        given = Ragged(self.valid, self.lengths, self.offsets, self.sample_weight)
        return None if all(one is None for one in given) else given

    def fixed(self) -> FixedStatistics | None:
        return None if self.mean is None or self.var is None else FixedStatistics(self.mean, self.var)


def _dispatch() -> Any:
    from truenorm.torch import _dispatch  # which imports this module

    return _dispatch


def _refuse_single(x: Tensor, ragged: Ragged | None, table: Tensor) -> None:
    """Without ragged arguments the caller has found it in the shape of x."""
    from truenorm.torch import _batch_checks  # which imports `_dispatch`

    input = UnpackedInput(x, ragged)
    if ragged is not None and _batch_checks.max_count(input, table) == 1:
        _batch_checks.refuse_single(input, lambda: x)


def _refuse_forward_mode() -> None:
    """torch's library ignores the tangents of an operator, and the derivative would be 0."""
    if _compat.in_forward_mode():
        raise RuntimeError(
            "truenorm::normalize: reverse-mode derivatives in a compiled or exported graph, got forward mode. "
            "Call torch.func.jvp inside of the compiled function, or the layer in eager mode."
        )


@torch.library.custom_op("truenorm::normalize", mutates_args=(), schema=f"({TENSORS}, {TEXTS}) -> (Tensor, Tensor)")
def normalize(*values: Any) -> tuple[Tensor, Tensor]:
    _refuse_forward_mode()
    a = Arguments(*values)
    y, table = _compute(a.x, a.norm, a.weight, a.bias, a.ragged(), a.fixed(), a.padding)
    if table is not None and a.refuse_single:
        _refuse_single(a.x, a.ragged(), table)
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
    *tensors, ctx.norm, ctx.padding, ctx.refuse_single = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    *tensors, table = ctx.saved_tensors
    found = normalize_backward(dy, table, *tensors, ctx.norm, ctx.padding, ctx.refuse_single)
    gradients = [one if like is not None else None for one, like in zip(found, tensors, strict=False)]
    return (*gradients, *[None] * 9)


normalize.register_autograd(_backward, setup_context=_keep)


def _keep_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    dy, _, *tensors, ctx.norm, ctx.padding, ctx.refuse_single = inputs
    ctx.save_for_backward(dy, *tensors)


def _input(of: Tensor) -> Tensor:
    """An alias with a gradient of its own."""
    return of.view_as(of) if of.requires_grad else of.detach().requires_grad_()


def _backward_of_backward(ctx: Any, *ddx: Tensor) -> tuple[Tensor | None, ...]:
    """The derivatives of dx, dweight and dbias by dy, x, weight and bias: those of the definition."""
    dy, *values = ctx.saved_tensors
    values += [ctx.norm, ctx.padding, ctx.refuse_single]
    a = Arguments(*values)
    mask = to_mask(norm_from_text(a.norm), a.x, a.ragged())
    with torch.enable_grad():
        dy, x = _input(dy), _input(a.x)
        weight, bias = (None if one is None else _input(one) for one in (a.weight, a.bias))
        needed = True, weight is not None, bias is not None
        found = _formula.differentiable_gradients(dy, x, mask, weight, bias, a.fixed(), a.padding, needed)
    inputs = {name: one for name, one in (("dy", dy), ("x", x), ("weight", weight), ("bias", bias)) if one is not None}
    pairs = [(one, more) for one, more in zip(found, ddx, strict=True) if one is not None]
    gradients = torch.autograd.grad(
        [one for one, _ in pairs],
        list(inputs.values()),
        [more for _, more in pairs],
        create_graph=torch.is_grad_enabled(),
        allow_unused=True,
    )
    named = dict(zip(inputs, gradients, strict=True))
    return named["dy"], None, named["x"], named.get("weight"), named.get("bias"), *[None] * 9


normalize_backward.register_autograd(_backward_of_backward, setup_context=_keep_backward)


def run(
    x: Tensor,
    norm: str,
    weight: Tensor | None,
    bias: Tensor | None,
    ragged: Ragged | None,
    fixed: FixedStatistics | None,
    padding: Padding,
    refuse_single: bool,
) -> tuple[Tensor, Tensor | None]:
    """What torch.compile records for a layer: y and the table of moments; None where the statistics are fixed."""
    given = ragged or Ragged()
    mean, var = (None, None) if fixed is None else (fixed.mean, fixed.var)
    compute: Any = inline if is_inlined(x, given, fixed) else normalize
    y, table = compute(x, weight, bias, *given, mean, var, norm, padding, refuse_single)
    return y, table if fixed is None else None


def is_inlined(x: Tensor, ragged: Ragged, fixed: FixedStatistics | None) -> bool:
    """Whether a graph gets torch operations, and not the operator that calls a kernel: docs/decisions/0011."""
    if not x.is_cpu or _compat.transform_is_active():  # the operator knows no transforms
        return True
    constants = [ragged.sample_weight] if fixed is None else [fixed.mean, fixed.var]
    return torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in constants)


def _inline(*values: Any) -> tuple[Tensor, Tensor | None]:
    """The same in torch operations, as the compiler traces them. Sizes may be symbols."""
    a = Arguments(*values)
    norm, ragged = norm_from_text(a.norm), a.ragged()
    if ragged is not None and all(type(size) is int for size in a.x.shape):
        check_ragged(norm, a.x.shape, ragged)
    mask = to_mask(norm, a.x, ragged)
    if _dispatch().needs_definition(a.sample_weight, a.mean, a.var):
        return _formula.normalize(a.x, mask, a.weight, a.bias, a.fixed(), a.padding)
    return _operations_function.normalize(a.x, mask, a.weight, a.bias, a.fixed(), a.padding)


_allow_in_graph: Any = torch.compiler.allow_in_graph
inline = _allow_in_graph(_inline)


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
        kept = None if plan.norm.activation is None else bias
        gradients = _kernel.backward(x, dy, weight, kept, None if bias is None else bias.dtype, call, plan)
        if gradients is not None:
            return gradients
    mask = to_mask(norm_from_text(norm), x, ragged)
    return _operations.gradients(dy, x, mask, weight, bias, fixed, padding, None if fixed is not None else table)
