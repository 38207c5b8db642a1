"""The compiled kernels as an autograd function, and which tensors they read.

Between forward and backward only x, weight and the moments are kept; nothing else of the size of x.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truenorm import engine
from truenorm.core.inputs import Padding
from truenorm.core.norm import Norm
from truenorm.torch import _compat, _formula, _operations
from truenorm.torch._formula import FixedStatistics, Mask
from truenorm.torch._inputs import Ragged, to_mask
from truenorm.torch._operations import Gradients

if TYPE_CHECKING:
    from truenorm import _native
    from truenorm.engine.native import Kernel

kernels: Any = engine.kernels
native: Any = None if kernels is None else kernels.native
# The dtypes of the kernels, in the letters of the buffer protocol.
FORMATS = {} if native is None else {getattr(torch, name): letter for letter, name in native.FORMATS.items()}
ORDINARY = (Tensor, torch.nn.Parameter)  # not a subclass, which may mean anything
# Whether the kernels are built and can read the tensors of this version of torch.
KERNELS_READ_TENSORS: bool = (
    native is not None
    and _compat.dlpack_exchange is not None
    and native.register_torch(_compat.dlpack_exchange, *ORDINARY)
)
if native is not None:
    native.use_openmp(True)

CHANGED = "forward: x, weight and bias as they were a moment ago, got others."


def kernels_read_tensors() -> bool:
    """Whether the compiled kernels are built and can read the tensors of this torch version.

    Examples:
        >>> import truenorm.torch as tnt
        >>> tnt.kernels_read_tensors() in (True, False)
        True
    """
    return KERNELS_READ_TENSORS


def autograd_in_cpp() -> bool:
    """Whether steps of the kernels are nodes in C++ of torch's autograd graph, and not functions in Python.

    The nodes are built against one version of torch, if asked for. They change no number, but small layers are faster.

    Examples:
        >>> import truenorm.torch as tnt
        >>> tnt.autograd_in_cpp() in (True, False)
        True
    """
    return nodes is not None


def is_readable(tensor: Tensor) -> bool:
    """Whether a kernel can read this tensor in place, whatever its strides: an ordinary float tensor on the CPU."""
    return KERNELS_READ_TENSORS and _compat.in_plain_eager_mode() and bool(native.can_read(tensor))


def check_memory(**tensors: Tensor | None) -> None:
    """Raises if the memory of a tensor was freed: torch's operators would read it anyway, and crash."""
    for name, tensor in tensors.items():
        if tensor is not None and type(tensor) in ORDINARY and tensor.is_cpu and _compat.in_plain_eager_mode():
            try:
                lost = not tensor.untyped_storage().nbytes() and tensor.numel() > 0
            except RuntimeError:  # a layout, or a wrapper, without memory of its own
                continue
            if lost and not _compat.is_zero_tensor(tensor):
                raise RuntimeError(f"{name}: a tensor with memory of its own, got one that lost it.")


def is_channels_last(x: Tensor) -> bool:
    """Whether axis 1 moves fastest in memory and the others are in order, and x is not contiguous too."""
    return x.dim() > 2 and not x.is_contiguous() and x.movedim(1, -1).is_contiguous()


def in_order(x: Tensor, channels_last: bool) -> Tensor:
    """x in this memory order, copied if necessary."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1) if channels_last else x.contiguous()


@dataclass(eq=False, slots=True)
class KernelPlan:
    """What is kept with a compiled plan: the normalization of x, and the kernel for x as it lies in memory.

    mask_shape: of all that is valid, for x as it is given; see `Layout.mask_shape`.
    """

    norm: Norm
    kernel: Kernel
    weight_shape: tuple[int, ...] | None
    mask_shape: tuple[int, ...] | None = None


# call, plan, ragged (None if the call itself knows what is valid), padding, and whether the statistics are fixed.
# One tuple: each argument of an autograd function takes time.
Context = tuple[Any, KernelPlan, Ragged | None, Padding, bool]


def table_of(call: _native.Call) -> Tensor:
    """count, mean and m2 of each statistic side by side: (statistics, 3)."""
    return torch.frombuffer(bytearray(call.get_moments()), dtype=torch.float64).reshape(-1, 3)


class KernelNorm(torch.autograd.Function):
    """One call of a kernel. Its backward is not differentiable: if a graph is needed, the definition computes it."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        context: Context,
    ) -> Tensor:
        # Without an activation no gradient depends on the values of the bias.
        ctx.save_for_backward(x, weight, None if context[1].norm.activation is None else bias)
        ctx.context = context
        ctx.bias_dtype = None if bias is None else bias.dtype
        ctx.set_materialize_grads(False)
        y = torch.empty_like(x)
        if not context[0].forward(x, y, weight, bias):
            raise RuntimeError(CHANGED)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.compiler.is_compiling():  # compiled autograd, which cannot look into a kernel's call
            found: tuple[Tensor | None, ...] = _backward_in_eager_mode(ctx, dy)
            return found
        if dy is None:
            return None, None, None, None
        x, weight, bias = ctx.saved_tensors
        return *differentiate(ctx.context, x, dy, weight, bias, ctx.bias_dtype, ctx.needs_input_grad), None


