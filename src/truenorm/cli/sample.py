"""`truenorm sample`: new words from a run."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import click
import numpy as np

from truenorm.cli import Command
from truenorm.lab import run
from truenorm.lab.sampling import Statistics, generate, reestimate


@click.command(cls=Command, epilog="Example: truenorm sample runs/surnames --count 10 --temperature 0.8")
@click.argument("directory", metavar="RUN", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--count", type=click.IntRange(min=1), default=20, show_default=True, help="How many words.")
@click.option("--temperature", type=float, default=1.0, show_default=True, help="Below 1: likelier words.")
@click.option("--seed", type=click.IntRange(min=0), default=0, show_default=True)
@click.option(
    "--statistics",
    type=click.Choice(get_args(Statistics)),
    default="running",
    show_default=True,
    help="Of batch norm: kept while training, or measured anew over the training data.",
)
def command(directory: Path, count: int, temperature: float, seed: int, statistics: Statistics) -> None:
    """New words from a run of `train`."""
    with np.errstate(all="ignore"):
        words = _words(directory, count, temperature, seed, statistics)
    for word in words:
        click.echo(word)


def _words(directory: Path, count: int, temperature: float, seed: int, statistics: Statistics) -> list[str]:
    config, network, alphabet = run.load_words(directory)
    if statistics == "reestimated":
        if config.norm != "batch":
            raise ValueError(f"--statistics reestimated: only with batch norm, got a run with --norm {config.norm}.")
        trainer = run.load(directory)
        network = trainer.network
        reestimate(network, trainer.material.train)
    rng = np.random.default_rng(seed)
    return generate(network, alphabet, config.block, rng, count=count, temperature=temperature)
