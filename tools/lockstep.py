"""The oracle for batch norm in training: sequences run one at a time, without padding, and meet only in batch norms.

Each sequence runs through torch's own model in a thread of its own. At a batch norm the threads wait for each other;
the frames of all are laid end to end, torch's own layer normalizes them, and each thread goes on with its own. There
is no padding anywhere, and no code of truenorm.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Meeting:
    """A point where all threads bring a tensor (1, c, ...), and each leaves with its part of the function of all."""

    def __init__(self, count: int) -> None:
        self.parts: list[Tensor | None] = [None] * count
        self.results: list[Tensor] = []
        self.barrier = threading.Barrier(count)
        self.turn = threading.Lock()  # one thread runs at a time: models keep caches

    def together(self, index: int, x: Tensor, function: Callable[[Tensor], Tensor]) -> Tensor:
        self.parts[index] = x
        self.turn.release()
        try:
            if self.barrier.wait(timeout=60) == 0:
                flat = [part.flatten(2) for part in self.parts if part is not None]
                done = function(torch.cat(flat, 2)).split([part.shape[2] for part in flat], 2)
                self.results = [
                    one.clone().reshape(part.shape)  # torch refuses to write in place into views of a split
                    for one, part in zip(done, self.parts, strict=True)
                    if part is not None
                ]
            self.barrier.wait(timeout=60)
            result = self.results[index]
            self.barrier.wait(timeout=60)
        finally:
            self.turn.acquire()
        return result


def run_in_lockstep(model: nn.Module, inputs: list[Any], call: Callable[[nn.Module, Any], Any]) -> list[Any]:
    """`call(model, one)` for each input, with batch statistics over all of them."""
    meeting, index = Meeting(len(inputs)), threading.local()

    def run(number: int) -> Any:
        index.value = number
        with meeting.turn:
            try:
                return call(model, inputs[number])
            except BaseException:
                meeting.barrier.abort()
                raise

    norms = [layer for layer in model.modules() if isinstance(layer, nn.BatchNorm1d | nn.BatchNorm2d)]
    with meeting_in(norms, meeting, index), ThreadPoolExecutor(len(inputs)) as threads:
        return list(threads.map(run, range(len(inputs))))


def normalize(layer: Any, x: Tensor) -> Tensor:
    """torch's own layer over (1, c, frames)."""
    return (
        type(layer).forward(layer, x)
        if isinstance(layer, nn.BatchNorm1d)
        else type(layer).forward(layer, x[..., None])[..., 0]
    )


@contextmanager
def meeting_in(norms: list[Any], meeting: Meeting, index: threading.local) -> Iterator[None]:
    def forward_of(layer: Any) -> Callable[[Tensor], Tensor]:
        return lambda x: meeting.together(index.value, x, lambda y: normalize(layer, y))

    for layer in norms:
        layer.forward = forward_of(layer)
    try:
        yield
    finally:
        for layer in norms:
            del layer.forward
