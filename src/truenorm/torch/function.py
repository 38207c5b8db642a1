"""One function normalises every tensor: `normalize`. It chooses, and hands on to autograd.

On the CPU the compiled kernels do it, inside an `autograd.Function` that keeps x and the moments and nothing else of
that size. Everything else goes to `composed`, the definition in torch operations: other devices; forward-mode
derivatives, `torch.func` and a backward that is itself to be differentiated, of any order; dtypes, patterns and ragged
arguments that the kernels do not take.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from truenorm import engine
from truenorm.inputs import Padding
from truenorm.spec import Norm, norm_from_text
from truenorm.torch import composed, operators
from truenorm.torch.composed import Fixed
from truenorm.torch.ragged import described, real

FORMATS = {torch.float32: "f", torch.float64: "d", torch.float16: "e", torch.bfloat16: "H"}


def normalize(
    x: Tensor,
    norm: str,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    told: dict[str, Tensor] | None = None,
    *,
    fixed: Fixed | None = None,
    padding: Padding = "zero",
    last: str | None = None,
) -> tuple[Tensor, Tensor | None]:
    """y, and the moments that it used: count, mean and m2 side by side, (*statistics, 3); None where they are fixed.

    norm   as `spec.text_of` writes it, which can stand in a compiled graph
    told   valid, lengths, offsets and sample_weight, as far as they are given
    last   the same normalization for channels that come last: for x in torch's memory format channels_last
    """
    told = told or {}
    if torch.compiler.is_compiling():
        pieces = (told.get("valid"), told.get("lengths"), told.get("offsets"), told.get("sample_weight"))
        mean, var = (None, None) if fixed is None else (fixed.mean, fixed.var)
        y, table = operators.normalize(x, weight, bias, *pieces, mean, var, norm, padding)
        return y, table if fixed is None else None
    spec, spec_last = norm_from_text(norm), None if last is None else norm_from_text(last)
    call = _kernel_call(x, spec, weight, bias, told, fixed, padding, spec_last)
    if call is None:
        return _composed(x, spec, weight, bias, told, fixed, padding)
    y = _Kernels.apply(x, weight, bias, call)  # type: ignore[no-untyped-call]
    return y, call.moments


def compute(
    x: Tensor,
    norm: Norm,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor],
    fixed: Fixed | None,
    padding: Padding,
) -> tuple[Tensor, Tensor | None]:
    """`normalize` without autograd."""
    call = _kernel_call(x, norm, weight, bias, told, fixed, padding, None)
    if call is None:
        return _composed(x, norm, weight, bias, told, fixed, padding)
    return call.forward(x, weight, bias), call.moments


def compute_backward(
    dy: Tensor,
    x: Tensor,
    norm: Norm,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor],
    fixed: Fixed | None,
    padding: Padding,
    table: Tensor,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """The gradients of `compute`, from what it returned."""
    call = _kernel_call(x, norm, weight, bias, told, fixed, padding, None)
    if call is not None:
        call.table = call.fixed_table() if fixed is not None else table.reshape(-1, 3).contiguous()
        return call.backward(x, dy.to(x.dtype), weight, bias, (True, True, True))
    leaves = [None if one is None else one.detach().requires_grad_() for one in (x, weight, bias)]
    with torch.enable_grad():
        y, _ = _composed(leaves[0], norm, leaves[1], leaves[2], told, fixed, padding)  # type: ignore[arg-type]
    found = iter(torch.autograd.grad(y, [one for one in leaves if one is not None], dy))
    dx, dweight, dbias = (None if one is None else next(found) for one in leaves)
    return dx, dweight, dbias


def _composed(
    x: Tensor,
    norm: Norm,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor],
    fixed: Fixed | None,
    padding: Padding,
) -> tuple[Tensor, Tensor | None]:
    if told:
        described(norm, x, told)  # the checks
    elements = real(norm, x, told)
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and tuple(one.shape) != elements.view.weight_shape:
            raise ValueError(f"{name}: the shape {elements.view.weight_shape} for this x, got {tuple(one.shape)}.")
    return composed.normalize(x, elements, weight, bias, fixed, padding)


@dataclass(eq=False)
class _Call:
    """What the kernels have to know beside tensors, and the moments that they find."""

    kernel: Any
    norm: Norm
    ragged: tuple[Any, ...]  # lengths, starts, valid, sample_weight
    real: Any  # makes a `Real`, for derivatives of derivatives
    fixed: Fixed | None
    padding: Padding
    permuted: bool  # x is channels_last: the kernel sees it with its channels moved to the end
    table: Tensor | None = None  # (statistics, 3)
    moments: Tensor | None = None  # the same, by the axes of the statistics

    def seen(self, x: Tensor) -> Tensor:
        """As the kernel sees it."""
        if self.permuted:
            x = x.movedim(1, -1)
        return x if x.is_contiguous() else x.contiguous()

    def unseen(self, y: Tensor) -> Tensor:
        return y.movedim(-1, 1) if self.permuted else y

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        seen, kernel = self.seen(x), self.kernel
        y = torch.empty(seen.shape, dtype=x.dtype)
        if self.fixed is None:
            table = torch.empty((kernel.statistics, 3), dtype=torch.float64)
            self.moments = table.view(*kernel.view.statistics, 3)
        else:
            table = self.fixed_table()
        self.table = table
        kernel.plan.forward(
            _at(seen),
            _at(y),
            _at(table),
            _at(weight),
            _at(bias),
            *self.ragged,
            self.padding == "keep",
            self.fixed is not None,
        )
        return self.unseen(y)

    def fixed_table(self) -> Tensor:
        """Fixed statistics as moments: with as many elements as make m2 the variance."""
        assert self.fixed is not None
        mean, var = (one.detach().to(torch.float64).reshape(-1) for one in (self.fixed.mean, self.fixed.var))
        return torch.stack([torch.full_like(mean, 1.0 + self.norm.ddof), mean, var], -1)

    def backward(
        self, x: Tensor, dy: Tensor, weight: Tensor | None, bias: Tensor | None, needed: tuple[bool, ...]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        kernel, seen, dy = self.kernel, self.seen(x), self.seen(dy)
        dx = torch.empty(seen.shape, dtype=x.dtype) if needed[0] else None
        sums = torch.empty((kernel.statistics, 2), dtype=torch.float64)
        dweight = None if weight is None or not needed[1] else torch.empty(weight.shape, dtype=weight.dtype)
        dbias = None if bias is None or not needed[2] else torch.empty(bias.shape, dtype=bias.dtype)
        kernel.plan.backward(
            _at(seen),
            _at(dy),
            _at(dx),
            _at(self.table),
            _at(weight),
            _at(sums),
            _at(dweight),
            _at(dbias),
            *self.ragged,
            self.padding == "keep",
            False,
            self.fixed is not None,
        )
        return None if dx is None else self.unseen(dx), dweight, dbias


def _at(tensor: Tensor | None) -> tuple[int, int, str] | None:
    """Where a contiguous tensor lies, how many elements it has, and of which kind, as the kernels take it."""
    return None if tensor is None else (tensor.data_ptr(), tensor.numel(), FORMATS[tensor.dtype])


class _Kernels(torch.autograd.Function):
    """The compiled kernels. Their backward is not differentiated: where that is asked for, `composed` takes over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: _Call) -> Tensor:
        ctx.save_for_backward(x, weight, bias)
        ctx.call = call
        return call.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *dys: Tensor) -> tuple[Tensor | None, ...]:
        (dy,) = dys
        x, weight, bias = ctx.saved_tensors
        call: _Call = ctx.call
        if not torch.is_grad_enabled():
            return (*call.backward(x, dy.to(x.dtype), weight, bias, ctx.needs_input_grad), None)
        y, _ = composed.normalize(x, call.real(), weight, bias, call.fixed, call.padding)
        inputs = [one for one, needed in zip((x, weight, bias), ctx.needs_input_grad, strict=False) if needed]
        found = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
        return (*(next(found) if needed else None for needed in ctx.needs_input_grad[:3]), None)


