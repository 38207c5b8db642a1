"""An explanation as text: aligned tables with a formula above each."""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING, NoReturn

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from truenorm.explanation.cells import Cells, fitting_cells

if TYPE_CHECKING:
    from truenorm.explanation.step import StepByStep


MIN_WIDTH = 40  # of the output: some terminals have no width, or say that it is 0


class Screen(Console):
    """A console on standard output that raises BrokenPipeError if a pipe is closed."""

    def __init__(self, *, stderr: bool = False) -> None:
        super().__init__(highlight=False, stderr=stderr)
        if self.width < MIN_WIDTH:
            self.width = MIN_WIDTH  # only then: a width that is set no longer follows the terminal

    def on_broken_pipe(self) -> NoReturn:
        raise BrokenPipeError


def as_text(explanation: StepByStep) -> str:
    """Plain text, without colours."""
    console = Console(width=120, no_color=True, force_terminal=False, highlight=False)
    with console.capture() as captured:
        show(explanation, console)
    return "\n".join(line.rstrip() for line in captured.get().rstrip().splitlines())


def show(explanation: StepByStep, console: Console) -> None:
    """Print the steps, first forward, then backward."""
    console.print(Text(explanation.headline, style="bold"))
    console.print(Text(explanation.summary))
    labels = {axis: [_shown_label(name, console) for name in names] for axis, names in explanation.labels.items()}
    part = ""
    for step in explanation.steps:
        if step.part != part:
            part = step.part
            console.rule(Text(part), align="left")
        size = f"   (shape {' x '.join(map(str, step.values.shape))})" if step.values.ndim else ""
        name, formula = explanation.written(step)
        if not _can_show(name + formula, console):
            name, formula = step.name, step.formula
        console.print(Text.assemble((name, "bold cyan"), " = ", formula, (size, "dim")))
        cells = fitting_cells(step, labels, console.width - 2)
        console.print(Padding(table(cells), (0, 0, 0, 2), expand=False))
        if step.check is not None:
            console.print(Text(f"  {step.check}", style="dim"))
        console.print()


def table(cells: Cells) -> Table:
    """A table with all numbers aligned to the right."""
    shown = Table(box=None, pad_edge=False, show_edge=False, header_style="dim", caption=_caption(cells))
    for i, name in enumerate(cells.header):
        shown.add_column(Text(name), justify="right" if i else "left", style=None if i else "dim", no_wrap=True)
    for row in cells.rows:
        shown.add_row(*map(Text, row))
    return shown


def _shown_label(name: str, console: Console) -> str:
    """z₁ as z1 where there is no small 1."""
    return name if _can_show(name, console) else unicodedata.normalize("NFKC", name)


def _can_show(text: str, console: Console) -> bool:
    """Whether the output has all these characters: Greek letters are missing in some."""
    try:
        text.encode(console.encoding)
    except UnicodeEncodeError:
        return False
    return True


def _caption(cells: Cells) -> Text | None:
    return Text(f"{cells.note} are shown", style="dim") if cells.note else None
