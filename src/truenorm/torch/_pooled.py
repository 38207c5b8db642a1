"""Batch norm of a batch that is spread over processes or micro-batches: each has a part of it.

A part measures its own count, mean and m2, an *exchange* makes those of the whole of them, and the part normalizes with
these. In backward each part sums dxhat and dxhat · xhat, and needs the sums of the whole for its dx. So three autograd
functions follow each other, and the exchange is the one in the middle, forward and backward:

    x ──> Measure ──> table ──> exchange.pool ──> table of the whole ──> Apply ──> y
                                                                      x, weight, bias ─┘

    Apply       backward: dweight, dbias, and the sums of this part, as the "gradient" of the table
    pool        backward: the sums of the whole
    Measure     backward: dx, from x and dy, which Apply has left for it, and the sums of the whole

A part whose y no loss depends on has a dy of 0, and still a dx: its values are in the statistics of the others.
dweight and dbias are those of the part: DistributedDataParallel averages gradients, and autograd adds those of
micro-batches. x is saved once, and nothing else of its size. Each verb is computed by the compiled kernels, or by the
formula, which works on every device.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from truenorm import engine
from truenorm.core.inputs import Padding
from truenorm.core.norm import norm_from_text
from truenorm.torch import _compat, _formula, _kernel
from truenorm.torch._dispatch import masked_kernel, shapes_match
from truenorm.torch._formula import Mask
from truenorm.torch._inputs import Ragged, UnpackedInput, check_dense, check_ragged, to_mask, values_are_readable
from truenorm.torch._norms import Norms, norms_along

if TYPE_CHECKING:
    from truenorm.engine.native import Kernel

Gradients = tuple[Tensor, Tensor | None, Tensor | None]


class Exchange:
    """Makes the table of a whole batch of those of its parts."""

    def is_active(self) -> bool:
        """Whether x is a part of a batch now."""
        return True

    def updates_running(self) -> bool:
        """Whether this part updates the running statistics: if parts share them, one of them does."""
        return True

    def pool(self, table: Tensor, weighted: bool, differentiable: bool) -> tuple[Tensor, bool]:
        """The table (channels, 3) of the whole; its gradient is the sums of the part, that of `table` of the whole.

        weighted         whether counts are sums of sample weights; returned for the whole
        differentiable   whether this part will run a backward
        """
        raise NotImplementedError

    def watch(self, y: Tensor) -> None:
        """Called with the output, to see its backward."""


class Verbs(Protocol):
    """How the numbers of one call are computed. Tables and sums have a row for each channel."""

    def measure(self, x: Tensor) -> Tensor: ...
    def forward(self, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor: ...
    def backward_sums(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Gradients: ...
    def backward(self, dy: Tensor, x: Tensor, table: Tensor, sums: Tensor, weight: Tensor | None) -> Tensor: ...


def _normalize(
    exchange: Exchange,
    input: UnpackedInput,
    norms: Norms,
    weight: Tensor | None,
    bias: Tensor | None,
    padding: Padding,
    shape: tuple[int, ...],
    buffers: tuple[Tensor | None, ...],
) -> tuple[Tensor, Tensor, int]:
    """y of this part, the table of the whole, and the largest count in it; 2, as good as many, if that is not known."""
    x, ragged = input.x, input.ragged or Ragged()
    if not x.is_floating_point():
        raise TypeError(f"x: a float tensor, got {x.dtype}. Convert it: x.float().")
    if not shapes_match(input, shape, (weight, bias, *buffers), True):
        widths = [one.numel() for one in (weight, bias, *buffers) if one is not None]
        raise ValueError(f"x: as many channels as the layer has, {widths[0]}, got {shape[0]}.")
    check_dense(x=x, weight=weight, bias=bias)
    if ragged.sample_weight is not None and ragged.sample_weight.requires_grad and torch.is_grad_enabled():
        raise ValueError("sample_weight: no gradient where statistics are shared, got requires_grad. Detach it.")
    if input.along is not None:
        norms = norms_along(norms, x.dim(), input.along)
    x, verbs = _find_verbs(x, norms, ragged, padding)
    differentiable = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, weight, bias))
    call = Call(verbs)
    table, weighted = exchange.pool(measure(x, call), ragged.sample_weight is not None, differentiable)
    y: Tensor = apply(x, table, weight, bias, call)
    exchange.watch(y)
    table = table.detach()
    known = not weighted and values_are_readable(table) and table.numel()
    return y, table, int(table[:, 0].max()) if known else 2


# A graph cannot hold a collective that may raise: torch.compile breaks it here.
_outside_of_graphs: Any = torch.compiler.disable
normalize: Callable[..., tuple[Tensor, Tensor, int]] = _outside_of_graphs(_normalize)


@dataclass(eq=False)
class Call:
    """What the functions of one call share.

    measured          the context of Measure, which has saved x; only between the two forwards
    output_gradient   from Apply's backward to Measure's: the number of the backward pass, x, dy and weight
    """

    verbs: Verbs
    table: Tensor | None = None
    measured: Any = None
    output_gradient: tuple[int, Tensor, Tensor, Tensor | None] | None = None


class Measure(torch.autograd.Function):
    """The moments of x: (channels, 3)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, call: Call) -> Tensor:
        ctx.call = call
        ctx.save_for_backward(x)
        if ctx.needs_input_grad[0]:
            call.measured = ctx
        return call.verbs.measure(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, sums: Tensor) -> tuple[Tensor | None, ...]:
        call: Any = ctx.call
        found, call.output_gradient = call.output_gradient, None
        if found is not None and found[0] == _compat.backward_pass():
            _, x, dy, weight = found  # a checkpoint lets each saved tensor be read once
        else:
            (x,) = ctx.saved_tensors
            dy, weight = torch.zeros_like(x), None
        return call.verbs.backward(dy, x, call.table, sums[:, 1:], weight), None