def _kernel_call(
    x: Tensor,
    norm: Norm,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor],
    fixed: Fixed | None,
    padding: Padding,
    last: Norm | None,
) -> _Call | None:
    """The call of a kernel; None where there is none for it."""
    if engine.compiled() is None or not _plain(x, weight, bias):
        return None
    permuted = last is not None and not told and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()
    shape, seen = tuple(x.shape), norm
    if permuted:
        assert last is not None
        seen, shape = last, (shape[0], *shape[2:], shape[1])
    kernel, ragged = _found(seen, x, shape, told)
    if kernel is None or kernel.view.transposed:
        return None
    for one in (weight, bias):
        if one is not None and (tuple(one.shape) != kernel.view.weight_shape or not one.is_contiguous()):
            return None
    engine.kernels.set_threads(engine.threads())  # type: ignore[union-attr]
    return _Call(kernel, norm, ragged, lambda: real(norm, x, told), fixed, padding, permuted)


def _found(norm: Norm, x: Tensor, shape: tuple[int, ...], told: dict[str, Tensor]) -> tuple[Any, tuple[Any, ...]]:
    kernels, char = engine.kernels, FORMATS[x.dtype]
    assert kernels is not None
    if not told:
        return kernels.whole_kernel(norm, shape, char), kernels.EVERYTHING
    selection = described(norm, x, told)
    kernel = kernels.find(selection, char)
    return kernel, kernels.EVERYTHING if kernel is None else kernel.ragged(selection)


def _plain(*tensors: Tensor | None) -> bool:
    """Whether these are ordinary tensors on the CPU, with nothing but reverse-mode autograd looking at them."""
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return all(
        one is None or (type(one) in _ORDINARY and one.device.type == "cpu" and one.dtype in FORMATS) for one in tensors
    )


_ORDINARY = (Tensor, torch.nn.Parameter)
