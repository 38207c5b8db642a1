"""An explanation as HTML, for notebooks. It is built as an element tree, so every value is escaped."""

from __future__ import annotations

from importlib.resources import files
from typing import TYPE_CHECKING
from xml.etree.ElementTree import Element, SubElement, tostring

from truenorm.explanation.cells import Cells, cells_of

if TYPE_CHECKING:
    from truenorm.explanation.step import StepByStep


def as_html(explanation: StepByStep) -> str:
    """An HTML fragment with its own style sheet."""
    root = Element("div", {"class": "truenorm"})
    SubElement(root, "style").text = files("truenorm.explanation").joinpath("explanation.css").read_text("utf-8")
    SubElement(root, "p", {"class": "headline"}).text = explanation.headline
    SubElement(root, "p").text = explanation.summary
    for part in dict.fromkeys(step.part for step in explanation.steps):
        SubElement(root, "h4").text = part
        group = SubElement(root, "div", {"class": "steps"})
        for step in explanation.steps:
            if step.part == part:
                block = SubElement(group, "div", {"class": "step"})
                line = SubElement(block, "p")
                title, formula = explanation.written(step)
                name = SubElement(line, "b")
                name.text, name.tail = title, f" = {formula}"
                _table(block, cells_of(step, explanation.labels))
                if step.check is not None:
                    SubElement(block, "p", {"class": "note"}).text = str(step.check)
    return tostring(root, encoding="unicode", method="html")


def _table(parent: Element, cells: Cells) -> None:
    table = SubElement(parent, "table")
    header = SubElement(SubElement(table, "thead"), "tr")
    for word in cells.header:
        SubElement(header, "th").text = word
    body = SubElement(table, "tbody")
    for label, *words in cells.rows:
        row = SubElement(body, "tr")
        SubElement(row, "th").text = label
        for word in words:
            SubElement(row, "td").text = word
    if cells.note:
        SubElement(parent, "p", {"class": "note"}).text = f"{cells.note} are shown"
