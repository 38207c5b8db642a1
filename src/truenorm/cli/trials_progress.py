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


def duration(seconds: float) -> str:
    """A time for people.

    >>> duration(0.3), duration(89), duration(600), duration(9000), duration(1e6)
    ('1 s', '89 s', '10 min', '2.5 h', '11.6 days')
    """
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"


@dataclass(frozen=True)
class TrialsProgress:
    """advance: one more trial is done. say: print a line above the bar."""

    advance: Callable[[], None]
    say: Callable[[str], None]


@contextmanager
def trials_progress(count: int, unit: str = "trials") -> Iterator[TrialsProgress]:
    if count and sys.stderr is not None and sys.stderr.isatty():
        console = Screen(stderr=True)
        columns = (TextColumn(unit), MofNCompleteColumn(), BarColumn(None if console.width >= 80 else 8))
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
            time_left = f", about {duration(left)} left" if done < count else ""
            click.echo(f"{done:,} of {count:,} {unit}{time_left}", err=True)

    yield TrialsProgress(advance, lambda line: click.echo(printable(line), err=True))
