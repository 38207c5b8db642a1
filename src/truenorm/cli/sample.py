"""`truenorm sample`: generate words with a trained network."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import click
import numpy as np

from truenorm.cli import Command
from truenorm.explanation.terminal import printable
from truenorm.lab import run
from truenorm.lab.history import read_history
from truenorm.lab.sampling import Statistics, generate, reestimate

WORDS_AT_ONCE = 1024  # so that any --count takes the same memory, and can be interrupted


@click.command(cls=Command, epilog="Example: truenorm sample runs/surnames --count 10 --temperature 0.8")
@click.argument("directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--count", type=click.IntRange(min=1), default=20, show_default=True, help="How many words to generate.")
@click.option(
    "--temperature",
    type=float,
    default=1.0,
    show_default=True,
    help="Divides the logits: below 1 the words are more typical, 0 always takes the most likely character.",
)
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True, help="Seed of the random numbers.")
@click.option(
    "--statistics",
    type=click.Choice(get_args(Statistics)),
    default="running",
    show_default=True,
    help="Which statistics batch norm uses: its running statistics, or those of the whole training set.",
)
def command(directory: Path, count: int, temperature: float, seed: int, statistics: Statistics) -> None:
    """Generate words with the network of RUN, a directory that `truenorm train --task words` wrote."""
    if (warning := read_history(directory).warning("words")) is not None:
        click.echo(warning, err=True)
    for word in _words(directory, count, temperature, seed, statistics):
        click.echo(printable(word))


def _words(directory: Path, count: int, temperature: float, seed: int, statistics: Statistics) -> Iterator[str]:
    config, network, alphabet = run.load_words(directory)
    if statistics == "reestimated":
        if config.norm != "batch":
            raise ValueError(f"--statistics reestimated: needs a run with batch norm, got --norm {config.norm}.")
        trainer = run.load(directory)
        network = trainer.network
        with np.errstate(all="ignore"):
            reestimate(network, trainer.data.train)
    rng = np.random.default_rng(seed)
    for start in range(0, count, WORDS_AT_ONCE):
        part = min(WORDS_AT_ONCE, count - start)
        with np.errstate(all="ignore"):
            words = generate(network, alphabet, config.block, rng, count=part, temperature=temperature)
        yield from words
