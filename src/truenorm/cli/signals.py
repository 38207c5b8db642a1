"""Signals that stop a run or trials: what is finished is kept, and nothing is waited for longer than a second."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SECONDS = 0.8  # that a step may take until its end
STOPPED = 130  # exit code
INTERRUPTED = "truenorm: interrupted."


class StopSignals:
    """Ctrl-C, SIGTERM and SIGHUP raise KeyboardInterrupt, or say that the run should stop.

    They raise it where nothing has to be saved: in trials, whose files are whole, and in a run before `expect_steps`.
    After that the run asks between steps whether to stop. Python runs signal handlers in the main thread, and not while
    a NumPy function computes. So a second thread ends the process, with the message, if for SECONDS nothing was raised
    and nobody asked: then the run continues from its last checkpoint.

    A second signal interrupts, also while the run is saved. Signals of the first second count as one: a terminal and a
    program that forwards signals may both send one.
    """

    def __init__(self, message: str = INTERRUPTED) -> None:
        self._message = message  # to print if this ends the process
        self._asked = False  # to stop after the current step
        self._ignored_until = -math.inf
        self._steps = False
        self._noticed = threading.Event()
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Self:
        # The operating system's handler writes the number of a signal to this pipe at once, in any thread.
        self._reader, self._writer = os.pipe()
        os.set_blocking(self._writer, False)
        for number in SIGNALS:
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # ignored: started by nohup
                self._before[number] = signal.signal(number, self._handle)
        self._wakeup_before = signal.set_wakeup_fd(self._writer, warn_on_full_buffer=False)
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._noticed.set()
        # After an interrupt the process ends. Until then a second signal must not interrupt the handling of the first.
        if kind is not KeyboardInterrupt:
            for number, handler in self._before.items():
                signal.signal(number, handler)
        signal.set_wakeup_fd(self._wakeup_before)
        os.close(self._writer)
        self._thread.join()
        os.close(self._reader)

    def expect_steps(self, message: str) -> None:
        """From now on the run asks between steps whether to stop. message: to print if a step takes too long."""
        self._message, self._steps = message, True

    def should_stop(self) -> bool:
        if not self._asked:
            return False
        self._noticed.set()
        return True

    def _handle(self, _: int, __: FrameType | None) -> None:
        now = time.monotonic()
        if now < self._ignored_until:
            return
        self._ignored_until = now + 1
        if self._asked or not self._steps:
            self._noticed.set()
            raise KeyboardInterrupt
        self._asked = True

    def _watch(self) -> None:
        while number := os.read(self._reader, 1):
            if number[0] in self._before:
                break
        else:
            return
        if not self._noticed.wait(SECONDS):
            if sys.stderr is not None:
                show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""
                sys.stderr.write(f"{show_cursor}\n{self._message}\n")
                sys.stderr.flush()
            os._exit(STOPPED)
