"""A run in a directory: start it, stop it at any time, resume it, finish it.

Reports come at fixed steps, so that a run that was killed and resumed writes the same files as one that was never
interrupted. `directory.py` says what survives a crash.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab import checkpoint
from truenorm.lab.config import Config
from truenorm.lab.data import Alphabet
from truenorm.lab.directory import METRICS, RunDirectory
from truenorm.lab.networks import Network
from truenorm.lab.table import Columns
from truenorm.lab.training import TaskData, Trainer, make_character_network, prepare, restore_network

REPORTS = 100  # in a run
REPORT_EXAMPLES = 1024  # held-out examples that a report evaluates; the result evaluates all
CONFIG, CHECKPOINT, RESULT = "config.json", "checkpoint.safetensors", "result.json"
CHECKPOINT_SECONDS = 5.0  # between checkpoints, at least
CHECKPOINT_SHARE = 0.1  # of the time, at most, is spent on them

Report = dict[str, Any]


class Stopped(Exception):  # noqa: N818  (not an error)
    """The run was stopped and saved after `step`."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped and saved after step {step}")
        self.step = step


class Diverged(ValueError):  # noqa: N818  (bad input: the learning rate)
    """The loss is no longer finite after `step`. The run cannot go on: resumed, it diverges again."""

    def __init__(self, step: int, loss: float) -> None:
        super().__init__(f"step {step}: training diverged, the loss is {loss}. Choose a lower --lr.")
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
    with RunDirectory.create(directory) as files:
        files.lock()
        if files.holds(CONFIG):
            raise ValueError(f"{directory}: already holds a run. Pass --resume, or another --out.")
        for name in (METRICS, CHECKPOINT, RESULT):
            if files.holds(name):
                raise ValueError(f"{directory}: already holds a {name}. Choose another --out.")
        on_start(trainer.data)
        files.write(CONFIG, _encoded(config))
        files.open_metrics(b"")
        return _train(files, trainer, _MeanLoss(), on_report, should_stop)


@ignore_floating_point_errors
def resume(
    directory: Path,
    on_report: Callable[[Report], None],
    should_stop: Callable[[], bool],
    on_start: Callable[[TaskData], None] = _ignore,
) -> Report:
    """Train the remaining steps of a run and return its result; of a complete run, only return the result."""
    with open_run(directory) as files:
        config = stored_config(files)
        files.lock()
        if files.holds(RESULT):
            return stored_result(files, config)
        if files.holds(CHECKPOINT):
            trainer, metadata = _load(files, config)
            loss, metrics = _MeanLoss(*metadata["mean_loss"]), files.read_metrics(*metadata["metrics"])
        else:  # killed before the first checkpoint
            trainer, loss, metrics = Trainer(config, prepare(config)), _MeanLoss(), b""
        on_start(trainer.data)
        files.open_metrics(metrics)
        return _train(files, trainer, loss, on_report, should_stop)


@ignore_floating_point_errors
def extend(
    directory: Path,
    steps: int,
    on_report: Callable[[Report], None],
    should_stop: Callable[[], bool],
    on_start: Callable[[TaskData], None] = _ignore,
) -> Report:
    """Train a complete run for more steps and return its new result.

    The learning rates of these steps are those of a run that has the larger number of steps from the start. The old
    result is removed first: if the process is killed at any time, `resume` continues what was begun.
    """
    with open_run(directory) as files:
        before = stored_config(files)
        files.lock()
        config = before.extended(steps)
        trainer, metadata = _load(files, config)
        if trainer.step < before.steps:
            raise ValueError(
                f"{directory}: --extend needs a complete run, got one after step {trainer.step} of {before.steps}. "
                "Pass --resume first."
            )
        metrics = files.read_metrics(*metadata["metrics"])
        on_start(trainer.data)
        files.remove(RESULT)
        files.write(CONFIG, _encoded(config))
        files.open_metrics(metrics)
        return _train(files, trainer, _MeanLoss(), on_report, should_stop)


