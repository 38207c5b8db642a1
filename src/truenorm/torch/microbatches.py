"""`together`: micro-batches that are normalized as the one batch that they are parts of.

Gradient accumulation gives the gradients of the whole batch, except in batch norms, whose statistics are those of each
micro-batch. Here the micro-batches run side by side, each in a thread of its own, and wait for each other at every
batch norm, as ranks do: each brings its moments, and all go on with those of the whole. Outputs, gradients and buffers
are those of one big batch.

Micro-batches may have different shapes, so nothing has to be padded. One thread runs at a time, in a fixed order, so
random numbers are drawn in the same order each time.

**Memory.** All activations of all micro-batches are kept until the backward, as for one big batch: nothing is saved by
itself. What lowers it: `torch.autograd.graph.save_on_cpu`, or `torch.utils.checkpoint` with `use_reentrant=False`,
inside `forward`. A recomputed batch norm finds the statistics that it had.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from truenorm.torch import _compat, _running
from truenorm.torch._pooled import Exchange
from truenorm.torch._processes import merge_tables
from truenorm.torch.conversion import _check_model
from truenorm.torch.layers import _BatchNorm

Forward = Callable[[Any, Any], Any]


def together(model: nn.Module, microbatches: Sequence[Any], forward: Forward | None = None) -> list[Any]:
    """The outputs of the micro-batches, normalized as one batch. Then call one backward on all of them.

    microbatches   inputs of the model, each a tensor, a tuple or list that begins with it, or a dict of arguments
    forward        called with the model and a micro-batch instead: for other arguments, and for contexts such as
                   `padded` and `save_on_cpu`, which hold only for the thread that enters them

    >>> from truenorm.torch import BatchNorm1d
    >>> layer, whole = BatchNorm1d(1), torch.tensor([[1.0], [2.0], [6.0]])
    >>> torch.cat(together(layer, [whole[:1], whole[1:]])).flatten()
    tensor([-0.9258, -0.4629,  1.3887], grad_fn=<ViewBackward0>)
    """
    _check_model("together", model)
    batches = list(microbatches)
    if not batches:
        raise ValueError("together: at least one micro-batch, got none.")
    meeting = Meeting(len(batches))
    call = forward or call_model
    context = contextvars.copy_context()
    enter = _state_of_this_thread()

    def run(index: int) -> Any:
        with meeting.taking_part(index), enter():
            return call(model, batches[index])

    with meeting_in(model, meeting), ThreadPoolExecutor(len(batches)) as threads:
        futures = [threads.submit(context.copy().run, run, index) for index in range(len(batches))]
    if meeting.error is not None:
        raise meeting.error
    return [future.result() for future in futures]


def call_model(model: Any, batch: Any) -> Any:
    """The model's output for a batch: a tensor, a tuple or list that begins with the input, or a dict of arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)


