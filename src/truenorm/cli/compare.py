"""`truenorm compare`: train every combination of some options, on the processors of a machine or of a cluster."""

from __future__ import annotations

import io
import re
import shlex
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from truenorm.cli import Command
from truenorm.cli import train as train_command
from truenorm.cli.files import require_own, require_writable
from truenorm.cli.signals import STOPPED, StopSignals
from truenorm.cli.trials import NOT_BOTH, run_missing, show_failed, workers_for
from truenorm.cli.trials_progress import duration
from truenorm.explanation.terminal import printable
from truenorm.explanation.text import Screen
from truenorm.lab import results as store
from truenorm.lab.blas import one_blas_thread
from truenorm.lab.config import Config, data_source
from truenorm.lab.estimate import estimate_seconds
from truenorm.lab.executors import default_workers
from truenorm.lab.grid import Grid, make_grid, parse_axis
from truenorm.lab.results import Results, make_plan
from truenorm.lab.summary import COLUMNS, mean_and_std, summarize, write_csv
from truenorm.lab.trial import Trial
from truenorm.page import write_whole

MOST_ROWS = 40  # of the table at the end
SEEDS = 5
ONE_VALUE = ("task", "data", "target")  # the last two may hold commas


def _axes() -> list[click.Option]:
    """The options of `truenorm train` that describe a run, each for one or several values."""
    options = []
    for param in train_command.command.params:
        if isinstance(param, click.Option) and param.name in Config.model_fields and param.name != "seed":
            text = "yes or no: scale the columns of a table to mean 0 and std 1." if param.is_bool_flag else param.help
            metavar = "TEXT" if param.name in ONE_VALUE else "VALUE,..."
            options.append(click.Option([f"--{param.name.replace('_', '-')}"], metavar=metavar, help=text))
    return options


class _Shard(click.ParamType[tuple[int, int]]):
    name = "I/N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, int]:
        if isinstance(value, tuple):
            return value
        found = re.fullmatch(r"(\d{1,6})/(\d{1,6})", str(value))
        if found is None or not 1 <= int(found[1]) <= int(found[2]):
            self.fail(f"must be I/N with I from 1 to N, such as 1/2, got {value!r}.", param, ctx)
        return int(found[1]), int(found[2])


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  truenorm compare --norm none,batch,layer --lr 0.1,0.3,1,3 --steps 2000 --dry-run
  truenorm compare --norm none,batch,layer --lr 0.1,0.3,1,3 --steps 2000 --out results
  truenorm compare --task gender --statistics-over valid,all --max-length 11,44 --out padding
  truenorm compare --out results                              # go on with what is missing
  truenorm compare --norm none,batch --shard 1/2 --out part1  # on one machine
  truenorm compare --norm none,batch --shard 2/2 --out part2  # on another
  truenorm compare --merge part1 --merge part2 --out results