def load(directory: Path) -> Trainer:
    """The trainer of a run, restored from its last checkpoint. Reads the data."""
    with open_run(directory) as files:
        return _load(files, stored_config(files))[0]


def load_words(directory: Path) -> tuple[Config, Network, Alphabet]:
    """Config, network and alphabet of a run of --task words, from its last checkpoint. Does not read the data."""
    config, arrays, metadata = read_checkpoint(directory)
    if config.task != "words":
        raise ValueError(f"{directory}: needs a run of --task words, got one of --task {config.task}.")
    alphabet = Alphabet(tuple(metadata["alphabet"] or ()))
    network = make_character_network(config, alphabet, np.random.default_rng(0))
    restore_network(network, arrays, metadata)
    return config, network, alphabet


def read_checkpoint(directory: Path) -> tuple[Config, dict[str, Any], dict[str, Any]]:
    """Config, arrays and metadata of the last checkpoint. Does not read the data."""
    with open_run(directory) as files:
        config = stored_config(files)
        return config, *_checkpoint(files, config)


def read_config(directory: Path) -> Config:
    with open_run(directory) as files:
        return stored_config(files)


def open_run(directory: Path) -> RunDirectory:
    try:
        return RunDirectory(directory)
    except FileNotFoundError:
        raise ValueError(f"{directory}: not the directory of a run, it does not exist.") from None


def stored_config(files: RunDirectory) -> Config:
    try:
        return Config(**checkpoint.decode_json(files.read(CONFIG), str(files.path / CONFIG)))
    except FileNotFoundError:
        raise ValueError(f"{files.path}: not the directory of a run, it has no {CONFIG}.") from None
    except (ValidationError, TypeError):
        raise ValueError(f"{files.path}: {CONFIG} is not of this version of truenorm.") from None


def _encoded(config: Config) -> bytes:
    return checkpoint.encode_json(config.saved())


_Count = Annotated[int, Field(ge=0, le=2**53)]


class _Counts(BaseModel):
    batches: _Count
    skipped: _Count


class _Metadata(BaseModel):
    """What a checkpoint holds beside arrays."""

    step: _Count
    config: dict[str, Any]
    alphabet: list[str] | None
    columns: Columns | None = None
    data: str
    running: dict[str, _Counts]
    first_inputs: dict[str, tuple[float, float]] | None
    mean_loss: tuple[float, _Count]
    metrics: tuple[_Count, str]


class _Metrics(BaseModel):
    loss: FiniteFloat
    accuracy: FiniteFloat | None
    rmse: FiniteFloat | None = None


class _Baseline(BaseModel):
    loss: FiniteFloat
    beaten: bool


class _Result(BaseModel):
    """What result.json holds."""

    steps: _Count
    train: _Metrics
    held_out: _Metrics
    baseline: _Baseline
    parameters: _Count


