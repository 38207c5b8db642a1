"""Trials on workers: the same bytes from any of them, and a lost worker does not stop the others."""

from __future__ import annotations

import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from fake_trials import (
    Record,
    fail_for_seed_1,
    fake_work,
    kill_worker_for_seed_1,
    kill_worker_once,
    small_grid,
)

from truenorm.lab.dispatch import Handlers, run_all
from truenorm.lab.executors import Workers, _require_same_versions, in_process, processes
from truenorm.lab.results import Results, make_plan
from truenorm.lab.summary import summarise
from truenorm.lab.trial import Trial


def handlers_of(results: Results) -> Handlers:
    return Handlers(results.add, lambda trial, error: pytest.fail(error), pytest.fail)


def names(trials: Iterator[Trial], *seeds: int) -> set[str]:
    return {trial.name for trial in trials if trial.config.seed in seeds}


def test_a_trial_that_fails_is_listed_and_the_others_go_on(words: Path) -> None:
    grid, record = small_grid(words, seeds=3), Record()
    run_all(grid.trials(), in_process(), record.handlers, fail_for_seed_1)
    assert record.done.keys() == names(grid.trials(), 0, 2)
    assert record.failed == dict.fromkeys(names(grid.trials(), 1), "seed: not 1, got 1.")
    assert record.events == []


def test_trials_are_drawn_when_there_is_a_worker_for_them(words: Path) -> None:
    """The memory of a large grid is bounded: no trial is made before its turn."""
    grid, record = small_grid(words, seeds=20), Record()
    drawn = 0

    def trials() -> Iterator[Trial]:
        nonlocal drawn
        for trial in grid.trials():
            assert drawn - len(record.done) <= 1
            drawn += 1
            yield trial

    run_all(trials(), in_process(), record.handlers, fake_work)
    assert len(record.done) == drawn == 40


class Slow(Executor):
    """Ends each call a while after it was submitted."""

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        threading.Timer(0.3, lambda: future.set_result(fn(*args, **kwargs))).start()
        return future

    def __exit__(self, *_: object) -> None:
        pass


def test_what_is_wrong_with_the_workers_is_said_once(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truenorm.lab.dispatch.CHECK_SECONDS", 0.05)
    record = Record()
    workers = Workers(2, 0, Slow, lambda: "no workers")
    run_all(small_grid(words, seeds=1).trials(), workers, record.handlers, fake_work)
    assert (len(record.done), record.events) == (2, ["no workers"])


class Cluster:
    """What `client.run` returns or raises."""

    def __init__(self, versions: dict[str, str] | Exception) -> None:
        self.versions = versions

    def run(self, function: Callable[[], dict[str, str]]) -> dict[str, dict[str, str]]:
        if isinstance(self.versions, Exception):
            raise self.versions
        return {"tcp://a": function(), "tcp://b": function() | self.versions}


def test_workers_of_a_cluster_need_the_same_versions() -> None:
    _require_same_versions(Cluster({}))
    for versions, message in (
        ({"numpy": "1.0"}, r"^--dask: workers with numpy [\d.]+, got 1\.0 on tcp://b\. Install it there\.$"),
        ({"truenorm": "9.9"}, r"^--dask: workers with truenorm [\d.]+, got 9\.9 on tcp://b\. Install it there\.$"),
        (ModuleNotFoundError("x"), r"^--dask: workers with truenorm [\d.]+, got one without it\. Install it there\.$"),
    ):
        with pytest.raises(ValueError, match=message):
            _require_same_versions(Cluster(versions))


def test_what_happens_to_workers_is_said_while_others_go_on(words: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truenorm.lab.dispatch.CHECK_SECONDS", 0.0)
    record, said = Record(), iter([None, "lost a", None, "lost b", "lost b"])
    workers = Workers(1, 0, in_process().open, lambda: next(said, None))
    run_all(small_grid(words, seeds=3).trials(), workers, record.handlers, fake_work)
    assert (len(record.done), record.events) == (6, ["lost a", "lost b"])


@pytest.mark.parametrize("lost", [CancelledError(), RuntimeError("Client is closed")])
def test_a_scheduler_that_is_gone_ends_the_work(words: Path, lost: Exception) -> None:
    class Gone(Slow):
        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if isinstance(lost, RuntimeError):
                raise lost
            future: Future[Any] = Future()
            future.cancel()
            future.set_running_or_notify_cancel()
            return future

    record = Record()
    with pytest.raises(ValueError, match=r"^the scheduler of the cluster is gone\. Finished trials are saved; "):
        run_all(small_grid(words, seeds=1).trials(), Workers(1, 0, Gone), record.handlers, fake_work)
    assert record.failed == {}


def test_processes_give_the_bytes_of_one_process_and_a_killed_one_is_replaced(words: Path) -> None:
    grid, here, there = small_grid(words, seeds=3), Record(), Record()
    run_all(grid.trials(), in_process(), here.handlers)
    assert len(here.done) == 6
    run_all(grid.trials(), processes(2), there.handlers, kill_worker_once)
    assert there.done == here.done
    assert there.failed == {}
    assert len(there.events) == 1
    assert there.events[0].startswith("a worker ended (killed, or out of memory): ")


@pytest.mark.slow
def test_only_the_trial_that_ends_its_worker_twice_has_failed(words: Path) -> None:
    grid, record = small_grid(words, seeds=4), Record()
    run_all(grid.trials(), processes(2), record.handlers, kill_worker_for_seed_1)
    assert record.done.keys() == names(grid.trials(), 0, 2, 3)
    message = "its worker ended 2 times (killed, or out of memory)"
    assert record.failed == dict.fromkeys(names(grid.trials(), 1), message)


@pytest.mark.slow
def test_a_large_grid_takes_little_memory(words: Path, tmp_path: Path) -> None:
    """It is planned, run, resumed and summarised. Its curves would take 5 MB, but they are never all in memory."""
    lrs, scales = (tuple((1 + number) / 100 for number in range(count)) for count in (8, 10))
    tracemalloc.start()
    grid = small_grid(words, seeds=5, lr=lrs, init_scale=scales)
    plan = make_plan([grid])
    with Results(tmp_path / "out", plan) as results:
        assert len(grid) == 800
        half = islice(grid.trials(), 400)
        run_all(half, in_process(), handlers_of(results), fake_work)
    with Results(tmp_path / "out", plan) as results:
        finished = results.finished()
        assert len(finished) == 400
        run_all(
            (one for one in grid.trials() if one.name not in finished), in_process(), handlers_of(results), fake_work
        )
        cells = summarise(results.read(), grid.varied())
    assert [cell.missing for cell in cells] == [0] * 160
    assert [cell.losses for cell in cells[:1]] == [[0.01, 1.01, 2.01, 3.01, 4.01]]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6
