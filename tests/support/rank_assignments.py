"""Every way to give samples to ranks, on ranks that stay: one group and one layer for many of them.

Which of all assignments are taken: 6 samples on 1, 2, 3 and 4 ranks have 1 + 64 + 729 + 4096 assignments. Ranks are
alike but for their number, so of the assignments that only differ in the names of ranks one is taken: a partition of
the samples into at most as many parts as ranks, 1 + 32 + 122 + 187. The ranks that get its parts change from one to the
next, so that each of them has each role, the empty one too. Samples are not taken to be alike: they have different
values and different lengths.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import torch
from rank_cases import CHANNELS, DTYPES, LENGTHS, SAMPLES, STEPS, assert_close, normal, odd_layer
from torch import distributed as dist
from torch import nn

import truenorm.torch as tnt

Assignment = tuple[tuple[int, ...], ...]  # the samples of each rank
CROSS = list(itertools.product(DTYPES, (False, True), (False, True)))  # dtype, lengths, affine


def partitions(samples: int, most: int) -> Iterator[list[list[int]]]:
    """All partitions of the samples 0 to samples - 1 into at most so many parts, none of them empty."""
    if not samples:
        yield []
        return
    for parts in partitions(samples - 1, most):
        for i in range(len(parts)):
            yield [[*part, samples - 1] if i == j else part for j, part in enumerate(parts)]
        if len(parts) < most:
            yield [*parts, [samples - 1]]


def assignments(world: int) -> list[Assignment]:
    """One of each partition; the parts go to other ranks each time."""
    names = itertools.cycle(itertools.permutations(range(world)))
    found = []
    for parts in partitions(SAMPLES, world):
        given: list[tuple[int, ...]] = [()] * world
        for rank, part in zip(next(names), parts, strict=False):
            given[rank] = tuple(part)
        found.append(tuple(given))
    return found


class Problem:
    """Data and a layer of one kind, and what torch's own batch norm makes of them in float64: valid values alone."""

    def __init__(self, number: int) -> None:
        self.dtype, self.ragged, self.affine = CROSS[number]
        dtype, affine = self.dtype, self.affine
        self.x = (normal(SAMPLES, CHANNELS, STEPS, seed=number) + torch.tensor([5.0, -3.0, 0.5])[:, None]).to(dtype)
        self.dy = normal(SAMPLES, CHANNELS, STEPS, seed=number + 1000).to(dtype)
        self.lengths = torch.tensor(LENGTHS) if self.ragged else torch.full((SAMPLES,), STEPS)
        rows = torch.arange(STEPS) < self.lengths[:, None]  # (samples, steps)
        oracle = odd_layer(torch.float64, affine, nn.BatchNorm1d)
        if affine:
            with torch.no_grad():  # the parameters that the layer really has
                for one, other in zip(oracle.parameters(), odd_layer(dtype).parameters(), strict=True):
                    one.copy_(other)
        packed = self.x.transpose(1, 2)[rows].double().requires_grad_()
        y = oracle(packed)
        y.backward(self.dy.transpose(1, 2)[rows].double())
        self.y, self.dx = torch.zeros(2, SAMPLES, STEPS, CHANNELS, dtype=torch.float64)
        self.y[rows], self.dx[rows] = y.detach(), packed.grad
        self.gradients = [one.grad for one in oracle.parameters()]
        self.buffers = [one.double().reshape(-1) for one in oracle.buffers()]
        self.layer = odd_layer(dtype, affine)
        tnt.sync(self.layer)

    def check(self, rank: int, assignment: Assignment) -> None:
        """Outputs, gradients and buffers of this rank; gradients summed over ranks; buffers bit for bit on all."""
        layer, what = self.layer, f"{assignment}, {self.dtype}, lengths {self.ragged}, affine {self.affine}"
        layer.reset_running_stats()
        layer.zero_grad()
        mine = torch.tensor(assignment[rank], dtype=torch.long)
        part = self.x[mine].requires_grad_()
        found = layer(part, lengths=self.lengths[mine] if self.ragged else None)
        found.backward(self.dy[mine])
        assert_close(found.detach().transpose(1, 2), self.y[mine], self.dtype, f"y of {what}")
        assert_close(part.grad.transpose(1, 2), self.dx[mine], self.dtype, f"dx of {what}")
        gradients = [one.grad.double() for one in layer.parameters()]
        buffers = [one.double().reshape(-1) for one in layer.buffers()]
        message = torch.cat([*gradients, *buffers])
        rows = [torch.empty_like(message) for _ in assignment]
        dist.all_gather(rows, message)
        everywhere, sizes = torch.stack(rows), [len(one) for one in gradients]
        # DistributedDataParallel averages a mean loss: the same up to that factor.
        totals = torch.split(everywhere[:, : sum(sizes)].sum(0), sizes)
        for total, expected in zip(totals, self.gradients, strict=True):
            assert_close(total, expected, self.dtype, f"dweight or dbias of {what}")
        for one, expected in zip(buffers, self.buffers, strict=True):
            assert_close(one, expected, torch.float32, f"buffers of {what}")
        equal = everywhere[:, sum(sizes) :] == everywhere[:1, sum(sizes) :]
        assert bool(equal.all()), f"buffers differ between ranks: {what}"


def assignments_equal_one_process(rank: int, world: int, cases: Iterable[tuple[Assignment, int]]) -> int:
    """cases: an assignment, and which of CROSS. Returns how many there were."""
    problems = [Problem(number) for number in range(len(CROSS))]
    count = 0
    for assignment, number in cases:
        problems[number].check(rank, assignment)
        count += 1
    return count
