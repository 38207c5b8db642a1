"""A run in a directory: start it, stop it at any time, resume it, finish it.

Reports come at fixed steps, so that a run that was killed and resumed writes the same files as one that was never
interrupted.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab import checkpoint
from truenorm.lab.config import Config
from truenorm.lab.data import Alphabet
from truenorm.lab.networks import Network
from truenorm.lab.training import TaskData, Trainer, make_character_network, prepare, restore_network

REPORTS = 100  # in a run
REPORT_EXAMPLES = 1024  # held-out examples that a report evaluates; the result evaluates all
CHECKPOINT_SECONDS = 5.0  # between checkpoints, at least

Report = dict[str, Any]


class Stopped(Exception):  # noqa: N818  (not an error)
    """The run was stopped and saved after `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped and saved after step {step}")
        self.step = step


@dataclass
class _MeanLoss:
    """The mean training loss since the last report."""

    total: float = 0.0
    count: int = 0

    def add(self, loss: float) -> None:
        self.total += loss
        self.count += 1


def _ignore(_: TaskData) -> None:
    pass


@ignore_floating_point_errors
def start(
    directory: Path,
    config: Config,
    on_report: Callable[[Report], None],
    should_stop: Callable[[], bool],
    on_start: Callable[[TaskData], None] = _ignore,
) -> Report:
    """Train a new run and return its result. If `should_stop` is true after a step: save, and raise `Stopped`."""
    # Before the directory is made: errors in the data, and batches that do not fit into memory, leave no directory.
    trainer = Trainer(config, prepare(config))
    trainer.batches[0]
    directory.mkdir(parents=True, exist_ok=True)
    with checkpoint.locked(directory):
        if (directory / "config.json").exists():
            raise ValueError(f"{directory}: already holds a run. Pass --resume, or another --out.")
        for name in ("metrics.jsonl", "checkpoint.safetensors", "result.json"):
            if (directory / name).exists():
                raise ValueError(f"{directory}: already holds a {name}. Choose another --out.")
        on_start(trainer.data)
        checkpoint.write_json(directory / "config.json", config.model_dump())
        return _train(directory, trainer, _MeanLoss(), on_report, should_stop)


@ignore_floating_point_errors
def resume(
    directory: Path,
    on_report: Callable[[Report], None],
    should_stop: Callable[[], bool],
    on_start: Callable[[TaskData], None] = _ignore,
) -> Report:
    """Train the remaining steps of a run and return its result; of a complete run, only return the result."""
    config = read_config(directory)
    with checkpoint.locked(directory):
        if (directory / "result.json").exists():
            return _result(directory)
        if (directory / "checkpoint.safetensors").exists():
            trainer, loss = _load(directory, config)
            done = trainer.step
        else:  # killed before the first checkpoint
            trainer, loss, done = Trainer(config, prepare(config)), _MeanLoss(), -1
        on_start(trainer.data)
        checkpoint.truncate_metrics(directory / "metrics.jsonl", done)
        return _train(directory, trainer, loss, on_report, should_stop)


def load(directory: Path) -> Trainer:
    """The trainer of a run, restored from its last checkpoint. Reads the data."""
    return _load(directory, read_config(directory))[0]


def load_words(directory: Path) -> tuple[Config, Network, Alphabet]:
    """Config, network and alphabet of a run of --task words, from its last checkpoint. Does not read the data."""
    config = read_config(directory)
    if config.task != "words":
        raise ValueError(f"{directory}: needs a run of --task words, got one of --task {config.task}.")
    arrays, metadata = _checkpoint(directory, config)
    alphabet = Alphabet(tuple(metadata["alphabet"] or ()))
    network = make_character_network(config, alphabet, np.random.default_rng(0))
    restore_network(network, arrays, metadata)
    return config, network, alphabet


def read_config(directory: Path) -> Config:
    try:
        return Config(**checkpoint.read_json(directory / "config.json"))
    except (ValidationError, TypeError):
        raise ValueError(f"{directory}: config.json is not of this version of truenorm.") from None


class _Counts(BaseModel):
    batches: int = Field(ge=0)
    skipped: int = Field(ge=0)


class _Metadata(BaseModel):
    """What a checkpoint holds beside arrays."""

    step: int = Field(ge=0)
    config: dict[str, Any]
    alphabet: list[str] | None
    data: str
    running: dict[str, _Counts]
    first_inputs: dict[str, tuple[float, float]] | None
    mean_loss: tuple[float, Annotated[int, Field(ge=0)]]


def _checkpoint(directory: Path, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays, saved = checkpoint.load(directory / "checkpoint.safetensors")
    try:
        metadata = _Metadata.model_validate(saved).model_dump()
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(
            f"{directory}: the checkpoint is not of this version of truenorm ({where!r} differs)."
        ) from None
    if metadata["config"] != config.model_dump():
        raise ValueError(f"{directory}: the checkpoint belongs to another config.json.")
    return arrays, metadata


def _load(directory: Path, config: Config) -> tuple[Trainer, _MeanLoss]:
    arrays, metadata = _checkpoint(directory, config)
    alphabet = None if metadata["alphabet"] is None else Alphabet(tuple(metadata["alphabet"]))
    trainer = Trainer(config, prepare(config, alphabet))
    trainer.restore(arrays, metadata)
    return trainer, _MeanLoss(*metadata["mean_loss"])


def _result(directory: Path) -> Report:
    found = checkpoint.read_json(directory / "result.json")
    try:
        for part in ("train", "held_out"):
            float(found[part]["loss"]), found[part]["accuracy"]
        int(found["steps"]), int(found["parameters"]), float(found["baseline"]["loss"]), found["baseline"]["beaten"]
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{directory}: result.json is damaged. Delete it, and --resume writes it again.") from None
    return dict(found)


def _train(
    directory: Path,
    trainer: Trainer,
    mean_loss: _MeanLoss,
    on_report: Callable[[Report], None],
    should_stop: Callable[[], bool],
) -> Report:
    config, saved = trainer.config, time.monotonic()
    every = max(1, config.steps // REPORTS)

    def save() -> None:
        arrays, metadata = trainer.state()
        metadata["mean_loss"] = [mean_loss.total, mean_loss.count]
        checkpoint.save(directory / "checkpoint.safetensors", arrays, metadata)

    while trainer.step < config.steps:
        loss = trainer.train_step()
        _check_finite(trainer, loss)
        mean_loss.add(loss)
        if trainer.step % every == 0 or trainer.step == config.steps:
            on_report(_report(directory, trainer, mean_loss))
            mean_loss = _MeanLoss()
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                save()
                saved = time.monotonic()
        if should_stop():
            save()
            raise Stopped(trainer.step)
    train, held_out = trainer.evaluate(trainer.data.train), trainer.evaluate(trainer.data.held_out)
    _check_finite(trainer, train.loss, held_out.loss)
    save()
    baseline = trainer.data.baseline_loss()
    result = {
        "steps": trainer.step,
        "train": asdict(train),
        "held_out": asdict(held_out),
        "baseline": {"loss": baseline, "beaten": held_out.loss < baseline},
        "parameters": trainer.network.flat_parameters.size,
    }
    checkpoint.write_json(directory / "result.json", result)
    return result


def _check_finite(trainer: Trainer, *losses: float) -> None:
    for loss in losses:
        if not math.isfinite(loss):
            raise ValueError(f"step {trainer.step}: training diverged, the loss is {loss}. Choose a lower --lr.")


def _report(directory: Path, trainer: Trainer, mean_loss: _MeanLoss) -> Report:
    held_out = trainer.evaluate(trainer.data.held_out, REPORT_EXAMPLES)
    report: Report = {"step": trainer.step, "loss": mean_loss.total / mean_loss.count, "held_out": held_out.loss}
    if held_out.accuracy is not None:
        report["accuracy"] = held_out.accuracy
    if held_out.rmse is not None:
        report["rmse"] = held_out.rmse
    report["diagnostics"] = trainer.diagnostics()
    checkpoint.append_line(directory / "metrics.jsonl", json.dumps(checkpoint.plain(report)))
    return report
