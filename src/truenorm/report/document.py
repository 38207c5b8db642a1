"""The report of training runs as one HTML document, and its files: charts as SVG and PNG, tables as CSV."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path

from truenorm.lab.config import LISTS, STUDENTS, options_of
from truenorm.report import html
from truenorm.report.figures import Figure, figures_of
from truenorm.report.runs import ReportedRun, read_runs
from truenorm.report.tables import Table, tables_of

ALWAYS_EMBEDDED = ("results", "losses", "configuration")


@dataclass(frozen=True)
class Report:
    """The report of some runs."""

    runs: list[ReportedRun]

    @classmethod
    def of(cls, directories: Sequence[Path]) -> Report:
        return cls(read_runs(directories))

    @cached_property
    def tables(self) -> dict[str, Table]:
        return tables_of(self.runs)

    @cached_property
    def figures(self) -> list[Figure]:
        return figures_of(self.runs, self.tables)

    def html(self) -> str:
        """The whole document. The same runs give the same text."""
        return html.render(
            "report.html.jinja",
            runs=self.runs,
            task=self.runs[0].history.config.task,
            results=self.tables["results"].rows,
            figures=html.drawn(self.figures),
            differences=differences(self.runs),
            options=[(one, options_of(one.history.config)) for one in self.runs],
            command=shlex.join(["truenorm", "report", *(one.repeated for one in self.runs)]),
            files=[one for one in self.runs if one.history.config.data not in (*LISTS, STUDENTS)],
            tables=list(html.embedded(list(self.tables.values()), ALWAYS_EMBEDDED)),
            version=version("truenorm"),
        )

    def image_files(self, kind: str) -> Iterator[tuple[str, bytes]]:
        return html.image_files(self.figures, kind)

    def csv_files(self) -> Iterator[tuple[str, bytes]]:
        return html.csv_files(list(self.tables.values()))


def differences(runs: Sequence[ReportedRun]) -> list[tuple[str, list[str]]]:
    """The options that are not the same in all runs, each with its value in every run; "" where it has no meaning."""
    options = [options_of(one.history.config) for one in runs]
    names = dict.fromkeys(name for one in options for name in one)
    rows = [(name, [one.get(name, "") for one in options]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]
