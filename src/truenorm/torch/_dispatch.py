"""One function normalises every tensor: `normalize`. It chooses, and hands on to autograd.

On the CPU the compiled kernels do it, inside an `autograd.Function` that keeps x and the moments and nothing else of
that size. Everything else goes to `composed`, the definition in torch operations: other devices; forward-mode
derivatives, `torch.func` and a backward that is itself to be differentiated, of any order; dtypes, patterns and ragged
arguments that the kernels do not take.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd import forward_ad

from truenorm import engine
from truenorm.core.inputs import Padding
from truenorm.core.norm import Norm, norm_from_text
from truenorm.torch import _formula as composed
from truenorm.torch import _library as operators
from truenorm.torch._formula import Fixed, Real
from truenorm.torch._inputs import described, real

kernels: Any = engine.kernels
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
    moments: bool = True,
) -> tuple[Tensor, Tensor | NDArray[Any] | None]:
    """y, and the moments that it used: count, mean and m2 side by side, (*statistics, 3); None where they are fixed, or
    need not be told.

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
    call = _kernel_call(x, norm, weight, bias, told, fixed, padding, last)
    if call is None:
        return _composed(x, norm_from_text(norm), weight, bias, told, fixed, padding)
    return call.run(x, weight, bias), call.moments if moments else None


def usual_call(
    x: Tensor,
    norm: str,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor] | None = None,
    padding: Padding = "zero",
) -> _Call | None:
    """The call of a kernel where everything is as usual: ordinary contiguous tensors on the CPU, of which all is real,
    or `lengths` say what.

    None wherever something is not, or is wrong: `normalize` knows what to do. What a small layer spends its time on is
    Python, not arithmetic: each line here is a hundredth of a step on 32 x 100 values.
    """
    if not _undisturbed() or not _READ or engine.compiled() is None:
        return None
    lengths = None
    if told and ((lengths := told.get("lengths")) is None or len(told) > 1):
        return None
    usual, spec = _usual(norm)
    if spec is None:
        return None
    found = usual.call(x, weight, bias, lengths, padding == "keep")
    if found is None:
        found = usual.call(x, weight, bias, lengths, padding == "keep") if _learn(usual, spec, x) else None
        if found is None:
            return None
    native, kernel = found
    if native.large:
        kernels.set_threads(engine.threads())
    return _Call(kernel, spec, None, native, None, padding)


@lru_cache(maxsize=512)
def _usual(norm: str) -> tuple[Any, Norm | None]:
    """The kernels that are known for it, and the norm itself; None for the text of one that makes no sense."""
    return kernels.native.Usual(), norm_from_text(norm) if norm else None


def _learn(usual: Any, norm: Norm, x: Tensor) -> bool:
    """Whether there is a kernel for an x like this, which `usual` then knows."""
    if x.dtype not in FORMATS or not _plain(x):
        return False
    try:
        kernel = kernels.whole_kernel(norm, x.shape, FORMATS[x.dtype])
    except ValueError:  # the arguments do not fit each other
        return False
    if kernel is None or kernel.layout.transposed or kernel.layout.weight_shape is None:
        return False
    timed = not any(axis.weighted and axis.name in ("b", "t") for axis in kernel.layout.axes)
    usual.add(kernel.plan, x.shape, kernel.layout.weight_shape, kernel.repeats or 0 if timed else 0, kernel)
    return True


def compute(
    x: Tensor,
    norm: str,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor],
    fixed: Fixed | None,
    padding: Padding,
) -> tuple[Tensor, Tensor | None]:
    """`normalize` without autograd."""
    call = _kernel_call(x, norm, weight, bias, told, fixed, padding, None)
    if call is None:
        return _composed(x, norm_from_text(norm), weight, bias, told, fixed, padding)
    y = call.forward(x, weight, bias)
    return y, None if (found := call.moments) is None else torch.from_numpy(found)


