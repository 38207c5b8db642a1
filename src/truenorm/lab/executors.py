"""Where trials run: this process, processes of this machine (loky), or a cluster (dask.distributed).

Each is a `Workers`: it opens executors of `concurrent.futures`, and everything else is the same for all of them.
`lab.dispatch` submits `work` to an executor. loky and dask are imported when they are used.

Matrix products use one thread on every worker, as in `truenorm train`: so the bits do not depend on the number of
cores, and the workers do not wait for each other. Processes of loky have this in their environment before NumPy is
loaded. Workers of a cluster were started by somebody else: there `work` limits the threads.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from importlib.util import find_spec
from multiprocessing import resource_tracker
from types import TracebackType
from typing import Any, ParamSpec, Self, TypeVar
from urllib.parse import urlsplit

from threadpoolctl import threadpool_limits

from truenorm.engine.threads import PROCESSORS
from truenorm.lab.blas import one_blas_thread
from truenorm.lab.trial import Trial, run_trial

P = ParamSpec("P")
T = TypeVar("T")
CONNECT_SECONDS = 4  # to reach a cluster
LOGGERS = ("distributed", "distributed.client", "tornado.application")  # that dask sets a level of their own for
ONE_THREAD = {f"{name}_NUM_THREADS": "1" for name in ("OPENBLAS", "OMP", "MKL", "VECLIB_MAXIMUM", "BLIS")}

Work = Callable[[Trial], tuple[bytes, float]]


@dataclass(frozen=True)
class Workers:
    """What runs the trials.

    count   how many trials run at the same time
    ahead   how many more are submitted, so that no worker waits
    open    opens an executor; leaving it drops what is computed, and ends the workers unless others started them
    check   what happened to the workers since the last call, for people; None if nothing did
    close   leaves a cluster; does nothing the second time
    """

    count: int
    ahead: int
    open: Callable[[], AbstractContextManager[Executor]]
    check: Callable[[], str | None] = lambda: None
    close: Callable[[], None] = lambda: None
    cluster: bool = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def work(trial: Trial) -> tuple[bytes, float]:
    """Run a trial on a worker; return the content of its file and the seconds that it took."""
    threadpool_limits(1, user_api="blas")  # until the worker ends: a worker may run several trials in threads
    begin = time.perf_counter()
    return run_trial(trial), time.perf_counter() - begin


# ---- this process ----


class _Immediate(Executor):
    """Runs a call when it is submitted."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()
        try:
            future.set_result(fn(*args, **kwargs))
        except Exception as error:  # KeyboardInterrupt goes on
            future.set_exception(error)
        return future


def in_process() -> Workers:
    """One trial at a time in this process."""

    @contextmanager
    def open_executor() -> Iterator[Executor]:
        with one_blas_thread():
            yield _Immediate()

    return Workers(1, 0, open_executor)


# ---- processes ----


