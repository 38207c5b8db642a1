"""The report as one HTML document, and its files: charts as SVG and PNG, tables as CSV."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from markupsafe import Markup

from truenorm.lab.config import LISTS, STUDENTS, options_of
from truenorm.report import images
from truenorm.report.figures import Figure, figures_of
from truenorm.report.runs import ReportedRun, read_runs
from truenorm.report.tables import Table, tables_of

TITLE = "<title>Training report · truenorm</title>"
MAX_EMBEDDED = 800_000  # bytes of tables in the document, so that it stays below 3 MB
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
        environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
        environment.filters |= {"digits": _digits, "percent": lambda share: "" if share is None else f"{share:.1%}"}
        template = environment.from_string(_resource("report.html.jinja"))
        return template.render(
            style=Markup(_resource("style.css")),
            runs=self.runs,
            task=self.runs[0].history.config.task,
            results=self.tables["results"].rows,
            figures=self._drawn(),
            differences=differences(self.runs),
            options=[(one, options_of(one.history.config)) for one in self.runs],
            command=shlex.join(["truenorm", "report", *(str(one.history.directory) for one in self.runs)]),
            files=[one for one in self.runs if one.history.config.data not in (*LISTS, STUDENTS)],
            tables=list(self._embedded()),
            version=version("truenorm"),
        )

    def image_files(self, kind: str) -> Iterator[tuple[str, bytes]]:
        """Name and content of each chart as a file; `kind`: svg or png."""
        convert: Callable[[Any], bytes] = images.to_svg_file if kind == "svg" else images.to_png_file
        for figure in self.figures:
            for picture in figure.pictures:
                if picture.only != "narrow":
                    yield f"{_file_name(picture.name)}.{kind}", convert(picture.chart)

    def csv_files(self) -> Iterator[tuple[str, bytes]]:
        for table in self.tables.values():
            yield f"{table.name}.csv", table.csv().encode()

    def _drawn(self) -> list[dict[str, Any]]:
        """The figures with their charts as SVG."""
        number = 0
        drawn = []
        for figure in self.figures:
            pictures = []
            for picture in figure.pictures:
                number += 1
                svg = images.to_svg(picture.chart, number, picture.description)
                pictures.append({"svg": Markup(svg), "only": picture.only})
            drawn.append({"figure": figure, "pictures": pictures})
        return drawn

    def _embedded(self) -> Iterator[dict[str, Any]]:
        """Each table with a link that holds it, where it is not too large."""
        left = MAX_EMBEDDED
        for table in sorted(self.tables.values(), key=lambda one: one.name not in ALWAYS_EMBEDDED):
            content = base64.b64encode(table.csv().encode()).decode()
            fits = table.name in ALWAYS_EMBEDDED or len(content) <= left
            left -= len(content) if fits else 0
            yield {"table": table, "link": f"data:text/csv;base64,{content}" if fits else None}


def differences(runs: Sequence[ReportedRun]) -> list[tuple[str, list[str]]]:
    """The options that are not the same in all runs, each with its value in every run; "" where it has no meaning."""
    options = [options_of(one.history.config) for one in runs]
    names = dict.fromkeys(name for one in options for name in one)
    rows = [(name, [one.get(name, "") for one in options]) for name in names]
    return [(name, values) for name, values in rows if len(set(values)) > 1]


def _digits(value: float | None, digits: int = 4) -> str:
    return "" if value is None else f"{value:.{digits}f}" if abs(value) < 1000 else f"{value:.4g}"


def _file_name(name: str) -> str:
    """A name of letters, digits and dashes: names of layers come from a file."""
    return "".join(one if one.isascii() and one.isalnum() else "-" for one in name)[:80]


def _resource(name: str) -> str:
    return files(__package__ or "truenorm.report").joinpath(name).read_text("utf-8")
