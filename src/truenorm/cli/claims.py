"""`truenorm claims`: run the experiments behind claims about normalization, and print their verdicts."""

from __future__ import annotations

import json
import os
import platform
import shlex
from pathlib import Path
from typing import Any

import click
import numpy as np
from click.shell_completion import CompletionItem
from rich.table import Table
from rich.text import Text

from truenorm.cli import Command
from truenorm.cli.files import require_own, require_writable
from truenorm.cli.signals import STOPPED, StopSignals
from truenorm.cli.train import Directory
from truenorm.cli.trials import NOT_BOTH, run_missing, show_failed, workers_for
from truenorm.cli.trials_progress import duration
from truenorm.explanation.terminal import printable
from truenorm.explanation.text import Screen
from truenorm.lab.blas import one_blas_thread
from truenorm.lab.claims import CLAIMS
from truenorm.lab.claims.claim import MIN_SEEDS, Claim, Finding, TrialResults, combined, headline
from truenorm.lab.claims.document import HEADING, document
from truenorm.lab.claims.picture import TITLE, picture
from truenorm.lab.grid import Grid
from truenorm.lab.results import GRID, Results, Session, make_plan, read_plan
from truenorm.page import write_whole

STYLES = {"supported": "green", "refuted": "red", "undecided": "yellow", "mixed": "yellow"}
SEEDS, QUICK_SEEDS = 10, 5


class _Names(click.ParamType[tuple[str, ...]]):
    """Names of claims, separated by commas."""

    name = "NAME,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        names = tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else tuple(value)
        for name in names:
            if name not in CLAIMS:
                self.fail(f"must be one or more of {', '.join(CLAIMS)}, got {name!r}.", param, ctx)
        return names

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        before, comma, last = incomplete.rpartition(",")
        return [CompletionItem(before + comma + name) for name in CLAIMS if name.startswith(last)]


@click.command(
    cls=Command,
    epilog=f"""\b
Examples:
  truenorm claims --list
  truenorm claims --quick
  truenorm claims --only padding,layer-norm
  truenorm claims --write docs/claims.md

A verdict about a statement depends on the interval, by Student's t, of the mean effect over the seeds. supported: the
whole interval is where the statement says; refuted: the whole interval is elsewhere; undecided: neither, or fewer than
{MIN_SEEDS} seeds. A claim with k statements has intervals of level 1 - 0.05 / k. It is supported or refuted if all its
statements are, mixed if some are supported and others refuted, and otherwise undecided.

Press Ctrl-C to stop: finished trials stay in --out, and the same command goes on.
""",
)
@click.option("--list", "as_list", is_flag=True, help="List the claims.")
@click.option(
    "--only",
    type=_Names(),
    multiple=True,
    help="Only these claims, separated by commas. May be repeated; --list shows the names.",
)
@click.option("--quick", is_flag=True, help="Shorter trainings and fewer settings: two minutes on two processors.")
@click.option(
    "--seeds", type=click.IntRange(1, 1000), help=f"Number of seeds.  [default: {SEEDS}; --quick: {QUICK_SEEDS}]"
)
@click.option(
    "--out",
    type=Directory(file_okay=False, path_type=Path),
    default=Path("claims-results"),
    show_default=True,
    help="Directory of the trials.",
)
@click.option(
    "--workers", type=click.IntRange(1, 10_000), help="Processes on this machine.  [default: one a processor]"
)
@click.option("--dask", metavar="ADDRESS", help="Run on a cluster of dask.distributed, such as tcp://host:8786.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with the bounds of the effect of each seed.")
@click.option(
    "--write",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Write a page about all this (Markdown), and its picture (.svg).",
)
@one_blas_thread()
def command(
    as_list: bool,
    only: tuple[tuple[str, ...], ...],
    quick: bool,
    seeds: int | None,
    out: Path,
    workers: int | None,
    dask: str | None,
    as_json: bool,
    write: Path | None,
) -> int:
    """Test what people say about normalization: each claim is an experiment with a measure, seeds and a verdict."""
    chosen = dict.fromkeys(name for names in only for name in names)
    claims = [CLAIMS[name] for name in chosen or CLAIMS]
    if as_list:
        for claim in claims:
            click.echo(f"{claim.name:16} {claim.text}")
        return 0
    if workers is not None and dask is not None:
        raise click.UsageError(NOT_BOTH)
    if write is not None:
        if write.suffix == ".svg":
            raise click.UsageError(
                "--write: the name of a Markdown file, got one of a picture. Its picture is beside it."
            )
        for file, what, mark in (
            (write, "a page about claims", HEADING),
            (write.with_suffix(".svg"), "a picture of claims", TITLE),
        ):
            require_writable(file, "--write")
            require_own(file, what, mark)
    count = seeds or (QUICK_SEEDS if quick else SEEDS)
    grids = {claim.name: list(claim.grids(quick, count)) for claim in claims}
    plan = make_plan([grid for some in grids.values() for grid in some])
    _refuse_comparison(out)
    with workers_for(workers, dask) as pool, Results(out, plan, replace=True) as results:
        missing = [trial for trial, result in results.read() if result is None]
        total = sum(1 for _ in results.trials())
        if len(missing) < total:
            click.echo(f"{total - len(missing):,} of {total:,} trials are there already.", err=True)
        kept = f"Finished trials are in {printable(str(out))}; the same command goes on."
        try:
            with StopSignals(f"Stopped within a trial. {kept}"):
                run_missing(results, iter(missing), len(missing), pool)
        except KeyboardInterrupt:
            click.echo(f"\nStopped. {kept}", err=True)
            return STOPPED
        # One claim at a time: the curves of all trials together would take gigabytes with many seeds.
        findings = {claim.name: claim.judge(TrialResults(results.read(grids[claim.name]))) for claim in claims}
        seconds = [results.seconds.get(trial.name) for trial in results.trials()]
        sessions = list(results.sessions)
        if as_json:
            click.echo(json.dumps([_as_dict(claim, findings[claim.name]) for claim in claims], indent=2))
        else:
            show(claims, findings)
        code = show_failed(results, total, "the same command")
    if write is not None:
        these = f" --only {','.join(chosen)}" if chosen else ""
        repeat = (
            f"truenorm claims{' --quick' if quick else ''} --seeds {count}{these} --write {shlex.quote(str(write))}"
        )
        machine = (
            f"{_time_taken(seconds, sessions)} {platform.system()} {platform.machine()}, {os.cpu_count()} processors; "
            f"Python {platform.python_version()}, NumPy {np.__version__}, truenorm {plan['truenorm']}."
        )
        drawn = write.with_suffix(".svg")
        write_whole(drawn, picture(claims, findings).encode())
        write_whole(write, document(claims, findings, grids, repeat, machine, drawn.name).encode())
    return code


