"""A run in a directory: started, stopped at any moment, continued, finished.

Reports and checkpoints come at fixed steps, so that a run that was killed and continued writes the same files as one
that was left alone.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab import checkpoint
from truenorm.lab.config import Config
from truenorm.lab.data import Alphabet
from truenorm.lab.networks import Network
from truenorm.lab.training import Material, Trainer, network_for_words, prepare, restore_network

REPORTS = 100  # in a run
BETWEEN = 5.0  # seconds between checkpoints, at least
JUDGED = 1024  # held-out examples of a report; the result takes all

Report = dict[str, Any]


class Stopped(Exception):  # noqa: N818  (not an error)
    """A run was asked to stop, and is saved; `step` is the last that it took."""

    def __init__(self, step: int) -> None:
        super().__init__(f"stopped and saved after step {step}")
        self.step = step


def _silent(_: Material) -> None:
    pass


@ignore_floating_point_errors
def start(
    directory: Path,
    config: Config,
    tell: Callable[[Report], None],
    stop: Callable[[], bool],
    begin: Callable[[Material], None] = _silent,
) -> Report:
    """A new run, from its first step to its result. Between steps `stop` may ask to save and leave: `Stopped`."""
    trainer = Trainer(config, prepare(config))  # first: what is wrong with the data leaves no directory behind
    trainer.batches[0]  # and neither does a batch that no memory holds
    directory.mkdir(parents=True, exist_ok=True)
    with checkpoint.locked(directory):
        if (directory / "config.json").exists():
            raise ValueError(
                f"{directory}: a new directory, got one with a run in it. Pass --resume, or another --out."
            )
        for name in ("metrics.jsonl", "checkpoint.safetensors", "result.json"):
            if (directory / name).exists():
                raise ValueError(f"{directory}: a new directory, got one with a {name}. Choose another --out.")
        begin(trainer.material)
        checkpoint.write_json(directory / "config.json", config.model_dump())
        return _work(directory, trainer, [0.0, 0], tell, stop)


@ignore_floating_point_errors
def resume(
    directory: Path,
    tell: Callable[[Report], None],
    stop: Callable[[], bool],
    begin: Callable[[Material], None] = _silent,
) -> Report:
    """The rest of a run; its result where it is complete."""
    config = read_config(directory)
    with checkpoint.locked(directory):
        if (directory / "result.json").exists():
            return _result(directory)
        if not (directory / "checkpoint.safetensors").exists():  # killed before the first
            checkpoint.truncate_metrics(directory / "metrics.jsonl", -1)
            trainer = Trainer(config, prepare(config))
            begin(trainer.material)
            return _work(directory, trainer, [0.0, 0], tell, stop)
        trainer, losses = _load(directory, config)
        begin(trainer.material)
        checkpoint.truncate_metrics(directory / "metrics.jsonl", trainer.step)
        return _work(directory, trainer, losses, tell, stop)


def load(directory: Path) -> Trainer:
    """The trainer of a run as its last checkpoint has it; reads the data."""
    return _load(directory, read_config(directory))[0]


def load_words(directory: Path) -> tuple[Config, Network, Alphabet]:
    """The network of a run on words as its last checkpoint has it; needs no data."""
    config = read_config(directory)
    if config.task != "words":
        raise ValueError(f"{directory}: a run of --task words, got one of --task {config.task}.")
    arrays, facts = _checkpoint(directory, config)
    alphabet = Alphabet(tuple(facts["alphabet"] or ()))
    network = network_for_words(config, alphabet, np.random.default_rng(0))
    restore_network(network, arrays, facts)
    return config, network, alphabet


def read_config(directory: Path) -> Config:
    try:
        return Config(**checkpoint.read_json(directory / "config.json"))
    except (ValidationError, TypeError):
        raise ValueError(f"{directory}: a run of this version, got a config.json that is not.") from None


class _Counts(BaseModel):
    batches: int = Field(ge=0)
    skipped: int = Field(ge=0)


class _Facts(BaseModel):
    """What a checkpoint holds beside arrays."""

    step: int = Field(ge=0)
    config: dict[str, Any]
    alphabet: list[str] | None
    data: str
    running: dict[str, _Counts]
    first: dict[str, tuple[float, float]] | None
    losses: tuple[float, Annotated[int, Field(ge=0)]]


def _checkpoint(directory: Path, config: Config) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays, told = checkpoint.load(directory / "checkpoint.safetensors")
    try:
        facts = _Facts.model_validate(told).model_dump()
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"]))
        raise ValueError(f"{directory}: a checkpoint of this version, got one with another {where!r}.") from None
    if facts["config"] != config.model_dump():
        raise ValueError(f"{directory}: a checkpoint of this run, got one of another config.json.")
    return arrays, facts


def _load(directory: Path, config: Config) -> tuple[Trainer, list[Any]]:
    arrays, facts = _checkpoint(directory, config)
    alphabet = None if facts["alphabet"] is None else Alphabet(tuple(facts["alphabet"]))
    trainer = Trainer(config, prepare(config, alphabet))
    trainer.restore(arrays, facts)
    return trainer, list(facts["losses"])


def _result(directory: Path) -> Report:
    found = checkpoint.read_json(directory / "result.json")
    try:
        for part in ("train", "held_out"):
            float(found[part]["loss"]), found[part]["accuracy"]
        int(found["steps"]), int(found["parameters"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{directory}: a result.json of a run, got another. Delete it to have it made anew.") from None
    return dict(found)


def _work(
    directory: Path,
    trainer: Trainer,
    losses: list[Any],
    tell: Callable[[Report], None],
    stop: Callable[[], bool],
) -> Report:
    """losses: the sum and the number of those that no report has told yet."""
    config, saved = trainer.config, time.monotonic()
    every = max(1, config.steps // REPORTS)

    def save() -> None:
        arrays, facts = trainer.state()
        checkpoint.save(directory / "checkpoint.safetensors", arrays, facts | {"losses": losses})

    while trainer.step < config.steps:
        loss = trainer.advance()
        _check_finite(trainer, loss)
        losses[0] += loss
        losses[1] += 1
        if trainer.step % every == 0 or trainer.step == config.steps:
            tell(_report(directory, trainer, losses))
            if time.monotonic() - saved > BETWEEN:
                save()
                saved = time.monotonic()
        if stop():
            save()
            raise Stopped(trainer.step)
    scores = {part: trainer.score(getattr(trainer.material, part)) for part in ("train", "held_out")}
    _check_finite(trainer, *(score.loss for score in scores.values()))
    save()
    result = {
        "steps": trainer.step,
        "train": asdict(scores["train"]),
        "held_out": asdict(scores["held_out"]),
        "parameters": sum(value.size for value in trainer.network.parameters.values()),
    }
    checkpoint.write_json(directory / "result.json", result)
    return result


def _check_finite(trainer: Trainer, *losses: float) -> None:
    for loss in losses:
        if not math.isfinite(loss):
            raise ValueError(
                f"step {trainer.step}: a finite loss, got {loss}. Training diverged: choose a lower --rate."
            )


def _report(directory: Path, trainer: Trainer, losses: list[Any]) -> Report:
    score = trainer.score(trainer.material.held_out, JUDGED)
    report: Report = {"step": trainer.step, "loss": losses[0] / losses[1], "held_out": score.loss}
    if score.accuracy is not None:
        report["accuracy"] = score.accuracy
    if score.error is not None:
        report["error"] = score.error
    report["instruments"] = trainer.observe()
    checkpoint.append_line(directory / "metrics.jsonl", json.dumps(checkpoint.plain(report)))
    losses[:] = [0.0, 0]
    return report
