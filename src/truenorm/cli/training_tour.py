"""The last part of `truenorm demo`: the character network, trained with and without batch norm."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
from rich.table import Table
from rich.text import Text

from truenorm.explanation.text import Screen
from truenorm.lab.config import suited
from truenorm.lab.sampling import generate
from truenorm.lab.training import Trainer, prepare

STEPS = 10_000
SHOWN = (300, 1000, 3000, 10_000)
SMALL = 0.02  # of the usual initial weights
RUNS = (("none", 1.0), ("batch", 1.0), ("none", SMALL), ("batch", SMALL))


def show_training(console: Screen) -> None:
    """Four short runs: their held-out losses as they learn, and names that the second writes."""
    console.print(
        "5,163 first names; three characters in, the next one out; 100 hidden units; backpropagation by hand."
    )
    console.print("Held-out loss, in nats a character, after so many steps (guessing: 3.30):\n")
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("norm", "initial weights", *(f"{step:,}" for step in SHOWN), "took"):
        table.add_column(name, justify="left" if name in ("norm", "initial weights") else "right", no_wrap=True)
    words: list[str] = []
    for norm, gain in RUNS:
        begin = time.monotonic()
        with console.status(f"training: norm {norm}, {STEPS:,} steps"):
            trainer, losses = _train(norm=norm, gain=gain)
        usual = "as usual" if gain == 1 else f"{1 / gain:.0f} times too small"
        took = f"{time.monotonic() - begin:.1f} s"
        table.add_row(Text(norm), usual, *(f"{loss:.3f}" for loss in losses), took)
        if (norm, gain) == ("batch", 1.0) and trainer.material.alphabet is not None:
            words = generate(trainer.network, trainer.material.alphabet, 3, np.random.default_rng(0), count=12)
    console.print(table)
    console.print("\nSo small a network does well without a norm, if its weights start right;")
    console.print("with batch norm it hardly matters how they start.")
    console.print(f"\nNames that it made up: {', '.join(words)}.")


def _train(**options: Any) -> tuple[Trainer, list[float]]:
    config = suited({"steps": STEPS, **options})
    trainer = Trainer(config, prepare(config))
    losses = []
    while trainer.step < STEPS:
        trainer.advance()
        if trainer.step in SHOWN:
            losses.append(trainer.score(trainer.material.held_out).loss)
    return trainer, losses