_disable: Any = torch.compiler.disable
_backward_in_eager_mode = _disable(KernelNorm.backward)

_apply = _compat.apply_of(KernelNorm)


def run(x: Tensor, weight: Tensor | None, bias: Tensor | None, context: Context) -> Tensor:
    """y with autograd, in plain eager mode, which the caller has checked."""
    y: Tensor
    if nodes is not None:
        y = nodes.apply(x, weight, bias, context)
    elif torch.is_grad_enabled():
        y = _apply(x, weight, bias, context)
    else:
        y = forward(x, weight, bias, context[0])
    return y


def forward(x: Tensor, weight: Tensor | None, bias: Tensor | None, call: _native.Call) -> Tensor:
    """y without autograd, in the memory order of x."""
    y = torch.empty_like(x)
    if not call.forward(x, y, weight, bias):
        raise RuntimeError(CHANGED)
    return y


def differentiate(
    context: Context,
    x: Tensor,
    dy: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    bias_dtype: torch.dtype | None,
    needed: tuple[bool, ...],
    dtotal: Tensor | None = None,
) -> tuple[Tensor | None, ...]:
    """dx, dweight and dbias: by the kernel if it can read dy, with a graph if one is needed.

    bias: for an activation. dtotal: added to dx.
    """
    call, plan, _, padding, _ = context
    if not torch.is_grad_enabled() and _compat.in_plain_eager_mode():
        found = backward(x, dy, weight, bias, bias_dtype, call, plan, needed, dtotal)
        if found is not None:
            return found
    check_memory(x=x, dy=dy, weight=weight, bias=bias)
    mask, fixed = _mask(context, x), _fixed_statistics(context)
    bias = _empty_bias(plan, bias_dtype) if bias is None else bias
    gradients: tuple[Tensor | None, ...]
    if torch.is_grad_enabled():
        gradients = _formula.differentiable_gradients(dy, x, mask, weight, bias, fixed, padding, needed)
    else:
        gradients = _operations.gradients(dy, x, mask, weight, bias, fixed, padding)
    dx = gradients[0]
    return (dx if dx is None or dtotal is None else dx + dtotal), *gradients[1:]


def backward(
    x: Tensor,
    dy: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    bias_dtype: torch.dtype | None,
    call: _native.Call,
    plan: KernelPlan,
    needed: tuple[bool, ...] = (True, True, True),
    dtotal: Tensor | None = None,
) -> Gradients | None:
    """The gradients; None if the kernels cannot read dy or dtotal, or they are batches of gradients."""
    dx = torch.empty_like(x) if needed[0] else None
    dweight = torch.empty_like(weight) if needed[1] and weight is not None else None
    dbias = None
    if needed[2]:
        if weight is not None and weight.dtype is bias_dtype:  # takes a third of the time
            dbias = torch.empty_like(weight)
        else:
            dbias = _empty_bias(plan, bias_dtype)
    if call.backward(x, dy, weight, bias, dx, dweight, dbias, dtotal):
        return dx, dweight, dbias
    # Something is not as the kernel reads it: usually the strides of dy, or of what a hook on saved tensors returned.
    if any(_compat.is_batched_gradient(one) or not is_readable(one) for one in (dy, dtotal) if one is not None):
        return None
    x = in_order(x.resolve_neg(), call.channels_last)
    weight, bias = (one if one is None else one.resolve_neg().contiguous() for one in (weight, bias))
    dx = torch.empty_like(x) if needed[0] else None
    if x.shape == dy.shape:
        more = None if dtotal is None else torch.empty_like(x).copy_(dtotal)
        if call.backward(x, torch.empty_like(x).copy_(dy), weight, bias, dx, dweight, dbias, more):
            return dx, dweight, dbias
    what = f"{tuple(x.shape)}, {x.dtype}" + ("" if weight is None else f" and {tuple(weight.shape)}")
    raise RuntimeError(f"backward: x and weight as and where they were in forward, got {what}.")


# native/torch/autograd.cpp, where it was built against this torch: the autograd functions as nodes in C++.
nodes: Any = _compat.load_nodes() if KERNELS_READ_TENSORS else None
if nodes is not None:
    nodes.set_up(native.call_functions, differentiate)


