"""What a run recorded, read from its directory: configuration, reports and result.

It may be a run that is complete, unfinished, diverged or still training, or one of an older version that recorded less:
what is missing is None or empty. A directory may also come from somebody else, so everything is checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, Field, FiniteFloat, ValidationError

from truenorm.lab import run
from truenorm.lab.checkpoint import decode_json
from truenorm.lab.config import Config
from truenorm.lab.diagnostics import BINS, CHANNELS
from truenorm.lab.directory import METRICS

# What was not finite is null in the file, as JSON has no NaN.
Number = FiniteFloat | None
_Step = Annotated[int, Field(ge=0, le=10**12)]
_Counts = Annotated[list[Annotated[int, Field(ge=0, le=2**53)]], Field(min_length=BINS, max_length=BINS)]
_Channels = Annotated[list[Number], Field(max_length=CHANNELS)]


class LayerOutput(BaseModel):
    mean: Number
    std: Number
    histogram: _Counts
    saturated: Number = None


class Update(BaseModel):
    gradient: Number
    update: Number
    norm: Number = None


class RunningStatistics(BaseModel):
    batch_mean: _Channels
    batch_std: _Channels
    running_mean: _Channels
    running_std: _Channels


class Diagnostics(BaseModel):
    layers: dict[str, LayerOutput] = {}
    updates: dict[str, Update] = {}
    drift: dict[str, Number] = {}
    running_lag: dict[str, Number] = {}
    running: dict[str, RunningStatistics] = {}


class Report(BaseModel):
    """One line of the metrics. `held_out_examples`: how many examples were evaluated, and how many there are."""

    step: _Step
    loss: Number = None
    held_out: Number = None
    held_out_examples: tuple[_Step, _Step] | None = None
    accuracy: Number = None
    rmse: Number = None
    diagnostics: Diagnostics = Diagnostics()
    diverged: bool = False


@dataclass(frozen=True)
class History:
    """A run, as it is in its directory.

    result        what `run.start` returned; None if the run is not complete
    diverged_at   the step after which the loss was no longer finite; None if it always was
    """

    directory: Path
    config: Config
    reports: list[Report]
    result: dict[str, Any] | None
    diverged_at: int | None

    @property
    def step(self) -> int:
        """The last step that was reported."""
        return self.reports[-1].step if self.reports else 0

    def problem(self) -> str | None:
        """In one sentence, why the network should not be used; None if nothing is known against it."""
        if self.diverged_at is not None:
            return f"Training diverged at step {self.diverged_at}."
        if self.result is not None and not self.result["baseline"]["beaten"]:
            return "The run ended no better than guessing."
        return None

    def warning(self, what: str) -> str | None:
        """A line for those who use the network, if they should know something. `what`: its words or predictions."""
        if (problem := self.problem()) is not None:
            return f"{problem} Its {what} are worth little."
        if self.result is None:
            return f"The run is not complete: step {self.step:,} of {self.config.steps:,}. Its {what} may get better."
        return None


def read_history(directory: Path) -> History:
    """Read a run. Nothing is locked: it may be training at the same time."""
    with run.open_run(directory) as files:
        config = run.stored_config(files)
        result = run.stored_result(files, config) if files.holds(run.RESULT) else None
        reports = _reports(files.read(METRICS) if files.holds(METRICS) else b"", str(files.path / METRICS))
    diverged = [one.step for one in reports if one.diverged]
    return History(
        directory, config, [one for one in reports if not one.diverged], result, diverged[-1] if diverged else None
    )


def _reports(content: bytes, name: str) -> list[Report]:
    """The lines of the metrics. A last line without an end is still being written, or was when the process died."""
    lines = content.split(b"\n")[:-1]
    reports: list[Report] = []
    for number, line in enumerate(lines, 1):
        try:
            report = Report.model_validate(decode_json(line, name))
        except (ValidationError, ValueError):
            raise ValueError(f"{name}, line {number}: damaged, not a report of a training run.") from None
        if reports and report.step < reports[-1].step:
            raise ValueError(f"{name}, line {number}: damaged, step {report.step} follows {reports[-1].step}.")
        reports.append(report)
    return reports
