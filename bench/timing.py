"""Timing on a noisy machine: interleaved rounds, medians, and ratios within a round."""

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

# Seconds that a turn lasts at least: short calls are repeated, so that clock and loop overhead do not matter.
TURN = 0.005
# OpenMP's threads spin for about 3 ms after their work. Without a pause, a torch call of 1 ms took 8 ms after a call of
# another library with two threads, because the threads competed for two processors.
PAUSE = 0.01
# A round is disturbed if other processes used more of a processor than this. torch's spinning threads become 5 times
# slower when they lose one of two processors.
DISTURBED = 0.1


@dataclass
class Samples:
    """Seconds per call, one value a round; `faults` counts the page faults of all rounds.

    processor   seconds of processors, of all threads: what other processes take does not count
    """

    calls: int = 1
    seconds: list[float] = field(default_factory=list)
    processor: list[float] = field(default_factory=list)
    faults: int = 0


@dataclass
class Rounds(Generic[Key]):
    """What `interleave` measured. Only quiet rounds count, if there are at least `least` of them."""

    samples: dict[Key, Samples]
    least: int
    others: list[float] = field(default_factory=list)  # processors that other processes used, for each round

    def quiet(self) -> list[int]:
        """The rounds that other processes did not disturb. The choice does not depend on the times."""
        return [number for number, share in enumerate(self.others) if share <= DISTURBED]

    def disturbed(self) -> bool:
        """True if there were too few quiet rounds: the times are then of all rounds, and not reliable."""
        return len(self.quiet()) < self.least

    def seconds(self, key: Key) -> list[float]:
        return self._kept(self.samples[key].seconds)

    def processor(self, key: Key) -> list[float]:
        return self._kept(self.samples[key].processor)

    def _kept(self, values: list[float]) -> list[float]:
        return [values[number] for number in (range(len(self.others)) if self.disturbed() else self.quiet())]

    def faults(self, key: Key) -> float:
        """Page faults a call, over all rounds."""
        return self.samples[key].faults / (self.samples[key].calls * len(self.others))


def rotate(keys: Sequence[Key], round_number: int) -> list[Key]:
    """The order of one round: another call is first in each."""
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
    enough: Callable[[Rounds[Key]], bool] | None = None,
) -> Rounds[Key]:
    """Run every call once a round, in rotated order, until `seconds` are over; at least and at most `rounds`.

    enough   whether what was measured is precise enough to end earlier; asked after each round, if enough were quiet

    Each turn starts with a pause, in which the threads of other libraries stop spinning, and an untimed turn, which
    wakes the call's own threads and fills the caches. While too few rounds were quiet, it waits for other processes
    to finish (`patience` seconds in total) and continues for up to twice the time.
    """
    others = others or seconds_of_others
    least, most = rounds
    found = Rounds({key: Samples(_calls_a_turn(call, turn, clock)) for key, call in calls.items()}, least)
    begin, waited = clock(), 0.0
    with _garbage_collection_off():
        while (done := len(found.others)) < most:
            if done >= least and clock() - begin - waited >= seconds * (2 if found.disturbed() else 1):
                break
            if enough is not None and not found.disturbed() and enough(found):
                break
            if found.disturbed() and waited < patience:
                waited += _wait_for_others(patience - waited, others, clock)
            start, taken = clock(), others()
            for key in rotate(list(calls), done):
                time.sleep(pause)
                samples = found.samples[key]
                _elapsed(calls[key], samples.calls, clock)
                before, used = _page_faults(), time.process_time()
                samples.seconds.append(_elapsed(calls[key], samples.calls, clock) / samples.calls)
                samples.processor.append((time.process_time() - used) / samples.calls)
                samples.faults += _page_faults() - before
            found.others.append((others() - taken) / max(clock() - start, 1e-9))
    return found


def _wait_for_others(limit: float, others: Callable[[], float], clock: Callable[[], float]) -> float:
    """Wait until other processes are idle, at most about `limit` seconds; return the seconds waited."""
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
def _garbage_collection_off() -> Iterator[None]:
    """No collection inside a turn: its time depends on what else is loaded."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _page_faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def seconds_of_others(stat: Path = Path("/proc/stat")) -> float:
    """Processor seconds that other processes or the host used so far; 0 if the system does not report them."""
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


def error_of_median(values: Sequence[float]) -> float:
    """The standard error of the median, as a share of it, from the quartiles as those of a normal distribution."""
    found = spread(values)
    deviation = (found["high"] - found["low"]) / 1.349
    return 1.2533 * deviation / math.sqrt(len(values)) / found["median"]


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The spread of above / below within each round: a slow moment affects both and cancels."""
    return spread([one / two for one, two in zip(above, below, strict=True)])