def processes(count: int) -> Workers:
    """This many processes of this machine."""
    try:
        from loky import ProcessPoolExecutor
    except ModuleNotFoundError:
        raise ValueError(
            f"--workers {count}: needs the package 'loky'. Install it: pip install 'truenorm[lab]'; or use --workers 1."
        ) from None

    @contextmanager
    def open_executor() -> Iterator[Executor]:
        executor = ProcessPoolExecutor(count, initializer=_start_process, initargs=(os.getpid(),), env=dict(ONE_THREAD))
        try:
            resource_tracker.ensure_running()  # it is started with the first process, and unblocks interrupts
            with _interrupts_blocked():  # processes inherit this: they would print a traceback while they start
                executor.submit(int)  # starts all of them
            yield executor
        finally:
            executor.shutdown(wait=True, kill_workers=True)

    return Workers(count, count, open_executor)


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Block SIGINT in this thread, and in the processes that it starts for as long as they live."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start_process(parent: int) -> None:
    """Ctrl-C in a terminal is sent to all processes: leave it to the parent. End when the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end_with_parent() -> None:
        while os.getppid() == parent:
            time.sleep(0.5)
        os._exit(1)

    threading.Thread(target=end_with_parent, daemon=True).start()


# ---- cluster ----


def cluster(address: str) -> Workers:
    """The workers of a cluster of dask.distributed. They must have the same versions of truenorm and NumPy."""
    if find_spec("distributed") is None:
        raise ValueError("--dask: needs the package 'distributed'. Install it: pip install 'truenorm[cluster]'.")
    _require_scheduler(address)  # before the import, which takes seconds on a busy machine
    from distributed import Client

    for name in LOGGERS:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is raised as an error
    connect: Any = type(
        "Client", (Client,), {"__del__": lambda _: None}
    )  # closed below; its own __del__ waits and warns
    try:
        client = connect(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except Exception as error:  # bytes that are not dask's may raise anything
        raise _unreachable(address, str(error)) from None
    try:
        known = set(threads := client.nthreads())
        slots = sum(threads.values())
        if not slots:
            raise ValueError(
                f"--dask: a scheduler with workers, got {address}, which has none. Start one: dask worker {address}"
            )
        _require_same_versions(client)
    except BaseException:
        client.close()
        raise

    @contextmanager
    def open_executor() -> Iterator[Executor]:
        try:
            yield client.get_executor(pure=False)
        finally:
            client.close()

    def check() -> str | None:
        nonlocal known
        with suppress(Exception):  # a scheduler that is gone cancels the trials
            before, known = known, set(client.nthreads())
            if not known:
                return f"{address} has no workers any more: waiting for one"
            if gone := sorted(before - known):
                return f"{address} lost the worker {', '.join(gone)}: what ran there starts again on another"
        return None

    return Workers(slots, slots, open_executor, check, client.close, cluster=True)


def _require_scheduler(address: str) -> None:
    """Raise unless a scheduler answers at this address: dask's own client would wait, and retry, for longer.

    All of it together has CONNECT_SECONDS, in a thread: to look up a name has no limit of its own, and a name may have
    several addresses.
    """
    found: list[Exception | None] = []
    thread = threading.Thread(target=lambda: found.append(_problem_with(address)), daemon=True)
    thread.start()
    thread.join(CONNECT_SECONDS)
    problem = found[0] if found else TimeoutError("timed out")
    if problem is not None:
        raise _unreachable(address, str(problem))


def _problem_with(address: str) -> Exception | None:
    """Why no scheduler can be reached at this address; None if one can."""
    try:
        parts = urlsplit(address if "://" in address else f"tcp://{address}")
        if parts.hostname is None or parts.port is None:
            return ValueError("it has no host and port")
        with socket.create_connection((parts.hostname, parts.port), CONNECT_SECONDS) as connection:
            if parts.scheme == "tcp" and not connection.recv(1):  # a scheduler speaks first
                return ValueError("the connection was closed")
    except (OSError, ValueError) as error:
        return error
    return None


def _unreachable(address: str, reason: str) -> ValueError:
    first = next(iter(reason.splitlines()), "")
    return ValueError(
        f"--dask: the address of a running scheduler, such as tcp://host:8786, got {address}, which cannot be reached "
        f"({first}). Start one: dask scheduler"
    )


def _require_same_versions(client: Any) -> None:
    """Raise unless all workers have the versions of this process: others may round differently."""
    expected = _installed_versions()
    try:
        by_worker = client.run(_installed_versions)
    except ModuleNotFoundError:
        raise ValueError(
            f"--dask: workers with truenorm {expected['truenorm']}, got one without it. Install it there."
        ) from None
    for worker, versions in by_worker.items():
        for name, found in versions.items():
            if found != expected[name]:
                raise ValueError(
                    f"--dask: workers with {name} {expected[name]}, got {found} on {worker}. Install it there."
                )


def _installed_versions() -> dict[str, str]:
    """The versions on a worker that results depend on."""
    return {name: version(name) for name in ("truenorm", "numpy")}


def default_workers() -> int:
    """The processors that this process may use."""
    return PROCESSORS
