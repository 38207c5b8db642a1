"""`truenorm train`: train a small network in a run directory, which can be stopped and resumed."""

from __future__ import annotations

import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

import click
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from truenorm.cli.diagnostics_table import diagnostics_table
from truenorm.cli.grouped import GroupedCommand, group_of_options
from truenorm.cli.signals import STOPPED, StopSignals
from truenorm.explanation.terminal import printable
from truenorm.explanation.text import Screen
from truenorm.lab import run
from truenorm.lab.blas import one_blas_thread
from truenorm.lab.config import Config, Task, data_source, make_config
from truenorm.lab.layers import StatisticsOver
from truenorm.lab.networks import ActivationName, DTypeName, NormAt, NormName
from truenorm.lab.optimizers import OptimizerName, Schedule
from truenorm.lab.training import TaskData

Reporter = Callable[[run.Report], None]


class Directory(click.Path):
    """A directory. An empty name is refused: it would be the current directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("must be the name of a directory, got ''.", param, ctx)
        return super().convert(value, param, ctx)


def _choice(of: Any) -> click.Choice[str]:
    return click.Choice(get_args(of))


data, network, norm, optimization, output = map(group_of_options, ("Data", "Network", "Norm", "Optimization", "Output"))


@click.command(
    cls=GroupedCommand,
    epilog="""\b
Examples to try first:
  truenorm train --out runs/names                           # 5,163 first names, a few seconds
  truenorm sample runs/names                                # new names
  truenorm train --norm none --init-scale 0.02 --out runs/none
  truenorm report runs/names runs/none --open               # both runs side by side

\b
More examples:
  truenorm train --data surnames --watch --out runs/surnames
  truenorm train --data words.txt --norm none --steps 20000 --out runs/plain
  truenorm train --task gender --statistics-over all --max-length 44 --out runs/all
  truenorm train --task table --data wine.csv --target class --out runs/wine
  truenorm train --task table --data students --raw --norm none --out runs/raw
  truenorm train --resume --out runs/surnames
  truenorm train --extend 5000 --out runs/names

A CSV file has a header, commas, and numbers in every column but the target. A target with up to 20 different values
holds classes. The table students comes with truenorm: cgpa, iq, and whether a student was placed. So do the lists
names (first names), surnames, and words (English).

During training you see the loss of the last batches and the loss of the held-out examples. If there are more than
1,024 of them, it is the loss of a sample of 1,024, and is called so. The final result is computed over all examples.