def compute_backward(
    dy: Tensor,
    x: Tensor,
    norm: str,
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
        if fixed is None:
            call.native.set_moments(table.reshape(-1, 3).numpy())
        call.bias_dtype = None if bias is None else bias.dtype
        gradients = call.backward(x, dy, weight, (True, True, True))
        if gradients is not None:
            return gradients
    return composed.gradients(dy, x, real(norm_from_text(norm), x, told), weight, bias, fixed, padding)


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
    if fixed is not None and math.prod(elements.layout.statistics) != fixed.mean.numel():
        raise ValueError(
            f"running_mean: {math.prod(elements.layout.statistics)} elements for this x, got {fixed.mean.numel()}."
        )
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and tuple(one.shape) != elements.layout.weight_shape:
            raise ValueError(f"{name}: the shape {elements.layout.weight_shape} for this x, got {tuple(one.shape)}.")
    mean, var = (None, None) if fixed is None else (fixed.mean, fixed.var)
    check_memory(x=x, weight=weight, bias=bias, running_mean=mean, running_var=var)
    return composed.normalize(x, elements, weight, bias, fixed, padding)


class _Call:
    """One call of a kernel: its sizes, what is real, and between forward and backward the moments."""

    __slots__ = ("bias_dtype", "fixed", "kernel", "native", "norm", "padding", "permuted", "told")

    def __init__(
        self,
        kernel: Any,
        norm: Norm,
        told: dict[str, Tensor] | None,
        native: Any,
        fixed: Fixed | None = None,
        padding: Padding = "zero",
        permuted: bool = False,
    ) -> None:
        self.kernel, self.norm = kernel, norm
        self.told = told  # what is real; None: nothing but the lengths that `native` keeps
        self.native = native  # a `_native.Call`
        self.fixed = fixed
        self.padding = padding
        self.permuted = permuted  # x is channels_last: the kernel sees it with its channels moved to the end
        self.bias_dtype: torch.dtype | None = None

    def run(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        """y, with its backward."""
        y: Tensor = _apply(x, weight, bias, self)
        return y

    def covers(self, shape: tuple[int, ...]) -> bool:
        """Whether weight and bias have, or would have, this shape."""
        covered: tuple[int, ...] = self.kernel.layout.weight_shape
        return covered == shape

    @property
    def moments(self) -> NDArray[Any] | None:
        """count, mean and m2, by the axes of the statistics; None where they are fixed."""
        if self.fixed is not None:
            return None
        found = np.frombuffer(bytearray(self.native.get_moments()))
        return found.reshape(*self.kernel.layout.statistics, 3)

    def real(self, x: Tensor) -> Real:
        """What is real, for derivatives of derivatives. Copies: who changes lengths later does not change gradients."""
        told = self.told
        if told is None:
            steps = np.frombuffer(bytearray(self.native.get_lengths()), np.int64)
            told = {"lengths": torch.from_numpy(steps[:: self.kernel.repeats])} if len(steps) else {}
        return real(self.norm, x, told)

    def seen(self, x: Tensor) -> Tensor:
        """As the kernel sees it."""
        return (x.movedim(1, -1) if self.permuted else x).contiguous()

    def like(self, seen: Tensor) -> Tensor:
        """Where an output goes: like x, and no view, as the next layer may work in place on it."""
        if not self.permuted:
            return torch.empty_like(seen)
        back = seen.movedim(-1, 1)
        return torch.empty_strided(back.shape, back.stride(), dtype=seen.dtype, device=seen.device)

    def forward(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        self.bias_dtype = None if bias is None else bias.dtype
        if not self.permuted:
            y = torch.empty_like(x)
            if self.native.forward(x, y, weight, bias):
                return y
        seen = self.seen(x)
        y = self.like(seen)
        if not self.native.forward(seen, self.seen(y), weight, bias):
            raise RuntimeError("forward: x, weight and bias as they were a moment ago, got others.")
        return y

    def backward(
        self, x: Tensor, dy: Tensor, weight: Tensor | None, needed: tuple[bool, ...]
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None] | None:
        """The gradients; None for a dy that is no ordinary tensor."""
        dweight = torch.empty_like(weight) if needed[1] and weight is not None else None
        dbias = None
        if needed[2]:
            if weight is not None and weight.dtype is self.bias_dtype:  # a third of the time
                dbias = torch.empty_like(weight)
            else:
                dbias = self.empty_bias()
        if not self.permuted:
            dx = torch.empty_like(x) if needed[0] else None
            dy = dy if dy.is_contiguous() else dy.contiguous()
            if self.native.backward(x, dy, weight, dx, dweight, dbias):
                return dx, dweight, dbias
        if not _plain(dy) or _is_many(dy):
            return None
        seen, dy = self.seen(x), self.seen(dy.to(x.dtype))
        weight = weight if weight is None else weight.contiguous()
        dx = self.like(seen) if needed[0] else None
        if not self.native.backward(seen, dy, weight, None if dx is None else self.seen(dx), dweight, dbias):
            what = f"{tuple(x.shape)}, {x.dtype}" + ("" if weight is None else f" and {tuple(weight.shape)}")
            raise RuntimeError(f"backward: x and weight as and where they were in forward, got {what}.")
        return dx, dweight, dbias

    def empty_bias(self) -> Tensor | None:
        """A tensor like the bias, which no gradient depends on and so nobody keeps."""
        if self.bias_dtype is None:
            return None
        return torch.empty(self.kernel.layout.weight_shape, dtype=self.bias_dtype, device="cpu")


class _Kernels(torch.autograd.Function):
    """The compiled kernels. Their backward is not differentiated: where that is asked for, `composed` takes over."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor | None, bias: Tensor | None, call: _Call) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.call = call
        return call.forward(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        call: _Call = ctx.call
        needed = ctx.needs_input_grad
        if not torch.is_grad_enabled():
            found = call.backward(x, dy, weight, needed) if _undisturbed() else None
            if found is None:
                found = composed.gradients(dy, x, call.real(x), weight, call.empty_bias(), call.fixed, call.padding)
            return (*found, None)
        bias = call.empty_bias()
        bias = bias if bias is None else bias.zero_().requires_grad_()
        # Aliases: a weight that depends on x, hooks and retained gradients are not this function's business.
        x, weight = x.view_as(x), weight if weight is None else weight.view_as(weight)
        y, _ = composed.normalize(x, call.real(x), weight, bias, call.fixed, call.padding)
        inputs = [one for one, wanted in zip((x, weight, bias), needed, strict=False) if wanted]
        derivatives = iter(torch.autograd.grad(y, inputs, dy, create_graph=True))
        return (*(next(derivatives) if wanted else None for wanted in needed[:3]), None)


# What `_Kernels.apply` comes down to where no transform of `torch.func` is at work, as `_undisturbed` saw: without the
# 5 microseconds that the rest of it costs.
_apply: Any = super(torch.autograd.Function, _Kernels).apply
_is_many = torch._C._functorch.is_legacy_batchedtensor  # as autograd's is_grads_batched makes it
_transforming = torch._C._are_functorch_transforms_active
_tracing = torch._C._get_tracing_state
_modes = torch._C._len_torch_dispatch_stack  # that look at every operation, or make tensors up


def _kernel_call(
    x: Tensor,
    norm: str,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor],
    fixed: Fixed | None,
    padding: Padding,
    last: str | None,
) -> _Call | None:
    """The call of a kernel; None where there is none for it."""
    constants = (told.get("sample_weight"), None if fixed is None else fixed.mean, None if fixed is None else fixed.var)
    if torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in constants):
        return None  # the kernels have no gradient of these
    if not _READ or engine.compiled() is None or not _plain(x) or x.dtype not in FORMATS or not x.numel():
        return None
    call = usual_call(x, norm, weight, bias, told, padding) or _other_call(x, norm, weight, bias, told, padding, last)
    if call is None or fixed is None:
        return call
    mean, var, each = fixed.mean, fixed.var, call.kernel.statistics
    if not _plain(mean) or not _plain(var) or mean.numel() != each or var.numel() != each:
        return None
    # Copies: whoever moves the buffers before backward does not change gradients.
    call.fixed = Fixed(*(one.detach().to(torch.float64, copy=True).contiguous() for one in (mean, var)))
    call.native.fix(call.fixed.mean, call.fixed.var)
    return call


def _other_call(
    x: Tensor,
    norm: str,
    weight: Tensor | None,
    bias: Tensor | None,
    told: dict[str, Tensor],
    padding: Padding,
    last: str | None,
) -> _Call | None:
    """The call where something is not as usual: what is told, or how x lies in memory."""
    spec, shape, permuted = norm_from_text(norm), x.shape, False
    if told:
        told = {name: value.clone() for name, value in told.items()}  # who changes them later does not change gradients
        masked = described(spec, x, told)
        kernel = kernels.find(masked, FORMATS[x.dtype])
        ragged = kernels.EVERYTHING if kernel is None else kernel.ragged(masked)
    else:
        seen = spec
        if last is not None and not x.is_contiguous() and x.movedim(1, -1).is_contiguous():
            permuted, seen, shape = True, norm_from_text(last), torch.Size((shape[0], *shape[2:], shape[1]))
        kernel, ragged = kernels.whole_kernel(seen, shape, FORMATS[x.dtype]), kernels.EVERYTHING
    if kernel is None or kernel.layout.transposed:
        return None
    covered = kernel.layout.weight_shape
    if (weight is not None and not _covers(weight, covered)) or (bias is not None and not _covers(bias, covered)):
        return None
    kernels.set_threads(engine.threads())
    native = kernels.Call(kernel.plan, x.numel(), *ragged, padding == "keep")
    return _Call(kernel, spec, told, native, None, padding, permuted)


def _covers(parameter: Tensor, shape: tuple[int, ...] | None) -> bool:
    """Whether a kernel can read this weight or bias as it is. `_plain` has looked around already."""
    return (
        parameter.shape == shape
        and parameter.dtype in FORMATS
        and type(parameter) in _ORDINARY
        and parameter.is_cpu
        and parameter.is_contiguous()
        and not parameter.is_neg()
        and _in_memory(parameter)
    )


def _undisturbed() -> bool:
    """Whether nothing but reverse-mode autograd looks on."""
    return (
        not torch.compiler.is_compiling()
        and forward_ad._current_level < 0
        and not _transforming()
        and _tracing() is None
        and _modes() == 0
    )


def _plain(tensor: Tensor) -> bool:
    """Whether this is an ordinary tensor on the CPU, with nothing but reverse-mode autograd looking at it."""
    return (
        type(tensor) in _ORDINARY
        and tensor.is_cpu
        and _undisturbed()
        and not tensor.is_nested
        and tensor.layout is torch.strided
        and not tensor.is_neg()
        and _in_memory(tensor)
    )


def kernels_read_tensors() -> bool:
    """Whether the compiled kernels are built and can read the tensors of this torch version."""
    return bool(_READ)


def check_memory(**tensors: Tensor | None) -> None:
    """Raises where memory was taken back: torch's operators would read it all the same, and crash."""
    for name, tensor in tensors.items():
        if tensor is not None and type(tensor) in _ORDINARY and tensor.is_cpu and _undisturbed() and _lost(tensor):
            raise RuntimeError(f"{name}: a tensor with memory of its own, got one that lost it.")


def _lost(tensor: Tensor) -> bool:
    try:
        return not tensor.untyped_storage().nbytes() and tensor.numel() > 0 and not tensor._is_zerotensor()
    except RuntimeError:  # of a layout, or in a wrapper, that has no memory of its own
        return False


def _in_memory(tensor: Tensor) -> bool:
    """Whether a kernel can read it where it is. A tensor of zeros, one whose memory was taken back, or one that left
    `torch.func.grad`, is nowhere."""
    try:
        at = tensor.data_ptr() if tensor.untyped_storage().nbytes() else 0
    except RuntimeError:
        return False
    return at != 0 and at % tensor.element_size() == 0


_ORDINARY = (Tensor, torch.nn.Parameter)
# Whether the kernels know how to read tensors of this torch.
_READ = hasattr(Tensor, "__dlpack_c_exchange_api__") and (
    kernels is not None and kernels.native.understand_tensors(Tensor.__dlpack_c_exchange_api__, *_ORDINARY)
)
if kernels is not None:
    kernels.native.join_openmp(True)