def _refuse_comparison(out: Path) -> None:
    """Raise for the directory of a comparison: its plan would be replaced."""
    if not (out / GRID).is_file():
        return
    if any(Grid.from_dict(grid).command_line("") is not None for grid in read_plan(out)["grids"]):
        raise ValueError(f"{out}: holds the results of truenorm compare, not of claims. Choose another --out.")


def _time_taken(seconds: list[float | None], sessions: list[Session]) -> str:
    """How long trials took: for the clock on the wall, and added up.

    >>> _time_taken([200.0, 100.0, None], [{"trials": 2, "workers": 2, "seconds": 151.0}])
    'It took 3 min with 2 workers. The times of 2 of 3 trials, the others are not known, add up to 5 min.'
    """
    known = [one for one in seconds if one is not None]
    which = f"all {len(known):,} trials"
    if len(known) < len(seconds):
        which = f"{len(known):,} of {len(seconds):,} trials, the others are not known,"
    counts = sorted({session["workers"] for session in sessions})
    workers = "1 worker" if counts == [1] else f"{' or '.join(map(str, counts))} workers"
    parts = f", in {len(sessions)} parts" if len(sessions) > 1 else ""
    wall = duration(sum(session["seconds"] for session in sessions))
    took = f"It took {wall} with {workers}{parts}. " if sessions else ""
    return f"{took}The times of {which} add up to {duration(sum(known))}."


def show(claims: list[Claim], findings: dict[str, list[Finding]]) -> None:
    """Claims and statements with their verdicts."""
    console = Screen()
    for claim in claims:
        style = STYLES[combined(findings[claim.name])]
        console.print(Text.assemble((headline(findings[claim.name]), f"bold {style}"), "  ", (claim.text, "bold")))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        for finding in findings[claim.name]:
            statement = finding.statement
            effect = f"{finding.mean_text} ({finding.interval_text}) {statement.unit}, {finding.seeds} seeds"
            table.add_row("", Text(finding.verdict, style=STYLES[finding.verdict]), Text(f"{statement.text} {effect}"))
        console.print(table)
    console.print(
        "\nThe mean effect over the seeds, its interval (Student's t; 95% for all statements of a claim together), its "
        "unit, and the number of seeds. --json shows every seed, --write explains what is measured."
    )


def _as_dict(claim: Claim, findings: list[Finding]) -> dict[str, Any]:
    return {
        "claim": claim.name,
        "text": claim.text,
        "verdict": combined(findings),
        "statements": [
            {
                "text": finding.statement.text,
                "verdict": finding.verdict,
                "unit": finding.statement.unit,
                "holds_if": finding.statement.holds_if,
                "mean": _finite(finding.mean),
                "interval": [_finite(finding.low), _finite(finding.high)],
                "level": round(finding.level, 6),
                "seeds": len(finding.effects),
                "effects": [[_finite(low), _finite(high)] for low, high in finding.effects],
            }
            for finding in findings
        ],
    }


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None
