"""The directory of a run, or of the results of a comparison (`lab.results`). Only this file opens, reads, writes and
locks what is in it.

    config.json             the options of the run
    metrics.jsonl           one line for each report
    checkpoint.safetensors  parameters, running statistics, optimizer state, step
    result.json             written last, when the run is complete
    lock                    locked while a process works on the run

A directory may come from somebody else, and it may be deleted or used again while a process still works on it. So:

* Files are opened relative to a file descriptor of the directory, never by a path, and never through a link.
* Only files that this process created are written. A file is written under a temporary name and then renamed: after a
  crash it is complete, either old or new.
* Before each write the process checks that the directory, the lock and the metrics are still its own.
* A file is on the disk before a newer one replaces it: after a power failure the metrics reach at least to the step of
  the checkpoint. The checkpoint holds their size and hash; what follows is written again when the run is resumed.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import stat
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

METRICS = "metrics.jsonl"


class RunDirectory:
    """An existing directory, to read from. After `lock`, also to write to."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        self._own: dict[str, int] = {}  # files that must stay the ones that this process opened: lock and metrics

    @classmethod
    def create(cls, path: Path) -> Self:
        """Make the directory and its parents, where they do not exist."""
        missing = [one for one in (path, *path.parents) if not one.exists()]
        path.mkdir(parents=True, exist_ok=True)
        for one in reversed(missing):
            parent = os.open(one.parent, os.O_RDONLY | os.O_DIRECTORY)
            try:
                _sync_directory(parent)
            finally:
                os.close(parent)
        return cls(path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for file in (*self._own.values(), self._directory):
            os.close(file)

    def lock(self) -> None:
        """Lock the run until this object is closed. The operating system releases it, however the process ends."""
        self._own["lock"] = self._open("lock", os.O_RDWR | os.O_CREAT)
        # A lock of the file alone could be deleted. A lock of the directory alone is local to a machine on NFS.
        for file in (self._directory, self._own["lock"]):
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise ValueError(
                    f"{self.path}: another process works on this run. Wait for it, or choose another --out."
                ) from None
        self._check_own()

    def holds(self, name: str) -> bool:
        """Whether there is anything of this name."""
        try:
            os.stat(name, dir_fd=self._directory, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def names(self) -> list[str]:
        """The names of everything in the directory."""
        return os.listdir(self._directory)

    def read(self, name: str) -> bytes:
        with open(self._open(name, os.O_RDONLY), "rb") as file:
            return file.read()

    def write(self, name: str, content: bytes, *, durable: bool = True) -> None:
        """Replace a file, as a whole or not at all: if the disk is full, the old file stays.

        A file that is not durable is not synced: after a power failure it may be missing or empty.
        """
        if METRICS in self._own:
            os.fsync(self._own[METRICS])
        os.close(self._replace(name, content, durable=durable))

    def remove(self, name: str) -> None:
        """Remove a file, if there is one. After a power failure it is either there or not."""
        self._check_own()
        try:
            with suppress(FileNotFoundError):
                os.unlink(name, dir_fd=self._directory)
            _sync_directory(self._directory)
        except OSError as error:
            raise self._named(error, name) from None

    def open_metrics(self, content: bytes) -> None:
        """Replace the metrics by this content and keep the file open, for `append_metrics`."""
        self._own[METRICS] = self._replace(METRICS, content)
        self._metrics_size, self._metrics_hash = len(content), hashlib.sha256(content)

    def metrics_written(self) -> tuple[int, str]:
        """Size and hash of the metrics, for `read_metrics`."""
        return self._metrics_size, self._metrics_hash.hexdigest()

    def read_metrics(self, size: int, digest: str) -> bytes:
        """The metrics up to this size. What follows is dropped: it was written after the checkpoint."""
        content = self.read(METRICS)[:size] if self.holds(METRICS) else b""
        if len(content) != size or hashlib.sha256(content).hexdigest() != digest:
            raise ValueError(
                f"{self.path / METRICS}: damaged, it does not hold the {size} bytes that were written before the "
                "checkpoint. Start a new run."
            )
        return content

    def append_metrics(self, line: bytes) -> None:
        self._metrics_size += len(line)
        self._metrics_hash.update(line)
        self._check_own()
        try:
            _write_all(self._own[METRICS], line)
        except OSError as error:
            raise self._named(error, METRICS) from None

    def _open(self, name: str, flags: int) -> int:
        """Open an ordinary file of this directory. O_NONBLOCK: opening a FIFO would wait for its other end."""
        try:
            file = os.open(name, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666, dir_fd=self._directory)
        except OSError as error:
            kind = {errno.ELOOP: "a symbolic link", errno.EISDIR: "a directory", errno.ENXIO: "a special file"}
            if error.errno in kind:
                raise self._not_ordinary(name, kind[error.errno]) from None
            raise self._named(error, name) from None
        mode = os.fstat(file).st_mode
        if not stat.S_ISREG(mode):
            os.close(file)
            raise self._not_ordinary(name, "a directory" if stat.S_ISDIR(mode) else "a special file")
        return file

    def _replace(self, name: str, content: bytes, *, durable: bool = True) -> int:
        """Write a temporary file, sync it, rename it, sync the directory. Returns the file, which is still open."""
        self._check_own()
        temporary = f".{name}.part"
        try:
            with suppress(FileNotFoundError):  # left by a process that was killed
                os.unlink(temporary, dir_fd=self._directory)
            file = self._open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            try:
                _write_all(file, content)
                if durable:
                    os.fsync(file)
                self._check_own()  # again: to write a large file takes a while
                os.replace(temporary, name, src_dir_fd=self._directory, dst_dir_fd=self._directory)
                if durable:
                    _sync_directory(self._directory)
            except BaseException:
                os.close(file)
                with suppress(OSError):
                    os.unlink(temporary, dir_fd=self._directory)
                raise
        except OSError as error:
            self._check_own()  # in a deleted directory no file can be made
            raise self._named(error, name) from None
        return file

    def _check_own(self) -> None:
        """Raise unless the path still leads to this directory, and the files that this process opened are in it.

        Descriptors are held, so the operating system cannot give their inode numbers to other files.
        """
        try:
            own = os.path.samestat(os.stat(self.path), os.fstat(self._directory)) and all(
                os.path.samestat(os.stat(name, dir_fd=self._directory, follow_symlinks=False), os.fstat(file))
                for name, file in self._own.items()
            )
        except (FileNotFoundError, NotADirectoryError):
            own = False
        if not own:
            raise ValueError(
                f"{self.path}: deleted, moved or changed by something else during training. "
                "The run was stopped; nothing was written after that."
            )

    def _not_ordinary(self, name: str, kind: str) -> ValueError:
        return ValueError(f"{self.path / name}: must be an ordinary file, got {kind}. Remove it.")

    def _named(self, error: OSError, name: str) -> OSError:
        """The same error with the path of the file, for the message."""
        return OSError(error.errno, error.strerror, str(self.path / name))


def _write_all(file: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def _sync_directory(directory: int) -> None:
    try:
        os.fsync(directory)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems cannot sync directories
            raise
