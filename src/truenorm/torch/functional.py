"""`torch.nn.functional`'s normalizations, with torch's signatures and four arguments more.

    valid=          booleans: x without its channel axis, or the rank of x
    lengths=        (b,): the first lengths[b] positions of sample b are real
    offsets=        x is packed, (rows, c): sample i is the rows offsets[i] to offsets[i + 1]
    sample_weight=  how often a position counts in the statistics

`input` may also be a nested tensor (jagged) or a PackedSequence; what is returned has its form. Without any of this
they compute what torch computes: on the CPU with the compiled kernels, elsewhere with torch's own operators.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Literal, ParamSpec, TypeVar, get_args

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as torch_functional

from truenorm.core import norm as spec
from truenorm.core.inputs import PADDINGS, Padding
from truenorm.core.norm import Norm, text_of
from truenorm.torch import _running as statistics
from truenorm.torch._dispatch import normalize, usual_call
from truenorm.torch._formula import Fixed
from truenorm.torch._inputs import Opened, may_look, opened

OnSingle = Literal["error", "running"]
Norms = tuple[str, str]  # with channels second, and with channels last; as `spec.text_of` writes them
P = ParamSpec("P")
R = TypeVar("R")


def batch_norm(
    input: Any,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    valid: Any = None,
    lengths: Any = None,
    offsets: Any = None,
    sample_weight: Any = None,
    padding: Padding = "zero",
    on_single: OnSingle = "error",
) -> Any:
    """Batch normalization over the real values of each channel (axis 1; the last axis of packed rows)."""
    form = opened(input, valid, lengths, offsets, sample_weight, sequences=False)
    _check_choices(padding, on_single)
    y, _ = batch_norm_of(
        form, running_mean, running_var, weight, bias, training, momentum, eps, padding, on_single, None, _batch(eps)
    )
    return form.close(y)


def batch_norm_of(
    form: Opened,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float | Tensor,
    eps: float,
    padding: Padding,
    on_single: OnSingle,
    counter: Tensor | None,
    norms: Norms,
) -> tuple[Tensor, int]:
    """y, and what became of the running statistics: see `statistics.update`."""
    x, told = form.x, form.told
    if training and eps <= 0:
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    channels = _channels(form)
    norm, last = norms
    norm = last if form.packed or x.dim() == 2 else norm
    if (running_mean is None) != (running_var is None):
        if told:
            raise ValueError("batch_norm: running_mean and running_var both, or neither, got one of them.")
        return torch_functional.batch_norm(x, running_mean, running_var, weight, bias, training, 0.0, eps), 0  # raises
    if training and (call := usual_call(x, norm, weight, bias, told, padding)) is not None:
        several = call.native.real_elements > channels
        if several and running_mean is None and running_var is None:
            if counter is not None:  # as torch does
                counter.add_(1)
            return call.run(x, weight, bias), statistics.NOTHING
        kept = running_mean is not None and running_var is not None
        if several and kept and running_mean.shape == (channels,) == running_var.shape:  # type: ignore[union-attr]
            y = call.run(x, weight, bias)
            if statistics.recomputing():
                return y, statistics.NOTHING
            return y, statistics.update_from(call, running_mean, running_var, momentum, counter)  # type: ignore[arg-type]
    if _theirs(form) or not _usual(form, channels, eps, weight, bias, running_mean, running_var):
        factor = float(momentum)
        y = torch_functional.batch_norm(x, running_mean, running_var, weight, bias, training, factor, eps)
        moved = training and running_mean is not None
        if moved and counter is not None:
            counter.add_(1)
        return y, statistics.MOVED if moved else statistics.NOTHING

    def with_running() -> Tensor:
        if running_mean is None or running_var is None:
            raise ValueError("batch_norm: running_mean and running_var where it is not training, got None.")
        fixed = Fixed(running_mean, running_var)
        return normalize(x, norm, weight, bias, told, fixed=fixed, padding=padding, last=last)[0]

    if not training:
        return with_running(), statistics.NOTHING
    fallback = on_single == "running" and running_mean is not None
    if not told:
        if fallback and x.numel() == channels:
            return with_running(), statistics.NOTHING
        torch_functional._verify_batch_size(x.size() if not form.packed else [len(x), channels])  # type: ignore[attr-defined]
    y, table = normalize(x, norm, weight, bias, told, padding=padding, last=last)
    assert table is not None
    if _single(form, table):
        if fallback:
            return with_running(), statistics.NOTHING
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {x.size()} with 1 valid"
        )
    done = statistics.NOTHING
    if running_mean is not None and running_var is not None and not statistics.recomputing():
        done = statistics.update(table, running_mean, running_var, momentum, counter)
    return y, done


def layer_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    valid: Any = None,
    lengths: Any = None,
    offsets: Any = None,
    sample_weight: Any = None,
    padding: Padding = "zero",
) -> Any:
    """Layer normalization of each position over its last axes."""
    _check_choices(padding)
    shape = tuple(normalized_shape)
    norm = _layer(len(shape), eps, True) if shape and eps >= 0 else ""
    return layer_norm_of(
        opened(input, valid, lengths, offsets, sample_weight, rows_only=True), shape, weight, bias, eps, padding, norm
    )


def layer_norm_of(
    form: Opened,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    padding: Padding,
    norm: str,
) -> Any:
    """`layer_norm` of what is opened."""
    call = usual_call(form.x, norm, weight, bias, form.told, padding)
    if call is not None and call.covers(shape):
        return form.close(call.run(form.x, weight, bias))
    if _theirs(form) or not _usual_last(form, shape, eps, weight, bias):
        return form.close(torch_functional.layer_norm(form.x, shape, weight, bias, eps))
    y, _ = normalize(form.x, norm, weight, bias, form.told, padding=padding, moments=False)
    return form.close(y)


def rms_norm(
    input: Any,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    valid: Any = None,
    lengths: Any = None,
    offsets: Any = None,
    sample_weight: Any = None,
    padding: Padding = "zero",
) -> Any:
    """RMS normalization of each position over its last axes. eps None: torch's choice, by the dtype."""
    _check_choices(padding)
    shape = tuple(normalized_shape)
    norm = _layer(len(shape), eps, False) if shape and eps is not None and eps >= 0 else None
    return rms_norm_of(
        opened(input, valid, lengths, offsets, sample_weight, rows_only=True), shape, weight, eps, padding, norm
    )


