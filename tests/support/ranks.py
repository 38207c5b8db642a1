"""Ranks: processes that run the same function side by side, each time in a new group of torch.distributed (gloo).

They are forked from a server that has imported torch once, and stay for many calls. A function is named by its module,
as pickle does it, so it must be in a module on the path, such as `rank_cases`. An exception in a rank is its result.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import pickle
import signal
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

SECONDS = 60  # a test waits no longer for a rank: the machine may be busy


class Ranks:
    def __init__(self, count: int) -> None:
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload(["truenorm.torch", "rank_cases"])
        self.folder = tempfile.TemporaryDirectory()
        self.calls = 0
        self.workers = [self._start() for _ in range(count)]

    def _start(self) -> tuple[Any, Any]:
        here, there = self.context.Pipe()
        process = self.context.Process(target=_serve, args=(there,), daemon=True)
        process.start()
        there.close()
        return process, here

    def run(
        self, world: int, function: Callable[..., Any], *args: Any, timeout: float = 30.0, lost: tuple[int, ...] = ()
    ) -> list[Any]:
        """`function(rank, world, *args)` on ranks 0 to world - 1: what each returns or raises. lost: die or stop."""
        self.workers = [one if one[0].is_alive() else self._start() for one in self.workers]
        self.calls += 1
        store = str(Path(self.folder.name) / str(self.calls))
        chosen = self.workers[:world]
        for rank, (_, pipe) in enumerate(chosen):
            pipe.send_bytes(pickle.dumps((function, rank, world, store, timeout, args)))
        try:
            return [None if rank in lost else _answer(rank, pipe) for rank, (_, pipe) in enumerate(chosen)]
        except BaseException:
            # A test that lost its ranks does not fail the tests after it: what still answers would answer these.
            for worker in chosen:
                _end(*worker)
            raise

    def close(self) -> None:
        for worker in self.workers:
            _end(*worker)
        self.folder.cleanup()


def _answer(rank: int, pipe: Any) -> Any:
    assert pipe.poll(SECONDS), f"rank {rank} does not answer"
    try:
        return pickle.loads(pipe.recv_bytes())
    except EOFError:
        raise AssertionError(f"rank {rank} has ended") from None


def _end(process: Any, pipe: Any) -> None:
    pipe.close()
    if process.is_alive() and process.pid is not None:
        os.kill(process.pid, signal.SIGKILL)
    process.join()


def check(found: list[Any]) -> list[Any]:
    """The results, if no rank raised."""
    for rank, one in enumerate(found):
        assert not isinstance(one, BaseException), f"rank {rank}: {''.join(traceback.format_exception(one))}"
    return found


def _serve(pipe: Any) -> None:
    import torch
    from torch import distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    # No rank leaves `init_process_group` before all are connected. Otherwise a rank whose function exchanges nothing is
    # gone while another still connects to it, and that one fails: "Connection closed by peer".
    os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
    torch.set_num_threads(1)
    while True:
        try:
            function, rank, world, store, timeout, args = pickle.loads(pipe.recv_bytes())
        except EOFError:
            return
        found: Any
        try:
            dist.init_process_group(
                "gloo",
                store=torch.distributed.FileStore(store, world),  # type: ignore[attr-defined]
                rank=rank,
                world_size=world,
                timeout=datetime.timedelta(seconds=timeout),
            )
            torch.manual_seed(0)
            found = function(rank, world, *args)
        except Exception as error:
            error.add_note(traceback.format_exc())
            found = error
        if dist.is_initialized():
            dist.destroy_process_group()
        pipe.send_bytes(pickle.dumps(found))
