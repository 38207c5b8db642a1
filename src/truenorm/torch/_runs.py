"""What each normalization computes for an unpacked input, with its checks and its running statistics.

The functions of `functional.py` and the layers call these. `_dispatch.run` chooses who computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import functional as torch_functional

from truenorm.core.activation import check_activation
from truenorm.core.inputs import PADDINGS, Padding
from truenorm.torch import _compat, _pooled, _running
from truenorm.torch._batch_checks import is_single, max_count, refuse_channels, refuse_single, warn_of_empty_mask
from truenorm.torch._dispatch import run
from truenorm.torch._formula import FixedStatistics
from truenorm.torch._half_life import HalfLife
from truenorm.torch._inputs import UnpackedInput
from truenorm.torch._kernel import table_of
from truenorm.torch._norms import NormPair, Norms
from truenorm.torch._pooled import Exchange
from truenorm.torch._running import Momentum

OnSingle = Literal["error", "running"]


def run_batch_norm(
    input: UnpackedInput,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: Momentum,
    eps: float,
    padding: Padding,
    on_single: OnSingle,
    counter: Tensor | None,
    norms: NormPair,
    exchange: Exchange | None = None,
    skipped: Callable[[], Tensor | None] | None = None,
) -> tuple[Tensor, int]:
    """y, and what was done to the running statistics: see `_running`. exchange: if x is a part of a batch.

    skipped: gives what batches that are not finite are counted in.
    """
    x = input.x
    axes = x.shape
    shape = (axes[-1 if input.packed else 1] if len(axes) > 1 else -1,)

    batch: list[Any] = []  # mean and variance, where torch's operator has measured and not updated

    def operator() -> Tensor:
        mean, var, weight_of_batch = running_mean, running_var, 1.0
        if not isinstance(momentum, HalfLife):
            weight_of_batch = float(momentum)
        elif mean is not None and var is not None:
            mean, var = torch.zeros_like(mean), torch.zeros_like(var)
            batch[:] = mean, var
        affine = _as_wide_as(mean, weight, bias)
        return torch_functional.batch_norm(x, mean, var, *affine, training, weight_of_batch, eps)

    norm = norms[1] if input.packed or x.dim() == 2 else norms[0]
    if training and eps <= 0:
        if input.ragged is None:
            operator()  # raises: the text of the message depends on the version of torch
        raise ValueError(f"batch_norm eps must be positive during training, but got {eps}")
    if (running_mean is None) != (running_var is None):
        if input.ragged is not None:
            raise ValueError("running_mean and running_var must both be given, or neither, got one of them. Pass both.")
        return operator(), _running.NOTHING  # raises

    def with_running_statistics(mean: Tensor | None = running_mean, var: Tensor | None = running_var) -> Tensor:
        if mean is None or var is None:
            raise ValueError(
                "running_mean and running_var must be given unless training, got None. Pass both, or training=True."
            )
        fixed = FixedStatistics(mean, var)

        def by_position(x: Tensor) -> Tensor:
            return torch_functional.batch_norm(x, mean, var, *_as_wide_as(mean, weight, bias), False, 0.0, eps)

        return run(input, norm, weight, bias, padding, shape, operator, fixed, (), eps, by_position=by_position)[0]

    if not training:
        return with_running_statistics(), _running.NOTHING
    most, buffers = 2, (running_mean, running_var)
    if exchange is None:
        refuse = on_single == "error" or running_mean is None
        y, moments = run(input, norm, weight, bias, padding, shape, operator, None, buffers, eps, refuse_single=refuse)
        if moments is None and batch:
            moments = _running.table_of_statistics(batch[0], batch[1], x.numel() // shape[0])
        elif moments is None:  # torch's operator has updated the running statistics
            moved = running_mean is not None
            if moved and counter is not None:
                counter.add_(1)
            return y, _running.MOVED if moved else _running.NOTHING
        if isinstance(moments, Tensor) or moments.max_count <= 1:
            most = max_count(input, moments)
        if not refuse and running_mean is not None and running_var is not None:
            single = is_single(input, moments)
            if single is not None:  # of copies: the buffers may change before backward
                y = torch.where(single, with_running_statistics(running_mean.clone(), running_var.clone()), y)
    else:
        y, moments, most = _pooled.normalize(exchange, input, norm, weight, bias, padding, shape, buffers)
    if most <= 1:
        if most == 1 and on_single == "running" and running_mean is not None:
            return with_running_statistics(), _running.NOTHING
        if most == 1:
            if exchange is not None:
                exchange.take_back()
            refuse_single(input, operator if exchange is None else None)
        elif input.ragged is not None and input.ragged.valid is not None and x.numel():
            warn_of_empty_mask()
    if running_mean is None or running_var is None:
        if counter is not None:  # as torch does
            counter.add_(1)
        return y, _running.NOTHING
    if not isinstance(moments, Tensor):
        done = _running.update_from_call(moments, running_mean, running_var, momentum, counter)
        if done != _running.UNWRITABLE:
            return y, done
        if running_mean.numel() != shape[0] or running_var.numel() != shape[0]:
            refuse_channels(input, shape[0], running_mean, running_var, operator)
        moments = table_of(moments)
    elif _running.recomputing() or (exchange is not None and not exchange.updates_running()):
        return y, _running.NOTHING
    return y, _running.update(moments, running_mean, running_var, momentum, counter, _call(skipped))


def run_layer_norm(
    input: UnpackedInput,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    padding: Padding,
    norm: Norms,
) -> Tensor:
    def operator(x: Tensor = input.x) -> Tensor:
        return torch_functional.layer_norm(x, shape, weight, bias, eps)

    return run(input, norm, weight, bias, padding, shape, operator, None, (), eps, False, operator)[0]


def run_rms_norm(
    input: UnpackedInput,
    shape: tuple[int, ...],
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float | None,
    padding: Padding,
    norms: tuple[Norms, Norms],
) -> Tensor:
    """bias: None; here for the arguments of `run_layer_norm`."""

    def operator(x: Tensor = input.x) -> Tensor:
        return torch_functional.rms_norm(x, shape, weight, eps)

    norm = norms[1] if input.x.dtype is torch.float64 else norms[0]  # `rms_norms_of`, without a call
    # Elsewhere torch composes it, and keeps more than x.
    by_position = operator if input.x.is_cuda or _compat.is_exporting() else None
    return run(input, norm, weight, None, padding, shape, operator, None, (), eps, False, by_position)[0]


def rms_norms_of(x: Any, norms: tuple[Norms, Norms]) -> Norms:
    """Those for its dtype, which torch's choice of eps depends on."""
    return norms[1] if isinstance(x, Tensor) and x.dtype is torch.float64 else norms[0]


