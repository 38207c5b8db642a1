"""`truenorm demo`: batch normalization, the effect of padding, and training, in under a minute."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

import truenorm as tn
from truenorm.cli import Command
from truenorm.cli.files import require_report, require_writable
from truenorm.cli.padded_sentences import show_comparison
from truenorm.explanation import examples
from truenorm.explanation.cells import cells_of
from truenorm.explanation.text import Screen, table

# The parts of the page, by the end of the address that opens them.
PARTS = {
    "overview": "one layer of a network, from the inputs to the loss",
    "why": "features on different scales, learning rates, shifted inputs",
    "table": "which numbers share μ and σ², and what γ and β do",
    "padding": "rows of zeros, and why they spoil batch norm",
    "backward": "from the loss back to the input, in twelve steps",
    "network": "a whole network, its gradients, and a step of learning",
    "running": "running statistics: one example alone, a shifted test set",
    "training": "losses, with and without a norm",
}
SHOWN = ("x", "mean", "var", "rstd", "xhat")


@click.command(cls=Command, epilog="Example: truenorm demo --report demo.html")
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Also write a report about the networks that are trained: one HTML file.",
)
def command(report: Path | None) -> None:
    """See what truenorm does, in under a minute.

    Shows what batch normalization computes, how padding changes its result, and how it affects training.
    """
    if report is not None:
        require_writable(report, "--report")
        require_report(report)
    console = Screen()
    console.rule("1. What batch normalization computes", align="left")
    console.print(
        "A batch of five examples (rows) with three features (columns). Batch norm subtracts the mean μ of each "
        "column and divides by its standard deviation σ.\n"
    )
    explanation = tn.explain(examples.TABLE, tn.batch())
    for step in explanation.steps:
        if step.name in SHOWN:
            console.print("{} = {}".format(*explanation.written(step)))
            console.print(table(cells_of(step, {"c": examples.TABLE_COLUMNS})), "")
    console.rule("2. How padding changes the result", align="left")
    show_comparison(eps=1e-5)
    console.print()
    console.rule("3. How batch normalization affects training", align="left")
    try:
        from truenorm.cli.demo_training import show_training

        show_training(console, report)
    except ModuleNotFoundError as error:
        console.print(f"This part needs the package {error.name!r}: pip install 'truenorm[lab]'.")
    except ValueError as error:  # the census lists are not installed
        console.print(str(error))
    console.print()
    console.rule("Where to look next", align="left")
    for command_line, purpose in (
        ("truenorm page", "the same and more in a browser, to try out: its parts are listed below"),
        ("truenorm explain --example network", "a network with all its gradients, and one step of learning"),
        (
            "truenorm explain --example table --dy '1,0,0;0,1,0;0,0,1;0,0,0;0,0,0'",
            "every step of the computation, forward and backward",
        ),
        ("truenorm explain your.csv --norm layer", "the same for your own numbers"),
        ("truenorm train --data surnames --watch --out runs/names", "train a network and watch its layers"),
        ("truenorm sample runs/names", "generate names with it"),
        ("truenorm report runs/names --open", "losses, layers and gradients of the run, in a browser"),
        ("truenorm env", "versions, and whether the compiled kernels are in use"),
        ("docs/notes.md", "every line of the lecture notes, and where it is shown"),
        ("README.md, docs/", "how to use it in PyTorch and NumPy"),
    ):
        console.print(f"  {command_line.replace('truenorm ', f'{_program()} ', 1)}", soft_wrap=True)
        console.print(f"      {purpose}", style="dim")
    console.print()
    console.rule("Parts of the page", align="left")
    console.print("Each has a tab. Or put this behind the address of the page in your browser:\n")
    for part, about in PARTS.items():
        console.print(f"  {f'#part={part}':16}  {about}", soft_wrap=True)


def _program() -> str:
    """How to call truenorm from here: by its path if it is not on PATH."""
    called = Path(sys.argv[0])
    if shutil.which("truenorm") or called.name != "truenorm":
        return "truenorm"
    return os.path.relpath(called)
