"""The trials of a grid, summarised: one row for each cell, over its seeds; and as CSV, one row for each trial.

Only final numbers are kept, never curves: memory grows by some hundred bytes for each trial.
"""

from __future__ import annotations

import csv
import math
import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from truenorm.lab.config import applies
from truenorm.lab.trial import Result, Trial

COLUMNS = ("diverged", "steps", "train_loss", "held_out_loss", "accuracy", "rmse", "baseline_loss")


@dataclass
class Cell:
    """The trials that differ only in their seed."""

    options: dict[str, Any]
    losses: list[float] = field(default_factory=list)  # held out, of those that did not diverge
    accuracies: list[float] = field(default_factory=list)
    diverged: int = 0
    missing: int = 0

    @property
    def order(self) -> tuple[float, float]:
        """For sorting: the fewest diverged trials first, then the lowest mean loss."""
        return self.diverged, statistics.fmean(self.losses) if self.losses else math.inf


def summarise(trials: Iterable[tuple[Trial, Result | None]], varied: Sequence[str]) -> list[Cell]:
    """The cells, best first. `varied`: the options that tell them apart."""
    cells: dict[tuple[Any, ...], Cell] = {}
    for trial, result in trials:
        options = _options(trial, varied)
        cell = cells.setdefault(tuple(options.values()), Cell(options))
        if result is None:
            cell.missing += 1
        elif result["held_out"] is None:
            cell.diverged += 1
        else:
            cell.losses.append(result["held_out"]["loss"])
            if result["held_out"]["accuracy"] is not None:
                cell.accuracies.append(result["held_out"]["accuracy"])
    return sorted(cells.values(), key=lambda cell: cell.order)


def _options(trial: Trial, names: Sequence[str]) -> dict[str, Any]:
    """These options of a trial; an empty text for those that have no meaning for it."""
    given = trial.config.model_dump()
    return {name: given[name] if applies(name, given) else "" for name in names}


def mean_and_std(values: Sequence[float], form: str = ".3f") -> str:
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
    writer = csv.writer(file)
    writer.writerow(["trial", *varied, "seed", *COLUMNS])
    for trial, result in trials:
        if result is not None:
            options = _options(trial, varied)
            writer.writerow([trial.name, *options.values(), trial.config.seed, *_numbers(result)])


def _numbers(result: Mapping[str, Any]) -> Iterator[Any]:
    """The values of COLUMNS; None is an empty cell."""
    train, held_out = result["train"] or {}, result["held_out"] or {}
    yield from (result["diverged"], result["steps"], train.get("loss"), held_out.get("loss"))
    yield from (held_out.get("accuracy"), held_out.get("rmse"), result["baseline"]["loss"])
