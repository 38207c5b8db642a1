"""Grids and trials for tests. Processes of loky import this file, so it must not import a test."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

from truenorm.lab.dispatch import Handlers
from truenorm.lab.executors import work
from truenorm.lab.grid import Grid, make_grid
from truenorm.lab.trial import Trial

SMALL = {"hidden": (8,), "steps": (20,), "embedding": (2,)}


def small_grid(words: Path, *, seeds: int = 2, **axes: Any) -> Grid:
    """A grid of trials that take some milliseconds each."""
    norms = {"norm": ("none", "batch")}
    return make_grid("train", {"data": (str(words),), **SMALL, **norms, **axes, "seed": tuple(range(seeds))})


def fake_work(trial: Trial) -> tuple[bytes, float]:
    """A result without training."""
    loss = trial.config.seed + trial.config.lr
    metrics = {"loss": loss, "accuracy": 0.5, "rmse": None}
    points = [float(number) for number in range(50)]
    result = {
        "diverged": None,
        "steps": trial.config.steps,
        "train": metrics,
        "held_out": metrics,
        "baseline": {"loss": 3.3, "beaten": False},
        "parameters": 1,
        "curve": {"step": points, "loss": points, "held_out": points},
    }
    return trial.encode(result), 0.0


def fail_for_seed_1(trial: Trial) -> tuple[bytes, float]:
    if trial.config.seed == 1:
        raise ValueError("seed: not 1, got 1.\nsecond line")
    return fake_work(trial)


def kill_worker_for_seed_1(trial: Trial) -> tuple[bytes, float]:
    """The process ends as if the system was out of memory, while others run trials, too."""
    if trial.config.seed == 1:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
    return fake_work(trial)


def kill_worker_once(trial: Trial) -> tuple[bytes, float]:
    """Run a trial; the first process that runs seed 1 ends. `data` is a file in a directory where it leaves a mark."""
    mark = Path(trial.config.data).with_name("killed")
    if trial.config.seed == 1 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return work(trial)


class Record:
    """What the handlers of `run_all` were called with."""

    def __init__(self) -> None:
        self.done: dict[str, bytes] = {}
        self.failed: dict[str, str] = {}
        self.events: list[str] = []
        self.handlers = Handlers(self._done, self._failed, self.events.append)

    def _done(self, trial: Trial, file: bytes, seconds: float) -> None:
        assert trial.name not in self.done
        assert seconds >= 0
        self.done[trial.name] = file

    def _failed(self, trial: Trial, error: str) -> None:
        assert trial.name not in self.failed
        self.failed[trial.name] = error
