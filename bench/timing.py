"""Time, told so that a noisy machine does not decide: interleaved rounds, medians, ratios within a round."""

from __future__ import annotations

import gc
import math
import os
import resource
import statistics
import time
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)

# A turn lasts at least this long: a call of 10 us is repeated until the clock and the loop do not matter.
TURN = 0.005
# OpenMP's threads spin for some 3 ms after their work. Without a pause a 1 ms torch call that followed another
# library's two threads took 8 ms, as the threads fought for two processors.
PAUSE = 0.01
# A round counts as disturbed if other processes took more of a processor than this: torch's spinning threads,
# with one processor of two taken from them, are 5 times slower.
DISTURBED = 0.1


@dataclass
class Samples:
    """Seconds a call, one for each round; `faults` counts the pages that the system had to hand out meanwhile."""

    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    faults: int = 0


@dataclass
class Rounds(Generic[Key]):
    """What `interleave` measured; only the quiet rounds count, if there are at least `least` of them."""

    samples: dict[Key, Samples]
    least: int
    others: list[float] = field(default_factory=list)  # processors that other processes used, for each round

    def quiet(self) -> list[int]:
        """The rounds that others left alone: chosen by what others did, never by the times."""
        return [number for number, share in enumerate(self.others) if share <= DISTURBED]

    def disturbed(self) -> bool:
        """There were too few quiet rounds: the numbers are of all rounds, and of little worth."""
        return len(self.quiet()) < self.least

    def seconds(self, key: Key) -> list[float]:
        kept = range(len(self.others)) if self.disturbed() else self.quiet()
        return [self.samples[key].seconds[number] for number in kept]

    def faults(self, key: Key) -> float:
        """Page faults a call, over all rounds."""
        return self.samples[key].faults / (self.samples[key].calls * len(self.others))


def rotate(keys: Sequence[Key], round_number: int) -> list[Key]:
    """The order of one round: everyone is first in turn, so that nobody always runs at a bad moment."""
    start = round_number % len(keys)
    return [*keys[start:], *keys[:start]]


def interleave(
    calls: Mapping[Key, Callable[[], object]],
    *,
    seconds: float,
    patience: float = 0.0,
    rounds: tuple[int, int] = (5, 200),
    pause: float = PAUSE,
    turn: float = TURN,
    clock: Callable[[], float] = time.perf_counter,
    others: Callable[[], float] | None = None,
) -> Rounds[Key]:
    """Run every call once a round, in rotated order, until `seconds` are over; at least and at most `rounds`.

    Before each turn everyone is given the same start: a pause in which other libraries' threads fall asleep, then an
    untimed turn that wakes the own ones and fills the caches. While too few rounds were quiet, it waits for others to
    finish (`patience` seconds in all), and goes on for up to twice the time.
    """
    others = others or seconds_of_others
    least, most = rounds
    found = Rounds({key: Samples(_calls_a_turn(call, turn, clock)) for key, call in calls.items()}, least)
    begin, waited = clock(), 0.0
    with _collector_asleep():
        while (done := len(found.others)) < most:
            if done >= least and clock() - begin - waited >= seconds * (2 if found.disturbed() else 1):
                break
            if found.disturbed() and waited < patience:
                waited += _wait_for_others(patience - waited, others, clock)
            start, taken = clock(), others()
            for key in rotate(list(calls), done):
                time.sleep(pause)
                samples = found.samples[key]
                _elapsed(calls[key], samples.calls, clock)
                before = _page_faults()
                samples.seconds.append(_elapsed(calls[key], samples.calls, clock) / samples.calls)
                samples.faults += _page_faults() - before
            found.others.append((others() - taken) / max(clock() - start, 1e-9))
    return found


def _wait_for_others(limit: float, others: Callable[[], float], clock: Callable[[], float]) -> float:
    """Wait until nobody else works, at most about `limit` seconds; returns how long it took."""
    begin = clock()
    while clock() - begin < limit:
        start, taken = clock(), others()
        time.sleep(0.3)
        if others() - taken <= DISTURBED * (clock() - start):
            break
    return clock() - begin


def _calls_a_turn(call: Callable[[], object], turn: float, clock: Callable[[], float]) -> int:
    fastest = min(_elapsed(call, 1, clock) for _ in range(3))
    return max(1, math.ceil(turn / max(fastest, 1e-7)))


def _elapsed(call: Callable[[], object], repeats: int, clock: Callable[[], float]) -> float:
    start = clock()
    for _ in range(repeats):
        call()
    return clock() - start


@contextmanager
def _collector_asleep() -> Iterator[None]:
    """No collection inside a turn: it costs what happens to be loaded."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def seconds_of_others(stat: Path = Path("/proc/stat")) -> float:
    """Processor seconds that other processes, or the host, took so far; always 0 where the system does not tell."""
    try:
        user, nice, system, _, _, irq, softirq, stolen = map(int, stat.read_text("ascii").split()[1:9])
    except (OSError, ValueError):
        return 0.0
    busy = (user + nice + system + irq + softirq + stolen) / os.sysconf("SC_CLK_TCK")
    return busy - time.process_time()


def spread(values: Sequence[float]) -> dict[str, float]:
    """The median and the quartiles."""
    if len(values) < 2:
        return {"median": values[0], "low": values[0], "high": values[0]}
    low, median, high = statistics.quantiles(values, n=4, method="inclusive")
    return {"median": median, "low": low, "high": high}


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """above / below within each round, then the median: a slow moment hits both, and cancels."""
    return spread([one / two for one, two in zip(above, below, strict=True)])
