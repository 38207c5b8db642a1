"""One function normalises every tensor: `normalize`. It chooses, and hands on to autograd.

On the CPU the compiled kernels do it, inside an `autograd.Function` that keeps x and the moments and nothing else of
that size. Everything else goes to `composed`, the definition in torch operations: other devices; forward-mode
derivatives, `torch.func` and a backward that is itself to be differentiated, of any order; dtypes, patterns and ragged
arguments that the kernels do not take.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from truenorm import engine
from truenorm.inputs import Padding
from truenorm.spec import Norm, norm_from_text
from truenorm.torch import composed, operators
from truenorm.torch.composed import Fixed, Real
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
) -> tuple[Tensor, Tensor | NDArray[Any] | None]:
    """y, and the moments that it used: count, mean and m2 side by side, (*statistics, 3); None where they are fixed.

    norm   as `spec.text_of` writes it, which can stand in a compiled graph
    told   valid, lengths, offsets and sample_weight, as far as they are given
    last   the same normalization for channels that come last: for x in torch's memory format channels_last
    """
    told = told or {}
    if not x.is_floating_point():
        raise TypeError(f"x: a float tensor, got {x.dtype}. Convert it: x.float().")
    if torch.compiler.is_compiling() and not torch.onnx.is_in_onnx_export():
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
    y, found = call.forward(x, weight, bias), call.moments
    return y, None if found is None else torch.from_numpy(found)


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
        call.table = table.reshape(-1, 3).numpy() if fixed is None else fixed_table(fixed, norm)
        return call.backward(x, dy.to(x.dtype), weight, bias, (True, True, True))
    return composed.gradients(dy, x, real(norm, x, told), weight, bias, fixed, padding)


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


class _Call:
    """What the kernels have to know beside tensors, and the moments that they find."""

    __slots__ = ("fixed", "kernel", "norm", "padding", "permuted", "ragged", "table", "told")

    def __init__(
        self,
        kernel: Any,
        norm: Norm,
        told: dict[str, Tensor],
        ragged: tuple[Any, ...],
        fixed: Fixed | None,
        padding: Padding,
        permuted: bool,
    ) -> None:
        self.kernel, self.norm, self.told = kernel, norm, told
        self.ragged = ragged  # lengths, starts, valid, sample_weight
        self.fixed, self.padding = fixed, padding
        self.permuted = permuted  # x is channels_last: the kernel sees it with its channels moved to the end
        self.table: NDArray[Any] | None = None  # (statistics, 3)

    @property
    def moments(self) -> NDArray[Any] | None:
        """count, mean and m2, by the axes of the statistics; None where they are fixed."""
        if self.fixed is not None or self.table is None:
            return None
        return self.table.reshape(*self.kernel.view.statistics, 3)

    def real(self, x: Tensor) -> Real:
        """What is real, for derivatives of derivatives."""
        return real(self.norm, x, self.told)

    def seen(self, x: Tensor) -> Tensor:
        """As the kernel sees it."""
        if self.permuted:
            x = x.movedim(1, -1)
        return x if x.is_contiguous() else x.contiguous()

    def like(self, x: Tensor) -> Tensor:
        """Where an output of x's shape goes. It is no view: the next layer may work in place on it."""
        return torch.empty_like(x, memory_format=torch.preserve_format if self.permuted else torch.contiguous_format)

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        seen, kernel, fixed = self.seen(x), self.kernel, self.fixed
        y = self.like(x)
        self.table = np.empty((kernel.statistics, 3)) if fixed is None else fixed_table(fixed, self.norm)
        kernel.plan.forward(
            _at(seen),
            _at(y),  # as it lies in memory, which is as the kernel sees it
            self.table,
            None if weight is None else _at(weight),
            None if bias is None else _at(bias),
            *self.ragged,
            self.padding == "keep",
            fixed is not None,
        )
        return y

    def backward(
        self, x: Tensor, dy: Tensor, weight: Tensor | None, bias: Tensor | None, needed: tuple[bool, ...]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        kernel, seen, dy = self.kernel, self.seen(x), self.seen(dy)
        dx = self.like(x) if needed[0] else None
        dweight = None if weight is None or not needed[1] else torch.empty_like(weight)
        dbias = None if bias is None or not needed[2] else torch.empty_like(bias)
        kernel.plan.backward(
            _at(seen),
            _at(dy),
            None if dx is None else _at(dx),
            self.table,
            None if weight is None else _at(weight),
            np.empty((kernel.statistics, 2)),
            None if dweight is None else _at(dweight),
            None if dbias is None else _at(dbias),
            *self.ragged,
            self.padding == "keep",
            False,
            self.fixed is not None,
        )
        return dx, dweight, dbias


def fixed_table(fixed: Fixed, norm: Norm) -> NDArray[Any]:
    """Fixed statistics as moments: with as many elements as make m2 the variance."""
    mean, var = (one.detach().to(torch.float64).reshape(-1).numpy() for one in (fixed.mean, fixed.var))
    return np.stack([np.full_like(mean, 1.0 + norm.ddof), mean, var], -1)


def _at(tensor: Tensor) -> tuple[int, int, str]:
    """Where a contiguous tensor lies, how many elements it has, and of which kind, as the kernels take it."""
    return tensor.data_ptr(), tensor.numel(), FORMATS[tensor.dtype]


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
            if torch._C._functorch.is_legacy_batchedtensor(dy) or not _plain(dy):  # many at once
                return (*composed.gradients(dy, x, call.real(x), weight, bias, call.fixed, call.padding), None)
            dy = dy if dy.dtype is x.dtype else dy.to(x.dtype)
            return (*call.backward(x, dy, weight, bias, ctx.needs_input_grad), None)
        y, _ = composed.normalize(x, call.real(x), weight, bias, call.fixed, call.padding)
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
    if engine.compiled() is None or not _plain(x) or x.dtype not in FORMATS or not x.numel():
        return None
    permuted = False
    shape, seen = x.shape, norm
    if last is not None and not told and not x.is_contiguous() and x.movedim(1, -1).is_contiguous():
        permuted, seen, shape = True, last, torch.Size((shape[0], *shape[2:], shape[1]))
    kernels = engine.kernels
    assert kernels is not None
    if told:
        told = {name: value.clone() for name, value in told.items()}  # who changes them later does not change gradients
        selection = described(norm, x, told)
        kernel = kernels.find(selection, FORMATS[x.dtype])
        ragged = kernels.EVERYTHING if kernel is None else kernel.ragged(selection)
    else:
        kernel, ragged = kernels.whole_kernel(seen, shape, FORMATS[x.dtype]), kernels.EVERYTHING
    if kernel is None or kernel.view.transposed:
        return None
    for one in (weight, bias):
        if one is not None and not (
            _plain(one) and one.dtype in FORMATS and one.shape == kernel.view.weight_shape and one.is_contiguous()
        ):
            return None
    kernels.set_threads(engine.threads())
    return _Call(kernel, norm, told, ragged, fixed, padding, permuted)


def _plain(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor on the CPU, with nothing but reverse-mode autograd looking at it."""
    return (
        type(tensor) in _ORDINARY
        and tensor.is_cpu
        and forward_ad._current_level < 0
        and not torch._C._are_functorch_transforms_active()
    )


_ORDINARY = (Tensor, torch.nn.Parameter)