--watch shows for each layer: a histogram of its output from -3 to 3, with mean and std; saturated: the share of an
activation's outputs where its gradient vanishes; update: the size of a step relative to the std of the weights (about
1e-3 is healthy); drift: how far the layer's input has moved since the first report; lag: how far the running means are
from those of the last batch. metrics.jsonl holds the same numbers, and truenorm report draws them.
""",
)
@data(
    "--task",
    type=_choice(Task),
    help="Predict the next character of words, the gender of first names, or a column of a table.  [default: words]",
)
@data(
    "--data",
    help="A file (one word a line, or a CSV for --task table), or names, surnames or words, or students for "
    "--task table.  [default: names]",
)
@data("--target", help="Column of the CSV file to predict.  [default: placed for students]")
@data(
    "--standardize/--raw",
    default=None,
    help="Scale the columns of a table to mean 0 and std 1, or not.  [default: standardize]",
)
@data("--max-length", type=int, help="Pad the names of --task gender to this length.  [default: the longest]")
@data("--block", type=int, help="Number of previous characters that the network sees.  [default: 3]")
@data("--batch", type=int, help="Batch size.  [default: 32; gender: 64]")
@network("--embedding", type=int, help="Size of a character embedding.  [default: 2; gender: 16]")
@network("--heads", type=int, help="Attention heads, for --task gender.  [default: 2]")
@network("--hidden", type=int, help="Size of the hidden layers.  [default: 100; gender: 64; table: 32]")
@network("--depth", type=int, help="Number of hidden layers.  [default: 1]")
@network("--activation", type=_choice(ActivationName), help="Activation function.  [default: tanh]")
@network("--dropout", type=float, help="Dropout probability of the hidden layers.  [default: 0]")
@network("--init-scale", type=float, help="Multiplies the initial weights of the hidden layers.  [default: 1]")
@network("--dtype", type=_choice(DTypeName), help="Floating point type.  [default: float32]")
@norm("--norm", type=_choice(NormName), help="Normalization of the hidden layers.  [default: batch]")
@norm("--norm-at", type=_choice(NormAt), help="Normalize before or after the activation.  [default: before]")
@norm(
    "--statistics-over",
    type=_choice(StatisticsOver),
    help="Take the statistics of --task gender over the valid positions, or over all, padding included.  "
    "[default: valid]",
)
@norm("--groups", type=int, help="Number of groups, for --norm group.  [default: 4]")
@norm("--ddof", type=int, help="1: divide by n - 1 in the variance.  [default: 0]")
@optimization("--lr", type=float, help="Learning rate.  [default: 0.1; gender, table: 0.01]")
@optimization("--steps", type=int, help="Number of training steps.  [default: 10000; gender: 1000; table: 2000]")
@optimization("--optimizer", type=_choice(OptimizerName), help="Optimizer.  [default: sgd; gender, table: adam]")
@optimization("--momentum", type=float, help="Momentum of --optimizer sgd.  [default: 0]")
@optimization(
    "--schedule",
    type=_choice(Schedule),
    help="Learning rate schedule. step: a tenth for the second half; cosine: decays to 0.  "
    "[default: step; gender, table: cosine]",
)
@optimization("--seed", type=int, help="Seed of the random numbers.  [default: 0]")
@output("--out", type=Directory(file_okay=False, path_type=Path), required=True, help="Directory of the run.")
@output("--resume", is_flag=True, help="Continue the run in --out with its own options. Only --watch may be added.")
@output(
    "--extend",
    type=click.IntRange(min=1),
    metavar="N",
    help="Continue the complete run in --out for N more steps, with the learning rates of a run of that many steps.",
)
@output("--watch", is_flag=True, help="Show diagnostics of every layer during training.")
@one_blas_thread()
def command(out: Path, resume: bool, extend: int | None, watch: bool, **options: Any) -> int:
    """Train a small network with hand-written backpropagation.

    Press Ctrl-C to stop: the run is saved, and --resume continues it.
    """
    given = {name: value for name, value in options.items() if value is not None}
    if resume and extend:
        raise click.UsageError("Give --resume or --extend, not both. An interrupted extension is resumed.")
    if (resume or extend) and given:
        option = f"--{next(iter(given)).replace('_', '-')}"
        raise click.UsageError(
            f"--{'resume' if resume else 'extend'}: takes no other options than --out and --watch, got {option}."
        )
    config = run.read_config(out) if resume or extend else _config(given)
    again = f"truenorm train --resume --out {printable(shlex.quote(str(out)))}"
    stop = StopSignals()

    def on_start(data: TaskData) -> None:
        click.echo(f"{data.summary()}.", err=True)
        stop.expect_steps(f"Stopped within a step. To continue from the last checkpoint: {again}")

    try:
        with stop, (watched if watch else progress)(config.steps + (extend or 0)) as on_report:
            if extend:
                result = run.extend(out, extend, on_report, stop.should_stop, on_start)
            elif resume:
                result = run.resume(out, on_report, stop.should_stop, on_start)
            else:
                result = run.start(out, config, on_report, stop.should_stop, on_start)
    except run.Stopped as stopped:
        click.echo(f"\nStopped and saved after step {stopped.step}. To continue: {again}", err=True)
        return STOPPED
    try:
        show_result(result, out, config)
    except BrokenPipeError:
        raise
    except OSError as error:
        problem = f"{error.strerror}. The run is complete, and its result is in {out}"
        raise OSError(error.errno, problem, "standard output") from None
    return 0


def _config(given: dict[str, Any]) -> Config:
    if given.get("data") is not None:
        given |= {"data": data_source(given["data"])}
    return make_config(given)


def show_result(result: run.Report, out: Path, config: Config) -> None:
    """The final metrics, and what to do next."""
    for name, label in (("train", "training"), ("held_out", "held out")):
        metrics = result[name]
        more = "" if metrics["accuracy"] is None else f", accuracy {metrics['accuracy']:.1%}"
        if metrics.get("rmse") is not None:
            more = f", RMSE {metrics['rmse']:.4g} in units of {printable(config.target or '')}"
        click.echo(f"{label:>8}: loss {metrics['loss']:.4f}{more}")
    baseline = result["baseline"]
    constant = "the class frequencies" if result["held_out"]["accuracy"] is not None else "the mean"
    if baseline["beaten"]:
        click.echo(f"baseline: loss {baseline['loss']:.4f} (held out, always predicting {constant})")
    else:
        guessing = f"{constant} (held-out loss {baseline['loss']:.4f})"
        click.echo(f"No better than always predicting {guessing}. {_advice(result, config)}")
    click.echo(f"{result['steps']} steps, {result['parameters']} parameters. Saved in {printable(str(out))}.")
    directory = printable(shlex.quote(str(out)))
    click.echo(f"To see the run: truenorm report {directory}")
    if baseline["beaten"]:  # what a network says that has learned nothing would only mislead
        use = "To generate words: truenorm sample" if config.task == "words" else "To use it: truenorm predict"
        click.echo(f"{use} {directory}{'' if config.task == 'words' else ' FILE.csv'}")


def _advice(result: run.Report, config: Config) -> str:
    """What to try after a run that is no better than guessing."""
    if result["train"]["loss"] < result["baseline"]["loss"]:
        return "It has only learned the training examples: try more of them, fewer --steps, or --dropout 0.3."
    norm = "" if config.norm == "batch" else "--norm batch, "
    return f"Try a lower --lr, {norm}another --init-scale, or more --steps."


class _StatusLine:
    """Loss, accuracy and speed of a report in one line, shortened for narrow terminals."""

    def __init__(self, width: int = 120) -> None:
        self.width = width
        self.first: tuple[int, float] | None = None  # step and time of the first report, for the speed

    def __call__(self, report: run.Report) -> str:
        step, now = report["step"], time.monotonic()
        self.first = self.first or (step, now)
        taken, seconds = step - self.first[0], now - self.first[1]
        accuracy = f"  accuracy {report['accuracy']:.1%}" if "accuracy" in report and self.width >= 100 else ""
        speed = f"  {taken / seconds:.0f} steps/s" if taken and seconds and self.width >= 80 else ""
        return f"loss {report['loss']:.4f}  {held_out_name(report)} {report['held_out']:.4f}{accuracy}{speed}"


def held_out_name(report: run.Report) -> str:
    """What the held-out loss of a report is the loss of. Only the result is always that of all held-out examples."""
    evaluated, of = report["held_out_examples"]
    return "held out" if evaluated == of else "held-out sample"


@contextmanager
def watched(steps: int) -> Iterator[Reporter]:
    """Show the diagnostics: updated in place on a terminal, about ten tables otherwise."""
    console, status = Screen(stderr=True), _StatusLine()

    def table(report: run.Report) -> Table:
        return diagnostics_table(report, f"step {report['step']} of {steps}: {status(report)}")

    if console.is_terminal:
        with Live(console=console, auto_refresh=False) as live:
            yield lambda report: live.update(table(report), refresh=True)
        return
    yield lambda report: console.print(table(report), "") if _is_tenth(report["step"], steps) else None


def _is_tenth(step: int, steps: int) -> bool:
    """Whether this report is one of about ten in a run."""
    return step % max(1, steps // 10) < max(1, steps // run.REPORTS) or step == steps


@contextmanager
def progress(steps: int) -> Iterator[Reporter]:
    """Show a progress bar on a terminal, about ten lines otherwise."""
    if sys.stderr is not None and sys.stderr.isatty():
        console = Screen(stderr=True)
        status = _StatusLine(console.width)
        columns = (
            MofNCompleteColumn(),
            BarColumn(None if console.width >= 100 else 8),
            TextColumn("{task.description}"),
        )
        with Progress(*columns, TimeRemainingColumn(compact=True), console=console) as bar:
            task = bar.add_task("", total=steps)

            def update_bar(report: run.Report) -> None:
                last = "  evaluating ..." if report["step"] == steps and console.width >= 100 else ""
                bar.update(task, completed=report["step"], description=status(report) + last)

            yield update_bar
        return
    status = _StatusLine()

    def print_line(report: run.Report) -> None:
        if _is_tenth(report["step"], steps):
            click.echo(f"step {report['step']} of {steps}: {status(report)}", err=True)

    yield print_line