def rms_norm_of(
    form: Opened, shape: tuple[int, ...], weight: Tensor | None, eps: float | None, padding: Padding, norm: str | None
) -> Any:
    """`rms_norm` of what is opened."""
    if norm is None:
        norm = _layer(len(shape), _rms_eps(form.x.dtype), False) if eps is None and shape else ""
    call = usual_call(form.x, norm, weight, None, form.told, padding)
    if call is not None and call.covers(shape):
        return form.close(call.run(form.x, weight, None))
    if _theirs(form) or not _usual_last(form, shape, eps, weight):
        return form.close(torch_functional.rms_norm(form.x, shape, weight, eps))
    y, _ = normalize(form.x, norm, weight, None, form.told, padding=padding, moments=False)
    return form.close(y)


def _rms_eps(dtype: torch.dtype) -> float:
    """Half and bfloat16 are summed in float32, and take its eps."""
    return float(torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps)


def group_norm(
    input: Any,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    valid: Any = None,
    lengths: Any = None,
    offsets: Any = None,
    sample_weight: Any = None,
    padding: Padding = "zero",
) -> Any:
    """Group normalization of each sample, over its real positions and the channels of a group."""
    _check_choices(padding)
    norms = _group(num_groups, eps) if num_groups > 0 and eps >= 0 else ("", "")
    return group_norm_of(
        opened(input, valid, lengths, offsets, sample_weight, sequences=True),
        num_groups,
        weight,
        bias,
        eps,
        padding,
        norms,
    )