def _empty_bias(plan: KernelPlan, dtype: torch.dtype | None) -> Tensor | None:
    """A tensor like the bias. No gradient depends on its values, so the bias itself is not kept."""
    return (
        None
        if dtype is None or plan.weight_shape is None
        else torch.empty(plan.weight_shape, dtype=dtype, device="cpu")
    )


def _mask(context: Context, x: Tensor) -> Mask:
    """The valid elements, from the copies of the arguments that the call keeps."""
    call, plan, ragged, _, _ = context
    if ragged is None and plan.mask_shape is not None:
        valid = bytearray(call.get_valid())
        ragged = Ragged(torch.frombuffer(valid, dtype=torch.bool).reshape(plan.mask_shape)) if valid else None
    return to_mask(plan.norm, x, ragged)


def _fixed_statistics(context: Context) -> FixedStatistics | None:
    """The copies that the call keeps: running statistics may have changed since."""
    call, _, _, _, fixed = context
    if not fixed:
        return None
    table = table_of(call)
    return FixedStatistics(table[:, 1], table[:, 2])


# ---- a part of a batch ----


@dataclass(eq=False)
class KernelVerbs:
    """What `_pooled` calls, for one x that is a part of a batch."""

    kernel: Kernel
    arrays: dict[str, Any]  # the ragged arguments
    channels_last: bool
    keep_padding: bool
    keeps_bias: bool  # whether backward takes the bias, as there is an activation

    def measure(self, x: Tensor) -> Tensor:
        kernels.set_threads(engine.threads())
        table = torch.empty(self.kernel.statistics, 3, dtype=torch.float64)
        self.kernel.plan.measure(self._flat(x), _array(table), **self.arrays)
        return table

    def forward(self, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        y = torch.empty_like(x)
        self.kernel.plan.forward(
            self._flat(x),
            self._flat(y),
            _table(table),
            weight=_parameter(weight),
            bias=_parameter(bias),
            **self.arrays,
            keep_padding=self.keep_padding,
            given=True,
        )
        return y

    def backward_sums(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        sums = torch.empty(self.kernel.statistics, 2, dtype=torch.float64)
        dweight, dbias = (None if one is None else torch.empty(one.shape, dtype=sums.dtype) for one in (weight, bias))
        arrays = {"dweight": _parameter(dweight), "dbias": _parameter(dbias)}
        self._run_backward(dy, x, None, table, weight, bias, sums=_array(sums), **arrays)
        return sums, _as_like(dweight, weight), _as_like(dbias, bias)

    def backward(
        self, dy: Tensor, x: Tensor, table: Tensor, sums: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor:
        dx = torch.empty_like(in_order(x, self.channels_last))
        self._run_backward(dy, x, self._flat(dx), table, weight, bias, sums=_table(sums), given=True)
        return dx

    def _run_backward(
        self,
        dy: Tensor,
        x: Tensor,
        dx: Any,
        table: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        **others: Any,
    ) -> None:
        kernels.set_threads(engine.threads())
        self.kernel.plan.backward(
            self._flat(x),
            self._flat(dy.to(x.dtype)),
            dx,
            _table(table),
            weight=_parameter(weight),
            bias=_parameter(bias) if self.keeps_bias else None,
            **self.arrays,
            keep_padding=self.keep_padding,
            **others,
        )

    def _flat(self, values: Tensor) -> NDArray[Any]:
        """x, or a tensor of its shape, as an array in the order of the kernel; copied if it is in another."""
        values = in_order(values.detach(), self.channels_last)
        values = values.movedim(1, -1) if self.channels_last else values
        return _array(values.resolve_neg())


def _array(values: Tensor) -> NDArray[Any]:
    """The memory of a tensor. By DLPack: after `numpy()` it could not be freed any more, as FSDP does with weights."""
    found: NDArray[Any] = np.from_dlpack(values.view(torch.uint16) if values.dtype is torch.bfloat16 else values)
    return found if found.flags.writeable else np.asarray(_Writable(found))


class _Writable:
    """The same memory, to be written to: NumPy 2.0 makes arrays from DLPack that are read-only."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array  # owns the memory
        self.__array_interface__ = array.__array_interface__ | {"data": (array.ctypes.data, False)}


def _table(values: Tensor) -> NDArray[Any]:
    return _array(values.detach().to("cpu", torch.float64).contiguous())


def _parameter(values: Tensor | None) -> NDArray[Any] | None:
    return None if values is None else _table(values)


def _as_like(values: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if values is None or like is None else values.to(like.dtype)