The results do not depend on the number or the kind of workers. Press Ctrl-C to stop: finished trials stay, and the
same command goes on. Exit code 3: some trials failed; they are listed, and tried again by the same command.
""",
)
@click.option("--out", type=train_command.Directory(file_okay=False, path_type=Path), help="Directory of the results.")
@click.option(
    "--seeds",
    type=click.IntRange(1, 100_000),
    help=f"Train each cell with this many seeds.  [default: {SEEDS}]",
)
@click.option("--dry-run", is_flag=True, help="Only show the grid, and how long it takes on this machine.")
@click.option(
    "--workers", type=click.IntRange(1, 10_000), help="Processes on this machine.  [default: one a processor]"
)
@click.option("--dask", metavar="ADDRESS", help="Run on a cluster of dask.distributed, such as tcp://host:8786.")
@click.option("--shard", type=_Shard(), help="Run only part I of N, for machines that share nothing.")
@click.option(
    "--merge",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    multiple=True,
    help="Copy the finished trials of this directory to --out. Runs nothing.",
)
@click.option("--csv", "csv_file", type=click.Path(dir_okay=False, path_type=Path), help="Write a table of all trials.")
@one_blas_thread()
def command(
    out: Path | None,
    seeds: int | None,
    dry_run: bool,
    workers: int | None,
    dask: str | None,
    shard: tuple[int, int] | None,
    merge: tuple[Path, ...],
    csv_file: Path | None,
    **options: str | None,
) -> int:
    """Train every combination of some options with several seeds, and compare the results.

    Every option of `truenorm train` that describes a run takes one value or several, separated by commas;
    --task, --data and --target take one.
    """
    if out is None and not dry_run:
        raise click.UsageError("--out: needs the directory of the results, got none. Or use --dry-run.")
    given = {name: text for name, text in options.items() if text is not None}
    if merge and (given or seeds or shard or dask):
        raise click.UsageError("--merge: takes no options of a grid and no --shard or --dask.")
    if workers is not None and dask is not None:
        raise click.UsageError(NOT_BOTH)
    if csv_file is not None:
        require_writable(csv_file, "--csv")
        require_own(csv_file, "a table of trials", ",".join(COLUMNS))
    if merge:
        if dry_run or out is None:
            raise click.UsageError("--merge: needs --out, and takes no --dry-run.")
        return _merge(out, merge, csv_file)
    with StopSignals():  # cells are checked, and their steps are timed, in this process
        grid = _grid(given, seeds, out)
        if dry_run:
            _show_plan(grid, shard, workers or default_workers())
            return 0
    assert out is not None
    return _run(grid, out, shard, workers, dask, csv_file)


command.params += _axes()


def _grid(given: dict[str, str], seeds: int | None, existing: Path | None) -> Grid:
    """The grid of these options; without any, that of an existing results directory."""
    if not given and seeds is None and existing is not None:
        return _compared(existing, store.read_plan(existing))
    axes: dict[str, tuple[Any, ...]] = {}
    for name, text in given.items():
        match name:
            case "data":
                axes[name] = (data_source(text),)
            case "target":
                axes[name] = (text,)
            case _:
                axes[name] = parse_axis(name, text)
    if len(tasks := axes.get("task", ())) > 1:
        raise ValueError(f"--task: one value, as losses of different tasks cannot be compared, got {', '.join(tasks)}.")
    return make_grid("train", axes | {"seed": tuple(range(seeds or SEEDS))})


def _compared(directory: Path, plan: dict[str, Any]) -> Grid:
    """The grid of a results directory that `truenorm compare` made."""
    grids = [Grid.from_dict(grid) for grid in plan["grids"]]
    if len(grids) != 1 or grids[0].measure != "train":
        raise ValueError(f"{directory}: holds the results of truenorm claims, not of a comparison. Choose another.")
    return grids[0]


def _part(trials: Iterator[Trial], shard: tuple[int, int] | None) -> Iterator[Trial]:
    return trials if shard is None else islice(trials, shard[0] - 1, None, shard[1])


def _show_plan(grid: Grid, shard: tuple[int, int] | None, workers: int) -> None:
    for name, values in grid.axes.items():
        shown = f"0 to {len(values) - 1}" if name == "seed" and len(values) > 1 else ", ".join(map(str, values))
        click.echo(f"{name:>16}  {printable(shown)}")
    count = sum(1 for _ in _part(grid.trials(), shard))
    at_once = max(1, min(workers, count, default_workers()))  # more workers than processors wait for each other
    seconds = estimate_seconds(_part(grid.trials(), shard), count) / at_once
    one = "1 worker" if workers == 1 else f"{workers} workers"
    click.echo(f"{count:,} trials; about {duration(seconds)} with {one} of this machine.")


def _run(
    grid: Grid,
    out: Path,
    shard: tuple[int, int] | None,
    workers: int | None,
    dask: str | None,
    csv_file: Path | None,
) -> int:
    again = " ".join(
        [
            f"truenorm compare --out {printable(shlex.quote(str(out)))}",
            *([] if workers is None else [f"--workers {workers}"]),
            *([] if dask is None else [f"--dask {printable(shlex.quote(dask))}"]),
            *([] if shard is None else [f"--shard {shard[0]}/{shard[1]}"]),
        ]
    )
    with workers_for(workers, dask) as pool, Results(out, make_plan([grid])) as results:
        total, finished = sum(1 for _ in _part(grid.trials(), shard)), results.finished()
        before = sum(trial.name in finished for trial in _part(grid.trials(), shard))
        if before:
            click.echo(f"{before:,} of {total:,} trials are there already.", err=True)
        missing = (trial for trial in _part(grid.trials(), shard) if trial.name not in finished)
        try:
            with StopSignals(f"Stopped within a trial. To go on: {again}"):
                run_missing(results, missing, total - before, pool)
        except KeyboardInterrupt:
            done = before + len(results.finished() - finished)
            click.echo(f"\nStopped after {done:,} of {total:,} trials. To go on: {again}", err=True)
            return STOPPED
        if csv_file is not None:
            _write_csv(results, grid, csv_file)
        if shard is not None:
            click.echo(f"Shard {shard[0]}/{shard[1]}: {total - len(results.failed):,} of {total:,} trials are done.")
            click.echo("To put shards together: truenorm compare --merge SHARD1 --merge SHARD2 --out RESULTS")
        else:
            show_cells(results, grid)
        return _show_end(results, total, again)


def _merge(out: Path, others: tuple[Path, ...], csv_file: Path | None) -> int:
    plans = {other: store.read_plan(other) for other in others}  # all are read before anything is written
    for other, plan in plans.items():
        _compared(other, plan)
        store.require_same(other, plan, plans[others[0]])
    grid = _compared(others[0], plans[others[0]])
    again = f"truenorm compare --out {printable(shlex.quote(str(out)))}"
    with Results(out, plans[others[0]]) as results:
        for other in others:
            count = results.merge(other)
            click.echo(f"{printable(str(other))}: {count:,} new trials.", err=True)
        total, done = len(grid), len(results.finished())
        if csv_file is not None:
            _write_csv(results, grid, csv_file)
        show_cells(results, grid)
        if done < total:
            click.echo(f"{total - done:,} of {total:,} trials are missing. To run them: {again}")
        return _show_end(results, total, again)


def _write_csv(results: Results, grid: Grid, file: Path) -> None:
    text = io.StringIO(newline="")
    write_csv(results.read(), grid.varied(), text)
    write_whole(file, text.getvalue().encode())


def show_cells(results: Results, grid: Grid) -> None:
    """The cells, best first."""
    varied = grid.varied()
    cells = summarize(results.read(), varied)
    accuracy = any(cell.accuracies for cell in cells)
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in varied:
        table.add_column(name.replace("_", "-"), justify="right", no_wrap=True)
    for name in ("held-out loss", *(["accuracy"] if accuracy else []), "trials", "diverged"):
        table.add_column(name, justify="right", no_wrap=True)
    for cell in cells[:MOST_ROWS]:
        options = [
            Text(f"{value:g}" if isinstance(value, float) else printable(str(value))) for value in cell.options.values()
        ]
        accuracies = [mean_and_std(cell.accuracies.values(), ".1%")] if accuracy else []
        ran = len(cell.losses) + cell.diverged
        table.add_row(*options, mean_and_std(cell.losses.values()), *accuracies, str(ran), str(cell.diverged or ""))
    console = Screen()
    console.print(table)
    if len(cells) > MOST_ROWS:
        console.print(f"... and {len(cells) - MOST_ROWS:,} more cells. --csv writes all trials to a file.")
    console.print("Best first; mean ± standard deviation over the seeds that did not diverge.\n")


def _show_end(results: Results, total: int, again: str) -> int:
    """Failed trials, or where the results are. Returns the exit code."""
    if code := show_failed(results, total, again):
        return code
    where = printable(shlex.quote(str(results.directory)))
    click.echo(f"Saved in {where}. To see more: truenorm report {where}")
    return 0
