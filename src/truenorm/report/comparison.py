"""The report of a comparison as one HTML document: settings with intervals, curves, failed trials, how to repeat it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from truenorm.lab.config import LISTS, STUDENTS
from truenorm.report import charts, html
from truenorm.report.figures import UNITS, Figure, Picture
from truenorm.report.html import CSVTable
from truenorm.report.runs import COLORS, REPEATED
from truenorm.report.settings import (
    NUMBERS,
    ONLY,
    Comparison,
    Line,
    key_of,
    lines_of,
    mean_curves,
    name_of,
    read_comparison,
    setting_row,
)
from truenorm.report.tables import Row, Table

MAX_ROWS = 100  # settings in the table of the page
MAX_INTERVALS = 40  # settings in the chart of intervals
MAX_DOTS = 20  # seeds of a setting that are drawn one by one
MAX_FAILED = 50  # failed trials on the page
MAX_FIGURES = 6  # options that have a chart of curves


@dataclass(frozen=True)
class TrialsTable:
    """One row for each trial that has a result: as many as there are, so as text and not as objects."""

    comparison: Comparison
    name: str = "trials"
    about: str = "One row for each trial that has a result."

    def __len__(self) -> int:
        return self.comparison.finished

    def csv(self) -> str:
        return self.comparison.csv


@dataclass(frozen=True)
class ComparisonReport:
    """The report of one results directory."""

    comparison: Comparison

    @classmethod
    def of(cls, directory: Path) -> ComparisonReport:
        return cls(read_comparison(directory))

    @cached_property
    def rows(self) -> list[Row]:
        """The numbers of the settings, best first."""
        return [setting_row(one, self.comparison.settings[0]) for one in self.comparison.settings]

    @cached_property
    def lines(self) -> dict[str | None, list[Line]]:
        """For each option that varies, the best setting with each value; for None the only setting."""
        options: list[str | None] = [*self.comparison.grid.varied()[:MAX_FIGURES]] or [None]
        found = {option: lines_of(self.comparison, option) for option in options}
        return {option: lines for option, lines in found.items() if lines}

    @cached_property
    def curves(self) -> dict[str | None, list[Row]]:
        """The rows of each chart of curves."""
        found = mean_curves(self.comparison, [one.setting for lines in self.lines.values() for one in lines])
        return {
            option: [{"run": one.name} | row for one in lines for row in found[key_of(one.setting)]]
            for option, lines in self.lines.items()
        }

    @cached_property
    def tables(self) -> list[CSVTable]:
        comparison = self.comparison
        varied = tuple(comparison.grid.varied())
        tables: list[CSVTable] = [
            Table(
                "settings",
                "Means over the seeds that did not diverge, their 95% intervals, and differences to the best setting.",
                (*varied, *NUMBERS),
                self.rows,
            ),
            Table(
                "curves",
                "Means over seeds, and the lowest and highest held-out loss, of the settings that are drawn.",
                ("option", "value", "setting", "step", "loss", "held_out", "lowest", "highest", "seeds"),
                list(self._curve_rows()),
            ),
            TrialsTable(comparison),
        ]
        if comparison.failed:
            failed = [
                {name: getattr(trial.config, name) for name in (*varied, "seed")}
                | {"trial": trial.name, "error": error}
                for trial, error in comparison.failed
            ]
            about = "The trials that raised an error or ended their worker."
            tables.append(Table("failed", about, (*varied, "seed", "trial", "error"), failed))
        return tables

    @cached_property
    def figures(self) -> list[Figure]:
        return [one for one in (self._intervals(), *self._curves()) if one.pictures]

    def html(self) -> str:
        """The whole document. The same results give the same text."""
        comparison = self.comparison
        out = str(Path(REPEATED, comparison.directory.resolve().name))
        command = comparison.grid.command_line(out)
        data = comparison.grid.axes.get("data", ())
        return html.render(
            "comparison.html.jinja",
            name=comparison.directory.resolve().name,
            comparison=comparison,
            varied=[name.replace("_", "-") for name in comparison.grid.varied()],
            fixed=[
                (name.replace("_", "-"), values[0])
                for name, values in comparison.grid.axes.items()
                if len(values) == 1 and name != "seed"
            ],
            seeds=len(comparison.grid.axes.get("seed", (0,))),
            settings=list(zip(comparison.settings, self.rows, strict=True))[:MAX_ROWS],
            swatches=self._swatches(),
            accuracy=any(one.accuracies for one in comparison.settings),
            rmse=any(one.rmses for one in comparison.settings),
            failed=comparison.failed[:MAX_FAILED],
            figures=html.drawn(self.figures),
            tables=list(html.embedded(self.tables)),
            commands=None if command is None else [shlex.join(command), shlex.join(["truenorm", "report", out])],
            report=shlex.join(["truenorm", "report", str(comparison.directory)]),
            files=[one for one in data if one not in (*LISTS, STUDENTS)],
        )

    def image_files(self, kind: str) -> Iterator[tuple[str, bytes]]:
        return html.image_files(self.figures, kind)

    def csv_files(self) -> Iterator[tuple[str, bytes]]:
        return html.csv_files(self.tables)

    # ---- figures ----

    @property
    def _unit(self) -> str:
        tasks = self.comparison.grid.axes.get("task", ("words",))
        return UNITS[tasks[0]] if len(tasks) == 1 else "loss"

    def _swatches(self) -> dict[str, str]:
        """The colour of each value of the first option, where every value has one."""
        varied = self.comparison.grid.varied()
        if not varied or len(self.comparison.grid.axes[varied[0]]) > len(COLORS):
            return {}
        return {one.name: one.color for one in self.lines.get(varied[0], ())}

    def _intervals(self) -> Figure:
        varied, swatches = self.comparison.grid.varied(), self._swatches()
        lines = [Line(name, color, self.comparison.settings[0]) for name, color in swatches.items()]
        lines = lines or [Line(ONLY, COLORS[0], self.comparison.settings[0])]
        rows: list[Row] = []
        dots: list[Row] = []
        for setting, row in zip(self.comparison.settings, self.rows, strict=True):
            if row["held_out"] is None or len(rows) == MAX_INTERVALS:
                continue
            color = str(setting.options[varied[0]]) if swatches else ONLY
            place = {"setting": name_of(setting), "run": color}
            rows.append(place | {"mean": row["held_out"], "low": row["low"], "high": row["high"]})
            if len(setting.losses) <= MAX_DOTS:
                dots += [place | {"value": loss} for loss in setting.losses.values()]
        text = (
            "Final held-out loss over all examples. Large dots: means over the seeds that did not diverge. Lines: 95% "
            "confidence intervals of these means, by Student's t. Small dots: single seeds."
        )
        shown = [one for one in self.comparison.settings if one.losses]
        if len(shown) > len(rows):
            text += f" The best {len(rows)} of {len(shown):,} settings; the table has all."
        if len(shown) < len(self.comparison.settings):
            text += f" {len(self.comparison.settings) - len(shown):,} settings without a finite loss are left out."
        pictures = []
        for size, only in ((charts.WIDE, "wide"), (charts.NARROW, "narrow")) if rows else ():
            chart, cut = charts.intervals(rows, dots, lines, size, self._unit)
            said = f"Means and intervals of {len(rows)} settings. Best: {rows[0]['setting']}, {rows[0]['mean']:.4g}."
            pictures.append(Picture("intervals" if only == "wide" else "intervals-narrow", chart, said, only))
            text += " What lies beyond an edge is drawn on it." if cut and only == "wide" else ""
        return Figure("Held-out loss", text, "settings", pictures, lines=lines if len(lines) > 1 else ())

    def _curves(self) -> Iterator[Figure]:
        for option, lines in self.lines.items():
            rows = self.curves[option]
            if not rows:
                continue
            name = "" if option is None else option.replace("_", "-")
            others = [one for one in self.comparison.grid.varied() if one != option]
            text = (
                "Thick: held-out loss of up to 1,024 examples, in evaluation mode; the shaded band reaches from the "
                "lowest to the highest seed. Thin: training loss. Means over the seeds that did not diverge."
            )
            if others:
                best = "; ".join(f"{one.name}: {_others(one, name)}" for one in lines)
                text = f"The best setting with each {name} ({best}). {text}"
            count = len(self.comparison.grid.axes[option]) if option is not None else 1
            if len(lines) < count:
                text += f" {len(lines)} of {count:,} values are drawn: those whose best settings are the best."
            most = charts.most_shown(rows)
            if any(row["loss"] > most or row["highest"] > most for row in rows):
                text += " What lies beyond the upper edge is drawn on it."
            said = "Line chart of mean losses over steps. " + ", ".join(_end(rows, one) for one in lines) + "."
            pictures = [
                Picture(
                    f"curves-{name or 'all'}{suffix}",
                    charts.losses(rows, (), lines, size, self._unit, bands=True),
                    said,
                    only,
                )
                for size, only, suffix in ((charts.WIDE, "wide", ""), (charts.NARROW, "narrow", "-narrow"))
            ]
            title = f"Losses by {name}" if name else "Losses"
            yield Figure(title, text, "curves", pictures, lines=lines if len(lines) > 1 else ())

    def _curve_rows(self) -> Iterator[Row]:
        names = {(option, one.name): name_of(one.setting) for option, lines in self.lines.items() for one in lines}
        for option, rows in self.curves.items():
            for row in rows:
                place = {"option": option or "", "value": row["run"], "setting": names[option, row["run"]]}
                yield place | {key: value for key, value in row.items() if key != "run"}


def _others(line: Line, option: str) -> str:
    """The setting of a line, without the option that its name says."""
    return name_of(line.setting).replace(f"{option} {line.name}", "", 1).strip(", ").replace(", , ", ", ")


def _end(rows: Sequence[Row], line: Line) -> str:
    last = [row["held_out"] for row in rows if row["run"] == line.name]
    return f"{line.name}: {last[-1]:.4g} held out at the end" if last else line.name