def run_group_norm(
    input: UnpackedInput,
    num_groups: int,
    weight: Tensor | None,
    bias: Tensor | None,
    eps: float,
    padding: Padding,
    norms: NormPair,
) -> Tensor:
    axes = input.x.shape
    channels = axes[-1 if input.packed else 1] if len(axes) > 1 else -1

    def operator() -> Tensor:
        return torch_functional.group_norm(input.x, num_groups, weight, bias, eps)

    norm = norms[1] if input.packed else norms[0]
    if num_groups > 0 and channels % num_groups:
        if input.ragged is not None:
            raise ValueError(f"num_groups: divides the channels of x, got {num_groups} for {channels}.")
        return operator()  # raises
    y, moments = run(input, norm, weight, bias, padding, (channels,), operator, None, (), eps, refuse_single=True)
    if moments is None or (not isinstance(moments, Tensor) and moments.max_count > 1):
        return y
    if max_count(input, moments) == 1 and (input.ragged is not None or len(input.x) == 1):
        refuse_single(input, operator)
    return y


def run_instance_norm(
    input: UnpackedInput,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    use_input_stats: bool,
    momentum: float,
    eps: float,
    padding: Padding,
    norms: NormPair,
    fixed_norms: NormPair,
    skipped: Callable[[], Tensor | None] | None = None,
) -> tuple[Tensor, int]:
    """y, and what was done to the running statistics. fixed_norms: for these, which all samples share."""
    axes = input.x.shape
    channels = axes[-1 if input.packed else 1] if len(axes) > 1 else -1

    def operator() -> Tensor:
        return torch_functional.instance_norm(
            input.x, running_mean, running_var, weight, bias, use_input_stats, momentum, eps
        )

    fixed = None
    if not use_input_stats:
        if running_mean is None or running_var is None:
            raise RuntimeError("Expected running_mean and running_var to be defined when use_input_stats is false")
        fixed, norms = FixedStatistics(running_mean, running_var), fixed_norms
    norm = norms[1] if input.packed else norms[0]
    buffers = (running_mean, running_var)
    y, moments = run(input, norm, weight, bias, padding, (channels,), operator, fixed, buffers, eps, refuse_single=True)
    if moments is None:
        return y, _running.NOTHING
    if (isinstance(moments, Tensor) or moments.max_count <= 1) and max_count(input, moments) == 1:
        refuse_single(input, operator)
    if running_mean is None or running_var is None or _running.recomputing():
        return y, _running.NOTHING
    if running_mean.numel() != channels or running_var.numel() != channels:
        refuse_channels(input, channels, running_mean, running_var, operator)
    table = moments if isinstance(moments, Tensor) else table_of(moments)
    table = _running.average_samples(table.reshape(-1, channels, 3))
    return y, _running.update(table, running_mean, running_var, momentum, None, _call(skipped))


def _as_wide_as(
    buffer: Tensor | None, weight: Tensor | None, bias: Tensor | None
) -> tuple[Tensor | None, Tensor | None]:
    """weight and bias for torch's operator, which takes running statistics in float32 only with these in float32."""
    if buffer is None or buffer.dtype != torch.float32:
        return weight, bias
    wide = [one.float() if one is not None and one.dtype in _HALF else one for one in (weight, bias)]
    return wide[0], wide[1]


_HALF = (torch.float16, torch.bfloat16)


def _call(skipped: Callable[[], Tensor | None] | None) -> Tensor | None:
    return None if skipped is None else skipped()


def check_options(padding: str = "zero", on_single: str = "error", activation: str | None = None) -> None:
    if activation is not None:
        check_activation("activation:", activation)
    if padding not in PADDINGS:
        raise ValueError(f"padding: {' or '.join(map(repr, PADDINGS))}, got {padding!r}.")
    if on_single not in get_args(OnSingle):
        raise ValueError(f"on_single: {' or '.join(map(repr, get_args(OnSingle)))}, got {on_single!r}.")
