"""`python -m bench`: measure suites, print tables, write the results as JSON."""

from __future__ import annotations

import fnmatch
import json
import os
import time
from pathlib import Path
from typing import Any, get_args

import click

from bench.process import THREADS, Allocator, enter, variables

FORMAT = 2
RECORD = Path(__file__).with_name("results.json")


@click.command()
@click.option("--suite", "names", multiple=True, metavar="NAME", help="Only this one; * matches anything. Repeatable.")
@click.option("--quick", is_flag=True, help="Two minutes: only the peers of the published tables.")
@click.option("--seconds", type=float, help="How long to time each suite. [20; 4 with --quick]")
@click.option("--patience", type=float, help="How long to wait for other processes, each suite. [60; 5 with --quick]")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there.")
@click.option(
    "--record",
    is_flag=True,
    help="Write bench/results.json and the tables of README.md and docs/speed.md once every suite was measured "
    "undisturbed. Suites in bench/results.partial.json that were measured at this revision are not measured again.",
)
@click.option("--allocator", type=click.Choice(get_args(Allocator)), default="reuse", show_default=True)
@click.option("--list", "listing", is_flag=True, help="List the suites and exit.")
def main(
    names: tuple[str, ...],
    quick: bool,
    seconds: float | None,
    patience: float | None,
    path: Path | None,
    record: bool,
    allocator: Allocator,
    listing: bool,
) -> None:
    """Time truenorm beside other implementations, in one process, in interleaved rounds."""
    if record and (names or quick or path):
        raise click.UsageError("--record measures everything: leave out --suite, --quick and --json.")
    enter(allocator)
    # Not earlier: these import NumPy, whose threads and memory are set up at its import.
    from bench.cases import SUITES
    from bench.machine import facts
    from bench.measure import measure
    from bench.table import disturbed, publish, render

    if listing:
        click.echo("\n".join(suite.name for suite in SUITES))
        return
    chosen = [suite for suite in SUITES if not names or any(fnmatch.fnmatch(suite.name, name) for name in names)]
    if not chosen:
        known = ", ".join(suite.name for suite in SUITES)
        raise click.BadParameter(f"one of {known}; got {', '.join(names)}.", param_hint="--suite")
    seconds = seconds or (4.0 if quick else 20.0)
    patience = patience if patience is not None else (5.0 if quick else 60.0)
    start = time.monotonic()
    results: dict[str, Any] = {
        "format": FORMAT,
        "machine": facts(),
        "settings": {
            "threads": THREADS,
            "allocator": allocator,
            "variables": variables(allocator),
            "seconds": seconds,
            "quick": quick,
        },
        "suites": [],
    }
    if absent := [name for name, found in results["machine"]["versions"].items() if found is None]:
        _say(f"Not installed, so its rows are missing: {', '.join(absent)}.")
    if record:
        path = partial_file(RECORD)
    measured = finished_suites(path, results) if record and path is not None else {}
    results["suites"] = list(measured.values())
    for number, suite in enumerate(chosen, 1):
        if suite.name in measured:
            _say(f"[{number}/{len(chosen)}] {suite.name}: measured before")
            continue
        _say(f"[{number}/{len(chosen)}] {suite.name} ...")
        found = measure(suite.published_only() if quick else suite, seconds=seconds, patience=patience, say=_say)
        measured[suite.name] = found
        results["suites"] = [measured[one.name] for one in chosen if one.name in measured]
        if path is not None:  # after each suite, so that an interruption loses only one
            write_json(path, results)
        rounds = found["rounds"]
        _say(f"    {rounds['quiet']} of {rounds['total']} rounds were quiet, {time.monotonic() - start:.0f} s so far")
        if rounds["disturbed"]:
            _say("    WARNING: other processes were busy, these times are not reliable")
    click.echo(render(results, every=True), nl=False)
    if record:
        if busy := disturbed(results):
            raise click.ClickException(
                f"Nothing was recorded: other processes were busy during {', '.join(busy)}. "
                "Run the same command again to measure only these."
            )
        write_json(RECORD, results)
        publish(results)


def partial_file(path: Path) -> Path:
    """Where results are kept until all suites are measured."""
    return path.with_suffix(".partial.json")


def finished_suites(path: Path, results: dict[str, Any]) -> dict[str, Any]:
    """The undisturbed suites of an earlier run, by name; none if machine, versions or settings were others."""
    if not path.exists():
        return {}
    before = json.loads(path.read_text("utf-8"))
    if any(before.get(key) != results[key] for key in ("format", "machine", "settings")):
        return {}
    return {suite["name"]: suite for suite in before["suites"] if not suite["rounds"]["disturbed"]}


def write_json(path: Path, results: dict[str, Any]) -> None:
    """Write the file whole or not at all."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
    os.replace(new, path)


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
