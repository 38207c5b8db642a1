"""The charts, in Altair: losses side by side, small line charts, histograms over time, batch and running statistics.

Each function takes rows with fixed field names and returns a chart. Colours are those below and those of the runs:
style.css knows them. Charts have no legend: lines are labelled where they end, or the page names the colours above.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import altair as alt

from truenorm.lab.diagnostics import BINS, LIMIT
from truenorm.report.tables import Row

# Roles of colours beside those of the runs. style.css replaces each on dark screens.
TEXT, MUTED, GRID, PAPER = "#1c2127", "#68707b", "#e3e6ea", "#ffffff"
PANEL = (236, 118)  # width and height of a small chart
RIDGES = 9  # histograms over time in one chart
RIDGE_HEIGHT = 2.4  # of the highest bin, in distances between two histograms
LABEL_DISTANCE = 14  # pixels between labels at the ends of lines
LARGEST, SMALLEST = 1e300, 1e-300  # what scales show: beyond, their arithmetic would overflow and underflow

Chart = alt.LayerChart


@dataclass(frozen=True)
class Size:
    width: int
    height: int
    labelled: bool  # whether there is room for labels at the ends of lines


class Colored(Protocol):
    """What a line shows: a run, or a setting of a comparison."""

    @property
    def name(self) -> str: ...
    @property
    def color(self) -> str: ...


WIDE, NARROW = Size(640, 300, labelled=True), Size(300, 220, labelled=False)


def losses(
    rows: Sequence[Row],
    finals: Sequence[Row],
    runs: Sequence[Colored],
    size: Size,
    unit: str,
    *,
    bands: bool = False,
) -> Chart:
    """Training losses as thin lines, held-out losses as thick ones, final held-out losses as dots.

    rows     run, step, loss, held_out; with `bands` also lowest and highest, the edges of a band around held_out
    finals   run, step, value: of complete runs
    """
    most = most_shown(rows)
    values = [row[name] for row in rows for name in ("loss", "held_out") if row[name] is not None]
    scale = scale_of([min(value, most) for value in (*values, *(row["value"] for row in finals))])
    x = steps_axis(max((row["step"] for row in rows), default=1), "step")
    y = alt.Y("value:Q", title=unit, scale=scale.altair, axis=alt.Axis(values=scale.ticks, format=scale.format))
    lines = [
        {"run": row["run"], "step": row["step"], "value": scale.clipped(row[name]), "kind": kind}
        for name, kind in (("loss", "training"), ("held_out", "held out"))
        for row in rows
        if scale.holds(row[name])
    ]
    layers = [
        chart_of([one for one in lines if one["kind"] == kind])
        .mark_line(strokeWidth=width, opacity=opacity, strokeJoin="round")
        .encode(x=x, y=y, detail="run:N", color=run_color(runs))
        for kind, width, opacity in (("training", 1, 0.55), ("held out", 2.2, 1.0))
    ]
    if bands:
        edges = [
            {"run": row["run"], "step": row["step"]}
            | {name: scale.clipped(row[name]) for name in ("lowest", "highest")}
            for row in rows
            if scale.holds(row["lowest"]) and scale.holds(row["highest"])
        ]
        layers.insert(
            0,
            chart_of(edges)
            .mark_area(opacity=0.15)
            .encode(
                x=x,
                y=alt.Y("lowest:Q", title=unit, scale=scale.altair),
                y2="highest:Q",
                detail="run:N",
                color=run_color(runs),
            ),
        )
    layers.append(
        chart_of([row | {"value": scale.clipped(row["value"])} for row in finals])
        .mark_circle(size=46, opacity=1)
        .encode(x="step:Q", y="value:Q", color=run_color(runs))
    )
    if size.labelled:
        layers.append(_end_labels(lines, runs, scale, size))
    return finished(alt.layer(*layers), size.width, size.height)


def intervals(
    rows: Sequence[Row], dots: Sequence[Row], lines: Sequence[Colored], size: Size, unit: str
) -> tuple[Chart, bool]:
    """Means with their intervals, one below the other, and the values behind them as small dots.

    rows   setting, run (whose colour it has), mean, low, high: null without an interval
    dots   setting, run, value
    Returns the chart, and whether something lies beyond its edges: a setting that is much worse than most must not make
    the others one point.
    """
    values = [row["mean"] for row in rows] + [row["value"] for row in dots]
    most = 2 * statistics.median(row["mean"] for row in rows)
    scale = _scale_of_intervals(rows, [value for value in values if value <= most])
    order = [row["setting"] for row in rows]
    axis = alt.Axis(labelLimit=280, domain=False, ticks=False, title=None, labelColor=TEXT) if size.labelled else None
    y = alt.Y("setting:N", sort=order, axis=axis, scale=alt.Scale(paddingOuter=0.5))
    x_axis = alt.Axis(values=scale.ticks if size.labelled else scale.ticks[::2], format=scale.format, domain=False)
    x = alt.X("value:Q", title=unit, scale=scale.altair, axis=x_axis)
    ends = [
        {"setting": row["setting"], "run": row["run"]}
        | {name: scale.clipped(row[name]) if scale.holds(row[name]) else scale.low for name in ("low", "high")}
        for row in rows
        if row["low"] is not None
    ]
    cut = max(values) > scale.high or any(
        row["low"] < scale.low or row["high"] > scale.high for row in rows if row["low"] is not None
    )
    color = run_color(lines)
    means = [row | {"value": scale.clipped(row["mean"])} for row in rows]
    layers = [
        chart_of([row | {"value": scale.clipped(row["value"])} for row in dots])
        .mark_circle(size=14, opacity=0.45)
        .encode(x=x, y=y, color=color),
        chart_of(ends)
        .mark_rule(strokeWidth=2)
        .encode(x=alt.X("low:Q", title=unit, scale=scale.altair, axis=x_axis), x2="high:Q", y=y, color=color),
        chart_of(means).mark_circle(size=60, opacity=1).encode(x=x, y=y, color=color),
    ]
    if not size.labelled:  # names above the intervals
        names = chart_of(means).mark_text(align="left", baseline="bottom", dy=-6, fontSize=10.5, color=TEXT, limit=300)
        layers.append(names.encode(x=alt.value(0), y=y, text="setting:N"))
    return finished(alt.layer(*layers), size.width, (22 if size.labelled else 36) * (len(rows) + 1)), cut


def _scale_of_intervals(rows: Sequence[Row], values: Sequence[float]) -> ValueScale:
    """A scale for the values and for the ends of intervals that are near them: that of two seeds may be far away."""
    scale = scale_of(values, most=10)
    if scale.log:
        return scale
    low, high = min(values), max(values)
    ends = [row[name] for row in rows for name in ("low", "high") if row[name] is not None]
    near = [end for end in ends if 2 * low - high <= end <= 2 * high - low]
    return scale_of([*values, *near], log=False, most=10)


def most_shown(rows: Sequence[Row]) -> float:
    """The highest loss in a chart: three times the highest of the best run. A run that diverges must not hide others.

    Rows: run, loss, held_out.
    """
    highest: dict[str, float] = {}
    for row in rows:
        for name in ("loss", "held_out"):
            if row[name] is not None:
                highest[row["run"]] = max(row[name], highest.get(row["run"], row[name]))
    return 3 * min(highest.values(), default=math.inf)


def lines(rows: Sequence[Row], runs: Sequence[Colored], title: str, *, reference: float | None = None) -> Chart:
    """A small chart with one line for each run. Rows: run, step, value. `reference`: a dashed line at this value."""
    scale = scale_of([row["value"] for row in rows] + ([] if reference is None else [reference]))
    y = alt.Y("value:Q", title=None, scale=scale.altair, axis=alt.Axis(values=scale.ticks, format=scale.format))
    shown = [row | {"value": scale.clipped(row["value"])} for row in rows if scale.holds(row["value"])]
    chart = (
        chart_of(shown)
        .mark_line(strokeWidth=1.6, strokeJoin="round")
        .encode(x=steps_axis(max((row["step"] for row in rows), default=1)), y=y, detail="run:N", color=run_color(runs))
    )
    layers = [chart]
    if reference is not None:
        layers.insert(
            0,
            chart_of([{"value": reference}])
            .mark_rule(color=MUTED, strokeDash=[3, 3], strokeWidth=1)
            .encode(y="value:Q"),
        )
    return finished(alt.layer(*layers), *PANEL, title)


def histograms(rows: Sequence[Row], color: str, title: str) -> Chart:
    """Histograms of one layer's output at some steps, one behind the other, the first at the top.

    rows   step, counts: BINS numbers each
    """
    chosen = [rows[round(i * (len(rows) - 1) / max(1, RIDGES - 1))] for i in range(min(RIDGES, len(rows)))]
    shares = [[count / max(1, sum(row["counts"])) for count in row["counts"]] for row in chosen]
    most = max((max(one) for one in shares), default=0.0) or 1.0
    width = 2 * LIMIT / BINS
    points, labels = [], []
    for i, (row, heights) in enumerate(zip(chosen, shares, strict=True)):
        base = len(chosen) - 1 - i
        labels.append({"step": f"{row['step']:,}", "base": base})
        for number, height in enumerate(heights):
            top = round(base + height / most * RIDGE_HEIGHT, 4)
            points.append({"i": i, "x": round(-LIMIT + (number + 0.5) * width, 3), "base": base, "top": top})
    y = alt.Scale(domain=[0, len(chosen) - 1 + RIDGE_HEIGHT], nice=False)
    x = alt.X(
        "x:Q",
        title=None,
        scale=alt.Scale(domain=[-LIMIT, LIMIT], nice=False),
        axis=alt.Axis(values=[-3, -2, -1, 0, 1, 2, 3], grid=False, format="d"),
    )
    areas = (
        chart_of(points)
        .mark_area(fill=color, stroke=PAPER, strokeWidth=1, line=False)
        .encode(x=x, y=alt.Y("top:Q", scale=y, axis=None), y2="base:Q", detail="i:O")
    )
    named = [labels[i] for i in sorted({0, len(labels) // 2, len(labels) - 1})] if labels else []
    steps = (
        chart_of(named)
        .mark_text(align="right", baseline="bottom", dx=-6, fontSize=9.5, color=MUTED)
        .encode(x=alt.value(0), y=alt.Y("base:Q", scale=y, axis=None), text="step:N")
    )
    return finished(alt.layer(areas, steps), PANEL[0], 150, title)


def batch_and_running(rows: Sequence[Row], color: str, title: str) -> Chart:
    """A statistic of one channel: of batches as dots, the running one as a line. Rows: step, batch, running."""
    scale = scale_of([row[name] for row in rows for name in ("batch", "running") if row[name] is not None], log=False)
    axis = alt.Axis(values=scale.ticks, format=scale.format)
    y, y_running = (alt.Y(f"{name}:Q", title=None, scale=scale.altair, axis=axis) for name in ("batch", "running"))
    x = steps_axis(max((row["step"] for row in rows), default=1))
    chart = chart_of([row for row in rows if row["batch"] is not None and row["running"] is not None])
    dots = chart.mark_circle(size=9, color=color, opacity=0.5).encode(x=x, y=y)
    line = chart.mark_line(strokeWidth=1.8, color=color).encode(x=x, y=y_running)
    return finished(alt.layer(dots, line), *PANEL, title)


# ---- scales ----


@dataclass(frozen=True)
class ValueScale:
    """A linear or logarithmic scale for some values, with its ticks."""

    low: float
    high: float
    log: bool
    ticks: list[float]
    format: str

    @property
    def altair(self) -> alt.Scale:
        return alt.Scale(type="log" if self.log else "linear", domain=[self.low, self.high], nice=False, zero=False)

    def holds(self, value: float | None) -> bool:
        """Whether a value can be drawn: a logarithmic scale has no 0."""
        return value is not None and (value > 0 or not self.log)

    def clipped(self, value: float) -> float:
        """To the scale, with the digits that can be seen."""
        return float(f"{min(max(value, self.low), self.high):.5g}")

    def place(self, value: float, height: int) -> float:
        """Pixels from the top."""
        low, high, one = (math.log(v) if self.log else v for v in (self.low, self.high, self.clipped(value)))
        return height * (high - one) / (high - low)

    def value_at(self, place: float, height: int) -> float:
        """The value that is drawn so many pixels from the top."""
        low, high = (math.log(v) if self.log else v for v in (self.low, self.high))
        value = high - place / height * (high - low)
        return math.exp(value) if self.log else value


def scale_of(values: Sequence[float | None], *, log: bool | None = None, most: int = 5) -> ValueScale:
    """A scale for these values: logarithmic if all are positive and they differ by more than a factor of 30.

    most   the number of ticks of a linear scale, about

    >>> scale_of([2.0, 3.0]).ticks, scale_of([1e-4, 1.0]).ticks
    ([2.0, 2.2, 2.4, 2.6, 2.8, 3.0], [0.0001, 0.001, 0.01, 0.1, 1.0])
    """
    finite = [min(max(value, -LARGEST), LARGEST) for value in values if value is not None]
    finite = [value if abs(value) > SMALLEST else 0.0 for value in finite]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    if log is None:
        positive = [value for value in finite if value > 0]
        log = bool(positive) and high / min(positive) > 30 and low >= 0
        low = min(positive) if log else low
    if log:
        exponents = range(math.floor(math.log10(low) + 1e-9), math.ceil(math.log10(high) - 1e-9) + 1)
        ticks = [10.0**one for one in exponents]
        text = "~g" if ticks[0] >= 1e-4 and ticks[-1] <= 1e4 else ".0e"
        return ValueScale(ticks[0], ticks[-1], True, ticks[:: max(1, (len(ticks) + 4) // 5)], text)
    if not high > low:
        low, high = low - max(1e-9, abs(low) * 0.1), high + max(1e-9, abs(high) * 0.1)
    distance = _round_distance((high - low) / most)
    first, last = math.floor(low / distance + 1e-9), math.ceil(high / distance - 1e-9)
    digits = max(0, -math.floor(math.log10(distance) + 1e-9))
    ticks = [round(number * distance, digits) for number in range(first, last + 1)]
    text = f".{digits}f" if digits <= 4 else "~g"
    return ValueScale(ticks[0], ticks[-1], False, ticks, text)


def _round_distance(distance: float) -> float:
    """The next of 1, 2, 5, 10, 20, ... and their decimals."""
    power = 10.0 ** math.floor(math.log10(distance))
    return float(next(one for one in (power, 2 * power, 5 * power, 10 * power) if one >= distance * 0.999))


def steps_axis(last: int, title: str | None = None) -> alt.X:
    distance = max(1, round(_round_distance(max(last, 1) / 4)))
    return alt.X(
        "step:Q",
        title=title,
        scale=alt.Scale(domain=[0, max(last, 1)], nice=False),
        axis=alt.Axis(values=list(range(0, last + 1, distance)), grid=False, format="~s" if last >= 10_000 else ",d"),
    )


# ---- what all charts share ----


def chart_of(rows: Sequence[Row]) -> alt.Chart:
    """A chart of these rows, which its specification holds."""
    inline: Any = alt.Data  # it has no types
    return alt.Chart(inline(values=list(rows)))


def run_color(runs: Sequence[Colored]) -> alt.Color:
    return alt.Color(
        "run:N",
        scale=alt.Scale(domain=[one.name for one in runs], range=[one.color for one in runs]),
        legend=None,
    )


def _end_labels(rows: Sequence[Row], runs: Sequence[Colored], scale: ValueScale, size: Size) -> alt.Chart:
    """The name of each run at the end of its held-out line; moved apart where they would overlap."""
    ends = {row["run"]: row for row in rows if row["kind"] == "held out"}
    wanted = sorted((scale.place(row["value"], size.height), name) for name, row in ends.items())
    places: list[float] = []
    for place, _ in wanted:
        places.append(max(place, places[-1] + LABEL_DISTANCE) if places else place)
    for i in reversed(range(len(places))):  # back up, where they would leave the chart
        most = size.height if i == len(places) - 1 else places[i + 1] - LABEL_DISTANCE
        places[i] = min(places[i], most)
    labels = [
        {"run": name, "value": scale.value_at(place, size.height)}
        for place, (_, name) in zip(places, wanted, strict=True)
    ]
    named: alt.Chart = (
        chart_of(labels)
        .mark_text(align="left", baseline="middle", dx=9, fontSize=12, fontWeight="bold", limit=150)
        .encode(
            x=alt.value(size.width),
            y="value:Q",
            text="run:N",
            color=run_color(runs),
        )
    )
    return named


def finished(chart: Any, width: int, height: int, title: str | None = None) -> Chart:
    """The layered chart in its size."""
    chart.width, chart.height = width, height
    if title is not None:
        # Vega looks up every text as the name of a signal, and finds "constructor", which every JavaScript object has.
        # No such name ends with a space.
        chart.title = f"{title} "
    layered: Chart = chart
    return layered


# Fonts and colours of all charts: the `config` of their specifications.
CONFIG: dict[str, Any] = {
    "background": "transparent",
    "padding": 4,
    "font": "Helvetica, Arial, sans-serif",
    "aria": False,
    "view": {"stroke": None},
    "axis": {
        "labelColor": MUTED,
        "titleColor": MUTED,
        "titleFontWeight": "normal",
        "labelFontSize": 10.5,
        "titleFontSize": 11,
        "gridColor": GRID,
        "domainColor": GRID,
        "tickColor": GRID,
        "tickSize": 4,
        "labelPadding": 4,
    },
    "axisY": {"domain": False, "ticks": False},
    "title": {"anchor": "start", "fontSize": 12, "fontWeight": "bold", "color": TEXT, "offset": 8},
}
