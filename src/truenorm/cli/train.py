"""`truenorm train`: a small network, trained in a run directory that can be stopped and continued."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from truenorm.cli import Command
from truenorm.cli.watching import instruments_table
from truenorm.lab import run
from truenorm.lab.config import Config, Task, suited
from truenorm.lab.networks import ActivationName, NormAt, NormName, Padding
from truenorm.lab.optimizers import OptimizerName, Schedule
from truenorm.lab.training import Material


def _choice(of: Any) -> click.Choice[str]:
    return click.Choice(get_args(of))


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  truenorm train --data surnames --out runs/surnames
  truenorm train --data words.txt --norm none --steps 20000 --out runs/plain
  truenorm train --task gender --padding counted --extent 44 --out runs/counted
  truenorm train --task table --data wine.csv --target class --out runs/wine
  truenorm train --resume --out runs/surnames

A CSV has a header, commas, and numbers in all columns but the target. Up to 20 different targets are classes.
Progress tells the loss of the last batches, and that of up to 1,024 held-out examples; the result takes all.

--watch and metrics.jsonl, for each layer: a histogram of its output from -3 to 3 with mean and std; saturated, the
share of an activation's outputs at its flat end; update, how far a step moves its weights, in their own spread (1e-3
is usual); drift, how far its input has moved since the first report; behind, how far the running means are from the
last batch's.
""",
)
@click.option("--out", type=click.Path(file_okay=False, path_type=Path), required=True, help="The run's directory.")
@click.option(
    "--resume", is_flag=True, help="Continue the run in --out, as it was started: with no other option but --watch."
)
@click.option(
    "--task",
    type=_choice(Task),
    help="words: the next character; gender: of a first name; table: a CSV.  [default: words]",
)
@click.option("--data", help="A file (one word a line, or a CSV), or: names, surnames.  [default: names]")
@click.option("--target", help="The column of the CSV to predict.")
@click.option(
    "--standardize/--raw", default=None, help="Inputs of a table with mean 0 and deviation 1, or as they are."
)
@click.option("--norm", type=_choice(NormName), help="[default: batch]")
@click.option("--norm-at", type=_choice(NormAt), help="Before or after the activation.  [default: before]")
@click.option(
    "--padding", type=_choice(Padding), help="Whether padding enters the statistics of --task gender.  [default: valid]"
)
@click.option("--groups", type=int, help="Of --norm group.  [default: 4]")
@click.option("--ddof", type=int, help="1 divides the squares by n - 1.  [default: 0]")
@click.option("--batch", type=int, help="Size of a batch.  [default: 32; gender: 64]")
@click.option("--block", type=int, help="Characters before the one to predict.  [default: 3]")
@click.option("--extent", type=int, help="Pad names of --task gender to so many characters.  [default: the longest]")
@click.option("--embedding", type=int, help="Numbers for a character.  [default: 2; gender: 16]")
@click.option("--heads", type=int, help="Of the self-attention of --task gender.  [default: 2]")
@click.option("--hidden", type=int, help="Units of a hidden layer.  [default: 100; gender: 64; table: 32]")
@click.option("--depth", type=int, help="Hidden layers.  [default: 1]")
@click.option("--activation", type=_choice(ActivationName), help="[default: tanh]")
@click.option("--dropout", type=float, help="Probability that a hidden number is left out.  [default: 0]")
@click.option("--gain", type=float, help="Initial weights of hidden layers, times this.  [default: 1]")
@click.option("--optimizer", type=_choice(OptimizerName), help="[default: sgd; gender, table: adam]")
@click.option("--momentum", type=float, help="Of sgd.  [default: 0]")
@click.option("--rate", type=float, help="Learning rate.  [default: 0.1; gender, table: 0.01]")
@click.option(
    "--schedule",
    type=_choice(Schedule),
    help="step: a tenth for the last half; cosine: down to 0.  [default: step; gender, table: cosine]",
)
@click.option("--steps", type=int, help="[default: 10000; gender: 1000; table: 2000]")
@click.option("--seed", type=int, help="[default: 0]")
@click.option("--dtype", type=click.Choice(["float32", "float64"]), help="[default: float32]")
@click.option("--watch", is_flag=True, help="Show what goes on in every layer, while it trains.")
def command(out: Path, resume: bool, watch: bool, **options: Any) -> int:
    """Train a small network with hand-written backpropagation."""
    given = {name: value for name, value in options.items() if value is not None}
    if resume and given:
        raise click.UsageError(f"--resume: no other option but --out, got --{next(iter(given)).replace('_', '-')}.")
    config = run.read_config(out) if resume else make_config(given)
    try:
        with (watched if watch else progress)(config.steps) as tell, asked_to_stop() as stop:
            result = run.resume(out, tell, stop, begin) if resume else run.start(out, config, tell, stop, begin)
    except run.Stopped as stopped:
        click.echo(
            f"\nStopped and saved after step {stopped.step}. Go on: truenorm train --resume --out {out}", err=True
        )
        return 130
    show(result, out, config)
    return 0


