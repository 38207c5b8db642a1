"""Running statistics of a layer, in its own buffers: `truenorm.core.running` for tensors, in place.

A batch with a non-finite value changes nothing, a batch counts once (a forward inside a backward is a recomputation),
and a channel with too few elements stays as it was. Where values cannot be read without a synchronisation, on other
devices and under compile, `where` selects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from truenorm import engine
from truenorm.torch import _compat
from truenorm.torch._half_life import HalfLife
from truenorm.torch._inputs import values_are_readable
from truenorm.torch._kernel import check_memory, is_readable, native

if TYPE_CHECKING:
    from truenorm import _native

MOVED, NOTHING, NOT_FINITE, UNWRITABLE = 1, 0, -1, 2  # as `Call.update_running` returns them
DDOF = 1  # torch normalises with n and stores with n - 1
Momentum = float | Tensor | HalfLife  # the weight of the new batch, or what it follows from


def recomputing() -> bool:
    """Whether this forward runs inside a backward, as in activation checkpointing."""
    return not torch.compiler.is_compiling() and _compat.backward_pass() != -1


def update_from_call(call: _native.Call, mean: Tensor, var: Tensor, momentum: Momentum, counter: Tensor | None) -> int:
    """`update` with the moments of a kernel's call; UNWRITABLE, and nothing done, if it cannot write these buffers."""
    if _compat.backward_pass() != -1:
        return NOTHING
    if isinstance(momentum, HalfLife):
        return UNWRITABLE
    done = call.update_running(mean, var, float(momentum), DDOF, counter)
    if done == MOVED:
        # The buffers were changed outside of torch.
        _compat.mark_changed((mean, var) if counter is None else (mean, var, counter))
    return done


def update(
    table: Tensor,
    mean: Tensor,
    var: Tensor,
    momentum: Momentum,
    counter: Tensor | None = None,
    skipped: Tensor | None = None,
) -> int:
    """Move the buffers towards a batch (channels, 3). Returns what was done, as far as that can be known.

    counter   counts the batches that moved them
    skipped   counts those that were not finite, where that cannot be known: it is then not returned
    """
    if (
        not isinstance(momentum, HalfLife)
        and engine.compiled() is not None
        and _is_writable(mean, var, counter)
        and is_readable(table)
    ):
        arrays = (one.detach().numpy() for one in (mean, var))
        counts = None if counter is None else counter.reshape(1).numpy()
        done: int = native.update_running(table.contiguous().numpy(), *arrays, float(momentum), DDOF, counts)
        if done == MOVED:
            _compat.mark_changed((mean, var) if counter is None else (mean, var, counter))
        return done
    if _compat.transform_is_active():
        # The buffers may be from outside of the transform, which refuses operations that change them. Statistics have
        # no derivative, so the values behind the transform are written, as torch's own operators do.
        given = (table, mean, var, momentum, counter, skipped)
        behind: list[Any] = [_compat.values_behind_transforms(one) if isinstance(one, Tensor) else one for one in given]
        if isinstance(momentum, HalfLife):
            values = _compat.values_behind_transforms(momentum.values)
            behind[3] = None if values is None else momentum._replace(values=values)
        if all(one is not None for one in behind[:-2]):
            with _compat.outside_transforms():
                return _update_with_torch(*behind)
        skipped = None  # many models at once, with one counter
    return _update_with_torch(table, mean, var, momentum, counter, skipped)


def _update_with_torch(
    table: Tensor,
    mean: Tensor,
    var: Tensor,
    momentum: Momentum,
    counter: Tensor | None,
    skipped: Tensor | None,
) -> int:
    check_memory(running_mean=mean, running_var=var)
    count, batch_mean, m2 = (one.reshape(mean.shape).to(mean.device) for one in table.unbind(-1))
    batch_var = m2 / (count - DDOF).clamp(min=1e-30)
    enough = count > DDOF
    weight: Any = momentum
    if isinstance(momentum, HalfLife):
        total = momentum.values.to(table.dtype) + count
        weight = momentum.weight_of(count, total)
    moved = []
    # Without no_grad: an exported graph that holds one cannot be loaded again. Nothing here has a gradient anyway.
    for buffer, new in ((mean, batch_mean), (var, batch_var)):
        wide = buffer.to(table.dtype)
        moved.append(torch.where(enough, ema_update(wide, new, weight), wide).to(buffer.dtype))
    finite = ((torch.isfinite(batch_mean) & torch.isfinite(m2)) | (count == 0)).all()
    for one in moved:  # what is finite here may not be so in float32
        finite = finite & (torch.isfinite(one) | ~enough).all()
    chosen = enough & finite
    for buffer, one in zip((mean, var), moved, strict=True):
        buffer.copy_(torch.where(chosen, one, buffer))
    if isinstance(momentum, HalfLife):
        momentum.values.copy_(torch.where(chosen, total.to(momentum.values.dtype), momentum.values))
    if counter is not None:
        counter.add_(chosen.any())
    if skipped is not None:
        skipped.add_(~finite)
        return MOVED
    if not values_are_readable(finite):
        return MOVED
    return (MOVED if bool(chosen.any()) else NOTHING) if bool(finite) else NOT_FINITE


def ema_update(old: Tensor, new: Tensor, momentum: float | Tensor) -> Tensor:
    """`momentum` is the weight of the new value."""
    return old + momentum * (new - old)


def _is_writable(mean: Tensor, var: Tensor, counter: Tensor | None) -> bool:
    """Whether the kernels can write these buffers in place."""
    return (
        mean.dtype in (torch.float32, torch.float64)
        and mean.dtype is var.dtype
        and (counter is None or (counter.dtype is torch.int64 and is_readable(counter)))
        and all(is_readable(one) and one.is_contiguous() for one in (mean, var))
    )


def table_of_statistics(mean: Tensor, var: Tensor, count: int) -> Tensor:
    """(channels, 3): the moments of a batch whose mean and variance with n - 1 torch's operator has computed."""
    wide = torch.promote_types(mean.dtype, torch.float32)
    columns = torch.full_like(mean, count, dtype=wide), mean.to(wide), var.to(wide) * max(count - DDOF, 0)
    return torch.stack(columns, -1)


def average_samples(table: Tensor) -> Tensor:
    """(samples, channels, 3) -> (channels, 3): what torch's instance norm stores, the mean over samples of their means
    and of their variances with n - 1, as moments of two elements."""
    count, mean, m2 = table.unbind(-1)
    enough = count > DDOF
    samples = enough.sum(0)

    def over_samples(values: Tensor) -> Tensor:
        return torch.where(enough, values, 0.0).sum(0) / samples.clamp(min=1)

    var = over_samples(m2 / (count - DDOF).clamp(min=1e-30))
    return torch.stack([torch.where(samples > 0, 2.0, 0.0).to(mean.dtype), over_samples(mean), var], -1)
