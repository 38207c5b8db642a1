"""What all reports share: templates, charts as SVG, and tables that the page holds as links."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Sequence
from importlib.resources import files
from typing import Any, Protocol

from jinja2 import Environment, FunctionLoader, StrictUndefined
from markupsafe import Markup

from truenorm.report import images
from truenorm.report.figures import Figure

MAX_EMBEDDED = 800_000  # bytes of tables in the document, so that it stays below 3 MB


class CSVTable(Protocol):
    """A table that can be written as CSV."""

    @property
    def name(self) -> str: ...
    @property
    def about(self) -> str: ...
    def csv(self) -> str: ...
    def __len__(self) -> int: ...


def render(template: str, **values: Any) -> str:
    """The whole document. The same values give the same text."""
    environment = Environment(
        loader=FunctionLoader(_resource),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"digits": digits, "percent": lambda share: "" if share is None else f"{share:.1%}"}
    return environment.get_template(template).render(style=Markup(_resource("style.css")), **values)


def to_bytes(text: str) -> bytes:
    """UTF-8. Names of files and layers may hold what it cannot: lone surrogates."""
    return text.encode(errors="backslashreplace")


def drawn(figures: Sequence[Figure]) -> list[dict[str, Any]]:
    """The figures with their charts as SVG."""
    number = 0
    found = []
    for figure in figures:
        pictures = []
        for picture in figure.pictures:
            number += 1
            svg = images.to_svg(picture.chart, number, picture.description)
            pictures.append({"svg": Markup(svg), "only": picture.only})
        found.append({"figure": figure, "pictures": pictures})
    return found


def embedded(tables: Sequence[CSVTable], always: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """Each table with a link that holds it, where it is not too large. `always`: the names of those that come first."""
    left = MAX_EMBEDDED
    for table in sorted(tables, key=lambda one: one.name not in always):
        content = base64.b64encode(to_bytes(table.csv())).decode()
        fits = table.name in always or len(content) <= left
        left -= len(content) if fits else 0
        yield {"table": table, "link": f"data:text/csv;base64,{content}" if fits else None}


def image_files(figures: Sequence[Figure], kind: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of each chart as a file; `kind`: svg or png."""
    convert: Callable[[Any], bytes] = images.to_svg_file if kind == "svg" else images.to_png_file
    for figure in figures:
        for picture in figure.pictures:
            if picture.only != "narrow":
                yield f"{_file_name(picture.name)}.{kind}", convert(picture.chart)


def csv_files(tables: Sequence[CSVTable]) -> Iterator[tuple[str, bytes]]:
    """Name and content of each table as a file."""
    for table in tables:
        yield f"{table.name}.csv", to_bytes(table.csv())


def digits(value: float | None, count: int = 4) -> str:
    return "" if value is None else f"{value:.{count}f}" if abs(value) < 1000 else f"{value:.4g}"


def _file_name(name: str) -> str:
    """A name of letters, digits and dashes: names of layers come from a file."""
    return "".join(one if one.isascii() and one.isalnum() else "-" for one in name)[:80]


def _resource(name: str) -> str:
    return files(__package__ or "truenorm.report").joinpath(name).read_text("utf-8")
