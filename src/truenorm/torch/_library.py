"""The same normalization as operators of torch's library, for `torch.compile` and `torch.export`.

A graph calls them with tensors and a normalization written as text; running, they call the function that eager mode
calls. They cost three times an `autograd.Function` to call, so eager mode does not use them.

    truenorm::normalize            -> y, and count, mean and m2 of each statistic (..., 3)
    truenorm::normalize_backward   -> dx, dweight, dbias; empty where there is no such parameter
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor
from torch.autograd import forward_ad

from truenorm.core.layout import layout_of
from truenorm.core.norm import Norm, norm_from_text
from truenorm.torch._formula import Fixed

Pieces = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def _eager() -> Any:
    from truenorm.torch import _dispatch  # which imports this module

    return _dispatch


def _refuse_forward_mode() -> None:
    """torch's library passes over the tangents of an operator without a word, and the derivative would be 0."""
    if forward_ad._current_level >= 0:
        raise RuntimeError(
            "truenorm::normalize: reverse-mode derivatives in a compiled or exported graph, got forward mode. "
            "Call the layer in eager mode."
        )


def _told(pieces: Pieces) -> dict[str, Tensor]:
    names = ("valid", "lengths", "offsets", "sample_weight")
    return {name: one for name, one in zip(names, pieces, strict=True) if one is not None}


@torch.library.custom_op("truenorm::normalize", mutates_args=())
def normalize(
    x: Tensor,
    weight: Optional[Tensor],  # noqa: UP045  (the schema is made from these)
    bias: Optional[Tensor],  # noqa: UP045
    valid: Optional[Tensor],  # noqa: UP045
    lengths: Optional[Tensor],  # noqa: UP045
    offsets: Optional[Tensor],  # noqa: UP045
    sample_weight: Optional[Tensor],  # noqa: UP045
    mean: Optional[Tensor],  # noqa: UP045
    var: Optional[Tensor],  # noqa: UP045
    norm: str,
    padding: str,
) -> tuple[Tensor, Tensor]:
    _refuse_forward_mode()
    told = _told((valid, lengths, offsets, sample_weight))
    fixed = None if mean is None or var is None else Fixed(mean, var)
    y, table = _eager().compute(x, norm, weight, bias, told, fixed, padding)
    if table is None:
        table = torch.empty(0, dtype=_table_dtype(x), device=x.device)
    return _laid_out_like(x, y), table.clone()


@normalize.register_fake
def _(
    x: Tensor,
    weight: Any,
    bias: Any,
    valid: Any,
    lengths: Any,
    offsets: Any,
    sample_weight: Any,
    mean: Any,
    var: Any,
    norm: str,
    padding: str,
) -> tuple[Tensor, Tensor]:
    _refuse_forward_mode()
    y = torch.empty_like(x)
    shape = (0,) if mean is not None else (*_statistics(norm_from_text(norm), x, offsets), 3)
    return y, torch.empty(shape, dtype=_table_dtype(x), device=x.device)


@torch.library.custom_op("truenorm::normalize_backward", mutates_args=())
def normalize_backward(
    dy: Tensor,
    x: Tensor,
    weight: Optional[Tensor],  # noqa: UP045
    bias: Optional[Tensor],  # noqa: UP045
    valid: Optional[Tensor],  # noqa: UP045
    lengths: Optional[Tensor],  # noqa: UP045
    offsets: Optional[Tensor],  # noqa: UP045
    sample_weight: Optional[Tensor],  # noqa: UP045
    mean: Optional[Tensor],  # noqa: UP045
    var: Optional[Tensor],  # noqa: UP045
    table: Tensor,
    norm: str,
    padding: str,
) -> tuple[Tensor, Tensor, Tensor]:
    told = _told((valid, lengths, offsets, sample_weight))
    fixed = None if mean is None or var is None else Fixed(mean, var)
    found = _eager().compute_backward(dy, x, norm, weight, bias, told, fixed, padding, table)
    dx, dweight, dbias = (x.new_empty(0) if one is None else one.contiguous() for one in found)
    return _laid_out_like(x, dx), dweight, dbias


@normalize_backward.register_fake
def _(
    dy: Tensor,
    x: Tensor,
    weight: Any,
    bias: Any,
    valid: Any,
    lengths: Any,
    offsets: Any,
    sample_weight: Any,
    mean: Any,
    var: Any,
    table: Tensor,
    norm: str,
    padding: str,
) -> tuple[Tensor, Tensor, Tensor]:
    dx = torch.empty_like(x)
    dweight, dbias = (
        x.new_empty(0) if one is None else torch.empty(one.shape, dtype=one.dtype, device=one.device)
        for one in (weight, bias)
    )
    return dx, dweight, dbias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.norm, ctx.padding = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*tensors, output[1])


def _backward(ctx: Any, dy: Tensor, _: Any) -> tuple[Any, ...]:
    x, weight, bias, *others, table = ctx.saved_tensors
    found = normalize_backward(dy, x, weight, bias, *others, table, ctx.norm, ctx.padding)
    gradients = [one if like is not None else None for one, like in zip(found, (x, weight, bias), strict=True)]
    return (*gradients, *[None] * 8)


normalize.register_autograd(_backward, setup_context=_keep)


def _laid_out_like(x: Tensor, values: Tensor) -> Tensor:
    """Values in the memory format of x, which is what the graph expects."""
    like = torch.empty_like(x)
    return values if values.stride() == like.stride() else like.copy_(values)


def _table_dtype(x: Tensor) -> torch.dtype:
    return torch.float64 if x.device.type == "cpu" or x.dtype == torch.float64 else torch.float32


def _statistics(norm: Norm, x: Tensor, offsets: Tensor | None) -> tuple[Any, ...]:
    """The shape of the statistics, which may hold symbols: so not from the cache of views."""
    from truenorm.core.mask import packed_norm

    shape = tuple(x.shape)
    if offsets is None:
        return layout_of.__wrapped__(norm, shape).statistics
    norm, alike = packed_norm(norm, shape)
    if alike:
        return layout_of.__wrapped__(norm, shape).statistics
    return (offsets.shape[0] - 1, *layout_of.__wrapped__(norm, (1, *shape)).statistics[1:])
