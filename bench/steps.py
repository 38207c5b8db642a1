"""Time one training step of the lab, compared with torch, JAX and plain NumPy.

    python -m bench.steps [--write docs/lab.md]

The default network (27 characters, block 3, embedding 2, 100 hidden, batch 32, batch norm, SGD), float32, one thread.
All start from the same weights and take the same batches. Their losses must agree step by step before they are timed.
They run in turns of a tenth of a second without pauses. Then the lab alone: how the time grows with the batch and with
the hidden size, and whether memory grows with the number of steps.
"""

from __future__ import annotations

import importlib
import resource
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.process import enter

if TYPE_CHECKING:
    from truenorm.lab.training import Trainer

AGREE = 100  # steps whose losses are compared
TOLERANCE = 2e-5
PEERS = {"torch, eager": "step_torch", "JAX, jitted": "step_jax", "NumPy, written out": "step_numpy"}
BATCHES = (32, 64, 128, 256, 512)
WIDTHS = (100, 200, 400, 800, 1600)


@click.command()
@click.option("--seconds", type=float, default=20.0, show_default=True, help="How long to time each comparison.")
@click.option(
    "--write", type=click.Path(exists=True, path_type=Path), help="Write the tables between their markers in this file."
)
def main(seconds: float, write: Path | None) -> None:
    """Time a training step of the lab, torch, JAX and plain NumPy."""
    enter("system", threads=1)
    from bench.machine import facts
    from bench.table import show_or_write

    machine = facts()
    busy: list[str] = []  # comparisons during which other processes were
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items() if found)
    text = "\n\n".join(
        [
            comparison(seconds, busy),
            growth("batch", BATCHES, seconds / 2, busy),
            growth("hidden", WIDTHS, seconds / 2, busy),
            memory(),
            f"Medians of interleaved rounds, quartiles in parentheses; float32, one thread. {machine['cpu']}; "
            f"{versions}; revision {machine['revision'] or 'unknown'}.",
        ]
    )
    show_or_write(text, write, "bench", busy)


def trainer(**options: Any) -> Trainer:
    """The default network before its first step."""
    from truenorm.lab.config import Config
    from truenorm.lab.training import Trainer, prepare

    config = Config(schedule="constant", **options)
    return Trainer(config, prepare(config))


def comparison(seconds: float, busy: list[str]) -> str:
    """A table of times and ratios; a library that is not installed is listed as missing."""
    from bench.table import duration
    from bench.timing import interleave, ratio, spread

    ours = trainer()
    calls: dict[str, Callable[[], object]] = {"truenorm": ours.train_step}
    losses = [ours.train_step() for _ in range(AGREE)]
    lines = ["| one step | time | time / truenorm's |", "| --- | ---: | ---: |"]
    missing = []
    for name, module in PEERS.items():
        try:
            peer = importlib.import_module(f"bench.peers.{module}").bind(trainer())
        except ModuleNotFoundError as error:
            missing.append(f"| {name} | not installed: {error.name} | |")
            continue
        check(name, losses, [peer() for _ in range(AGREE)])
        calls[name] = peer
    rounds = interleave(calls, seconds=seconds, patience=seconds, turn=0.1, pause=0.0)
    for name in calls:
        times = rounds.seconds(name)
        found = ratio(times, rounds.seconds("truenorm"))
        factor = "" if name == "truenorm" else f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
        lines.append(f"| {name} | {duration(spread(times)['median'])} | {factor} |")
    busy += ["one step"] if rounds.disturbed() else []
    return "\n".join(lines + missing)


def check(name: str, expected: list[float], found: list[float]) -> None:
    """Fail if the losses differ: then it is not the same network."""
    for step, (one, two) in enumerate(zip(expected, found, strict=True)):
        if not abs(one - two) <= TOLERANCE * abs(one):
            raise SystemExit(f"{name}: needs a loss of {one:.7f} at step {step}, got {two:.7f}.")


def growth(option: str, sizes: tuple[int, ...], seconds: float, busy: list[str]) -> str:
    """The time of a step for growing sizes."""
    from bench.table import duration
    from bench.timing import interleave, spread

    calls = {size: trainer(**{option: size}).train_step for size in sizes}
    rounds = interleave(calls, seconds=seconds, turn=0.05)
    busy += [option] if rounds.disturbed() else []
    times = [spread(rounds.seconds(size))["median"] for size in sizes]
    lines = [f"| {option} | {' | '.join(map(str, sizes))} |", "| --- |" + " ---: |" * len(sizes)]
    lines.append(f"| time of a step | {' | '.join(map(duration, times))} |")
    lines.append(
        "| divided by size | " + " | ".join(duration(one / size) for one, size in zip(times, sizes, strict=True)) + " |"
    )
    return "\n".join(lines)


def memory(steps: int = 20_000) -> str:
    """How much the peak memory of the process grows after the first thousand steps."""
    one = trainer()
    for _ in range(1000):
        one.train_step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(steps):
        one.train_step()
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return f"Peak memory grew by {grown} KiB in {steps:,} steps."


if __name__ == "__main__":
    main()
