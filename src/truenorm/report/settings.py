"""The results of a comparison, read for its report: settings with intervals, the curves of some, and failed trials.

A setting is what the trials with the same options and different seeds have in common. The directory is read twice:
once for the final numbers of all trials, once for the curves of the settings that are drawn. A curve is added up over
its seeds and then dropped, so memory grows with the number of trials by some hundred bytes each.
"""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from truenorm.lab import results as store
from truenorm.lab.grid import Grid
from truenorm.lab.intervals import t_interval
from truenorm.lab.measures import Result
from truenorm.lab.results import Machine
from truenorm.lab.summary import Cell, options_of_cell, rows_written, summarize
from truenorm.lab.trial import Trial
from truenorm.report.runs import COLORS
from truenorm.report.tables import Row

ONLY = "all trials"  # the name of a setting that is the only one
Key = tuple[Any, ...]  # the values of the options that tell settings apart


@dataclass(frozen=True)
class Line:
    """A value of an option, with its colour and its best setting."""

    name: str
    color: str
    setting: Cell


@dataclass(frozen=True)
class Comparison:
    """A results directory.

    settings   best first
    failed     trial and error, in the order of the grid
    csv        one row for each trial that has a result, as text
    """

    directory: Path
    grid: Grid
    version: str
    machine: Machine
    settings: list[Cell]
    failed: list[tuple[Trial, str]]
    csv: str

    @property
    def trials(self) -> int:
        return self.finished + sum(one.missing for one in self.settings)

    @property
    def finished(self) -> int:
        return sum(len(one.losses) + one.diverged for one in self.settings)

    @property
    def diverged(self) -> int:
        return sum(one.diverged for one in self.settings)


def read_comparison(directory: Path) -> Comparison:
    """Read a results directory of `truenorm compare`. Nothing is locked: trials may be running."""
    plan = store.read_plan(directory)
    grids, trials = store.read(directory)
    if len(grids) != 1 or grids[0].measure != "train":
        raise ValueError(
            f"{directory}: holds the results of truenorm claims, not of a comparison. "
            f"Their page: truenorm claims --out {directory} --write claims.md"
        )
    machine, varied, text = store.read_machine(directory), grids[0].varied(), io.StringIO(newline="")
    failed: list[tuple[Trial, str]] = []

    def failures_noted() -> Iterator[tuple[Trial, Result | None]]:
        for trial, result in rows_written(trials, varied, text):
            if result is None and trial.name in machine.failed:
                failed.append((trial, machine.failed[trial.name]))
            yield trial, result

    settings = summarize(failures_noted(), varied)
    return Comparison(directory, grids[0], plan["truenorm"], machine, settings, failed, text.getvalue())


def name_of(setting: Cell) -> str:
    """A setting in words: the options that differ between settings.

    >>> name_of(Cell({"norm": "batch", "norm_at": "after", "lr": 0.1}))
    'norm batch, norm-at after, lr 0.1'
    """
    parts = [f"{name.replace('_', '-')} {value}" for name, value in setting.options.items() if value != ""]
    return ", ".join(parts) or ONLY


def interval(values: Mapping[int, float]) -> tuple[float, float] | None:
    """The 95% confidence interval of the mean; None if there are fewer than two values."""
    return t_interval(list(values.values())) if len(values) > 1 else None


def _mean(values: Mapping[int, float]) -> float | None:
    return statistics.fmean(values.values()) if values else None


def setting_row(setting: Cell, best: Cell) -> Row:
    """The numbers of a setting; None where there is none. `difference`: to the best setting, seed by seed."""
    low, high = interval(setting.losses) or (None, None)
    paired = {seed: loss - best.losses[seed] for seed, loss in setting.losses.items() if seed in best.losses}
    if setting is best:
        paired = {}
    difference_low, difference_high = interval(paired) or (None, None)
    return setting.options | {
        "held_out": _mean(setting.losses),
        "low": low,
        "high": high,
        "difference": _mean(paired),
        "difference_low": difference_low,
        "difference_high": difference_high,
        "accuracy": _mean(setting.accuracies),
        "rmse": _mean(setting.rmses),
        "train": _mean(setting.train_losses),
        "trials": len(setting.losses) + setting.diverged,
        "diverged": setting.diverged,
        "missing": setting.missing,
    }


NUMBERS = tuple(setting_row(Cell({}), Cell({})))  # the columns beside the options


# ---- curves ----


def lines_of(comparison: Comparison, option: str | None) -> list[Line]:
    """The best setting with each value of an option, in the order of the grid; without an option the only setting.

    Values with which all trials diverged are left out. Of more than there are colours, the best are taken.
    """
    best: dict[Any, Cell] = {}
    for setting in comparison.settings:
        value = ONLY if option is None else setting.options[option]
        if setting.losses and value != "":
            best.setdefault(value, setting)
    kept = list(best)[: len(COLORS)]
    order = kept if option is None else [value for value in comparison.grid.axes[option] if value in kept]
    return [Line(str(value), color, best[value]) for value, color in zip(order, COLORS, strict=False)]


@dataclass
class _Point:
    """The losses at one step, added up over the seeds."""

    training: float = 0.0
    held_out: float = 0.0
    lowest: float = math.inf
    highest: float = -math.inf
    seeds: int = 0

    def add(self, training: float, held_out: float) -> None:
        self.training += training
        self.held_out += held_out
        self.lowest, self.highest = min(self.lowest, held_out), max(self.highest, held_out)
        self.seeds += 1


def mean_curves(comparison: Comparison, settings: Sequence[Cell]) -> dict[Key, list[Row]]:
    """For some settings, by their options: step, loss, held_out (means over the seeds that did not diverge), lowest and
    highest held-out loss, and the number of seeds."""
    varied = comparison.grid.varied()
    wanted = {key_of(setting) for setting in settings}
    points: dict[Key, dict[int, _Point]] = {key: {} for key in wanted}

    def is_wanted(trial: Trial) -> bool:
        return tuple(options_of_cell(trial, varied).values()) in wanted

    for trial, result in store.read(comparison.directory, is_wanted)[1]:
        if result is None or result["held_out"] is None:
            continue
        curve, found = result["curve"], points[tuple(options_of_cell(trial, varied).values())]
        for step, loss, held_out in zip(curve["step"], curve["loss"], curve["held_out"], strict=True):
            if loss is not None and held_out is not None:  # null: not finite
                found.setdefault(step, _Point()).add(loss, held_out)
    return {
        key: [
            {
                "step": step,
                "loss": point.training / point.seeds,
                "held_out": point.held_out / point.seeds,
                "lowest": point.lowest,
                "highest": point.highest,
                "seeds": point.seeds,
            }
            for step, point in sorted(found.items())
        ]
        for key, found in points.items()
    }


def key_of(setting: Cell) -> Key:
    return tuple(setting.options.values())
