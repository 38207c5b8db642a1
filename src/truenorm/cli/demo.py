"""`truenorm demo`: a guided tour of the two examples and of a network that learns."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

import truenorm as tn
from truenorm.cli import Command
from truenorm.cli.comparison import show_comparison
from truenorm.explanation import examples
from truenorm.explanation.cells import cells_of
from truenorm.explanation.text import Screen, table

STEPS = ("x", "mean", "var", "xhat")


@click.command(cls=Command, epilog="Example: truenorm demo")
def command() -> None:
    """A guided tour of what truenorm does, in under a minute."""
    console = Screen()
    console.rule("1. What a batch normalization computes", align="left")
    console.print("Five examples, three nodes. Every column gets mean 0 and variance 1.\n")
    shown = tn.explain(examples.TABLE, tn.batch())
    for step in shown.steps:
        if step.name in STEPS:
            console.print(f"{step.name} = {step.formula}")
            console.print(table(cells_of(step, {"c": examples.TABLE_COLUMNS})), "")
    console.rule("2. What padding does to it", align="left")
    show_comparison(eps=1e-5)
    console.print()
    console.rule("3. What it does to training", align="left")
    try:
        from truenorm.cli.training_tour import show_training

        show_training(console)
    except ModuleNotFoundError as error:
        console.print(f"Needs the package {error.name!r}: pip install 'truenorm[lab]'.")
    except ValueError as error:  # the census lists are not there
        console.print(str(error))
    console.print()
    console.rule("Where to go from here", align="left")
    for line, purpose in (
        ("truenorm page", "all of it in a browser, to play with"),
        (
            "truenorm explain --example table --dy '1,0,0;0,1,0;0,0,1;0,0,0;0,0,0'",
            "every step, backwards too",
        ),
        ("truenorm explain your.csv --norm layer", "the same for your numbers"),
        ("truenorm train --data surnames --watch --out runs/names", "train a network, and see into it"),
        ("truenorm sample runs/names", "new words from it"),
        ("truenorm env", "what is installed"),
        ("src/truenorm/core/norm.py, moments.py, reference.py", "the whole idea in three short files"),
    ):
        console.print(f"  {line.replace('truenorm ', f'{_program()} ', 1)}", soft_wrap=True)
        console.print(f"      {purpose}", style="dim")


def _program() -> str:
    """How this command is called from here: it may be in a directory that is not searched."""
    called = Path(sys.argv[0])
    if shutil.which("truenorm") or called.name != "truenorm":
        return "truenorm"
    return os.path.relpath(called)
