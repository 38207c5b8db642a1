"""Training when its output cannot be written: the run goes on, and is saved."""

import os
import pty
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import pytest

from truenorm.lab import run


@contextmanager
def closed_pipe() -> Iterator[int]:
    reader, writer = os.pipe()
    os.close(reader)
    yield writer
    os.close(writer)


@contextmanager
def full_pipe() -> Iterator[int]:
    """A pipe that nobody reads and that takes no more."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    with suppress(BlockingIOError):
        while os.write(writer, bytes(4096)):
            pass
    os.set_blocking(writer, True)
    yield writer
    os.close(reader)
    os.close(writer)


@contextmanager
def full_device() -> Iterator[int]:
    with open("/dev/full", "wb") as file:
        yield file.fileno()


@contextmanager
def closed_terminal() -> Iterator[int]:
    main, terminal = pty.openpty()
    os.close(main)
    yield terminal
    os.close(terminal)


@contextmanager
def unread_terminal() -> Iterator[int]:
    main, terminal = pty.openpty()
    yield terminal
    os.close(main)
    os.close(terminal)


def command(words: Path, out: Path, *more: str) -> list[str]:
    arguments = ["--data", str(words), "--hidden", "8", "--steps", "100", "--out", str(out), *more]
    return [sys.executable, "-m", "truenorm", "train", *arguments]


@pytest.mark.parametrize(
    ("broken", "more"),
    [
        (full_device, ()),
        (closed_pipe, ("--watch",)),
        (full_pipe, ()),
        pytest.param(closed_pipe, (), marks=pytest.mark.slow),
        pytest.param(full_device, ("--watch",), marks=pytest.mark.slow),
        pytest.param(unread_terminal, ("--watch",), marks=pytest.mark.slow),
        pytest.param(full_pipe, ("--watch",), marks=pytest.mark.slow),
        pytest.param(closed_terminal, (), marks=pytest.mark.slow),
        pytest.param(closed_terminal, ("--watch",), marks=pytest.mark.slow),
        pytest.param(unread_terminal, (), marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_if_its_progress_cannot_be_printed(
    words: Path, tmp_path: Path, broken: Callable[[], AbstractContextManager[int]], more: tuple[str, ...]
) -> None:
    with broken() as stderr:
        done = subprocess.run(
            command(words, tmp_path / "run", *more), stdout=subprocess.PIPE, stderr=stderr, text=True, timeout=60
        )
    assert done.returncode == 0
    assert "100 steps" in done.stdout
    assert (tmp_path / "run" / "result.json").exists()


@pytest.mark.parametrize("redirections", ["2>&1 | head -1", pytest.param(">&- 2>&- <&-", marks=pytest.mark.slow)])
def test_a_run_goes_on_after_a_pipe_or_a_stream_was_closed(words: Path, tmp_path: Path, redirections: str) -> None:
    line = f'"$@" {redirections}'
    done = subprocess.run(
        ["sh", "-c", line, "sh", *command(words, tmp_path / "run")], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stdout + done.stderr
    assert (tmp_path / "run" / "result.json").exists()


def test_a_result_that_cannot_be_printed_is_in_its_file(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with full_device() as stdout:
        done = subprocess.run(command(words, out), stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == (
        f"truenorm: standard output: No space left on device. The run is complete, and its result is in {out}."
    )
    again = [*command(words, out)[:4], "--resume", "--out", str(out)]
    with full_device() as both:
        assert subprocess.run(again, stdout=both, stderr=both, timeout=60).returncode == 2


def test_a_stopped_run_is_saved_if_nothing_can_be_printed(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    with full_device() as both:
        process = subprocess.Popen(command(words, out, "--steps", "1000000", "--watch"), stdout=both, stderr=both)
        while not (out / "metrics.jsonl").exists() and process.poll() is None:
            time.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 130
    assert run.load(out).step > 0
