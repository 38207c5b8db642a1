"""Trials on workers: the same bytes from any of them, and a lost worker does not stop the others."""

from __future__ import annotations

import re
import socket
import sys
import threading
import time
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, CancelledError, Executor, Future
from contextlib import contextmanager
from importlib.machinery import ModuleSpec
from itertools import islice
from pathlib import Path
from types import ModuleType
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

from truenorm.lab import executors
from truenorm.lab.dispatch import NOTHING_RUNS, WORKER_ENDED, Handlers, run_all
from truenorm.lab.executors import Workers, _require_same_versions, cluster, in_process, processes
from truenorm.lab.results import Results, make_plan
from truenorm.lab.summary import summarize
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


@contextmanager
def listening() -> Iterator[str]:
    """The address of a server that accepts connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"tcp://127.0.0.1:{server.getsockname()[1]}"


@pytest.mark.parametrize("slow", ["nobody", "silent", "lookup"])
def test_a_cluster_that_cannot_be_reached_is_said_soon(slow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before distributed is imported, which takes seconds: here it cannot be."""
    module = ModuleType("distributed")
    module.__spec__ = ModuleSpec("distributed", None)
    monkeypatch.setitem(sys.modules, "distributed", module)
    monkeypatch.setattr(executors, "CONNECT_SECONDS", 0.2)
    never = threading.Event()

    def wait_and_fail(*_: object) -> None:
        never.wait(20)
        raise OSError("no such name")

    if slow == "lookup":  # the limit of a socket begins after its name was looked up
        monkeypatch.setattr(socket, "create_connection", wait_and_fail)
    begin = time.monotonic()
    with (
        listening() as address,
        pytest.raises(ValueError, match=r"^--dask: the address of a running scheduler") as error,
    ):
        cluster("127.0.0.1:1" if slow == "nobody" else address)
    never.set()
    assert time.monotonic() - begin < 2
    reason = "[Errno 111] Connection refused" if slow == "nobody" else "timed out"
    assert f"which cannot be reached ({reason}). Start one: dask scheduler" in str(error.value)


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
        run_all(small_grid(words, seeds=1).trials(), Workers(1, 0, Gone, cluster=True), record.handlers, fake_work)
    assert record.failed == {}
    if isinstance(lost, RuntimeError):  # of other executors it is what it says
        with pytest.raises(RuntimeError, match=r"^Client is closed$"):
            run_all(small_grid(words, seeds=1).trials(), Workers(1, 0, Gone), record.handlers, fake_work)


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
def test_only_the_trials_that_end_their_worker_have_failed(words: Path) -> None:
    grid, record = small_grid(words, seeds=4), Record()
    run_all(grid.trials(), processes(2), record.handlers, kill_worker_for_seed_1)
    assert record.done.keys() == names(grid.trials(), 0, 2, 3)
    assert record.failed == dict.fromkeys(names(grid.trials(), 1), WORKER_ENDED)


class Fragile:
    """Executors that break, with all that was submitted, when a trial of a `deadly` seed runs, or at each of the first
    `accidents` trials. Records what ran side by side."""

    def __init__(self, deadly: tuple[int, ...] = (), accidents: int = 0) -> None:
        self.deadly, self.accidents = deadly, accidents
        self.side_by_side: list[list[int]] = []
        self.opened = 0

    def __enter__(self) -> Executor:
        self.opened += 1
        return _FragileExecutor(self)

    def __exit__(self, *_: object) -> None:
        pass


class _FragileExecutor(Executor):
    """Runs its calls a moment after the last of them was submitted."""

    def __init__(self, owner: Fragile) -> None:
        self.owner = owner
        self.waiting: list[tuple[Future[Any], Any, Trial]] = []
        self.timer: threading.Timer | None = None

    def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.waiting.append((future, fn, args[0]))
        if self.timer is not None:
            self.timer.cancel()
        self.timer = threading.Timer(0.1, self._run)
        self.timer.start()
        return future

    def _run(self) -> None:
        waiting, self.waiting = self.waiting, []
        self.owner.side_by_side.append(sorted(trial.config.seed for _, _, trial in waiting))
        accident = self.owner.accidents > 0
        self.owner.accidents -= accident
        broken = accident or any(trial.config.seed in self.owner.deadly for _, _, trial in waiting)
        for future, fn, trial in waiting:
            future.set_exception(BrokenExecutor()) if broken else future.set_result(fn(trial))


def test_after_an_accident_lost_trials_run_side_by_side_again(words: Path) -> None:
    pool, record = Fragile(accidents=1), Record()
    run_all(
        small_grid(words, seeds=8, norm=("none",)).trials(), Workers(4, 0, lambda: pool), record.handlers, fake_work
    )
    assert len(record.done) == 8
    assert pool.side_by_side[:2] == [[0, 1, 2, 3], [0, 1, 2, 3]]
    assert pool.opened == 2
    assert record.events == ["a worker ended (killed, or out of memory): 4 trials start again"]


def test_a_trial_has_failed_when_its_worker_ends_while_it_is_alone(words: Path) -> None:
    """Others that were lost with it have not, though some of them were lost as often."""
    grid, pool, record = small_grid(words, seeds=8, norm=("none",)), Fragile(deadly=(2,)), Record()
    run_all(grid.trials(), Workers(4, 0, lambda: pool), record.handlers, fake_work)
    assert record.done.keys() == names(grid.trials(), 0, 1, 3, 4, 5, 6, 7)
    assert record.failed == dict.fromkeys(names(grid.trials(), 2), WORKER_ENDED)
    together = [0, 1, 2, 3]
    assert pool.side_by_side[:2] == [together, together]
    assert sorted(pool.side_by_side[2:6]) == [[0], [1], [2], [3]]
    assert pool.side_by_side[6] == [4, 5, 6, 7]


def test_workers_that_never_do_anything_end_the_work(words: Path) -> None:
    pool, record = Fragile(accidents=1000), Record()
    with pytest.raises(ValueError, match=f"^{re.escape(NOTHING_RUNS)}$"):
        run_all(small_grid(words, seeds=50).trials(), Workers(2, 2, lambda: pool), record.handlers, fake_work)
    assert pool.opened < 10
    assert record.done == {}


@pytest.mark.slow
def test_a_large_grid_takes_little_memory(words: Path, tmp_path: Path) -> None:
    """It is planned, run, resumed and summarized. Its curves would take 5 MB, but they are never all in memory."""
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
        cells = summarize(results.read(), grid.varied())
    assert [cell.missing for cell in cells] == [0] * 160
    assert cells[0].losses == {0: 0.01, 1: 1.01, 2: 2.01, 3: 3.01, 4: 4.01}
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2e6
