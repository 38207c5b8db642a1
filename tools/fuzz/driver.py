"""Runs cases in a child process, so that a crash or a hang is one failure and not the end."""

import mmap
import os
import signal
import struct
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, Protocol

Kind = Literal["results", "calls"]
HANGS = 60  # seconds: a case takes milliseconds, but on a busy machine it may wait for seconds
ENOUGH = 40  # failures to show


@dataclass(frozen=True)
class Counts:
    """What a run did.

    cases         how many were tried
    computed      calls that returned; the others were refused, as they should be
    compared      numbers that were compared with those of the reference
    undetermined  numbers whose bound is infinite: the data do not determine them
    failures      cases that broke a rule
    """

    cases: int
    computed: int
    compared: int
    undetermined: int
    failures: int

    def __str__(self) -> str:
        return (
            f"{self.cases} cases, {self.computed} computed, {self.failures} failures, "
            f"{self.compared} numbers compared, {self.undetermined} undetermined"
        )


class Case(Protocol):
    """A case of either kind."""

    def check(self) -> tuple[int, int, int]:
        """How many calls returned, how many numbers were compared, and how many are not determined."""
        ...


Make = Callable[[int, int], Case]
_SLOTS = "qqqq"  # the number of the case, then the counts; a child's writes are seen by its parent


def run(
    cases: int | None = None,
    seed: int = 1,
    *,
    seconds: float | None = None,
    kind: Kind = "results",
    fence: int = 256,
    show: Callable[[str], object] = print,
) -> Counts:
    """So many cases, or as many as fit the time. Failures are shown as one line that repeats them."""
    make = maker(kind, fence)
    until = None if seconds is None else time.monotonic() + seconds
    shared = mmap.mmap(-1, struct.calcsize(_SLOTS))
    first, failures = 0, 0
    while failures < ENOUGH and (cases is None or first < cases):
        sys.stdout.flush()
        child = os.fork()
        if not child:
            status = 1
            try:
                _sweep(make, seed, first, cases, until, shared)
                status = 0
            except BaseException as error:
                print(f"{type(error).__name__}: {error}")
            finally:
                sys.stdout.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        number = struct.unpack_from(_SLOTS, shared)[0]
        if status == 0:
            first = number
            break
        died = f"signal {os.WTERMSIG(status)}" if os.WIFSIGNALED(status) else "failed"
        show(f"python -m tools.fuzz --kind {kind} --seed {seed} --case {number}  # {died}: {make(seed, number)}")
        first, failures = number + 1, failures + 1
    _, computed, compared, undetermined = struct.unpack_from(_SLOTS, shared)
    return Counts(first, computed, compared, undetermined, failures)


def maker(kind: Kind, fence: int) -> Make:
    """The function that makes the cases of a kind."""
    if kind == "calls":
        from tools.fuzz import calls

        return lambda seed, number: calls.make(seed, number, fence)
    from tools.fuzz import results

    return results.make


def _sweep(make: Make, seed: int, first: int, cases: int | None, until: float | None, shared: mmap.mmap) -> None:
    """Case after case, in this process."""
    warnings.simplefilter("ignore")  # numbers that do not fit are meant
    number = first
    while (cases is None or number < cases) and (until is None or time.monotonic() < until):
        _, *counts = struct.unpack_from(_SLOTS, shared)
        struct.pack_into("q", shared, 0, number)
        case = make(seed, number)
        signal.alarm(HANGS)
        found = case.check()
        signal.alarm(0)
        number += 1
        struct.pack_into(_SLOTS, shared, 0, number, *(one + more for one, more in zip(counts, found, strict=True)))
    struct.pack_into("q", shared, 0, number)
