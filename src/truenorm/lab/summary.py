"""The trials of a grid, summarized: one row for each cell, over its seeds; and as CSV, one row for each trial.

Only final numbers are kept, never curves: memory grows by some hundred bytes for each trial.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from truenorm.lab.config import applies
from truenorm.lab.measures import Result
from truenorm.lab.trial import Trial

COLUMNS = ("diverged", "steps", "train_loss", "held_out_loss", "accuracy", "rmse", "baseline_loss")


@dataclass
class Cell:
    """A setting: the trials that differ only in their seed. Numbers are of those that did not diverge, by seed."""

    options: dict[str, Any]
    losses: dict[int, float] = field(default_factory=dict)  # held out
    train_losses: dict[int, float] = field(default_factory=dict)
    accuracies: dict[int, float] = field(default_factory=dict)
    rmses: dict[int, float] = field(default_factory=dict)
    diverged: int = 0
    missing: int = 0

    @property
    def order(self) -> tuple[float, float]:
        """For sorting: the fewest diverged trials first, then the lowest mean loss."""
        return self.diverged, statistics.fmean(self.losses.values()) if self.losses else math.inf


def summarize(trials: Iterable[tuple[Trial, Result | None]], varied: Sequence[str]) -> list[Cell]:
    """The cells, best first. `varied`: the options that tell them apart."""
    cells: dict[tuple[Any, ...], Cell] = {}
    for trial, result in trials:
        options = options_of_cell(trial, varied)
        cell = cells.setdefault(tuple(options.values()), Cell(options))
        if result is None:
            cell.missing += 1
        elif result["held_out"] is None:
            cell.diverged += 1
        else:
            seed, held_out = trial.config.seed, result["held_out"]
            cell.losses[seed], cell.train_losses[seed] = held_out["loss"], result["train"]["loss"]
            for values, name in ((cell.accuracies, "accuracy"), (cell.rmses, "rmse")):
                if held_out[name] is not None:
                    values[seed] = held_out[name]
    return sorted(cells.values(), key=lambda cell: cell.order)


def options_of_cell(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    """These options of a trial; an empty text for those that have no meaning for it."""
    given = trial.config.model_dump()
    return {name: given[name] if applies(name, given) else "" for name in names}


def mean_and_std(values: Collection[float], form: str = ".3f") -> str:
    """The mean, and the standard deviation if there are several values.

    >>> mean_and_std([1.0, 2.0]), mean_and_std([0.5], ".1%"), mean_and_std([])
    ('1.500 ± 0.707', '50.0%', '')
    """
    if not values:
        return ""
    mean = f"{statistics.fmean(values):{form}}"
    return mean if len(values) == 1 else f"{mean} ± {statistics.stdev(values):{form}}"


def write_csv(trials: Iterable[tuple[Trial, Result | None]], varied: Sequence[str], file: TextIO) -> None:
    """One row for each trial that has a result."""
    for _ in rows_written(trials, varied, file):
        pass


def rows_written(
    trials: Iterable[tuple[Trial, Result | None]], varied: Sequence[str], file: TextIO
) -> Iterator[tuple[Trial, Result | None]]:
    """The same trials; a row for each that has a result is written on the way, so that they are read once."""
    writer = csv.writer(file)
    writer.writerow(["trial", *varied, "seed", *COLUMNS])
    for trial, result in trials:
        if result is not None:
            options = options_of_cell(trial, varied)
            writer.writerow([trial.name, *options.values(), trial.config.seed, *_numbers(result)])
        yield trial, result


def _numbers(result: Mapping[str, Any]) -> Iterator[Any]:
    """The values of COLUMNS; None is an empty cell."""
    train, held_out = result["train"] or {}, result["held_out"] or {}
    yield from (result["diverged"], result["steps"], train.get("loss"), held_out.get("loss"))
    yield from (held_out.get("accuracy"), held_out.get("rmse"), result["baseline"]["loss"])
