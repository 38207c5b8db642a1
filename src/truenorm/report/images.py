"""Charts as SVG and PNG, by vl-convert: it holds Vega and draws without a browser and without a network."""

from __future__ import annotations

import json
import re
from typing import Any

import altair as alt
import vl_convert

from truenorm.explanation.terminal import printable
from truenorm.report.charts import CONFIG, Chart

VERSION = ".".join(alt.SCHEMA_VERSION.removeprefix("v").split(".")[:2])
# What Vega writes for screen readers and scripts. The page describes each chart in words instead.
NEEDLESS = re.compile(r' (?:class|role|aria-[a-z]+|pointer-events|xmlns:xlink|version)="[^"]*"')
EMPTY = re.compile(r'<path d="(?:M0,0h0v0h0Z)?"(?: display="none")?/>')
SHAPES = re.compile(r' (?:d|transform)="[^"]*"')
DECIMALS = re.compile(r"(\.\d)\d+")  # of a tenth of a pixel, more than can be seen
NO_CHARACTERS = {0xFFFE: "\\ufffe", 0xFFFF: "\\uffff"}
IDS = re.compile(r'(id="|url\(#)')


def to_svg(chart: Chart, number: int, description: str) -> str:
    """The chart as an SVG element. `number`: different for each chart of a document, as ids must be."""
    svg = vl_convert.vegalite_to_svg(_spec(chart), vl_version=VERSION, allowed_base_urls=[])
    svg = EMPTY.sub("", NEEDLESS.sub("", svg))
    svg = SHAPES.sub(lambda shape: DECIMALS.sub(r"\1", shape[0]), svg)
    svg = IDS.sub(rf"\g<1>c{number}-", svg)
    label = description.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    return svg.replace("<svg ", f'<svg role="img" aria-label="{label}" ', 1)


def to_svg_file(chart: Chart) -> bytes:
    svg: str = vl_convert.vegalite_to_svg(_spec(chart, paper=True), vl_version=VERSION, allowed_base_urls=[])
    return svg.encode()


def to_png_file(chart: Chart) -> bytes:
    """At twice the size, for high resolutions."""
    png: bytes = vl_convert.vegalite_to_png(_spec(chart, paper=True), vl_version=VERSION, scale=2, allowed_base_urls=[])
    return png


def _drawable(value: Any) -> Any:
    """The same with texts that XML can hold: others abort the process inside of vl-convert."""
    if isinstance(value, str):
        return printable(value).translate(NO_CHARACTERS)
    if isinstance(value, dict):
        return {_drawable(key): _drawable(one) for key, one in value.items()}
    return [_drawable(one) for one in value] if isinstance(value, list | tuple) else value


def _spec(chart: Chart, *, paper: bool = False) -> str:
    """The chart as JSON. `paper`: on a white background, for a file of its own.

    Altair would check each specification against its schema, in two thirds of the time that a report takes. The tests
    do that.
    """
    spec = _drawable(chart.to_dict(validate=False))
    return json.dumps(spec | {"config": CONFIG | ({"background": "white"} if paper else {})})
