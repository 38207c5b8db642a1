"""What every implementation must give: float64, plain NumPy, on the real elements alone.

It shares no code with truenorm, nor with the peers: it takes the real elements out, piece by piece, and never sees a
mask or a broadcast count. `tests/test_bench.py` holds it to finite differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.problem import Array, Problem


@dataclass(frozen=True, eq=False)
class Expected:
    """A value, and the size of what was added up to get it: float32 errors are measured against that."""

    value: Array
    scale: Array | np.float64


def solve(problem: Problem, *, masked: bool = True) -> dict[str, Expected]:
    """y, dx, dweight and dbias. With `masked=False` all elements are real: what the usual layers compute.

    Each piece is seen as groups x channels-in-group x elements. Batch and instance norm have as many groups as
    channels; layer and RMS norm have one, and average over its channels only.
    """
    size, kind = problem.weight.size, problem.case.kind
    groups = {"batch": size, "instance": size, "group": problem.case.groups, "layer": 1, "rms": 1}[kind]
    axes = 1 if kind in ("layer", "rms") else (1, 2)
    x, dy = (np.moveaxis(array, _channel_axis(problem), 0) for array in (problem.x, problem.dy))
    weight, bias = (_wide(array, groups) for array in (problem.weight, problem.bias))
    y, dx = (np.zeros(x.shape) for _ in range(2))
    sums = np.zeros((4, size))  # dweight, dbias, and the sizes of their terms
    for real in _pieces(problem, masked):
        x_piece, dy_piece = (_wide(array[:, real], groups) for array in (x, dy))
        mean = x_piece.mean(axes, keepdims=True) if problem.centered else 0.0
        rstd = 1 / np.sqrt(((x_piece - mean) ** 2).mean(axes, keepdims=True) + problem.case.eps)
        xhat, dxhat = (x_piece - mean) * rstd, dy_piece * weight
        through_mean = dxhat.mean(axes, keepdims=True) if problem.centered else 0.0
        through_rstd = xhat * (dxhat * xhat).mean(axes, keepdims=True)
        y[:, real] = (xhat * weight + bias).reshape(size, -1)
        dx[:, real] = (rstd * (dxhat - through_mean - through_rstd)).reshape(size, -1)
        terms = (dy_piece * xhat, dy_piece)
        sums += [part.sum(-1).ravel() for part in (*terms, *map(abs, terms))]
    expected = {
        name: Expected(np.moveaxis(value, 0, _channel_axis(problem)), np.max(abs(value)))
        for name, value in {"y": y, "dx": dx}.items()
    }
    expected["dweight"] = Expected(sums[0], sums[2])
    if problem.bias is not None:
        expected["dbias"] = Expected(sums[1], sums[3])
    return expected


def _channel_axis(problem: Problem) -> int:
    return 1 if problem.case.channels == "second" else problem.x.ndim - 1


def _wide(array: Array | None, groups: int) -> Array:
    """groups x channels-in-group x elements, in float64; without a bias, 0."""
    if array is None:
        return np.zeros((1, 1, 1))
    return array.astype(np.float64).reshape(groups, len(array) // groups, -1)


def _pieces(problem: Problem, masked: bool) -> Iterator[Array]:
    """The real positions, as booleans: all at once, or sample by sample where each has its own statistics."""
    positions = list(problem.x.shape)
    positions.pop(_channel_axis(problem))
    real = np.ones(positions, bool)
    if masked and problem.lengths is not None:
        for sample, length in enumerate(problem.lengths):
            real[sample, length:] = False
    if problem.case.kind not in ("instance", "group"):
        yield real
        return
    for sample in range(len(real)):
        alone = np.zeros_like(real)
        alone[sample] = real[sample]
        yield alone
