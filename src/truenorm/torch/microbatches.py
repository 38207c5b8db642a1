"""`together`: micro-batches that are normalized as the one batch that they are parts of.

Gradient accumulation gives the gradients of the whole batch, except in batch norms, whose statistics are those of each
micro-batch. Here the micro-batches run side by side, each in a thread of its own, and wait for each other at every
batch norm, as ranks do: each brings its moments, and all go on with those of the whole. Outputs, gradients and buffers
are those of one big batch.

Micro-batches may have different shapes, so nothing has to be padded. One thread runs at a time, in a fixed order, so
random numbers are drawn in the same order each time.

**Memory.** All activations of all micro-batches are kept until the backward, as for one big batch: nothing is saved by
itself. What lowers it: `torch.autograd.graph.save_on_cpu`, or `torch.utils.checkpoint` with `use_reentrant=False`,
inside `forward`. A recomputed batch norm finds the statistics that it had by the checkpoint and the number of the call.
They are kept with the checkpoint, not with the layer. So is the state of the random numbers: those that come after the
batch norm follow on what other micro-batches have drawn while this one waited.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from truenorm.torch import _compat, _running
from truenorm.torch._batch_norms import Named, batch_norms
from truenorm.torch._batches import Forward, call_model
from truenorm.torch._formula import merge_tables
from truenorm.torch._pooled import Exchange
from truenorm.torch.tracking.activation import padding_is_followed


def together(model: nn.Module, microbatches: Sequence[Any], forward: Forward | None = None) -> list[Any]:
    """Run micro-batches that are normalized as one batch. Then call one backward on all outputs.

    Args:
        model: with truenorm's batch norms: `convert` it first
        microbatches: inputs of the model, each a tensor, a tuple or list that begins with it, or a dict of arguments
        forward: called with the model and a micro-batch instead: for other arguments, and for contexts such as
            `padded` and `save_on_cpu`, which hold only for the thread that enters them

    Returns:
        the outputs, one for each micro-batch

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer, whole = tnt.BatchNorm1d(1), torch.tensor([[1.0], [2.0], [6.0]])
        >>> torch.cat(tnt.together(layer, [whole[:1], whole[1:]])).flatten()
        tensor([-0.9258, -0.4629,  1.3887], grad_fn=<ViewBackward0>)
    """
    layers = batch_norms("together", model)
    if padding_is_followed():
        raise RuntimeError(
            "together: call it outside of padded, got an active context, which holds for one thread only. Enter padded "
            "in the function that you pass as forward=."
        )
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

    with meeting_in(layers, meeting), ThreadPoolExecutor(len(batches)) as threads:
        try:
            futures = [threads.submit(context.copy().run, run, index) for index in range(len(batches))]
            wait(futures)
        except BaseException as error:  # an interrupt, or no more threads: those that run stop at their next layer
            meeting.stop(error)
            raise
    if meeting.error is not None:
        raise meeting.error
    return [future.result() for future in futures]


def _state_of_this_thread() -> Callable[[], Any]:
    """A context that gives another thread what torch keeps for each: gradients, autocast, default device, stream."""
    gradients, inference = torch.is_grad_enabled(), torch.is_inference_mode_enabled()
    casts = [(one, torch.get_autocast_dtype(one)) for one in ("cpu", "cuda") if torch.is_autocast_enabled(one)]
    cuda: Any = torch.cuda
    default = torch.get_default_device()
    stream = cuda.current_stream() if cuda.is_available() and cuda.is_initialized() else None

    @contextmanager
    def enter() -> Iterator[None]:
        with ExitStack() as stack:
            if stream is not None:
                stack.enter_context(cuda.stream(stream))
            if default.type != "cpu":  # each function of torch takes longer inside
                stack.enter_context(default)
            stack.enter_context(torch.inference_mode(inference))
            stack.enter_context(torch.set_grad_enabled(gradients))
            for device, dtype in casts:
                stack.enter_context(torch.autocast(device, dtype=dtype))
            yield

    return enter


# ---- where the micro-batches meet ----


class _Stopped(BaseException):
    """Ends a micro-batch because another one failed. A model that catches every Exception does not catch it."""


class Meeting:
    """Lets threads run one at a time, in order, each until it comes to a batch norm or ends."""

    def __init__(self, count: int) -> None:
        self.count, self.turn = count, 0
        self.ended: set[int] = set()
        self.changed = threading.Condition()
        self.rounds: dict[int, list[tuple[str, Tensor, bool] | None]] = {}
        self.mine = threading.local()  # index, and the number of the round
        self.gradients = torch.is_grad_enabled()  # of the caller
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
        except BaseException as error:
            _compat.leave_checkpoints(error)
            if not isinstance(error, _Stopped):
                self.stop(error)
            raise
        finally:
            with self.changed:
                self.ended.add(index)
            self._pass_on()

    def stop(self, error: BaseException) -> None:
        """End all micro-batches: those that wait at once, the one that runs at its next batch norm."""
        with self.changed:
            self.error = self.error or error
            self.changed.notify_all()

    def bring(self, name: str, table: Tensor, weighted: bool) -> tuple[list[Tensor], bool]:
        """The tables of all micro-batches at this layer, and whether one of them has sample weights."""
        if self.error is not None:
            raise _Stopped
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
        error = RuntimeError(
            f"together: all micro-batches must run the same layers in the same order, but one came to {name!r} when "
            f"another {other}."
        )
        self.stop(error)  # also if the model catches it
        return error

    def _pass_on(self) -> None:
        with self.changed:
            for _ in range(self.count):
                self.turn = (self.turn + 1) % self.count
                if self.turn not in self.ended:
                    break
            self.changed.notify_all()

    def _wait(self) -> None:
        with self.changed:
            self.changed.wait_for(lambda: self.error is not None or self.turn == self.mine.index)
        if self.error is not None:
            raise _Stopped


# ---- what a checkpoint recomputes ----


@dataclass(frozen=True)
class RecordedCall:
    """What a batch norm got from the meeting. before, after: the states of random numbers when it came and went on."""

    name: str
    table: Tensor
    weighted: bool
    before: list[Tensor]
    after: list[Tensor]

    def restore_random_numbers(self) -> None:
        """So that dropout behind the batch norm draws what it drew; not if the checkpoint does not preserve them."""
        if _states_are_equal(self.before, self.after) or not _states_are_equal(self.before, _random_states(self.table)):
            return
        torch.set_rng_state(self.after[0])
        for state in self.after[1:]:
            torch.cuda.set_rng_state(state, self.table.device)


def _random_states(table: Tensor) -> list[Tensor]:
    """Of the CPU, and of the device that a table is on."""
    return [torch.get_rng_state(), *([torch.cuda.get_rng_state(table.device)] if table.is_cuda else [])]


def _states_are_equal(one: list[Tensor], other: list[Tensor]) -> bool:
    return all(map(torch.equal, one, other))


@dataclass(eq=False)
class Recorded:
    """The calls of batch norms in one checkpoint, in their order."""

    calls: list[RecordedCall] = field(default_factory=list)
    backward: int = -1  # the number of the backward pass that recomputes them
    position: int = 0

    def next(self, name: str) -> tuple[Tensor, bool]:
        if self.backward != _compat.backward_pass():
            self.backward, self.position = _compat.backward_pass(), 0
        found = self.calls[self.position] if self.position < len(self.calls) else None
        self.position += 1
        if found is None or found.name != name:
            raise RuntimeError(
                f"together: {name!r} was recomputed where "
                f"{'nothing' if found is None else repr(found.name)} was computed before. Let the function that is "
                "checkpointed run the same layers again."
            )
        found.restore_random_numbers()
        return found.table, found.weighted


# By the checkpoint, as long as it may be recomputed.
_recorded: WeakKeyDictionary[Any, Recorded] = WeakKeyDictionary()


def _recomputed() -> Recorded | None:
    """The calls of the checkpoint that is being recomputed, if `together` ran it."""
    if not _recorded or not _running.recomputing():
        return None
    checkpoint = _compat.recomputed_checkpoint()
    return None if checkpoint is None else _recorded.get(checkpoint)


class ThreadExchange(Exchange):
    """The exchange of one layer while `together` runs; afterwards, in what is recomputed of it."""

    def __init__(self, meeting: Meeting, name: str) -> None:
        self.meeting: Meeting | None = meeting
        self.name = name

    def is_active(self) -> bool:
        if self.meeting is not None and not hasattr(self.meeting.mine, "index"):
            raise RuntimeError(
                f"together: {self.name!r} is called by another thread while micro-batches run. Call it later."
            )
        return self.meeting is not None or _recomputed() is not None

    def updates_running(self) -> bool:
        return self.meeting is not None and self.meeting.mine.index == 0

    def is_needed(self) -> bool:
        """Whether micro-batches run, or may be recomputed in a backward."""
        return self.meeting is not None or bool(_recorded)

    def __reduce__(self) -> Any:
        """None: the copy of a layer, or its pickle, is not a part of what runs."""
        return type(None), ()

    def pool(self, table: Tensor, weighted: bool, differentiable: bool) -> tuple[Tensor, bool]:
        if self.meeting is None:
            recorded = _recomputed()
            assert recorded is not None
            return recorded.next(self.name)
        checkpoint = self._checkpoint(self.meeting.gradients)
        before = [] if checkpoint is None else _random_states(table)
        tables, weighted = self.meeting.bring(self.name, table, weighted)
        pooled: Tensor = pool_microbatches(*tables)
        if checkpoint is not None:
            # With the same need of a gradient: a checkpoint counts what is saved.
            again = pooled.detach().requires_grad_(pooled.requires_grad)
            one = RecordedCall(self.name, again, weighted, before, _random_states(table))
            _recorded.setdefault(checkpoint, Recorded()).calls.append(one)
        return pooled, weighted

    def _checkpoint(self, gradients: bool) -> Any:
        """The activation checkpoint that this call is in, or None."""
        if not torch.is_grad_enabled():
            if gradients and _compat.name_of_autograd_function() is not None:
                raise RuntimeError(
                    f"together: {self.name!r} is in a checkpoint with use_reentrant=True. Use use_reentrant=False."
                )
            return None
        found = _compat.checkpoints_in_forward()
        if len(found) > 1:
            raise RuntimeError(
                f"together: {self.name!r} is in a checkpoint inside another one. Use one of them, not both."
            )
        if found and found[0] is None:
            raise RuntimeError(
                f"together: {self.name!r} is in a checkpoint, which cannot be followed in torch {torch.__version__}. "
                "Use torch.autograd.graph.save_on_cpu instead."
            )
        return found[0] if found else None


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


_entering = threading.Lock()


@contextmanager
def meeting_in(layers: Named, meeting: Meeting) -> Iterator[None]:
    exchanges = [ThreadExchange(meeting, name) for name, _ in layers]
    with _entering:
        for name, layer in layers:
            old = layer._exchange
            if not isinstance(old, ThreadExchange | None):
                raise ValueError(f"together: layers that are not synchronized, got {name!r}. Call unsync(model) first.")
            if old is not None and old.meeting is not None:
                raise RuntimeError(
                    f"together: one call at a time for each layer, got {name!r}, which runs micro-batches already."
                )
        for (_, layer), exchange in zip(layers, exchanges, strict=True):
            layer.__dict__["_exchange"] = exchange
    try:
        yield
    finally:
        for (_, layer), exchange in zip(layers, exchanges, strict=True):
            exchange.meeting = None
            if not _recorded:
                layer.__dict__.pop("_exchange", None)