def _checkpoint(files: RunDirectory, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    try:
        arrays, saved = checkpoint.decode(files.read(CHECKPOINT), str(files.path / CHECKPOINT))
    except FileNotFoundError:
        raise ValueError(f"{files.path}: the run has no checkpoint yet.") from None
    try:
        metadata = _Metadata.model_validate(saved).model_dump()
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(
            f"{files.path}: the checkpoint is not of this version of truenorm ({where!r} differs)."
        ) from None
    if not _belongs_to(metadata["config"], config):
        raise ValueError(f"{files.path}: the checkpoint belongs to another config.json.")
    if metadata["step"] > config.steps:
        raise ValueError(
            f"{files.path}: the checkpoint is at step {metadata['step']}, but the run has {config.steps} steps. "
            "Start a new run."
        )
    return arrays, metadata


def _belongs_to(saved: dict[str, Any], config: Config) -> bool:
    """Whether a checkpoint was saved by the run with this configuration, or before it was extended."""
    try:
        then = Config(**saved)
    except (ValidationError, TypeError):
        return False
    now = then.model_copy(update={"steps": config.steps, "extended_at": config.extended_at})
    return now == config and then.steps in (*config.extended_at, config.steps)


def _load(files: RunDirectory, config: Config) -> tuple[Trainer, dict[str, Any]]:
    """The trainer at the last checkpoint, and the checkpoint's metadata."""
    arrays, metadata = _checkpoint(files, config)
    alphabet = None if metadata["alphabet"] is None else Alphabet(tuple(metadata["alphabet"]))
    trainer = Trainer(config, prepare(config, alphabet))
    trainer.restore(arrays, metadata)
    return trainer, metadata


def stored_result(files: RunDirectory, config: Config) -> Report:
    file = files.read(RESULT)
    found = checkpoint.decode_json(file, str(files.path / RESULT))
    if isinstance(found, dict) and checkpoint.is_intact(file, found.get("digest"), _encoded(config)):
        with suppress(ValidationError):
            return _Result.model_validate(found).model_dump()
    raise ValueError(f"{files.path}: {RESULT} is damaged or of another run. Delete it, and --resume writes it again.")


def _train(
    files: RunDirectory,
    trainer: Trainer,
    mean_loss: _MeanLoss,
    on_report: Callable[[Report], None],
    should_stop: Callable[[], bool],
) -> Report:
    config = trainer.config
    every = max(1, config.steps // REPORTS)
    next_save = time.monotonic() + CHECKPOINT_SECONDS

    def save() -> None:
        nonlocal next_save
        begin = time.monotonic()
        arrays, metadata = trainer.state()
        metadata["mean_loss"] = [mean_loss.total, mean_loss.count]
        metadata["metrics"] = files.metrics_written()
        files.write(CHECKPOINT, checkpoint.encode(arrays, metadata))
        end = time.monotonic()
        next_save = end + max(CHECKPOINT_SECONDS, (end - begin) / CHECKPOINT_SHARE)

    def stop_if_asked() -> None:
        if should_stop():
            raise Stopped(trainer.step)

    while trainer.step < config.steps:
        loss = trainer.train_step()
        _check_finite(files, trainer, loss)
        mean_loss.add(loss)
        if trainer.step % every == 0 or trainer.step == config.steps:
            on_report(_report(files, trainer, mean_loss))
            mean_loss = _MeanLoss()
        if should_stop():
            save()
            raise Stopped(trainer.step)
        if time.monotonic() > next_save:
            save()
    save()
    train, held_out = (
        trainer.evaluate(examples, on_batch=stop_if_asked) for examples in (trainer.data.train, trainer.data.held_out)
    )
    _check_finite(files, trainer, train.loss, held_out.loss)
    result = trainer.result(train, held_out)
    file = checkpoint.encode_json({"digest": checkpoint.NO_DIGEST, **result})
    files.write(RESULT, checkpoint.seal(file, _encoded(config)))
    return result


def _check_finite(files: RunDirectory, trainer: Trainer, *losses: float) -> None:
    """Raise `Diverged` if a loss is not finite. The last line of the metrics says so, too."""
    for loss in losses:
        if not math.isfinite(loss):
            files.append_metrics(checkpoint.encode_line({"step": trainer.step, "diverged": True}))
            raise Diverged(trainer.step, loss)


def _report(files: RunDirectory, trainer: Trainer, mean_loss: _MeanLoss) -> Report:
    held_out = trainer.evaluate(trainer.data.held_out, REPORT_EXAMPLES)
    report: Report = {"step": trainer.step, "loss": mean_loss.total / mean_loss.count, "held_out": held_out.loss}
    report["held_out_examples"] = [min(len(trainer.data.held_out), REPORT_EXAMPLES), len(trainer.data.held_out)]
    if held_out.accuracy is not None:
        report["accuracy"] = held_out.accuracy
    if held_out.rmse is not None:
        report["rmse"] = held_out.rmse
    report["diagnostics"] = trainer.diagnostics()
    files.append_metrics(checkpoint.encode_line(report))
    return report
