"""The inputs of one benchmark case, the same for every implementation."""

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
    """What to normalise, and how. `seed` makes the arrays the same on every machine.

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

    def make_inputs(self) -> Inputs:
        """Draw the arrays. Weights are irregular and padding is not zero, so that a wrong gradient or mask shows."""
        rng = np.random.default_rng(self.seed)
        size = self.shape[1 if self.channels == "second" else -1]
        weight, bias = (rng.uniform(0.5, 1.5, size).astype(np.float32) for _ in range(2))
        x, dy = (rng.standard_normal(self.shape, np.float32) for _ in range(2))
        x += np.float32(0.25)
        lengths = None
        if self.ragged:
            steps = self.shape[2 if self.channels == "second" else 1]
            lengths = rng.integers(1, steps, self.shape[0], endpoint=True)
        inputs = Inputs(self, x, dy, weight, None if self.kind == "rms" else bias, lengths)
        if inputs.mask is not None:
            x[...] = np.where(inputs.mask, x, 1 - x)
        return inputs


@dataclass(frozen=True, eq=False)
class Inputs:
    """The arrays, and the shapes in which they broadcast for the peers that are written as formulas."""

    case: Case
    x: Array
    dy: Array
    weight: Array
    bias: Array | None
    lengths: Array | None

    @cached_property
    def mask(self) -> Array | None:
        """True where x is valid, with the rank of x. Not timed: a model makes its mask once for all layers."""
        if self.lengths is None:
            return None
        second = self.case.channels == "second"
        steps = np.arange(self.x.shape[2 if second else 1])
        return np.expand_dims(steps < self.lengths[:, None], 1 if second else 2)

    @property
    def split(self) -> tuple[int, ...]:
        """The shape of x with the channels split into groups. `axes` are axes of this shape."""
        if self.case.kind != "group":
            return self.x.shape
        samples, channels, steps = self.x.shape
        return (samples, self.case.groups, channels // self.case.groups, steps)

    @property
    def split_mask(self) -> Array | None:
        """`mask` in a shape that broadcasts against `split`."""
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
        """The shape of weight and bias that broadcasts against `split`."""
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
        """The number of elements in each statistic, in a shape that broadcasts against `split`."""
        sizes = [self.split[axis] for axis in self.axes]
        if self.split_mask is None:
            return np.float32(np.prod(sizes))
        whole = [size for axis, size in zip(self.axes, sizes, strict=True) if self.split_mask.shape[axis] == 1]
        return np.sum(self.split_mask, self.axes, np.float32, keepdims=True) * np.float32(np.prod(whole))

    @property
    def valid_bytes(self) -> int:
        """The bytes of x that are valid."""
        if self.mask is None:
            return self.x.nbytes
        return int(self.mask.sum()) * (self.x.nbytes // self.mask.size)

    @property
    def needed_bytes(self) -> int:
        """The bytes that a forward pass must move: y once, and the valid part of x once for each pass over it.

        Batch norm reads x twice: it needs all rows before it can normalise the first. Each statistic of the other
        norms covers at most a few hundred kB, which stay in the cache between the two passes, so they read x once.
        """
        return self.x.nbytes + (2 if self.case.kind == "batch" else 1) * self.valid_bytes
