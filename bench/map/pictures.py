"""The speed map as pictures: heat maps of torch's time / ours over two axes at a time, as SVG and PNG.

Each field shows the median of its cells as a number and as a colour, and below it the lowest of them, because a median
hides what is slow. Blue: ours is faster; orange: slower; white: equal; grey: no cell. The scale of the colours is
logarithmic, so that twice as fast and half as fast are equally far from white.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import altair as alt

from bench.map.cells import AXES, SIZES, Cell
from bench.map.results import Row
from truenorm.report.charts import MUTED, TEXT, chart_of, finished
from truenorm.report.images import to_png_file, to_svg_file

FIELD = (68, 34)  # width and height
EXTREME = 3.0  # the ratio, or its inverse, with the strongest colour
NO_CELL = "#eceef0"
COLORS = ["#b35806", "#f1a340", "#fee0b6", "#ffffff", "#d1e5f0", "#67a9cf", "#2166ac"]
SIZE_NAMES = dict(zip(SIZES, ("2 kB", "16 kB", "128 kB", "1 MB", "8 MB"), strict=True))

Value = Callable[[Row], str]


@dataclass(frozen=True)
class Axis:
    """How rows are sorted into fields: a title, the values in order, and the value of a row."""

    title: str
    values: Sequence[str]
    of: Value


def axis_of(name: str, title: str, form: Callable[[Any], str] = str) -> Axis:
    return Axis(title, [form(value) for value in AXES[name]], lambda row: form(row["cell"][name]))


LAYER = axis_of("layer", "layer")
WIDTH = axis_of("width", "channels", "{:,}".format)
PLANE = axis_of("plane", "positions in a sample", "{:,}".format)
ROWS = axis_of("rows", "samples", "{:,}".format)
DTYPE = axis_of("dtype", "dtype")
ORDER = axis_of("order", "memory order")
PADDING = axis_of("padding", "padding", "{} %".format)
SIZE = Axis("size of x, from", list(SIZE_NAMES.values()), lambda row: SIZE_NAMES[Cell(**row["cell"]).size])
# The name of each picture, what it shows, and its panels: title, axes, and which rows.
PICTURES: dict[str, tuple[str, list[tuple[str, Axis, Axis, Callable[[Row], bool]]]]] = {
    "size": (
        "layer by size of x, without a mask and with 50 % padding",
        [
            ("no mask", SIZE, LAYER, lambda row: row["cell"]["padding"] == 0),
            ("50 % padding", SIZE, LAYER, lambda row: row["cell"]["padding"] == 50),
        ],
    ),
    "setting": (
        "layer by dtype, memory order and padding",
        [
            ("training, by dtype", DTYPE, LAYER, lambda row: row["cell"]["mode"] == "training"),
            ("evaluation, by dtype", DTYPE, LAYER, lambda row: row["cell"]["mode"] == "evaluation"),
            ("by memory order", ORDER, LAYER, lambda row: True),
            ("by padding", PADDING, LAYER, lambda row: True),
        ],
    ),
    "shape": (
        "channels by positions in a sample, and by samples",
        [
            ("by shape of a sample", PLANE, WIDTH, lambda row: True),
            ("by samples", ROWS, WIDTH, lambda row: True),
        ],
    ),
}


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write all pictures; the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for name, (_, panels) in PICTURES.items():
        chart = picture(rows, panels)
        for suffix, content in ((".svg", to_svg_file(chart)), (".png", to_png_file(chart))):
            file = folder / f"{name}{suffix}"
            file.write_bytes(content)
            written.append(file)
    return written


def links() -> str:
    """The pictures in Markdown, for a page beside their folder."""
    text = "Fields have the median of their cells, and the lowest below it. Blue: truenorm is faster; orange: slower."
    return "\n\n".join([text, *(f"![{shows}](speed/{name}.svg)" for name, (shows, _) in PICTURES.items())])


def picture(rows: Sequence[Row], panels: Sequence[tuple[str, Axis, Axis, Callable[[Row], bool]]]) -> Any:
    """Heat maps side by side, two a line."""
    charts = [heat_map([row for row in rows if belongs(row)], x, y, title) for title, x, y, belongs in panels]
    return alt.concat(*charts, columns=2, spacing=24)


def fields(rows: Sequence[Row], x: Axis, y: Axis) -> list[dict[str, Any]]:
    """One for each pair of values that has cells: the median and the lowest ratio, and how many cells."""
    found: dict[tuple[str, str], list[float]] = {}
    for row in rows:
        found.setdefault((x.of(row), y.of(row)), []).append(row["ratio"]["median"])
    return [
        {
            "x": across,
            "y": down,
            "value": max(1 / EXTREME, min(EXTREME, statistics.median(ratios))),
            "median": f"{statistics.median(ratios):.2f}",
            "lowest": f"{min(ratios):.2f}" if len(ratios) > 1 else "1 cell",
            "strong": not 0.5 < statistics.median(ratios) < 2,
        }
        for (across, down), ratios in found.items()
    ]


def heat_map(rows: Sequence[Row], x: Axis, y: Axis, title: str) -> Any:
    base = chart_of(fields(rows, x, y)).encode(
        x=alt.X("x:N", sort=list(x.values), title=x.title, scale=alt.Scale(domain=list(x.values)), axis=_axis(0)),
        y=alt.Y(
            "y:N", sort=list(y.values), title=None if y is LAYER else y.title, scale=alt.Scale(domain=list(y.values))
        ),
    )
    ends = [1 / EXTREME, 1 / EXTREME ** (2 / 3), 1 / EXTREME ** (1 / 3), 1.0]
    scale = alt.Scale(type="log", domain=[*ends, *(1 / one for one in ends[-2::-1])], range=COLORS, interpolate="rgb")
    color = alt.condition("datum.strong", alt.value("white"), alt.value(TEXT))
    layers = [
        base.mark_rect(stroke="#ffffff", strokeWidth=1).encode(color=alt.Color("value:Q", scale=scale, legend=None)),
        base.mark_text(dy=-5, fontSize=12, fontWeight="bold").encode(text="median:N", color=color),
        base.mark_text(dy=9, fontSize=9).encode(text="lowest:N", color=color),
    ]
    ground = alt.ViewBackground(fill=NO_CELL)
    return finished(alt.layer(*layers, view=ground), FIELD[0] * len(x.values), FIELD[1] * len(y.values), title)


def _axis(angle: int) -> alt.Axis:
    return alt.Axis(labelAngle=angle, labelColor=MUTED, domain=False, ticks=False)
