"""Programs that end with threads inside kernels. `tests/native/test_exit.py` runs them.

What matters is a thread that comes back from a kernel *while* the interpreter ends. So the end is made slow: an object
that is destroyed with the modules sleeps, and releases the interpreter's lock, for which the thread waits.
"""

import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

import truenorm as tn
from truenorm import engine

Call = Callable[[], object]
ROWS, WIDTH = 2000, 1000  # a millisecond or two in a kernel
slow_end: Any = None


class SlowEnd:
    """Sleeps when the modules are destroyed, long after the interpreter has begun to end."""

    def __del__(self, sleep: Callable[[float], None] = time.sleep) -> None:
        sleep(0.2)


def calls() -> list[Call]:
    """Every verb, in every layout of the kernels."""
    x, dy = np.ones((ROWS, WIDTH), np.float32), np.ones((ROWS, WIDTH), np.float32)
    out, planes = tn.forward(x, tn.layer()), x.reshape(4, ROWS // 4, WIDTH)
    return [
        lambda: tn.measure(x, tn.batch()),
        lambda: tn.forward(x, tn.layer()),
        lambda: tn.forward(planes, tn.instance("second")),
        lambda: tn.backward(dy, out),
        lambda: tn.backward_sums(dy, out),
    ]


def start_threads(calls: Sequence[Call], *, daemon: bool, seconds: float = 60.0) -> None:
    """A thread inside each of these calls, again and again. If they are daemons, the end does not wait for them."""
    begun = threading.Barrier(len(calls) + 1)

    def repeat(call: Call) -> None:
        begun.wait()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            call()

    for call in calls:
        threading.Thread(target=repeat, args=(call,), daemon=daemon).start()
    begun.wait()


def end() -> None:
    """Let the threads reach their kernels. What calls this returns, and the interpreter ends."""
    global slow_end
    slow_end = SlowEnd()
    time.sleep(0.02)


def one_thread_each() -> None:
    """Daemons, whose kernels use no other threads."""
    engine.set_threads(1)
    start_threads(calls(), daemon=True)
    end()


def threads_of_every_kind() -> None:
    """Daemons, threads and an executor that the end waits for, and the pool of the kernels."""
    engine.set_threads(3)
    executor = ThreadPoolExecutor(2)
    for call in calls():
        for _ in range(5):
            executor.submit(call)
    start_threads(calls()[:2], daemon=False, seconds=0.1)
    start_threads(calls(), daemon=True)
    end()


def forked_child() -> None:
    """A child that ends as any process does, from a parent with a pool."""
    engine.set_threads(3)
    for call in calls():
        call()
    # Python 3.12 and newer warn of every fork of a process with threads.
    warnings.filterwarnings("ignore", "This process .* is multi-threaded", DeprecationWarning)
    child = os.fork()
    if not child:
        return threads_of_every_kind()
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0, status


def beside_torch() -> None:
    """Kernels on arrays and on tensors, on the threads of OpenMP.

    The tensors' kernel is called directly. torch's own operators abort if the interpreter ends while a daemon thread is
    inside one, and a layer calls some of them around its kernel: `empty_like`, `is_neg`.
    """
    import torch

    import truenorm.torch  # noqa: F401
    from truenorm.torch import _dispatch, _norms

    torch.set_num_threads(3)
    x = torch.ones(ROWS, WIDTH)
    found = _dispatch.find_call(x, _norms.row_norm(1, 1e-5, True), None, None, None, None, "zero")
    assert not isinstance(found, str), found
    call, y = found[1], torch.empty_like(x)
    call.forward(x, y, None, None)  # OpenMP's threads are here now
    start_threads([lambda: call.forward(x, y, None, None), *calls()], daemon=True)
    end()


def beside_torch_in_children(repetitions: int) -> None:
    """`beside_torch` in one child after another: importing torch takes much longer than ending.

    OpenMP survives a fork if it has started no thread yet. The kernels do not know that, and must be told.
    """
    import truenorm.torch  # noqa: F401
    from truenorm import _native

    for number in range(repetitions):
        child = os.fork()
        if not child:
            assert _native.use_openmp(True)
            return beside_torch()
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0, (number, status)


PROGRAMS = {
    program.__name__: program for program in (one_thread_each, threads_of_every_kind, forked_child, beside_torch)
}

if __name__ == "__main__":
    if len(sys.argv) == 3:
        beside_torch_in_children(int(sys.argv[2]))
    else:
        PROGRAMS[sys.argv[1]]()
