"""What the commands that run trials share: workers, progress, and what failed."""

from __future__ import annotations

import time
from collections.abc import Iterator

import click

from truenorm.cli.trials_progress import trials_progress
from truenorm.explanation.terminal import printable
from truenorm.lab.dispatch import Handlers, run_all
from truenorm.lab.executors import Workers, cluster, default_workers, in_process, processes
from truenorm.lab.results import MACHINE, Results, Session
from truenorm.lab.trial import Trial

SHOWN_FAILURES = 10
WRITE_SECONDS = 10.0  # between two writes of machine.json: a process that is killed loses no more
FAILED = 3  # exit code
NOT_BOTH = "--workers: not with --dask, whose workers are started by dask worker."


def workers_for(workers: int | None, dask: str | None) -> Workers:
    if dask is not None:
        return cluster(dask)
    count = workers or default_workers()
    return in_process() if count == 1 else processes(count)


def run_missing(results: Results, missing: Iterator[Trial], count: int, pool: Workers) -> None:
    """Run trials and write their files, with a progress bar."""
    results.failed.clear()
    if not count:
        return
    session: Session = {"trials": 0, "workers": pool.count, "seconds": 0.0}
    results.sessions.append(session)
    begin = written = time.monotonic()
    with trials_progress(count) as progress:

        def on_done(trial: Trial, file: bytes, seconds: float) -> None:
            nonlocal written
            results.add(trial, file, seconds)
            now = time.monotonic()
            session["trials"] += 1
            session["seconds"] = round(now - begin, 1)
            if now > written + WRITE_SECONDS:
                results.write_machine()
                written = now
            progress.advance()

        def on_failed(trial: Trial, error: str) -> None:
            results.failed[trial.name] = error
            progress.advance()

        def on_event(message: str) -> None:
            results.events.append(message)
            progress.say(message)

        run_all(missing, pool, Handlers(on_done, on_failed, on_event))


def show_failed(results: Results, total: int, again: str) -> int:
    """List failed trials on standard error. Returns the exit code."""
    if not results.failed:
        return 0
    for name, error in list(results.failed.items())[:SHOWN_FAILURES]:
        click.echo(f"failed: trial {name}: {printable(error)}", err=True)
    more = f" The first {SHOWN_FAILURES} are above." if len(results.failed) > SHOWN_FAILURES else ""
    click.echo(
        f"{len(results.failed):,} of {total:,} trials failed.{more} All are listed in "
        f"{printable(str(results.directory))}/{MACHINE}. To try them again: {again}",
        err=True,
    )
    return FAILED
