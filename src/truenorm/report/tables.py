"""The numbers of a report as tables: everything that a chart shows is a row of one of them."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from truenorm.lab.config import options_of
from truenorm.lab.diagnostics import BINS
from truenorm.lab.history import Report
from truenorm.report.runs import ReportedRun

Row = dict[str, Any]
MAX_REPORTS = 150  # of a run, in charts and tables; of more, evenly spaced ones are taken


@dataclass(frozen=True)
class Table:
    """Rows with the same columns. `about`: what they are."""

    name: str
    about: str
    columns: tuple[str, ...]
    rows: list[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def csv(self) -> str:
        """The table as CSV, with six digits. A number that was not recorded, or not finite, is empty."""
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns, lineterminator="\n")
        writer.writeheader()
        for row in self.rows:
            writer.writerow({name: f"{cell:.6g}" if isinstance(cell, float) else cell for name, cell in row.items()})
        return text.getvalue()


def thinned(reports: Sequence[Report], most: int = MAX_REPORTS) -> list[Report]:
    """At most so many reports: the first, the last and evenly spaced ones between them."""
    if len(reports) <= most:
        return list(reports)
    return [reports[round(i * (len(reports) - 1) / (most - 1))] for i in range(most)]


def tables_of(runs: Sequence[ReportedRun]) -> dict[str, Table]:
    """All tables by name."""
    bins = tuple(f"bin{number}" for number in range(1, BINS + 1))
    described: tuple[tuple[str, str, tuple[str, ...], Iterator[Row]], ...] = (
        (
            "results",
            "Final losses over all examples.",
            ("run", "state", "steps", "train", "held_out", "train_accuracy", "held_out_accuracy", "rmse", "baseline"),
            _results(runs),
        ),
        (
            "losses",
            "Mean training loss since the last report, and metrics of held-out examples.",
            ("run", "step", "loss", "held_out", "held_out_examples", "accuracy", "rmse"),
            _losses(runs),
        ),
        (
            "layers",
            "Outputs of each layer for held-out examples: mean, std, saturated share, and a histogram from -3 to 3.",
            ("run", "step", "layer", "mean", "std", "saturated", *bins),
            _layers(runs),
        ),
        (
            "parameters",
            "Gradient of each parameter in the last step: Euclidean norm and std, and the update relative to the std "
            "of the parameter.",
            ("run", "step", "parameter", "gradient_norm", "gradient_std", "update"),
            _parameters(runs),
        ),
        (
            "inputs",
            "Drift: how far mean and std of a linear layer's inputs have moved since the first report, in first stds.",
            ("run", "step", "layer", "drift"),
            _inputs(runs),
        ),
        (
            "running",
            "Statistics of the last batch and running statistics of the first channels of batch norms; lag: mean "
            "distance of the running means of all channels from those of the batch, in running stds.",
            ("run", "step", "layer", "channel", "batch_mean", "running_mean", "batch_std", "running_std", "lag"),
            _running(runs),
        ),
        ("configuration", "All options of each run.", ("run", "option", "value"), _configuration(runs)),
    )
    return {name: Table(name, about, columns, list(rows)) for name, about, columns, rows in described}


def _results(runs: Sequence[ReportedRun]) -> Iterator[Row]:
    for one in runs:
        result = one.history.result or {}
        train, held_out = result.get("train", {}), result.get("held_out", {})
        yield {
            "run": one.name,
            "state": one.state,
            "steps": one.history.step,
            "train": train.get("loss"),
            "held_out": held_out.get("loss"),
            "train_accuracy": train.get("accuracy"),
            "held_out_accuracy": held_out.get("accuracy"),
            "rmse": held_out.get("rmse"),
            "baseline": result.get("baseline", {}).get("loss"),
        }


def _reports(runs: Sequence[ReportedRun]) -> Iterator[tuple[Row, Report]]:
    """Each report, with the beginning of its row."""
    for one in runs:
        for report in thinned(one.history.reports):
            yield {"run": one.name, "step": report.step}, report


def _losses(runs: Sequence[ReportedRun]) -> Iterator[Row]:
    for row, report in _reports(runs):
        examples = report.held_out_examples
        yield row | {
            "loss": report.loss,
            "held_out": report.held_out,
            "held_out_examples": None if examples is None else examples[0],
            "accuracy": report.accuracy,
            "rmse": report.rmse,
        }


def _layers(runs: Sequence[ReportedRun]) -> Iterator[Row]:
    for row, report in _reports(runs):
        for layer, found in report.diagnostics.layers.items():
            counts = {f"bin{number}": count for number, count in enumerate(found.histogram, 1)}
            yield row | {"layer": layer, "mean": found.mean, "std": found.std, "saturated": found.saturated} | counts


def _parameters(runs: Sequence[ReportedRun]) -> Iterator[Row]:
    for row, report in _reports(runs):
        for parameter, found in report.diagnostics.updates.items():
            numbers = {"gradient_norm": found.norm, "gradient_std": found.gradient, "update": found.update}
            yield row | {"parameter": parameter} | numbers


def _inputs(runs: Sequence[ReportedRun]) -> Iterator[Row]:
    for row, report in _reports(runs):
        for layer, drift in report.diagnostics.drift.items():
            yield row | {"layer": layer, "drift": drift}


def _running(runs: Sequence[ReportedRun]) -> Iterator[Row]:
    for row, report in _reports(runs):
        for layer, lag in report.diagnostics.running_lag.items():
            found = report.diagnostics.running.get(layer)
            columns = (
                []
                if found is None
                else list(zip(found.batch_mean, found.running_mean, found.batch_std, found.running_std, strict=False))
            )
            for channel, numbers in enumerate(columns or [(None,) * 4]):  # older runs have the lag only
                names = ("batch_mean", "running_mean", "batch_std", "running_std")
                yield (
                    row | {"layer": layer, "channel": channel + 1, "lag": lag} | dict(zip(names, numbers, strict=True))
                )


def _configuration(runs: Sequence[ReportedRun]) -> Iterator[Row]:
    for one in runs:
        for option, value in options_of(one.history.config).items():
            yield {"run": one.name, "option": option, "value": value}
