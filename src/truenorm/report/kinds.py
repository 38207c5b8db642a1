"""Which report some directories get: that of training runs, or that of a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from truenorm.lab import run
from truenorm.lab.directory import RunDirectory
from truenorm.lab.results import GRID
from truenorm.report.comparison import ComparisonReport
from truenorm.report.document import Report


class AnyReport(Protocol):
    """A document and its files; each file is a name and its content."""

    def html(self) -> str: ...
    def image_files(self, kind: str) -> Iterator[tuple[str, bytes]]: ...
    def csv_files(self) -> Iterator[tuple[str, bytes]]: ...


def report_of(directories: Sequence[Path]) -> AnyReport:
    """The report of one results directory, or of training runs."""
    results = [directory for directory in directories if _holds_results(directory)]
    if not results:
        return Report.of(directories)
    if len(directories) > 1:
        raise ValueError(f"report: the results of a comparison alone, got {results[0]} beside others. Leave one out.")
    return ComparisonReport.of(results[0])


def _holds_results(directory: Path) -> bool:
    """Whether a directory holds a grid, and not a run. One that holds neither is an error."""
    problem = f"{directory}: neither a training run nor the results of a comparison"
    try:
        with RunDirectory(directory) as files:
            if not (files.holds(run.CONFIG) or files.holds(GRID)):
                raise ValueError(f"{problem}: it has no {run.CONFIG} and no {GRID}.")
            return files.holds(GRID) and not files.holds(run.CONFIG)
    except FileNotFoundError:
        raise ValueError(f"{problem}: it does not exist.") from None
