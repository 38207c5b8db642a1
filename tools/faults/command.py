"""Start the command in a child process, disturb it at a chosen moment, and collect how it ended.

Most children are forks of this process, which has already imported everything: a tiny run then takes some hundredths
of a second. They call `truenorm.cli.main` with the arguments of the command. The others are new processes.

A moment is a time, or a file operation of the child: its n-th call of open, write, fsync, rename and the like. These
calls are counted by a profile function in the child. That reaches every state that a save passes through.
"""

from __future__ import annotations

import importlib
import os
import re
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any, NoReturn

HANG = 20.0  # seconds: a tiny run takes a tenth of one, also on a busy machine
MEMORY = 4 << 30  # bytes of address space for a child
FILE_CALLS = re.compile(
    "open|write|writelines|flush|f?sync|fdatasync|close|replace|rename|link|symlink|unlink|remove|mkdir|rmdir|"
    "f?truncate|flock|lockf|[fl]?stat|dup|read|readall"
)
FILE_MODULES = frozenset({"posix", "fcntl", "_io", "io"})

NEW_PROCESS = "import sys; from tools.faults.command import call; call(sys.argv[2:], int(sys.argv[1]))"

Action = Callable[[], None]


@dataclass
class Moment:
    """Call `action` in the child before its file operation number `call`."""

    call: int
    action: Action


@dataclass
class Ended:
    """How a child ended."""

    code: int  # negative: the signal that ended it
    out: str
    err: str
    hung: bool
    seconds: float  # since the start, or since the last signal
    cpu_seconds: float  # the same in processor time, which does not depend on other processes
    calls: int  # file operations, if they were counted

    @property
    def lines(self) -> list[str]:
        return [line for line in self.err.splitlines() if line.strip()]

    @property
    def refused(self) -> bool:
        """Whether it ended with one line that says why, and exit code 2."""
        errors = [line for line in self.lines if line.startswith("truenorm:")]
        return self.code == 2 and len(errors) == 1 and self.lines[-1] == errors[0]

    @property
    def has_traceback(self) -> bool:
        return "Traceback (most recent call last)" in self.err or "Exception ignored" in self.err

    def __str__(self) -> str:
        return f"exit code {self.code}, last line {(self.lines or [''])[-1][:200]!r}"


@dataclass
class Child:
    """A running command. `wait` must be called once."""

    pid: int
    files: tuple[Path, Path]
    pipe: int  # delivers a blank when the command begins, and the number of file operations at the end
    started: float = field(default_factory=time.monotonic)
    cpu_before: float = 0.0  # processor time until the last signal
    cpu: float = 0.0  # and until the end
    status: int | None = None

    def await_command(self) -> None:
        """Wait until the command begins. Before, signals meet the interpreter, which is still importing."""
        select.select([self.pipe], [], [], HANG)

    def signal(self, number: int) -> bool:
        """Send a signal, if the child still runs, and say whether it did."""
        if self.poll() is not None:
            return False
        self.cpu_before = _cpu_seconds(self.pid)
        os.kill(self.pid, number)
        self.started = time.monotonic()
        return True

    def has_open(self, path: Path) -> bool:
        """Whether the child has this file or directory open."""
        try:
            files = [os.stat(file) for file in Path(f"/proc/{self.pid}/fd").iterdir()]
        except OSError:  # it ended, or closed a file just now
            return False
        return any(os.path.samestat(os.stat(path), file) for file in files)

    def poll(self, options: int = os.WNOHANG) -> int | None:
        if self.status is None:
            pid, status, used = os.wait4(self.pid, options)
            if pid:
                self.status, self.cpu = status, used.ru_utime + used.ru_stime
        return self.status

    def wait(self) -> Ended:
        """Wait for the end; kill the child if that takes too long."""
        pause, hung = 0.0005, False
        while self.poll() is None:
            if time.monotonic() - self.started > HANG:
                os.kill(self.pid, signal.SIGKILL)
                hung = True
                self.poll(0)
            time.sleep(pause)
            pause = min(2 * pause, 0.01)
        assert self.status is not None
        taken = time.monotonic() - self.started
        count = os.read(self.pipe, 20).strip()
        os.close(self.pipe)
        out, err = (_text(file) for file in self.files)
        code, cpu = os.waitstatus_to_exitcode(self.status), self.cpu - self.cpu_before
        return Ended(code, out, err, hung, taken, cpu, int(count or 0))


