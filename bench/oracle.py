"""The expected results of a case: float64 NumPy, computed from the valid elements only.

It shares no code with truenorm or with the peers: it takes the valid elements out, sample by sample, and uses neither
masks nor broadcast counts. `tests/bench/test_oracle.py` compares it with finite differences.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.inputs import Array, Inputs


@dataclass(frozen=True, eq=False)
class Expected:
    """A value, and the magnitude of the terms that were summed for it. Errors are relative to `scale`."""

    value: Array
    scale: Array | np.float64


def expected_results(inputs: Inputs, *, ignore_padding: bool = True) -> dict[str, Expected]:
    """y, dx, dweight and dbias. `ignore_padding=False` counts padding as data, as torch's layers do.

    Each part of x is viewed as groups x channels in a group x elements. Batch and instance norm have as many groups as
    channels; layer and RMS norm have one, and average over its channels only.
    """
    size, kind = inputs.weight.size, inputs.case.kind
    groups = {"batch": size, "instance": size, "group": inputs.case.groups, "layer": 1, "rms": 1}[kind]
    axes = 1 if kind in ("layer", "rms") else (1, 2)
    x, dy = (np.moveaxis(array, _channel_axis(inputs), 0) for array in (inputs.x, inputs.dy))
    weight, bias = (_wide(array, groups) for array in (inputs.weight, inputs.bias))
    y, dx = (np.zeros(x.shape) for _ in range(2))
    sums = np.zeros((4, size))  # dweight, dbias, and the magnitudes of their terms
    for valid in _parts(inputs, ignore_padding):
        x_part, dy_part = (_wide(array[:, valid], groups) for array in (x, dy))
        mean = x_part.mean(axes, keepdims=True) if inputs.centered else 0.0
        rstd = 1 / np.sqrt(((x_part - mean) ** 2).mean(axes, keepdims=True) + inputs.case.eps)
        xhat, dxhat = (x_part - mean) * rstd, dy_part * weight
        through_mean = dxhat.mean(axes, keepdims=True) if inputs.centered else 0.0
        through_rstd = xhat * (dxhat * xhat).mean(axes, keepdims=True)
        y[:, valid] = (xhat * weight + bias).reshape(size, -1)
        dx[:, valid] = (rstd * (dxhat - through_mean - through_rstd)).reshape(size, -1)
        terms = (dy_part * xhat, dy_part)
        sums += [part.sum(-1).ravel() for part in (*terms, *map(abs, terms))]
    expected = {
        name: Expected(np.moveaxis(value, 0, _channel_axis(inputs)), np.max(abs(value)))
        for name, value in {"y": y, "dx": dx}.items()
    }
    expected["dweight"] = Expected(sums[0], sums[2])
    if inputs.bias is not None:
        expected["dbias"] = Expected(sums[1], sums[3])
    return expected


def _channel_axis(inputs: Inputs) -> int:
    return 1 if inputs.case.channels == "second" else inputs.x.ndim - 1


def _wide(array: Array | None, groups: int) -> Array:
    """The array as groups x channels in a group x elements, in float64; 0 without a bias."""
    if array is None:
        return np.zeros((1, 1, 1))
    return array.astype(np.float64).reshape(groups, len(array) // groups, -1)


def _parts(inputs: Inputs, ignore_padding: bool) -> Iterator[Array]:
    """Masks of the valid positions: one for all samples, or one a sample where each has its own statistics."""
    positions = list(inputs.x.shape)
    positions.pop(_channel_axis(inputs))
    valid = np.ones(positions, bool)
    if ignore_padding and inputs.lengths is not None:
        for sample, length in enumerate(inputs.lengths):
            valid[sample, length:] = False
    if inputs.case.kind not in ("instance", "group"):
        yield valid
        return
    for sample in range(len(valid)):
        alone = np.zeros_like(valid)
        alone[sample] = valid[sample]
        yield alone
