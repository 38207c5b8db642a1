"""`python -m bench`: measure suites, print tables, keep the results as JSON."""

from __future__ import annotations

import fnmatch
import json
import sys
import time
from pathlib import Path
from typing import Any, get_args

import click

from bench.process import THREADS, Allocator, enter, variables

FORMAT = 1


@click.command()
@click.option("--suite", "names", multiple=True, metavar="NAME", help="Only this one; * matches anything. Repeatable.")
@click.option("--quick", is_flag=True, help="Two minutes: only the peers that a target names.")
@click.option("--seconds", type=float, help="How long to time each suite. [20; 4 with --quick]")
@click.option("--patience", type=float, help="How long to wait for other processes, each suite. [60; 5 with --quick]")
@click.option("--json", "path", type=click.Path(dir_okay=False, path_type=Path), help="Write the results there.")
@click.option("--check", is_flag=True, help="Exit with 1 if a ratio is not reached.")
@click.option("--allocator", type=click.Choice(get_args(Allocator)), default="reuse", show_default=True)
@click.option("--list", "listing", is_flag=True, help="Name the suites and stop.")
def main(
    names: tuple[str, ...],
    quick: bool,
    seconds: float | None,
    patience: float | None,
    path: Path | None,
    check: bool,
    allocator: Allocator,
    listing: bool,
) -> None:
    """Measure truenorm beside its peers, in one process, in turn."""
    enter(allocator)
    # Not before: these load NumPy, whose threads and memory are settled at its import.
    from bench.cases import SUITES
    from bench.machine import facts
    from bench.measure import measure
    from bench.table import render

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
    for number, suite in enumerate(chosen, 1):
        _say(f"[{number}/{len(chosen)}] {suite.name} ...")
        found = measure(suite.named_only() if quick else suite, seconds=seconds, patience=patience, say=_say)
        results["suites"].append(found)
        if path is not None:  # after each suite, so that an interruption costs only one
            path.write_text(json.dumps(results, indent=1) + "\n", "utf-8")
        rounds = found["rounds"]
        _say(f"    {rounds['quiet']} of {rounds['total']} rounds were quiet, {time.monotonic() - start:.0f} s so far")
        if rounds["disturbed"]:
            _say("    WARNING: other processes were busy, so do not trust these times")
    click.echo(render(results, every=True), nl=False)
    missed = unreached(results)
    if check and missed:
        _say(f"Not reached: {'; '.join(missed)}.")
        sys.exit(1)


def unreached(results: dict[str, Any]) -> list[str]:
    """The targets that were not reached; one that was not measured is not."""
    return [
        f"{suite['name']} against {target['against']}"
        for suite in results["suites"]
        for target in suite["targets"]
        if not target["reached"]
    ]


def _say(line: str) -> None:
    click.echo(line, err=True)


if __name__ == "__main__":
    main()