def _state_of_this_thread() -> Callable[[], Any]:
    """A context that gives another thread what torch keeps for each thread: gradients, autocast, the CUDA stream."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = [(one, torch.get_autocast_dtype(one)) for one in ("cpu", "cuda") if torch.is_autocast_enabled(one)]
    cuda: Any = torch.cuda
    stream = cuda.current_stream() if cuda.is_available() and cuda.is_initialized() else None

    @contextmanager
    def enter() -> Iterator[None]:
        with ExitStack() as stack:
            if stream is not None:
                stack.enter_context(cuda.stream(stream))
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for device, dtype in casts:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            yield

    return enter


# ---- where the micro-batches meet ----


class _Stopped(Exception):  # noqa: N818 - not an error: another micro-batch had one
    """Ends a micro-batch that waits for one that failed."""


class Meeting:
    """Lets threads run one at a time, in order, each until it comes to a batch norm or ends."""

    def __init__(self, count: int) -> None:
        self.count, self.turn = count, 0
        self.changed = threading.Condition()
        self.rounds: dict[int, list[tuple[str, Tensor, bool] | None]] = {}
        self.mine = threading.local()  # index, and the number of the round
        self.error: BaseException | None = None

    @contextmanager
    def taking_part(self, index: int) -> Iterator[None]:
        self.mine.index, self.mine.round = index, 0
        try:
            self._wait()
            yield
            for left in self.rounds.get(self.mine.round, []):
                if left is not None:
                    raise self._disagreement(left[0], "had ended")
        except _Stopped:
            raise
        except BaseException as error:
            self.error = self.error or error
            raise
        finally:
            self._pass_on()

    def bring(self, name: str, table: Tensor, weighted: bool) -> tuple[list[Tensor], bool]:
        """The tables of all micro-batches at this layer, and whether one of them has sample weights."""
        index, number = self.mine.index, self.mine.round
        parts = self.rounds.setdefault(number, [None] * self.count)
        parts[index] = name, table, weighted
        others = [part[0] for part in parts if part is not None and part[0] != name]
        if others or (index > 0 and parts[0] is None):
            raise self._disagreement(name, f"was at {others[0]!r}" if others else "had ended")
        self._pass_on()
        self._wait()
        if any(part is None for part in parts):
            raise self._disagreement(name, "had ended")
        if index == self.count - 1:
            del self.rounds[number]
        self.mine.round += 1
        found = [part for part in parts if part is not None]
        return [one for _, one, _ in found], any(weighted for _, _, weighted in found)

    def _disagreement(self, name: str, other: str) -> RuntimeError:
        return RuntimeError(
            f"together: all micro-batches must run the same layers in the same order, but one came to {name!r} when "
            f"another {other}."
        )

    def _pass_on(self) -> None:
        with self.changed:
            self.turn = (self.turn + 1) % self.count
            self.changed.notify_all()

    def _wait(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.turn == self.mine.index)
        if self.error is not None:
            raise _Stopped


class ThreadExchange(Exchange):
    """The exchange of one layer while `together` runs. Afterwards it serves forwards that are recomputed in backward.

    The statistics are found by the micro-batch's own, which are the same bits again.
    """

    def __init__(self, meeting: Meeting, name: str) -> None:
        self.meeting: Meeting | None = meeting
        self.name = name
        # By the bytes of a micro-batch's own table: that of all, and whether the forward was differentiable.
        self.pooled: dict[bytes, tuple[Tensor, bool, bool]] = {}

    def is_active(self) -> bool:
        return self.meeting is not None or _running.recomputing()

    def updates_running(self) -> bool:
        return self.meeting is not None and self.meeting.mine.index == 0

    def pool(self, table: Tensor, weighted: bool, differentiable: bool) -> tuple[Tensor, bool]:
        if self.meeting is None:
            found = self.pooled.get(_bytes_of(table))
            if found is None:
                raise RuntimeError(
                    f"together: {self.name!r} was recomputed from other values than before. Call backward before the "
                    "next step, and let checkpoint preserve the state of random numbers."
                )
            if differentiable and not found[2]:
                raise RuntimeError(
                    f"together: {self.name!r} is in a checkpoint with use_reentrant=True. Use use_reentrant=False."
                )
            return found[0], found[1]
        tables, weighted = self.meeting.bring(self.name, table, weighted)
        pooled: Tensor = pool_microbatches(*tables)
        if _compat.saved_tensors_are_hooked() or not torch.is_grad_enabled():  # as inside of a checkpoint
            self.pooled[_bytes_of(table)] = pooled.detach(), weighted, differentiable
        return pooled, weighted


def _bytes_of(table: Tensor) -> bytes:
    return table.detach().cpu().numpy().tobytes()


class PoolMicrobatches(torch.autograd.Function):
    """Forward: the table of all. Backward: the sums, to all; autograd adds those that come from all."""

    @staticmethod
    def forward(ctx: Any, *tables: Tensor) -> Tensor:
        ctx.count = len(tables)
        return merge_tables(torch.stack(tables))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, sums: Tensor) -> tuple[Tensor, ...]:
        return (sums,) * int(ctx.count)


pool_microbatches: Any = PoolMicrobatches.apply


@contextmanager
def meeting_in(model: nn.Module, meeting: Meeting) -> Iterator[None]:
    layers = [(name, layer) for name, layer in model.named_modules() if isinstance(layer, _BatchNorm)]
    for name, layer in layers:
        if isinstance(layer._exchange, ThreadExchange | None):
            continue
        raise ValueError(f"together: layers that are not synchronized, got {name!r}. Call unsync(model) first.")
    exchanges = [ThreadExchange(meeting, name) for name, _ in layers]
    for (_, layer), exchange in zip(layers, exchanges, strict=True):
        vars(layer)["_exchange"] = exchange
    try:
        yield
    finally:
        for (_, layer), exchange in zip(layers, exchanges, strict=True):
            exchange.meeting = None
            if not exchange.pooled:
                vars(layer).pop("_exchange", None)
