"""Run trials on workers: a bounded number at a time, whatever happens to a worker.

A trial that raises an error has failed; the others go on. If a process is killed (SIGKILL, out of memory), loky's
executor breaks, and every trial that was submitted is lost with it. It does not say which trial ran in that process. So
a new executor is opened, and the lost trials run one at a time until all are done. A trial that was alone when its
worker ended, for the second time, has failed. dask.distributed itself starts lost trials again on another worker, which
is reported (`Workers.check`), and gives up after some workers were lost with the same trial: then it has failed. If its
scheduler is lost, an error is raised: all trials that are not done would fail.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, CancelledError, Executor, Future, wait
from contextlib import ExitStack
from dataclasses import dataclass

from truenorm.lab.executors import Work, Workers, work
from truenorm.lab.trial import Trial

CHECK_SECONDS = 1.0  # between two checks of the workers
MOST_KILLS = 2  # workers that a trial may take with it
CLUSTER_LOST = (
    "the scheduler of the cluster is gone. Finished trials are saved; the same command goes on with the others."
)


@dataclass(frozen=True)
class Handlers:
    """What to do with a trial that is done or has failed, and with a message about a lost worker."""

    on_done: Callable[[Trial, bytes, float], None]
    on_failed: Callable[[Trial, str], None]
    on_event: Callable[[str], None]


def run_all(trials: Iterable[Trial], workers: Workers, handlers: Handlers, function: Work = work) -> None:
    """Run all trials. They are drawn from `trials` when there is a worker for them."""
    fresh, lost = iter(trials), deque[Trial]()  # lost: to run alone, as one of them may have ended its worker
    kills: Counter[str] = Counter()
    while True:
        with ExitStack() as stack:
            executor = stack.enter_context(workers.open())
            broken = _run_until_broken(fresh, lost, kills, executor, workers, handlers, function)
            # Leave the broken executor before the next one is opened.
        if not broken:
            return
        kills.update(trial.name for trial in broken)
        if len(broken) == 1 and kills[broken[0].name] >= MOST_KILLS:
            handlers.on_failed(broken[0], f"its worker ended {MOST_KILLS} times (killed, or out of memory)")
        else:
            lost.extend(broken)
            again = "the trial that ran starts" if len(broken) == 1 else f"{len(broken)} trials start"
            handlers.on_event(f"a worker ended (killed, or out of memory): {again} again")


def _run_until_broken(
    fresh: Iterator[Trial],
    lost: deque[Trial],
    kills: Counter[str],
    executor: Executor,
    workers: Workers,
    handlers: Handlers,
    function: Work,
) -> list[Trial]:
    """Run trials until none is left, or until the executor breaks. Returns those that were lost with it."""
    submitted: dict[Future[tuple[bytes, float]], Trial] = {}
    broken: list[Trial] = []
    checked, said = time.monotonic(), ""  # when the workers were checked, and what was last said about them
    while True:
        alone = lost or any(trial.name in kills for trial in submitted.values())
        while not broken and len(submitted) < (1 if alone else workers.count + workers.ahead):
            trial = lost.popleft() if lost else next(fresh, None)
            if trial is None:
                break
            try:
                submitted[executor.submit(function, trial)] = trial
            except BrokenExecutor:
                broken.append(trial)
            except RuntimeError:  # a closed client
                raise ValueError(CLUSTER_LOST) from None
        if not submitted:
            return broken
        done, _ = wait(submitted, CHECK_SECONDS, FIRST_COMPLETED)
        if (now := time.monotonic()) >= checked + CHECK_SECONDS:
            checked = now
            if (problem := workers.check()) not in (None, said):
                handlers.on_event(said := str(problem))
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
