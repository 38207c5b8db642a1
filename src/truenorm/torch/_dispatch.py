"""The only place that chooses who normalizes: a kernel, torch's own operator, torch operations, or the formula.

    graph            under torch.compile: the operators of `_library`, which choose when they run, or torch operations,
                     which the compiler fuses with their neighbours
    program          under torch.export and for ONNX: torch's own operators, or the formula as their nodes
    torch operator   without a mask: off the CPU, for tracers, and for arguments that torch refuses; with one, off the
                     CPU, if each position is normalized by itself: then it changes nothing but which are shown
    kernel           on the CPU, if the kernels can read all tensors and there is one for the pattern and the mask
    triton           off the CPU, if Triton is installed and its kernels can read all tensors: see `triton`
    operations       everything else that has only to be differentiated once, on every device
    formula          transforms, forward mode, and gradients of statistics or sample_weight

`run` chooses once, and `find_verbs` for an x that is a part of a batch. Both log why to `truenorm.torch` at the level
DEBUG. Calls whose plan is in the cache are not logged. The fast path refuses what is unusual; what follows it handles
that, and raises the errors.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import lru_cache
from numbers import Real
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from truenorm import engine
from truenorm.core.inputs import Padding
from truenorm.core.norm import Norm, norm_from_text
from truenorm.torch import _compat, _formula, _kernel, _library, _operations, _operations_function, triton
from truenorm.torch._formula import FixedStatistics, Mask
from truenorm.torch._inputs import Ragged, UnpackedInput, check_dense, check_ragged, to_mask, values_are_readable
from truenorm.torch._kernel import FORMATS, KernelPlan, check_memory, is_readable, kernels, native
from truenorm.torch._norms import Norms, norms_along, without_activation

if TYPE_CHECKING:
    from truenorm import _native
    from truenorm.engine.native import Kernel
    from truenorm.torch._pooled import Verbs

log = logging.getLogger("truenorm.torch")

# The call of a kernel, which has count, mean and m2 of each statistic; or these as a table (*statistics, 3). None if
# the statistics are fixed, or torch's operator was used.
Moments = Any
Found = tuple[Tensor, Any, KernelPlan, Ragged | None]  # x as the kernel reads it, its call, and copies of ragged


def run(
    input: UnpackedInput,
    norms: Norms,
    weight: Tensor | None,
    bias: Tensor | None,
    padding: Padding,
    shape: tuple[int, ...],
    operator: Callable[[], Tensor] | None = None,
    fixed: FixedStatistics | None = None,
    buffers: tuple[Tensor | None, ...] = (),
    eps: float | None = None,
    by_channel: bool = True,
    by_position: Callable[[Tensor], Tensor] | None = None,
    refuse_single: bool = False,
) -> tuple[Tensor, Moments]:
    """y, and the moments that it used.

    shape        of weight, bias, statistics and buffers
    operator     calls torch's own operator, or raises its errors; None if torch has none
    fixed        statistics to use instead of those of x
    buffers      running statistics that will be updated
    by_channel   whether `shape` is the channels of x, and not what the layer was made for
    by_position  torch's own operator for any x, if it normalizes each position by itself
    refuse_single  whether statistics of one value are an error, for a graph, which cannot be asked afterwards
    """
    if input.along is not None:
        norms = norms_along(norms, input.x.dim(), input.along)
    found = find_call(input.x, norms, weight, bias, input.ragged, fixed, padding)
    if not isinstance(found, str) and (found[2].weight_shape == shape or operator is None):
        x, call, plan, ragged = found
        return _kernel.run(x, weight, bias, (call, plan, ragged, padding, fixed is not None)), call
    parameters = (weight, bias, *buffers) if fixed is None else (weight, bias, fixed.mean, fixed.var)
    masked = input.ragged is not None or input.packed
    if _compat.is_tracing() and (masked or operator is None):
        raise RuntimeError(
            "torch.jit.trace: torch's layers without a mask, got a mask or a pattern, which sizes become constants of. "
            "Use torch.export.export, whose programs take all sizes."
        )
    if operator is not None:
        if masked and eps is not None and not (type(eps) is not bool and isinstance(eps, Real) and 0 <= eps < math.inf):
            raise ValueError(f"eps: a number, finite and >= 0, got {eps}.")
        reason = None if masked else use_torch_operator(input.x)
        if reason is None and not (norms[0] and shapes_match(input, shape, parameters, by_channel)):
            reason = "torch refuses these arguments"
        if reason is not None:
            _log("torch operator", reason)
            y = operator()
            if norms[0]:
                y = _formula.activate(norm_from_text(norms[0]).activation, y)
            if masked:  # the operator was called for its error, and y is not masked
                raise ValueError("arguments: plain integers and floats with a mask, got others. Convert them.")
            return y, None
    if torch.compiler.is_compiling() and not _compat.is_exporting():
        check_dtype(input.x)
        return _library.run(input.x, norms[0], weight, bias, input.ragged, fixed, padding, refuse_single)
    return _run_other(input, norms, weight, bias, padding, fixed, found, by_position)


def find_call(
    x: Tensor,
    norms: Norms,
    weight: Tensor | None,
    bias: Tensor | None,
    ragged: Ragged | None,
    fixed: FixedStatistics | None,
    padding: Padding,
) -> Found | str:
    """A kernel's call, or the reason why there is none.

    Most of the time of a small layer is spent in Python: each line here is a hundredth of a step on 32 x 100 values.
    """
    if not _compat.in_plain_eager_mode():
        return "a transform, tracer or mode is active"
    if not _kernel.KERNELS_READ_TENSORS or engine.compiled() is None:
        return _why_no_kernels()
    if fixed is not None and (fixed.mean.requires_grad or fixed.var.requires_grad) and torch.is_grad_enabled():
        return "the statistics need a gradient"
    cache = _plan_cache(norms)
    if cache is None:
        return "the arguments do not fit each other"
    valid = lengths = copies = None
    if ragged is not None:
        valid, lengths, offsets, sample_weight = ragged
        if offsets is not None or sample_weight is not None:
            copies = ragged
    if copies is None:
        found = cache.find(x, weight, bias, lengths, valid, padding == "keep")
        if found is X_STRIDED:  # copied before anything is chosen
            x = x.contiguous()
            found = cache.find(x, weight, bias, lengths, valid, padding == "keep")
        while found is UNKNOWN_SHAPE:  # more than once if other threads' shapes take its place in the cache
            reason = _add_plan(cache, norms, x)
            if reason is not None:
                return reason
            found = cache.find(x, weight, bias, lengths, valid, padding == "keep")
        if type(found) is tuple:
            call, plan = found
        elif found is RAGGED:
            copies = ragged
        else:
            return REASONS[found]
    if copies is not None:
        masked = _masked_call(x, norms, weight, bias, copies, padding)
        if isinstance(masked, str):
            return masked
        x, call, plan, copies = masked
    if fixed is not None and not call.fix(fixed.mean, fixed.var):
        return "the statistics do not fit x, or cannot be read in place"
    if call.large:
        kernels.set_threads(engine.threads())
    return x, call, plan, copies


REASONS: dict[Any, str] = {}
UNKNOWN_SHAPE = X_STRIDED = RAGGED = None
if native is not None:
    UNKNOWN_SHAPE, X_STRIDED, RAGGED = native.Miss.unknown_shape, native.Miss.x_strided, native.Miss.ragged
    REASONS = {
        native.Miss.x_unreadable: "x cannot be read in place",
        native.Miss.parameters: "weight or bias do not fit x, or cannot be read in place",
    }


def _why_no_kernels() -> str:
    if native is None:
        return "the kernels are not built"
    if engine.compiled() is None:
        return "the reference engine is chosen"
    return "the kernels cannot read this torch's tensors"


@lru_cache(maxsize=512)
def _plan_cache(norms: Norms) -> _native.PlanCache | None:
    cache: _native.PlanCache | None = native.PlanCache(norms[1] is not None) if norms[0] else None
    return cache


def _add_plan(cache: _native.PlanCache, norms: Norms, x: Tensor) -> str | None:
    """Add the plan for an x like this to the cache, or say why there is none."""
    channels_last = norms[1] is not None and _kernel.is_channels_last(x)
    shape = (x.shape[0], *x.shape[2:], x.shape[1]) if channels_last else tuple(x.shape)
    try:
        kernel = kernels.whole_kernel(_norm_of(norms, channels_last), shape, FORMATS[x.dtype])
    except ValueError:  # the pattern does not fit the shape
        return "the arguments do not fit each other"
    if kernel is None or kernel.layout.transposed:
        return "no kernel for this pattern"
    layout = kernel.layout
    mask, masks, lengths = layout.mask_shape, [], (0, 0)
    if mask is not None:
        mask, channel = ((mask[0], 1, *mask[1:-1]), 1) if channels_last else (mask, layout.channel)
        masks.append(mask)
        if channel is not None and mask == (*x.shape[:channel], 1, *x.shape[channel + 1 :]):
            masks.append((*x.shape[:channel], *x.shape[channel + 1 :]))
        if not any(layout.axes[i].weighted for i in (layout.find("b"), layout.ragged_axis) if i is not None):
            lengths = kernel.spread_of_lengths or (0, 0)
    plan = KernelPlan(norm_from_text(norms[0]), kernel, layout.weight_shape, mask)
    cache.add(kernel.plan, channels_last, tuple(x.shape), layout.weight_shape or (), *lengths, masks, plan)
    order = "channels last" if channels_last else "contiguous"
    log.debug("kernel: new plan for %s, %s, %s", tuple(x.shape), x.dtype, order)
    return None


def _norm_of(norms: Norms, channels_last: bool) -> Norm:
    return norm_from_text(norms[1] if channels_last and norms[1] is not None else norms[0])


def _masked_call(
    x: Tensor, norms: Norms, weight: Tensor | None, bias: Tensor | None, ragged: Ragged, padding: Padding
) -> Found | str:
    """The call of a kernel with any ragged arguments; checks them."""
    if any(one is not None and not (is_readable(one) and one.is_contiguous()) for one in (weight, bias)):
        return "weight or bias cannot be read in place"
    found = masked_kernel(x, norms, ragged)
    if isinstance(found, str):
        return found
    x, kernel, arrays, ragged, channels_last = found
    covered = kernel.layout.weight_shape
    if any(one is not None and one.shape != covered for one in (weight, bias)):
        return "the arguments do not fit each other"
    log.debug("kernel: %s with a mask", tuple(x.shape))
    call = native.Call(kernel.plan, x.numel(), *arrays, padding == "keep", channels_last)
    return x, call, KernelPlan(norm_from_text(norms[0]), kernel, covered), ragged


def masked_kernel(x: Tensor, norms: Norms, ragged: Ragged) -> tuple[Tensor, Kernel, Any, Ragged, bool] | str:
    """A kernel for any ragged arguments, which are checked, or the reason why there is none.

    x as the kernel reads it, the kernel, the ragged arguments as its plan takes them, copies of these, and whether
    channels are last in memory.
    """
    sample_weight = ragged.sample_weight
    if sample_weight is not None and sample_weight.requires_grad and torch.is_grad_enabled():
        return "sample_weight needs a gradient"
    if not is_readable(x):
        return "x cannot be read in place"
    if not all(one is None or values_are_readable(one) for one in ragged):
        return "valid, lengths, offsets or sample_weight cannot be read in place"
    channels_last = norms[1] is not None and _kernel.is_channels_last(x)
    x = _kernel.in_order(x, channels_last)
    ragged = ragged.change(torch.clone)  # the caller may change them before backward
    shape, moved = tuple(x.shape), ragged
    if channels_last:
        shape = (shape[0], *shape[2:], shape[1])
        moved = ragged.change(lambda one: one.movedim(1, -1) if one.dim() == x.dim() else one)
    try:
        masked = check_ragged(_norm_of(norms, channels_last), shape, moved)
    except ValueError:
        if not channels_last:
            raise
        masked = check_ragged(norm_from_text(norms[0]), x.shape, ragged)  # the message has the shape of x
    kernel: Kernel | None = kernels.find(masked, FORMATS[x.dtype])
    if kernel is None or kernel.layout.transposed:
        return "no kernel for this pattern and mask"
    return x, kernel, kernel.ragged(masked), ragged, channels_last


def find_verbs(x: Tensor, norms: Norms, ragged: Ragged, padding: Padding) -> tuple[Tensor, Verbs]:
    """x as it is read, and what computes the steps of a batch of which x is a part: a kernel, or operations."""
    found: Any = None if _compat.in_plain_eager_mode() else "a transform, tracer or mode is active"
    if found is None and (not _kernel.KERNELS_READ_TENSORS or engine.compiled() is None):
        found = _why_no_kernels()
    found = found or masked_kernel(x, norms, ragged)
    if not isinstance(found, str):
        x, kernel, arrays, _, channels_last = found
        _log("kernel", f"{tuple(x.shape)}, a part of a batch")
        activated = norm_from_text(norms[0]).activation is not None
        return x, _kernel.KernelVerbs(kernel, arrays._asdict(), channels_last, padding == "keep", activated)
    if triton.applies(x):
        part = triton.find_verbs(x, norms, ragged, padding)
        if not isinstance(part, str):
            _log("triton", f"{tuple(x.shape)}, a part of a batch")
            return part[:2]
        found = part
    _log("operations", found)
    norm = norm_from_text(norms[0])
    check_ragged(norm, x.shape, ragged)
    return x, _operations.OperationsVerbs(to_mask(norm, x, ragged.change(torch.clone)), padding)


def check_dtype(x: Tensor) -> None:
    if not x.is_floating_point():
        raise TypeError(f"x: a float tensor, got {x.dtype}. Convert it: x.float().")


def check_channels(channels: int, *parameters: Tensor | None) -> None:
    """That x has as many channels as weight, bias and running statistics."""
    for one in parameters:
        if one is not None and one.shape != (channels,):
            raise ValueError(f"x: as many channels as the layer has, {one.numel()}, got {channels}.")


def _run_other(
    input: UnpackedInput,
    norms: Norms,
    weight: Tensor | None,
    bias: Tensor | None,
    padding: Padding,
    fixed: FixedStatistics | None,
    found: Found | str,
    by_position: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Moments]:
    """What neither a kernel nor torch's operator alone computes."""
    x, ragged = input.x, input.ragged
    check_dtype(x)
    if _compat.is_exporting():
        return _trace(x, norm_from_text(norms[0]), weight, bias, ragged, fixed, padding, by_position)
    reason = found if isinstance(found, str) else "the arguments do not fit each other"
    if triton.applies(x):
        # Its kernels have no activations. One that follows is 0 where padding is; "keep" is for the operations.
        plain, activation = without_activation(norms) if padding == "zero" else (norms, None)
        call = triton.find_call(x, plain, weight, bias, ragged, fixed, padding)
        if not isinstance(call, str):
            _log("triton", str(tuple(x.shape)))
            y, moments = call.run(weight, bias)
            return _formula.activate(activation, y), moments
        reason = call
    return run_operations(x, norm_from_text(norms[0]), weight, bias, ragged, fixed, padding, reason, by_position)


