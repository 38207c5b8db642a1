"""Run trials on workers: a bounded number at a time, whatever happens to a worker.

A trial that raises an error has failed; the others go on. If a process is killed (SIGKILL, out of memory), loky's
executor breaks, and every trial that was submitted is lost with it. It does not say which trial ran in that process. So
a new executor is opened, and the lost trials run again, still side by side: most often something else killed the
process. A trial that is lost again runs alone from then on, and has failed if its worker ends while it is alone. If
workers end like this before any trial is done, none will be: an error is raised.

dask.distributed itself starts lost trials again on another worker, which is reported (`Workers.check`), and gives up
after some workers were lost with the same trial: then it has failed. If its scheduler is lost, an error is raised: all
trials that are not done would fail.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass

from truenorm.lab.executors import Work, Workers, work
from truenorm.lab.trial import Trial

CHECK_SECONDS = 1.0  # between two checks of the workers
TOGETHER = 2  # times that a trial may be lost beside others; then it runs alone
MOST_FAILURES = 3  # trials that fail with their workers before any is done
CLUSTER_LOST = (
    "the scheduler of the cluster is gone. Finished trials are saved; the same command goes on with the others."
)
WORKER_ENDED = "its worker ended while it ran alone (killed, or out of memory)"
NOTHING_RUNS = (
    "--workers: processes that can run trials, got only ones that ended before a trial was done. Use --workers 1."
)


@dataclass(frozen=True)
class Handlers:
    """What to do with a trial that is done or has failed, and with a message about a lost worker."""

    on_done: Callable[[Trial, bytes, float], None]
    on_failed: Callable[[Trial, str], None]
    on_event: Callable[[str], None]


def run_all(trials: Iterable[Trial], workers: Workers, handlers: Handlers, function: Work = work) -> None:
    """Run all trials. They are drawn from `trials` when there is a worker for them."""
    queue = _Queue(trials)
    done, failures = False, 0

    def on_done(trial: Trial, file: bytes, seconds: float) -> None:
        nonlocal done
        done = True
        handlers.on_done(trial, file, seconds)

    while True:
        with ExitStack() as stack:
            executor = stack.enter_context(workers.open())
            counting = Handlers(on_done, handlers.on_failed, handlers.on_event)
            broken = _run_until_broken(queue, executor, workers, counting, function)
            # Leave the broken executor before the next one is opened.
        if not broken:
            return
        if len(broken) == 1 and queue.runs_alone(broken[0]):
            handlers.on_failed(broken[0], WORKER_ENDED)
            failures += 1
            if not done and failures == MOST_FAILURES:
                raise ValueError(NOTHING_RUNS)
            continue
        queue.put_back(broken)
        again = "the trial that ran starts" if len(broken) == 1 else f"{len(broken)} trials start"
        handlers.on_event(f"a worker ended (killed, or out of memory): {again} again")


class _Queue:
    """Which trial is next: lost ones first, then new ones. Those that were lost too often come last of the lost."""

    def __init__(self, trials: Iterable[Trial]) -> None:
        self._fresh = iter(trials)
        self._lost: deque[Trial] = deque()
        self._alone: deque[Trial] = deque()
        self._times: Counter[str] = Counter()

    def put_back(self, trials: Iterable[Trial]) -> None:
        """Trials whose executor broke."""
        for trial in trials:
            self._times[trial.name] += 1
            (self._alone if self.runs_alone(trial) else self._lost).append(trial)

    def runs_alone(self, trial: Trial) -> bool:
        return self._times[trial.name] >= TOGETHER

    def take(self, running: Collection[Trial]) -> Trial | None:
        """The next trial to run beside these; None if there is none, or if it has to wait until they are done."""
        if any(self.runs_alone(trial) for trial in running):
            return None
        if self._lost:
            return self._lost.popleft()
        if self._alone:
            return None if running else self._alone.popleft()
        return next(self._fresh, None)


def _run_until_broken(
    queue: _Queue, executor: Executor, workers: Workers, handlers: Handlers, function: Work
) -> list[Trial]:
    """Run trials until none is left, or until the executor breaks. Returns those that were lost with it."""
    submitted: dict[Future[tuple[bytes, float]], Trial] = {}
    broken: list[Trial] = []
    checked, said = time.monotonic(), ""  # when the workers were checked, and what was last said about them

    def check() -> None:
        nonlocal checked, said
        checked = time.monotonic()
        if (problem := workers.check()) not in (None, said):
            handlers.on_event(said := str(problem))

    while True:
        while not broken and len(submitted) < workers.count + workers.ahead:
            trial = queue.take(submitted.values())
            if trial is None:
                break
            try:
                submitted[executor.submit(function, trial)] = trial
            except BrokenExecutor:
                broken.append(trial)
            except RuntimeError:
                if not workers.cluster:
                    raise
                raise ValueError(CLUSTER_LOST) from None  # a closed client
        if not submitted:
            check()
            return broken
        done, _ = wait(submitted, CHECK_SECONDS, FIRST_COMPLETED)
        if time.monotonic() >= checked + CHECK_SECONDS:
            check()
        for future in done:
            trial = submitted.pop(future)
            try:
                file, seconds = future.result()
            except BrokenExecutor:
                broken.append(trial)
            except CancelledError:
                raise ValueError(CLUSTER_LOST) from None
            except Exception as error:
                handlers.on_failed(trial, describe(error))
            else:
                handlers.on_done(trial, file, seconds)


def describe(error: Exception) -> str:
    """An error in one line."""
    first = next(iter(str(error).splitlines()), "")
    return first if isinstance(error, ValueError) and first else f"{type(error).__name__}: {first}"