class Apply(torch.autograd.Function):
    """x normalized with the moments of the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call) -> Tensor:
        # Hooks such as save_on_cpu copy what is saved: x is saved here only if Measure has no backward.
        ctx.measured, call.measured = call.measured, None
        ctx.save_for_backward(weight, x if ctx.measured is None else None)
        ctx.bias, ctx.call = None if bias is None else torch.empty_like(bias), call
        call.table = table.detach()
        return call.verbs.forward(x, call.table, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight, x = ctx.saved_tensors
        if ctx.measured is not None:
            (x,) = ctx.measured.saved_tensors
        call: Call = ctx.call
        assert call.table is not None
        sums, dweight, dbias = call.verbs.backward_sums(dy, x, call.table, weight, ctx.bias)
        if ctx.needs_input_grad[0]:
            call.output_gradient = _compat.backward_pass(), x, dy, weight
        return None, torch.cat([torch.zeros_like(sums[:, :1]), sums], 1), dweight, dbias, None


measure: Any = Measure.apply
apply: Any = Apply.apply


# ---- who computes ----


def _find_verbs(x: Tensor, norms: Norms, ragged: Ragged, padding: Padding) -> tuple[Tensor, Verbs]:
    """x as it is read, and the kernels, or the formula where there is none."""
    if _compat.in_plain_eager_mode() and _kernel.KERNELS_READ_TENSORS and engine.compiled() is not None:
        found = masked_kernel(x, norms, ragged)
        if not isinstance(found, str):
            x, kernel, arrays, _, channels_last = found
            return x, KernelVerbs(kernel, arrays._asdict(), channels_last, padding == "keep")
    norm = norm_from_text(norms[0])
    check_ragged(norm, x.shape, ragged)
    return x, FormulaVerbs(to_mask(norm, x, ragged.change(torch.clone)), padding)


@dataclass(eq=False)
class FormulaVerbs:
    mask: Mask
    padding: Padding

    def measure(self, x: Tensor) -> Tensor:
        return _formula.measure(x, self.mask)

    def forward(self, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        return _formula.normalize_part(x, self.mask, weight, bias, table, self.padding)

    def backward_sums(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Gradients:
        sums, dweight, dbias = _formula.backward_sums(dy, x, self.mask, weight, bias, table)
        return sums.to(table.dtype), dweight, dbias

    def backward(self, dy: Tensor, x: Tensor, table: Tensor, sums: Tensor, weight: Tensor | None) -> Tensor:
        return _formula.backward(dy, x, self.mask, weight, table, sums, self.padding)


@dataclass(eq=False)
class KernelVerbs:
    kernel: Kernel
    arrays: dict[str, Any]  # the ragged arguments
    channels_last: bool
    keep_padding: bool

    def measure(self, x: Tensor) -> Tensor:
        _kernel.kernels.set_threads(engine.threads())
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
    ) -> Gradients:
        sums = torch.empty(self.kernel.statistics, 2, dtype=torch.float64)
        dweight, dbias = (None if one is None else torch.empty(one.shape, dtype=sums.dtype) for one in (weight, bias))
        arrays = {"dweight": _parameter(dweight), "dbias": _parameter(dbias)}
        self._run_backward(dy, x, None, table, weight, sums=_array(sums), **arrays)
        return sums, _as_like(dweight, weight), _as_like(dbias, bias)

    def backward(self, dy: Tensor, x: Tensor, table: Tensor, sums: Tensor, weight: Tensor | None) -> Tensor:
        dx = torch.empty_like(_kernel.in_order(x, self.channels_last))
        self._run_backward(dy, x, self._flat(dx), table, weight, sums=_table(sums), given=True)
        return dx

    def _run_backward(
        self, dy: Tensor, x: Tensor, dx: Any, table: Tensor, weight: Tensor | None, **others: Any
    ) -> None:
        _kernel.kernels.set_threads(engine.threads())
        self.kernel.plan.backward(
            self._flat(x),
            self._flat(dy.to(x.dtype)),
            dx,
            _table(table),
            weight=_parameter(weight),
            **self.arrays,
            keep_padding=self.keep_padding,
            **others,
        )

    def _flat(self, values: Tensor) -> NDArray[Any]:
        """x, or a tensor of its shape, as an array in the order of the kernel; copied if it is in another."""
        values = _kernel.in_order(values.detach(), self.channels_last)
        values = values.movedim(1, -1) if self.channels_last else values
        return _array(values.resolve_neg())


def _array(values: Tensor) -> NDArray[Any]:
    """The memory of a tensor. By DLPack: after `numpy()` it could not be freed any more, as FSDP does with weights."""
    found: NDArray[Any] = np.from_dlpack(values.view(torch.uint16) if values.dtype is torch.bfloat16 else values)
    return found


def _table(values: Tensor) -> NDArray[Any]:
    return _array(values.detach().to("cpu", torch.float64).contiguous())


def _parameter(values: Tensor | None) -> NDArray[Any] | None:
    return None if values is None else _table(values)


def _as_like(values: Tensor | None, like: Tensor | None) -> Tensor | None:
    return None if values is None or like is None else values.to(like.dtype)
