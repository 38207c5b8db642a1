"""The runs of a report: what each recorded, its name and its colour, and what its network generates."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from truenorm.lab import run
from truenorm.lab.config import command_lines
from truenorm.lab.history import History, read_history
from truenorm.lab.sampling import generate

# After Okabe and Ito: distinct for all kinds of colour vision, and dark enough for white paper. style.css holds the
# lighter colours for dark screens.
COLORS = ("#0072b2", "#d55e00", "#009e73", "#a6438c", "#b8860b", "#5b6370", "#2f9fd8", "#7a3b12")
MAX_RUNS = len(COLORS)
SAMPLES = 20
REPEATED = "repeated"  # the folder of the runs that the commands of a report make


@dataclass(frozen=True)
class ReportedRun:
    """A run with what distinguishes it in the report."""

    name: str
    color: str
    history: History
    samples: tuple[str, ...]

    @property
    def state(self) -> str:
        history = self.history
        if history.diverged_at is not None:
            return f"diverged at step {history.diverged_at:,}"
        if history.result is None:
            return f"not complete: step {history.step:,} of {history.config.steps:,}"
        return "complete" if history.result["baseline"]["beaten"] else "complete, no better than guessing"

    @property
    def repeated(self) -> str:
        """The directory in which the commands repeat the run: not the one that holds it."""
        return str(Path(REPEATED, self.name.strip("/")))

    @property
    def commands(self) -> list[str]:
        """The commands that repeat the run."""
        return [shlex.join(one) for one in command_lines(self.history.config, self.repeated)]


def read_runs(directories: Sequence[Path]) -> list[ReportedRun]:
    """Read all runs. They must share a task and a kind of loss: otherwise their losses could not be compared."""
    if len(directories) > MAX_RUNS:
        raise ValueError(f"report: at most {MAX_RUNS} runs side by side, got {len(directories)}.")
    places = [directory.resolve() for directory in directories]
    for directory, place in zip(directories, places, strict=True):
        if places.count(place) > 1:
            raise ValueError(f"report: each run once, got {directory} twice.")
    histories = [read_history(directory) for directory in directories]
    tasks = sorted({one.config.task for one in histories})
    if len(tasks) > 1:
        raise ValueError(f"report: runs of one --task, got {' and '.join(tasks)}. Write a report for each.")
    kinds = {kind: one.directory for one in histories if (kind := _kind(one)) is not None}
    if len(kinds) > 1:
        numbers, classes = kinds["numbers"], kinds["classes"]
        raise ValueError(
            f"report: runs with one kind of target, got numbers in {numbers} and classes in {classes}, whose losses "
            "cannot be compared. Write a report for each."
        )
    return [
        ReportedRun(name, color, history, _samples(history))
        for name, color, history in zip(_names(places), COLORS, histories, strict=False)
    ]


def _kind(history: History) -> str | None:
    """Whether a run predicts numbers or classes: their losses are squared errors or nats. None: it recorded nothing."""
    if any(one.rmse is not None for one in history.reports):
        return "numbers"
    return "classes" if any(one.accuracy is not None for one in history.reports) else None


def _names(places: Sequence[Path]) -> list[str]:
    """The last parts of the paths, as many as make them different."""
    for count in range(1, max(len(place.parts) for place in places) + 1):
        names = ["/".join(place.parts[-count:]) for place in places]
        if len(set(names)) == len(names):
            break
    return names


def _samples(history: History) -> tuple[str, ...]:
    """What `truenorm sample` prints first. Nothing for a network that should not be used, or has no checkpoint."""
    if history.config.task != "words" or history.problem() is not None or history.step == 0:
        return ()
    try:
        config, network, alphabet = run.load_words(history.directory)
        with np.errstate(all="ignore"):
            return tuple(generate(network, alphabet, config.block, np.random.default_rng(0), count=SAMPLES))
    except ValueError:  # no checkpoint yet, or one of another version: the rest of the run can still be shown
        return ()
