"""Running statistics of a layer, in its own buffers: `truenorm.core.running` for tensors, in place.

Never a non-finite value, never twice for one batch (a forward that runs inside a backward is a recomputation), and a
channel without enough elements stays as it was. Where values may not be looked at, on other devices and under compile,
all of it is `where`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from truenorm import engine
from truenorm.torch._dispatch import check_memory

MOVED, NOTHING, NOT_FINITE = 1, 0, -1
UNREAD = 2  # by the kernels, where they are
DDOF = 1  # torch normalises with n and stores with n - 1


def recomputing() -> bool:
    """Whether this forward runs inside a backward: activation checkpointing does it again."""
    return not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1


def update(
    table: Tensor | NDArray[Any], mean: Tensor, var: Tensor, momentum: float | Tensor, counter: Tensor | None = None
) -> int:
    """Move the buffers towards a batch (channels, 3). Returns what became of it, as far as that may be known."""
    check_memory(running_mean=mean, running_var=var)
    if isinstance(table, np.ndarray) and _usual(mean, var, counter):
        at, at_var, at_counter = _at(mean), _at(var), None if counter is None else _at(counter)
        done: int = engine.compiled().update_running(table, at, at_var, float(momentum), DDOF, at_counter)
        return _told_torch(done, mean, var, counter)
    return _update(as_tensor(table, mean), mean, var, momentum, counter)


def update_from(call: Any, mean: Tensor, var: Tensor, momentum: float | Tensor, counter: Tensor | None) -> int:
    """`update` with the moments of a kernel's call, which need not leave it."""
    done: int = call.native.update_running(mean, var, float(momentum), DDOF, counter)
    if done == UNREAD:
        return update(call.moments, mean, var, momentum, counter)
    return _told_torch(done, mean, var, counter)


def _told_torch(done: int, mean: Tensor, var: Tensor, counter: Tensor | None) -> int:
    """They moved behind torch's back: whoever kept them for a backward must hear of it."""
    if done == MOVED:
        torch._C._increment_version((mean, var) if counter is None else (mean, var, counter))
    return done


def as_tensor(table: Tensor | NDArray[Any], like: Tensor) -> Tensor:
    """Moments where the buffers are."""
    return torch.from_numpy(table).to(like.device) if isinstance(table, np.ndarray) else table


def _at(buffer: Tensor) -> tuple[int, int, str]:
    return buffer.data_ptr(), buffer.numel(), _FORMATS[buffer.dtype]


def _usual(mean: Tensor, var: Tensor, counter: Tensor | None) -> bool:
    """Whether the kernels can move these buffers where they are."""
    return (
        mean.dtype in _FLOATS
        and mean.dtype is var.dtype
        and _plain(mean)
        and _plain(var)
        and (counter is None or (counter.dtype is torch.int64 and _plain(counter)))
        and not torch._C._are_functorch_transforms_active()
    )


def _plain(buffer: Tensor) -> bool:
    return type(buffer) is Tensor and buffer.is_cpu and buffer.is_contiguous() and not buffer.is_neg()


_FLOATS = (torch.float32, torch.float64)
_FORMATS = {torch.float32: "f", torch.float64: "d", torch.int64: "q"}


# Without no_grad: an exported graph that holds one cannot be loaded again. Nothing here has a gradient anyway.
def _update(table: Tensor, mean: Tensor, var: Tensor, momentum: float | Tensor, counter: Tensor | None) -> int:
    count, batch_mean, m2 = (one.reshape(mean.shape) for one in table.unbind(-1))
    batch_var = m2 / (count - DDOF).clamp(min=1e-30)
    enough = count > DDOF
    moved = []
    for buffer, new in ((mean, batch_mean), (var, batch_var)):
        wide = buffer.to(table.dtype)
        moved.append(torch.where(enough, wide + momentum * (new - wide), wide).to(buffer.dtype))
    finite = ((torch.isfinite(batch_mean) & torch.isfinite(m2)) | (count == 0)).all()
    for one in moved:  # what is finite here may not be so in float32
        finite = finite & (torch.isfinite(one) | ~enough).all()
    seen = enough & finite
    for buffer, one in zip((mean, var), moved, strict=True):
        buffer.copy_(torch.where(seen, one, buffer))
    if counter is not None:
        counter.add_(seen.any())
    return MOVED


def averaged(table: Tensor | NDArray[Any]) -> Tensor | NDArray[Any]:
    """(samples, channels, 3) -> (channels, 3): what torch's instance norm stores, the mean over samples of their means
    and of their variances with n - 1, told as moments of two elements."""
    if isinstance(table, np.ndarray):
        found = averaged(torch.from_numpy(table))
        return np.ascontiguousarray(found)
    count, mean, m2 = table.unbind(-1)
    seen = count > DDOF
    samples = seen.sum(0)
    some = samples.clamp(min=1)

    def over_samples(values: Tensor) -> Tensor:
        return torch.where(seen, values, 0.0).sum(0) / some

    var = over_samples(m2 / (count - DDOF).clamp(min=1e-30))
    return torch.stack([torch.where(samples > 0, 2.0, 0.0).to(mean.dtype), over_samples(mean), var], -1)