def group_norm_of(
    form: Opened,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    padding: Padding,
    norms: Norms,
) -> Any:
    """`group_norm` of what is opened."""
    x = form.x
    channels = _channels(form)
    call = usual_call(x, norms[0], weight, bias, form.told, padding)
    several = channels > num_groups if form.told else x.numel() > x.shape[0] * num_groups
    if call is not None and several:  # else there may be an error to say
        return form.close(call.run(x, weight, bias))
    if form.told and num_groups > 0 and channels % num_groups:
        raise ValueError(f"num_groups: divides the channels of x, got {num_groups} for {channels}.")
    if _theirs(form) or num_groups <= 0 or channels % num_groups or not _usual(form, channels, eps, weight, bias):
        return form.close(torch_functional.group_norm(x, num_groups, weight, bias, eps))
    if not form.told:
        sizes = [x.size(0) * x.size(1) // num_groups, num_groups, *x.size()[2:]]
        torch_functional._verify_batch_size(sizes)  # type: ignore[attr-defined]
    norm, last = norms
    y, table = normalize(x, last if form.packed else norm, weight, bias, form.told, padding=padding, last=last)
    _check_not_single(form, table)
    return form.close(y)


def instance_norm(
    input: Any,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    valid: Any = None,
    lengths: Any = None,
    offsets: Any = None,
    sample_weight: Any = None,
    padding: Padding = "zero",
) -> Any:
    """Instance normalization of each sample and channel, over its real positions."""
    form = opened(input, valid, lengths, offsets, sample_weight, sequences=True)
    _check_choices(padding)
    y, _ = instance_norm_of(
        form,
        running_mean,
        running_var,
        weight,
        bias,
        use_input_stats,
        momentum,
        eps,
        padding,
        _instance(eps),
        _batch(eps),
    )
    return form.close(y)


def instance_norm_of(
    form: Opened,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    padding: Padding,
    norms: Norms,
    fixed_norms: Norms,
) -> tuple[Tensor, int]:
    """y, and what became of the running statistics. fixed_norms: for these, which are the same for every sample."""
    x, told = form.x, form.told
    channels = _channels(form)
    if _theirs(form) or not _usual(form, channels, eps, weight, bias, running_mean, running_var):
        y = torch_functional.instance_norm(x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        return y, statistics.NOTHING
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError("Expected running_mean and running_var to be defined when use_input_stats is false")
        norm, last = fixed_norms
        fixed = Fixed(running_mean, running_var)
        y, _ = normalize(x, last if form.packed else norm, weight, bias, told, fixed=fixed, padding=padding, last=last)
        return y, statistics.NOTHING
    if not told and not form.packed:
        torch_functional._verify_spatial_size(x.size())  # type: ignore[attr-defined]
    norm, last = norms
    y, table = normalize(x, last if form.packed else norm, weight, bias, told, padding=padding, last=last)
    _check_not_single(form, table)
    done = statistics.NOTHING
    if running_mean is not None and running_var is not None and not statistics.recomputing():
        assert table is not None
        done = statistics.update(statistics.averaged(table), running_mean, running_var, momentum)
    return y, done


# ---- shared ----


def _theirs(form: Opened) -> bool:
    """Whether torch's own operator is the one to call: off the CPU, in other layouts and for tracers of torch's own
    operators, where nothing is told."""
    if form.told or form.packed:
        return False
    x = form.x
    if not x.is_cpu or x.is_nested or x.layout != torch.strided or torch._C._get_tracing_state() is not None:
        return True
    return torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export()


def _channels(form: Opened) -> int:
    x = form.x
    return x.shape[-1 if form.packed else 1] if x.dim() > 1 else -1


def _usual(form: Opened, channels: int, eps: float, *parameters: Tensor | None) -> bool:
    """Whether the arguments fit each other. Where they do not and nothing is told, torch knows what to say."""
    _check_eps(form, eps)
    told = bool(form.told) or form.packed
    for one in parameters:
        if one is not None and one.shape != (channels,):
            if told:
                raise ValueError(f"x: as many channels as the layer has, {one.numel()}, got {channels}.")
            return False
    if told:
        return True
    return channels >= 0 and eps >= 0 and form.x.is_floating_point()


def _usual_last(form: Opened, shape: tuple[int, ...], eps: float | None, *parameters: Tensor | None) -> bool:
    x = form.x
    _check_eps(form, eps)
    if not shape or x.shape[-len(shape) :] != shape or not (eps is None or eps >= 0):
        return False
    for one in parameters:
        if one is not None and one.shape != shape:
            return False
    return x.is_floating_point()


def _check_eps(form: Opened, eps: float | None) -> None:
    if (form.told or form.packed) and eps is not None and not 0 <= eps < math.inf:
        raise ValueError(f"eps: finite and >= 0, got {eps}.")


def _single(form: Opened, table: Tensor | NDArray[Any]) -> bool:
    """Whether no statistic has more than one real value, as far as that may be looked at."""
    if not form.told or "sample_weight" in form.told or (isinstance(table, Tensor) and not may_look(table)):
        return False
    counts = table[..., 0]
    return 0 not in counts.shape and float(counts.max()) == 1


def _check_not_single(form: Opened, table: Tensor | NDArray[Any] | None) -> None:
    if table is not None and _single(form, table):
        raise ValueError(
            f"Expected more than 1 value per channel when training, got input size {form.x.size()} with 1 valid"
        )


def _check_choices(padding: str = "zero", on_single: str = "error") -> None:
    if padding not in PADDINGS:
        raise ValueError(f"padding: {' or '.join(map(repr, PADDINGS))}, got {padding!r}.")
    if on_single not in get_args(OnSingle):
        raise ValueError(f"on_single: {' or '.join(map(repr, get_args(OnSingle)))}, got {on_single!r}.")


# Normalizations as text: with channels second, and with channels last.


def _constant(make: Callable[P, R]) -> Callable[P, R]:
    """Made once for the same arguments; a graph that is compiled takes the result as it is."""
    cached: Any = lru_cache(maxsize=256)(make)

    def constant(*args: P.args, **kwargs: P.kwargs) -> R:
        found: R = cached(*args, **kwargs)
        return found

    marked: Callable[P, R] = torch.compiler.assume_constant_result(constant)  # type: ignore[no-untyped-call]
    return marked


@_constant
def _batch(eps: float) -> tuple[str, str]:
    return text_of(spec.batch("second", eps=eps)), text_of(spec.batch(eps=eps))


@_constant
def _instance(eps: float) -> tuple[str, str]:
    return text_of(spec.instance("second", eps=eps)), text_of(spec.instance(eps=eps))


@_constant
def _group(groups: int, eps: float) -> tuple[str, str]:
    return text_of(spec.group(groups, "second", eps=eps)), text_of(spec.group(groups, eps=eps))


@_constant
def _layer(axes: int, eps: float, center: bool) -> str:
    """Over the last so many axes, with a weight for each of their elements."""
    names = " ".join([*(f"n{i}" for i in range(1, axes)), "c"])
    return text_of(Norm(f"... [{names}]", eps=eps, center=center, affine=None if axes == 1 else names))
