"""Diagnostics of a network during training: a few numbers for each layer.

    layers        mean, std and histogram of a layer's output; for activations also `saturated`, the share of outputs
                  where the gradient vanishes: |tanh| > 0.97, sigmoid within 0.015 of 0 or 1, ReLU and GELU at 0
    updates       std and Euclidean norm of a parameter's gradient; `update`, lr · std / std of the parameter: about
                  1e-3 is healthy
    inputs        mean and std of the input of each linear layer
    drift         how far these have moved since the first report, in units of the first std
    running_lag   how far the running means are from those of the last batch, in units of the running std
    running       mean and std of the first CHANNELS channels: of the last batch, and running

Each report runs one forward pass over up to PROBE_EXAMPLES held-out examples.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.lab.data import Examples
from truenorm.lab.layers import GELU, ForwardContext, Layer, Linear, Normalize, ReLU, Sigmoid, Tanh
from truenorm.lab.networks import Network

Array = NDArray[Any]
PROBE_EXAMPLES = 128
CHANNELS = 4
BINS, LIMIT = 20, 3.0  # of histograms, from -LIMIT to LIMIT; values beyond are counted in the outermost bins

Diagnostics = dict[str, Any]
Inputs = dict[str, tuple[float, float]]  # mean and std of the input of each linear layer


def compute_diagnostics(
    network: Network, held_out: Examples, lr: float, first_inputs: Inputs | None = None
) -> Diagnostics:
    """All diagnostics after a step. `first_inputs`: the "inputs" of the first report, None if this is the first."""
    probe = held_out.select(np.arange(min(PROBE_EXAMPLES, len(held_out))))
    valid = None if probe.lengths is None else np.arange(probe.x.shape[1]) < probe.lengths[:, None]
    layers: Diagnostics = {}
    inputs: Inputs = {}
    x: Array = probe.x
    for name, layer in network.layers.items():
        if isinstance(layer, Linear):
            rows = _valid_rows(x, valid)
            inputs[name] = float(rows.mean()), float(rows.std())
        x = layer.forward(x, ForwardContext(lengths=probe.lengths))
        layers[name] = _output_statistics(layer, _valid_rows(x, valid))
    return {
        "layers": layers,
        "updates": _updates(network, lr),
        "inputs": inputs,
        "drift": {name: _shift(now, (first_inputs or inputs)[name]) for name, now in inputs.items()},
        "running_lag": _running_lag(network),
        "running": _running(network),
    }


def _valid_rows(x: Array, valid: Array | None) -> Array:
    """The valid positions, if x has positions."""
    return x[valid] if valid is not None and x.ndim == 3 else x


def _output_statistics(layer: Layer, y: Array) -> Diagnostics:
    statistics: Diagnostics = {
        "mean": float(y.mean()),
        "std": float(y.std()),
        "histogram": histogram(y),
    }
    match layer:
        case Tanh():
            statistics["saturated"] = float((np.abs(y) > 0.97).mean())
        case Sigmoid():
            statistics["saturated"] = float((np.abs(y - 0.5) > 0.485).mean())
        case ReLU() | GELU():
            statistics["saturated"] = float((np.abs(y) < 1e-6).mean())
    return statistics


def histogram(y: Array) -> list[int]:
    """How many values lie in each bin. `np.histogram` takes ten times as long.

    >>> histogram(np.array([-9.0, -2.9, 0.1, 2.9, np.inf]))
    [2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 0, 2]
    """
    scaled = y * (BINS / (2 * LIMIT)) + BINS / 2
    bins = np.fmin(np.fmax(scaled, 0), BINS - 1).astype(np.intp)  # NaN is counted in the first bin
    return [int(count) for count in np.bincount(bins.reshape(-1), minlength=BINS)]


def _updates(network: Network, lr: float) -> Diagnostics:
    gradients = network.gradients
    return {
        name: {
            "gradient": float(gradients[name].std()),
            "norm": float(np.linalg.norm(gradients[name])),
            "update": float(lr * gradients[name].std() / max(float(value.std()), 1e-12)),
        }
        for name, value in network.parameters.items()
    }


def _shift(now: tuple[float, float], before: tuple[float, float]) -> float:
    """How far mean and std have moved, in units of the std before."""
    return (abs(now[0] - before[0]) + abs(now[1] - before[1])) / max(before[1], 1e-12)


def _running_lag(network: Network) -> dict[str, float]:
    lag = {}
    for name, layer in network.layers.items():
        if isinstance(layer, Normalize) and layer.running is not None and layer.batch_moments is not None:
            gap = np.abs(layer.batch_moments.mean - layer.running.mean) / np.sqrt(layer.running.var + layer.norm.eps)
            lag[name] = float(gap.mean())
    return lag


def _running(network: Network) -> Diagnostics:
    """Both statistics as they would be used: the variance of the batch is divided by n, the running one by n - 1."""
    found = {}
    for name, layer in network.layers.items():
        if isinstance(layer, Normalize) and layer.running is not None and layer.batch_moments is not None:
            batch, running = layer.batch_moments, layer.running
            found[name] = {
                "batch_mean": _first(batch.mean),
                "batch_std": _first(np.sqrt(batch.var())),
                "running_mean": _first(running.mean),
                "running_std": _first(np.sqrt(running.var)),
            }
    return found


def _first(channels: Array) -> list[float]:
    """The first channels, with the digits that a chart can show."""
    return [float(f"{value:.5g}") for value in channels.reshape(-1)[:CHANNELS]]