def _log(choice: str, reason: str) -> None:
    if not torch.compiler.is_compiling():
        log.debug("%s: %s", choice, reason)


def use_torch_operator(x: Tensor) -> str | None:
    """Why torch's own operator is the one to call for an x without a mask; None if it is not."""
    if not x.is_cpu:
        return f"x is on {x.device}"
    if x.is_nested or x.layout != torch.strided:
        return "x is nested" if x.is_nested else f"x has the layout {x.layout}"
    if torch.compiler.is_compiling():
        return "an exported program has torch's operators" if _compat.is_exporting() else None
    return "torch.jit.trace records torch's operators" if _compat.is_tracing() else None


def shapes_match(
    input: UnpackedInput, shape: tuple[int, ...], parameters: tuple[Tensor | None, ...], by_channel: bool
) -> bool:
    """Whether the arguments fit each other. If not, torch's operator raises the error; with a mask, this does."""
    x = input.x
    if not x.is_floating_point():
        return input.ragged is not None or input.packed
    if not by_channel:
        return (
            bool(shape)
            and x.shape[-len(shape) :] == shape
            and all(one is None or one.shape == shape for one in parameters)
        )
    if input.ragged is not None or input.packed:
        check_channels(shape[0], *parameters)
    return shape[0] >= 0 and all(one is None or one.shape == shape for one in parameters)


