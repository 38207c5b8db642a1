"""What a trial measures. Each function takes a configuration and returns a result, which `SCHEMAS` describes.

train       trains as `truenorm train` does, and ends with the numbers of its result.json, and a curve
gradients   the size of the gradient at each hidden layer, before the first step
shift       how far the inputs of the hidden layers move during training (the covariate shift of Ioffe and Szegedy),
            and how far the gradient of a layer changes when the layers before it take their step (that of Santurkar
            et al.)
padding     how far padding moves what the norm returns for the valid positions
repadding   the held-out loss of a network, trained on padded names, after less padding
undo        how exactly weight = std and bias = mean undo a normalization

A number that is not finite is null in the file of a trial.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, FiniteFloat, ValidationError, model_validator

from truenorm.core import recipes
from truenorm.engine import forward
from truenorm.lab.config import Config
from truenorm.lab.data import Examples
from truenorm.lab.layers import ForwardContext, Linear, Normalize
from truenorm.lab.networks import Network
from truenorm.lab.run import REPORT_EXAMPLES
from truenorm.lab.sampling import reestimate
from truenorm.lab.training import Trainer, prepare

Array = NDArray[Any]
Result = dict[str, Any]
ChannelMoments = tuple[Array, Array]  # mean and std of each channel
POINTS = 50  # of a curve
SHIFT_POINTS = 10  # at which the shift is measured
PROBE_EXAMPLES = 512  # for the drift of the inputs


# ---- losses ----


def train(config: Config) -> Result:
    """Train, and return the curve and the final metrics."""
    trainer = Trainer(config, prepare(config))
    every = max(1, config.steps // POINTS)
    curve: dict[str, list[float]] = {"step": [], "loss": [], "held_out": []}
    total, count = 0.0, 0
    while trainer.step < config.steps:
        loss = trainer.train_step()
        if not math.isfinite(loss):
            return _training_result(trainer, curve, diverged=trainer.step)
        total, count = total + loss, count + 1
        if trainer.step % every == 0 or trainer.step == config.steps:
            curve["step"].append(trainer.step)
            curve["loss"].append(total / count)
            curve["held_out"].append(trainer.evaluate(trainer.data.held_out, REPORT_EXAMPLES).loss)
            total, count = 0.0, 0
    return _training_result(trainer, curve)


def _training_result(trainer: Trainer, curve: dict[str, list[float]], diverged: int | None = None) -> Result:
    train = held_out = None
    if diverged is None:
        train, held_out = trainer.evaluate(trainer.data.train), trainer.evaluate(trainer.data.held_out)
        if not math.isfinite(train.loss + held_out.loss):
            diverged, train, held_out = trainer.step, None, None
    return {"diverged": diverged, **trainer.result(train, held_out), "curve": curve}


# ---- gradients and inputs ----


def _rms(x: Array) -> float:
    return float(np.sqrt(np.square(x, dtype=np.float64).mean()))


def gradients(config: Config) -> Result:
    """The root mean square of the gradient of the loss with respect to the output of each hidden linear layer."""
    trainer = Trainer(config, prepare(config))
    _backward(trainer, trainer.batches[0])
    found = trainer.network.output_gradients
    return {"gradients": [_rms(found[f"linear{number}"]) for number in range(1, config.depth + 1)]}


def _backward(trainer: Trainer, batch: Examples) -> dict[str, Array]:
    """The gradients of a batch; running statistics are left as they are."""
    network = trainer.network
    ctx = ForwardContext(training=True, lengths=batch.lengths)
    with _same_running_statistics(network):
        _, dy = trainer.loss(network.forward(batch.x, ctx), batch.targets)
        found = network.backward(dy)
    return {name: value.copy() for name, value in found.items()}


@contextmanager
def _same_running_statistics(network: Network) -> Iterator[None]:
    """What is computed in training mode inside leaves no trace in the running statistics."""
    layers = [layer for layer in network.layers.values() if isinstance(layer, Normalize)]
    before = [layer.running for layer in layers]
    try:
        yield
    finally:
        for layer, running in zip(layers, before, strict=True):
            layer.running = running


def shift(config: Config) -> Result:
    """Both kinds of covariate shift, averaged over the training and over the hidden layers after the first."""
    trainer = Trainer(config, prepare(config))
    later = [f"linear{number}" for number in range(2, config.depth + 1)]
    gradient_shifts, drifts = [], []
    probe = trainer.data.held_out.select(np.arange(min(PROBE_EXAMPLES, len(trainer.data.held_out))))
    start = _input_moments(trainer.network, probe)
    for point in range(SHIFT_POINTS):
        while trainer.step < config.steps * (point + 1) // SHIFT_POINTS:
            batch, parameters = trainer.batches[trainer.step], trainer.network.flat_parameters.copy()
            before = trainer.step
            trainer.train_step()
        gradient_shifts += _gradient_shifts(trainer, batch, parameters, later)
        now = _input_moments(trainer.network, probe)
        drifts += [_drift(start[name], now[name]) for name in later]
        assert trainer.step == before + 1
    return {"gradient_shift": statistics.fmean(gradient_shifts), "input_drift": statistics.fmean(drifts)}


def _input_moments(network: Network, probe: Examples) -> dict[str, ChannelMoments]:
    """Mean and std of each input channel of the linear layers, for one batch, with its statistics: as in training.

    Running statistics would not do: at the start they are 0 and 1, whatever the inputs are.
    """
    found: dict[str, ChannelMoments] = {}
    x: Array = probe.x
    with _same_running_statistics(network):
        for name, layer in network.layers.items():
            if isinstance(layer, Linear):
                rows = x.reshape(-1, x.shape[-1]).astype(np.float64)
                found[name] = rows.mean(0), rows.std(0)
            x = layer.forward(x, ForwardContext(training=True, lengths=probe.lengths))
    return found


def _drift(before: ChannelMoments, now: ChannelMoments) -> float:
    """How far mean and std of the channels have moved: a root mean square, relative to that of the std before.

    For each channel this is the Wasserstein distance between normal distributions with these means and stds.
    """
    moved = np.hypot(now[0] - before[0], now[1] - before[1])
    return _rms(moved) / max(_rms(before[1]), 1e-30)


def _gradient_shifts(trainer: Trainer, batch: Examples, before: Array, later: list[str]) -> list[float]:
    """For each layer: how far its gradient changes when the layers before it have taken their step and it has not."""
    network = trainer.network
    after = network.flat_parameters.copy()
    network.flat_parameters[...] = before
    first = _backward(trainer, batch)
    found = []
    names = list(network.layers)
    for layer in later:
        network.flat_parameters[...] = after
        stepped = {name: value.copy() for name, value in network.parameters.items()}
        network.flat_parameters[...] = before
        for name, value in network.parameters.items():
            if names.index(name.rsplit(".", 1)[0]) < names.index(layer):
                value[...] = stepped[name]
        key = f"{layer}.weight"
        change = _backward(trainer, batch)[key] - first[key]
        found.append(_rms(change) / max(_rms(first[key]), 1e-30))
    network.flat_parameters[...] = after
    return found


# ---- padding ----


def padding(config: Config) -> Result:
    """The relative change of the normalized valid values, compared with a norm that never sees padding."""
    trainer = Trainer(config, prepare(config))
    batch = trainer.batches[0]
    assert batch.lengths is not None
    ctx = ForwardContext(training=True, lengths=batch.lengths)
    x: Array = batch.x
    for name, layer in trainer.network.layers.items():
        y = layer.forward(x, ctx)
        if name == "norm1":
            break
        x = y
    valid = np.arange(x.shape[1]) < batch.lengths[:, None]
    rows = x[valid].astype(np.float64)
    axis = 0 if config.norm == "batch" else 1
    centered = rows - rows.mean(axis, keepdims=True)
    alone = centered / np.sqrt(np.square(centered).mean(axis, keepdims=True) + 1e-5)
    return {"change": _rms(y[valid] - alone) / _rms(alone)}


def repadding(config: Config) -> Result:
    """Train; then the held-out loss with statistics re-estimated at the same padding, and without the excess of it."""
    trainer = Trainer(config, prepare(config))
    while trainer.step < config.steps:
        trainer.train_step()
    data = trainer.data
    assert data.train.lengths is not None
    assert data.held_out.lengths is not None
    longest = int(max(data.train.lengths.max(), data.held_out.lengths.max()))
    losses = []
    for length in (data.train.x.shape[1], longest):
        train, held_out = (Examples(one.x[:, :length], one.targets, one.lengths) for one in (data.train, data.held_out))
        reestimate(trainer.network, train)
        losses.append(trainer.evaluate(held_out).loss)
    return {"same": losses[0], "less": losses[1]}


def undo(config: Config) -> Result:
    """The largest error of a batch norm whose weight is the std and whose bias is the mean, relative to the values."""
    rng = np.random.default_rng(config.seed)
    x = rng.normal(rng.normal(0, 5, 12), rng.uniform(0.1, 5, 12), (64, 12))
    norm = recipes.batch()
    y = forward(x, norm, weight=np.sqrt(x.var(0) + norm.eps), bias=x.mean(0)).y
    return {"error": float(np.abs(y - x).max() / np.abs(x).max())}


MEASURES: dict[str, Callable[[Config], Result]] = {
    "train": train,
    "gradients": gradients,
    "shift": shift,
    "padding": padding,
    "repadding": repadding,
    "undo": undo,
}


# ---- what results hold ----

Number = FiniteFloat | None


class _Metrics(BaseModel):
    loss: FiniteFloat
    accuracy: Number
    rmse: Number


class _Baseline(BaseModel):
    loss: Number
    beaten: bool


class _Curve(BaseModel):
    """step: every steps // POINTS steps, and the last. loss: mean training loss since the previous of these steps.
    held_out: loss of up to 1,024 held-out examples."""

    step: list[int]
    loss: list[Number]
    held_out: list[Number]

    @model_validator(mode="after")
    def _check_lengths(self) -> Self:
        if not len(self.step) == len(self.loss) == len(self.held_out):
            raise ValueError("curve: lists of the same length.")
        return self


class _Training(BaseModel):
    """diverged: the step at which the loss was no longer finite; null if it always was. Then there are no metrics. The
    others are those of result.json."""

    diverged: int | None
    steps: int
    train: _Metrics | None
    held_out: _Metrics | None
    baseline: _Baseline
    parameters: int
    curve: _Curve

    @model_validator(mode="after")
    def _check_metrics(self) -> Self:
        if (self.train is None) != (self.held_out is None):
            raise ValueError("train, held_out: both or none.")
        return self


class _Gradients(BaseModel):
    gradients: list[Number]


class _Shift(BaseModel):
    gradient_shift: Number
    input_drift: Number


class _Padding(BaseModel):
    change: Number


class _Repadding(BaseModel):
    """same: the loss at the padding of the training; less: at less padding."""

    same: Number
    less: Number


class _Undo(BaseModel):
    error: Number


SCHEMAS: dict[str, type[BaseModel]] = {
    "train": _Training,
    "gradients": _Gradients,
    "shift": _Shift,
    "padding": _Padding,
    "repadding": _Repadding,
    "undo": _Undo,
}


def is_result(measure: str, content: object) -> bool:
    """Whether this is what a measure returns, as a file holds it."""
    try:
        SCHEMAS[measure].model_validate(content)
    except (ValidationError, RecursionError):
        return False
    return True
