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

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from truenorm.core.inputs import Padding
from truenorm.torch import _compat
from truenorm.torch._dispatch import check_channels, check_dtype, find_verbs
from truenorm.torch._inputs import Ragged, UnpackedInput, check_dense, values_are_readable
from truenorm.torch._norms import Norms, norms_along

Gradients = tuple[Tensor, Tensor | None, Tensor | None]  # the sums, dweight and dbias


class Exchange(ABC):
    """Makes the table of a whole batch of those of its parts."""

    def is_active(self) -> bool:
        """Whether x is a part of a batch now."""
        return True

    def updates_running(self) -> bool:
        """Whether this part updates the running statistics: if parts share them, one of them does."""
        return True

    @abstractmethod
    def pool(self, table: Tensor, weighted: bool, differentiable: bool) -> tuple[Tensor, bool]:
        """The table (channels, 3) of the whole; its gradient is the sums of the part, that of `table` of the whole.

        weighted         whether counts are sums of sample weights; returned for the whole
        differentiable   whether this part will run a backward
        """

    def watch(self, y: Tensor) -> None:  # noqa: B027, most have nothing to see
        """Called with the output, to see its backward."""

    def take_back(self) -> None:  # noqa: B027, the same
        """Called if the layer refuses x after `pool`."""


class Verbs(Protocol):
    """How the numbers of one call are computed. Tables and sums have a row for each channel."""

    def measure(self, x: Tensor) -> Tensor: ...
    def forward(self, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor: ...
    def backward_sums(
        self, dy: Tensor, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Gradients: ...
    def backward(
        self, dy: Tensor, x: Tensor, table: Tensor, sums: Tensor, weight: Tensor | None, bias: Tensor | None
    ) -> Tensor: ...

    @property
    def keeps_bias(self) -> bool:
        """Whether the gradients depend on the values of the bias, as there is an activation."""


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
    """y of this part, the table of the whole, and the largest count in it; 2 if it cannot be read."""
    x, ragged = input.x, input.ragged or Ragged()
    check_dtype(x)
    check_channels(shape[0], weight, bias, *buffers)
    check_dense(x=x, weight=weight, bias=bias)
    _refuse_transforms(x, weight, bias)
    if ragged.sample_weight is not None and ragged.sample_weight.requires_grad and torch.is_grad_enabled():
        raise ValueError("sample_weight: no gradient where statistics are shared, got requires_grad. Detach it.")
    if input.along is not None:
        norms = norms_along(norms, x.dim(), input.along)
    x, verbs = find_verbs(x, norms, ragged, padding)
    differentiable = torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in (x, weight, bias))
    call = Call(verbs)
    table, weighted = exchange.pool(measure(x, call), ragged.sample_weight is not None, differentiable)
    y: Tensor = apply(x, table, weight, bias, call)
    exchange.watch(y)
    table = table.detach()
    known = not weighted and values_are_readable(table) and table.numel()
    return y, table, int(table[:, 0].max()) if known else 2


def _refuse_transforms(*tensors: Tensor | None) -> None:
    """The functions below have a first derivative in reverse mode; of others torch would say what they lack."""
    got = None
    if _compat.under_a_transform():
        got = "a transform of torch.func"
    elif _compat.in_forward_mode() and any(one is not None and _tangent(one) is not None for one in tensors):
        got = "forward mode"
    if got is not None:
        raise RuntimeError(
            "accumulate, reestimate, together, sync: only derivatives by backward() and torch.autograd.grad inside, "
            f"got {got}. Use it outside."
        )


def _tangent(tensor: Tensor) -> Any:
    unpack: Any = forward_ad.unpack_dual
    return unpack(tensor).tangent


# A graph cannot hold a collective that may raise: torch.compile breaks it here, and says why with fullgraph=True.
_outside_of_graphs: Any = torch.compiler.disable
_REASON = "accumulate, reestimate, together, sync: their layers break graphs. Compile with fullgraph=False."
normalize: Callable[..., tuple[Tensor, Tensor, int]] = _outside_of_graphs(_normalize, reason=_REASON)


@dataclass(eq=False)
class Call:
    """What the functions of one call share.

    measured          the context of Measure, which has saved x; only between the two forwards
    output_gradient   from Apply's backward to Measure's: the number of the backward pass, x, dy, weight and
                      bias
    """

    verbs: Verbs
    table: Tensor | None = None
    measured: Any = None
    output_gradient: tuple[int, Tensor, Tensor, Tensor | None, Tensor | None] | None = None


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
            _, x, dy, weight, bias = found  # a checkpoint lets each saved tensor be read once
        else:
            (x,) = ctx.saved_tensors
            dy, weight, bias = torch.zeros_like(x), None, None
        return call.verbs.backward(dy, x, call.table, sums[:, 1:], weight, bias), None


class Apply(torch.autograd.Function):
    """x normalized with the moments of the whole."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, table: Tensor, weight: Tensor | None, bias: Tensor | None, call: Call) -> Tensor:
        # Hooks such as save_on_cpu copy what is saved: x is saved here only if Measure has no backward.
        ctx.measured, call.measured = call.measured, None
        kept = bias if call.verbs.keeps_bias else None
        ctx.save_for_backward(weight, kept, x if ctx.measured is None else None)
        ctx.bias, ctx.call = None if bias is None else torch.empty_like(bias), call
        call.table = table.detach()
        return call.verbs.forward(x, call.table, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        weight, bias, x = ctx.saved_tensors
        if ctx.measured is not None:
            (x,) = ctx.measured.saved_tensors
        call: Call = ctx.call
        assert call.table is not None
        bias = ctx.bias if bias is None else bias
        sums, dweight, dbias = call.verbs.backward_sums(dy, x, call.table, weight, bias)
        if ctx.needs_input_grad[0]:
            call.output_gradient = _compat.backward_pass(), x, dy, weight, bias
        return None, torch.cat([torch.zeros_like(sums[:, :1]), sums], 1), dweight, dbias, None


measure: Any = Measure.apply
apply: Any = Apply.apply