def run_operations(
    x: Tensor,
    norm: Norm,
    weight: Tensor | None,
    bias: Tensor | None,
    ragged: Ragged | None,
    fixed: FixedStatistics | None,
    padding: Padding,
    reason: str,
    by_position: Callable[[Tensor], Tensor] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Checks the arguments. reason: why no kernel computes.

    This is the place for another backend on accelerators: it computes what `_operations.normalize` computes, from the
    same arguments, and comes before it.
    """
    mean, var = (None, None) if fixed is None else (fixed.mean, fixed.var)
    check_dense(x=x, weight=weight, bias=bias, running_mean=mean, running_var=var)
    if ragged is not None:
        check_ragged(norm, x.shape, ragged)
        ragged = ragged.change(torch.clone)  # the caller may change them before backward
    mask = to_mask(norm, x, ragged)
    if fixed is not None and math.prod(mask.layout.statistics) != fixed.mean.numel():
        raise ValueError(
            f"running_mean: {math.prod(mask.layout.statistics)} elements for this x, got {fixed.mean.numel()}."
        )
    for name, one in (("weight", weight), ("bias", bias)):
        if one is not None and tuple(one.shape) != mask.layout.weight_shape:
            raise ValueError(f"{name}: the shape {mask.layout.weight_shape} for this x, got {tuple(one.shape)}.")
    check_memory(x=x, weight=weight, bias=bias, running_mean=mean, running_var=var)
    if needs_definition(mask.sample_weight, mean, var):
        _log("formula", reason)
        return _formula.normalize(x, mask, weight, bias, fixed, padding)
    if by_position is not None and _is_by_position(x, mask, fixed, (weight, bias, mean, var)):
        _log("torch operator", f"x is on {x.device}, and a mask chooses positions")
        return _operations_function.around(by_position, x, mask, padding), None
    _log("operations", reason)
    if fixed is not None:
        fixed = FixedStatistics(fixed.mean.clone(), fixed.var.clone())
    return _operations_function.normalize(x, mask, weight, bias, fixed, padding)


def _trace(
    x: Tensor,
    norm: Norm,
    weight: Tensor | None,
    bias: Tensor | None,
    ragged: Ragged | None,
    fixed: FixedStatistics | None,
    padding: Padding,
    by_position: Callable[[Tensor], Tensor] | None,
) -> tuple[Tensor, Tensor | None]:
    """The definition as nodes of an exported program, which nobody else is needed for. Sizes may be symbols."""
    if ragged is not None and all(type(size) is int for size in x.shape):
        check_ragged(norm, x.shape, ragged)
    mask = to_mask(norm, x, ragged)
    if by_position is not None and _is_by_position(x, mask, fixed, (weight, bias)):
        return _operations_function.around(by_position, x, mask, padding), None
    return _formula.normalize(x, mask, weight, bias, fixed, padding)


def needs_definition(*constants: Tensor | None) -> bool:
    """Whether more has to be differentiated than once and in reverse mode by x, weight and bias."""
    return (
        _compat.transform_is_active()
        or _compat.in_forward_mode()
        or (torch.is_grad_enabled() and any(one is not None and one.requires_grad for one in constants))
    )


def _is_by_position(
    x: Tensor, mask: Mask, fixed: FixedStatistics | None, parameters: tuple[Tensor | None, ...]
) -> bool:
    """Whether a mask only says which positions are shown, and torch's operator takes these arguments."""
    valid = mask.valid
    return (  # runtimes of exported programs have no `where` for narrow floats, and the definition none of these
        (x.dtype.itemsize >= 4 if _compat.is_exporting() else not x.is_cpu)
        and mask.sample_weight is None
        and mask.segments is None
        and mask.norm.eps > 0  # 0 is what rows outside of the mask are replaced by, and 0 / 0 is NaN
        and all(one is None or one.dtype is x.dtype for one in parameters)
        and (fixed is not None or valid is None or all(valid.shape[i] == 1 for i in mask.layout.reduced))
    )
