"""Progress over trials, with the time that is left: a bar on a terminal, about ten lines otherwise."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from truenorm.explanation.terminal import printable
from truenorm.explanation.text import Screen


@dataclass(frozen=True)
class TrialsProgress:
    """advance: one more trial is done. say: print a line above the bar."""

    advance: Callable[[], None]
    say: Callable[[str], None]


@contextmanager
def trials_progress(count: int) -> Iterator[TrialsProgress]:
    if count and sys.stderr is not None and sys.stderr.isatty():
        console = Screen(stderr=True)
        columns = (TextColumn("trials"), MofNCompleteColumn(), BarColumn(None if console.width >= 80 else 8))
        times = (TimeElapsedColumn(), TextColumn("left"), TimeRemainingColumn(compact=True))
        # The speed is that of the last two minutes: trials of different cells take different times.
        with Progress(*columns, *times, console=console, speed_estimate_period=120) as bar:
            task = bar.add_task("", total=count)
            yield TrialsProgress(lambda: bar.advance(task), lambda line: console.print(printable(line)))
        return
    begin, done = time.monotonic(), 0

    def advance() -> None:
        nonlocal done
        done += 1
        if done * 10 // count > (done - 1) * 10 // count:
            left = (time.monotonic() - begin) / done * (count - done)
            click.echo(f"{done:,} of {count:,} trials, about {left:,.0f} s left", err=True)

    yield TrialsProgress(advance, lambda line: click.echo(printable(line), err=True))