def _cpu_seconds(pid: int) -> float:
    """The processor time of a living process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _text(file: Path) -> str:
    return file.read_text("utf-8", "replace") if file.exists() else ""


def start(
    arguments: Sequence[str],
    folder: Path,
    *,
    moment: Moment | None = None,
    outputs: tuple[int | None, int | None] = (None, None),
    file_size: int | None = None,
    new: bool = False,
) -> Child:
    """Start `truenorm` with these arguments.

    `folder` gets what it prints, unless `outputs` are file descriptors for standard output and error (-1: closed).
    `file_size` limits the size of the files that it writes. `new`: a new process instead of a fork.
    """
    # Imported here, once, and not in every child.
    for module in ("truenorm.cli.train", "truenorm.cli.sample", "numpy.random"):
        importlib.import_module(module)
    files = (folder / "out", folder / "err")
    reading, counted = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        _become(arguments, files, outputs, moment, file_size, counted, new)
    os.close(counted)
    return Child(pid, files, reading)


def _become(
    arguments: Sequence[str],
    files: tuple[Path, Path],
    outputs: tuple[int | None, int | None],
    moment: Moment | None,
    file_size: int | None,
    counted: int,
    new: bool,
) -> NoReturn:
    """The child: set up its outputs and limits, run the command, and exit as the interpreter would."""
    code: Any = 1
    try:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        _redirect(files, outputs)
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if file_size is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_size, file_size))
        if new:
            os.set_inheritable(counted, True)
            os.execv(sys.executable, [sys.executable, "-c", NEW_PROCESS, str(counted), *arguments])
        code = _exit_code(arguments, moment, counted)
    except BaseException:
        code = 1
        traceback.print_exc()
    finally:
        os._exit(code if isinstance(code, int) else 1)


def _redirect(files: tuple[Path, Path], outputs: tuple[int | None, int | None]) -> None:
    empty = os.open(os.devnull, os.O_RDONLY)
    os.dup2(empty, 0)
    for number, (file, given) in enumerate(zip(files, outputs, strict=True), 1):
        if given == -1:
            os.close(number)
        else:
            writing = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            os.dup2(os.open(file, writing, 0o644) if given is None else given, number)
    streams = [None if given == -1 else os.fdopen(number, "w") for number, given in enumerate(outputs, 1)]
    sys.stdout, sys.stderr = streams  # type: ignore[assignment]
    if sys.stderr is not None:
        sys.stderr.reconfigure(line_buffering=True, errors="backslashreplace")  # type: ignore[attr-defined]


def call(arguments: Sequence[str], pipe: int) -> None:
    """Run the command, and write a blank to the pipe when it begins, that is when it handles exceptions."""
    from truenorm import cli
    from truenorm.lab import run

    run.CHECKPOINT_SECONDS, run.CHECKPOINT_SHARE = 0.0, float("inf")  # save after every step
    begin = cli.commands.main

    def announce(*given: Any, **options: Any) -> Any:
        os.write(pipe, b" ")
        return begin(*given, **options)

    cli.commands.main = announce  # type: ignore[method-assign]
    cli.main(arguments)


def _exit_code(arguments: Sequence[str], moment: Moment | None, pipe: int) -> Any:
    """Run the command in this process, count its file operations, and return its exit code."""
    calls = count_file_calls(moment)
    code: Any = 0
    try:
        call(arguments, pipe)
    except SystemExit as stop:
        code = stop.code
    except KeyboardInterrupt:
        traceback.print_exc()
        code = 130
    finally:
        sys.setprofile(None)
        os.write(pipe, str(calls[0]).encode())
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            code = 120  # as the interpreter does
    return code or 0


def count_file_calls(moment: Moment | None) -> list[int]:
    """Count the file operations of this process in the first item of the list, and act at the moment."""
    calls = [0]

    def profile(_: FrameType, event: str, called: Any) -> None:
        if event != "c_call" or not FILE_CALLS.fullmatch(called.__name__):
            return
        owner = getattr(called, "__self__", None)
        module = owner.__name__ if isinstance(owner, ModuleType) else type(owner).__module__
        if module in FILE_MODULES:
            calls[0] += 1
            if moment is not None and calls[0] == moment.call:
                moment.action()

    sys.setprofile(profile)
    return calls


def kill_me() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def signal_me(*numbers: int) -> Action:
    def send() -> None:
        for number in numbers:
            os.kill(os.getpid(), number)

    return send


class Pause:
    """Stop the child at a moment until the parent has done something."""

    def __init__(self) -> None:
        self.reached, self._arrive = os.pipe()
        self._wait, self._release = os.pipe()

    def __call__(self) -> None:
        """In the child."""
        os.write(self._arrive, b"x")
        os.read(self._wait, 1)

    def await_child(self, child: Child) -> bool:
        """In the parent: whether the child arrived, and did not end before."""
        os.close(self._arrive)
        os.set_blocking(self.reached, False)
        while True:
            try:
                return os.read(self.reached, 1) == b"x"
            except BlockingIOError:
                if child.poll() is not None or time.monotonic() - child.started > HANG:
                    return False
                time.sleep(0.0005)

    def release(self) -> None:
        os.write(self._release, b"x")
        for end in (self._wait, self._release, self.reached):
            os.close(end)
