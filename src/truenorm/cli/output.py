"""Standard streams that cannot end a command: what cannot be printed is dropped, and the command goes on."""

from __future__ import annotations

import os
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

PATIENCE = 0.5  # seconds that `flush` waits for a reader
MOST_PENDING = 1000  # texts that wait for a reader


class LenientStream:
    """A text stream whose `write` and `flush` raise no OSError and never wait for long.

    Text that cannot be written is dropped: the pipe was closed, the disk is full, the terminal is gone. If nobody reads
    a pipe, or a terminal is paused, only the thread that writes waits.
    """

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._patience = PATIENCE
        self._pending: deque[bytes] = deque()
        self._changed = threading.Condition()
        self._closed = False
        # Not by the stream: a thread that waits in it at exit would keep its lock.
        threading.Thread(target=self._write_pending, args=(stream.fileno(),), daemon=True).start()

    def __getattr__(self, name: str) -> Any:
        if name == "buffer":  # writing to it could raise
            raise AttributeError(name)
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        content = text.encode(self._stream.encoding, self._stream.errors or "replace")
        with self._changed:
            if len(self._pending) < MOST_PENDING:
                self._pending.append(content)
            self._changed.notify_all()
        return len(text)

    def flush(self) -> None:
        """Wait until everything is written. If that takes too long, do not wait again until it is."""
        with self._changed:
            written = self._changed.wait_for(lambda: not self._pending, self._patience)
        self._patience = PATIENCE if written else 0.0

    def close(self) -> None:
        """End the thread, if it does not wait for a reader. The stream stays open."""
        self.flush()
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _write_pending(self, file: int) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._pending or self._closed)
                if self._closed:
                    return
                rest = self._pending[0]
            with suppress(OSError):
                while rest:
                    rest = rest[os.write(file, rest) :]
            with self._changed:
                self._pending.popleft()
                self._changed.notify_all()


@contextmanager
def lenient_streams() -> Iterator[None]:
    """Make standard error lenient. Errors of standard output are raised: `main` reports them."""
    _open_closed_descriptors()
    before = sys.stderr
    lenient = None
    with suppress(RuntimeError):  # no thread can be started
        lenient = LenientStream(before) if _is_file(before) else None
    if lenient is not None:
        sys.stderr = cast(TextIO, lenient)
    try:
        yield
    finally:
        sys.stderr = before
        if lenient is not None:
            lenient.close()


def _is_file(stream: TextIO | None) -> bool:
    """Whether this is a file of the operating system: neither None nor an object that captures text."""
    try:
        return stream is not None and stream.fileno() >= 0
    except (OSError, ValueError):
        return False


def _open_closed_descriptors() -> None:
    """Open the null device where a standard stream is closed: a file of a run must not become standard error."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number, which is this one