def begin(material: Material) -> None:
    """What was read, before anything else."""
    click.echo(f"{material.summary()}.", err=True)


def make_config(given: dict[str, Any]) -> Config:
    """Of what was given, with files found from anywhere, so that the run can be continued from anywhere."""
    if given.get("data") not in (None, "names", "surnames"):
        given |= {"data": str(Path(given["data"]).absolute())}
    return suited(given)


def show(result: dict[str, Any], out: Path, config: Config) -> None:
    """Where it ended, and where to look."""
    for name, words in (("train", "training"), ("held_out", "held out")):
        score = result[name]
        right = "" if score["accuracy"] is None else f", {score['accuracy']:.1%} right"
        if score.get("error") is not None:
            right = f" (always the mean: 1), off by {score['error']:.4g} in {config.target}"
        click.echo(f"{words:>8}: loss {score['loss']:.4f}{right}")
    click.echo(f"{result['steps']} steps, {result['parameters']} parameters. Everything is in {out}.")
    if config.task == "words":
        click.echo(f"New words: truenorm sample {out}")


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Whether Ctrl-C was pressed: between steps a run is whole, inside of one it is not. A second one ends at once."""
    asked: list[int] = []

    def note(number: int, _: Any) -> None:
        if asked:
            raise KeyboardInterrupt
        asked.append(number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield lambda: bool(asked)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _speaker(width: int = 120) -> Callable[[dict[str, Any]], str]:
    """Loss, and speed since the first report: a run that is continued has taken steps before.

    What a narrow terminal has no room for is left out, not cut.
    """
    first: list[tuple[int, float]] = []

    def words(report: dict[str, Any]) -> str:
        first.append((report["step"], time.monotonic()))
        taken, seconds = report["step"] - first[0][0], first[-1][1] - first[0][1]
        del first[1:]
        right = f"  {report['accuracy']:.1%} right" if "accuracy" in report and width >= 100 else ""
        speed = f"  {taken / seconds:.0f} steps/s" if taken and seconds and width >= 80 else ""
        return f"loss {report['loss']:.4f}  held out {report['held_out']:.4f}{right}{speed}"

    return words


@contextmanager
def watched(steps: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """The instruments of every layer: in place on a terminal, ten times one below the other otherwise."""
    console, words = Console(stderr=True), _speaker()

    def table(report: dict[str, Any]) -> Table:
        return instruments_table(report, f"step {report['step']} of {steps}: {words(report)}")

    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda report: live.update(table(report), refresh=True)
        return
    yield lambda report: console.print(table(report), "") if _tenth(report["step"], steps) else None


def _tenth(step: int, steps: int) -> bool:
    """Whether this report is one of about ten."""
    return step % max(1, steps // 10) < max(1, steps // run.REPORTS) or step == steps


@contextmanager
def progress(steps: int) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A bar on a terminal, ten plain lines otherwise."""
    if sys.stderr is not None and sys.stderr.isatty():
        console = Console(stderr=True)
        told = _speaker(console.width)
        columns = (
            MofNCompleteColumn(),
            BarColumn(None if console.width >= 100 else 8),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, TimeRemainingColumn(compact=True), console=console) as bar:
            task = bar.add_task("", total=steps)

            def show_bar(report: dict[str, Any]) -> None:
                last = "  judging ..." if report["step"] == steps and console.width >= 100 else ""
                bar.update(task, completed=report["step"], description=told(report) + last)

            yield show_bar
        return
    words = _speaker()

    def line(report: dict[str, Any]) -> None:
        if _tenth(report["step"], steps):
            click.echo(f"step {report['step']} of {steps}: {words(report)}", err=True)

    yield line
