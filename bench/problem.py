"""What is computed: the inputs of one benchmark, the same for every implementation."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Kind = Literal["batch", "layer", "rms", "instance", "group"]
Array = NDArray[Any]


@dataclass(frozen=True)
class Case:
    """A problem before its arrays are made; `seed` makes them the same everywhere.

    shape      (n, c) or (b, t, c); with `channels="second"` (b, c, t)
    ragged     draw one length for each sample, uniform in 1..t
    """

    kind: Kind
    shape: tuple[int, ...]
    channels: Literal["last", "second"] = "last"
    ragged: bool = False
    groups: int = 1
    seed: int = 0
    eps: float = 1e-5

    def problem(self) -> Problem:
        """Draw the arrays. Weights are odd and padding is not zero: a wrong backward or mask must show."""
        rng = np.random.default_rng(self.seed)
        size = self.shape[1 if self.channels == "second" else -1]
        weight, bias = (rng.uniform(0.5, 1.5, size).astype(np.float32) for _ in range(2))
        x, dy = (rng.standard_normal(self.shape, np.float32) for _ in range(2))
        x += np.float32(0.25)
        lengths = None
        if self.ragged:
            steps = self.shape[2 if self.channels == "second" else 1]
            lengths = rng.integers(1, steps, self.shape[0], endpoint=True)
        problem = Problem(self, x, dy, weight, None if self.kind == "rms" else bias, lengths)
        if problem.mask is not None:
            x[...] = np.where(problem.mask, x, 1 - x)
        return problem


@dataclass(frozen=True, eq=False)
class Problem:
    """The arrays, and how they broadcast, for the peers that are written out as formulas."""

    case: Case
    x: Array
    dy: Array
    weight: Array
    bias: Array | None
    lengths: Array | None

    @cached_property
    def mask(self) -> Array | None:
        """True where x is real, of the rank of x. Made outside the clock: a model makes it once for all layers."""
        if self.lengths is None:
            return None
        second = self.case.channels == "second"
        steps = np.arange(self.x.shape[2 if second else 1])
        return np.expand_dims(steps < self.lengths[:, None], 1 if second else 2)

    @property
    def split(self) -> tuple[int, ...]:
        """The shape of x with channels split into groups: then one set of axes is averaged over."""
        if self.case.kind != "group":
            return self.x.shape
        samples, channels, steps = self.x.shape
        return (samples, self.case.groups, channels // self.case.groups, steps)

    @property
    def split_mask(self) -> Array | None:
        """`mask`, to broadcast against `split`."""
        return self.mask[:, None] if self.mask is not None and self.case.kind == "group" else self.mask

    @property
    def axes(self) -> tuple[int, ...]:
        """The axes of `split` that share one mean and variance."""
        rank = len(self.split)
        match self.case.kind:
            case "batch":
                return tuple(range(rank - 1))
            case "group":
                return (2, 3)
            case _:
                return (rank - 1,)

    @property
    def affine(self) -> tuple[int, ...]:
        """The shape that weight and bias take against `split`."""
        match self.case.kind:
            case "group":
                return (*self.split[1:3], 1)
            case "instance":
                return (self.weight.size, 1)
            case _:
                return (self.weight.size,)

    @property
    def centered(self) -> bool:
        return self.case.kind != "rms"

    @property
    def count(self) -> Array | np.float32:
        """How many elements share each statistic, to broadcast against `split`."""
        sizes = [self.split[axis] for axis in self.axes]
        if self.split_mask is None:
            return np.float32(np.prod(sizes))
        whole = [size for axis, size in zip(self.axes, sizes, strict=True) if self.split_mask.shape[axis] == 1]
        return np.sum(self.split_mask, self.axes, np.float32, keepdims=True) * np.float32(np.prod(whole))

    @property
    def valid_bytes(self) -> int:
        """The bytes of x that are real."""
        if self.mask is None:
            return self.x.nbytes
        return int(self.mask.sum()) * (self.x.nbytes // self.mask.size)

    @property
    def needed_bytes(self) -> int:
        """What a forward must move: y once, and the real x once for each pass over it.

        Batch norm must see all rows before it can normalise the first: two reads. Every other statistic covers at
        most a few hundred kB, which stay in cache between its two passes: one read.
        """
        return self.x.nbytes + (2 if self.case.kind == "batch" else 1) * self.valid_bytes
