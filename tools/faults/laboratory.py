"""Tiny runs, how they end undisturbed, and what is compared after an attack."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tools.faults.command import Action, Child, Ended, Moment, signal_me, start

STEPS = 8
COMMON = ["--steps", str(STEPS), "--hidden", "8", "--batch", "8"]
TASKS = {
    "words": ["--data", "words.txt", "--momentum", "0.9", "--dropout", "0.1", *COMMON],
    "adam": ["--data", "words.txt", "--optimizer", "adam", "--norm", "layer", "--lr", "0.01", *COMMON],
    "table": ["--task", "table", "--data", "table.csv", "--target", "y", *COMMON],
}
WORDS = "anna hannah bob ava otto eve emma noah ada ella levi nina mia liam lea ben ida tom max zoe"
LARGE = 1 << 24  # bytes
PROBLEMS = ("lost", "outside", "tracebacks", "hangs", "exits")
SAVED = re.compile(r"saved after step (\d+)")
SHOWN = re.compile(rf"step (\d+) of {STEPS}:")

Files = dict[str, bytes]


@dataclass
class Undisturbed:
    """A run without an attack: its files, what `truenorm sample` prints, and the length of a run."""

    files: Files
    out: str  # what it prints at the end, without the last lines, which name the directory
    sample: str
    seconds: float
    calls: int  # file operations


class Stopped(NamedTuple):
    """A run that was stopped half-way: its files, and what `truenorm sample` prints."""

    files: Files
    sample: str


class Laboratory:
    """A temporary directory with data, and the undisturbed run of each task."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "words.txt").write_text(WORDS.replace(" ", "\n") + "\n")
        rows = [f"{i},{i * i % 7},{i % 3}" for i in range(20)]
        (root / "table.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
        self.undisturbed: dict[str, Undisturbed] = {}
        self.stopped: dict[str, Stopped] = {}
        for task in TASKS:
            folder = self.root / f"undisturbed-{task}"
            folder.mkdir()
            for _ in range(2):  # the first run also imports modules and fills caches
                shutil.rmtree(folder / "run", ignore_errors=True)
                end = self.train(folder / "run", task, folder).wait()
            if end.code:
                raise RuntimeError(f"the undisturbed run failed: {end}\n{end.err}")
            sample = self.sample(folder / "run", folder).wait() if task != "table" else None
            self.undisturbed[task] = Undisturbed(
                read(folder / "run"), result_of(end), sample.out if sample else "", end.seconds, end.calls
            )

    def train(self, directory: Path, task: str, folder: Path, **how) -> Child:
        options = [str(self.root / one) if one in ("words.txt", "table.csv") else one for one in TASKS[task]]
        return start(["train", *options, "--out", str(directory)], folder, **how)

    def resume(self, directory: Path, folder: Path, **how) -> Child:
        return start(["train", "--resume", "--out", str(directory)], folder, **how)

    def sample(self, directory: Path, folder: Path, **how) -> Child:
        return start(["sample", str(directory), "--count", "5"], folder, **how)


@dataclass
class Attempt:
    """One case of an attack, in a directory of its own with a file beside the run that nothing may touch."""

    lab: Laboratory
    name: str
    number: int
    seed: int
    attacks: int = 1  # kills, signals, ... in this case
    problems: list[tuple[str, str]] = field(default_factory=list)
    done: list[str] = field(default_factory=list)  # what was done, for the report of a problem
    slowest: float = 0.0  # seconds from a signal to the exit
    started: int = 0  # processes
    finished: bool = False  # whether the run was complete before the attack

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed} {self.name} {self.number}")
        self.task = self.rng.choice(list(TASKS))
        self.expected = self.lab.undisturbed[self.task]
        self.folder = self.lab.root / f"{self.name}-{self.number}"
        shutil.rmtree(self.folder, ignore_errors=True)
        self.place = self.folder / "place"  # what may change here: the run, nothing else
        self.place.mkdir(parents=True)
        self.directory = self.place / "run"
        self.victim = self.place / "victim"
        self.victim.write_text("Nothing may change this file.\n")
        self.outside = self.place / "outside"
        self.outside.mkdir()
        (self.outside / "file").write_text("Nothing may change this file either.\n")

    # ---- commands ----

    def begin(self, **how) -> Child:
        """Resume the run, or start it if it has not begun."""
        self.started += 1
        (folder := self.folder / f"printed{self.started}").mkdir()
        if (self.directory / "config.json").exists():
            return self.lab.resume(self.directory, folder, **how)
        return self.lab.train(self.directory, self.task, folder, **how)

    def some_call(self, action: Action) -> Moment:
        """A random file operation of the run."""
        call = self.rng.randint(1, self.expected.calls)
        self.done.append(f"at file operation {call}")
        return Moment(call, action)

    def some_time(self) -> float:
        return self.rng.uniform(0, 1.2 * self.expected.seconds)

    def is_new(self) -> bool:
        """One process in eight is a new one, not a fork."""
        return self.rng.random() < 1 / 8

    def partly_trained(self) -> int:
        """Train some of the steps, stop with SIGTERM, and return the step that was saved."""
        for _ in range(100):  # the signal may come before the first step, or after the last
            call = self.rng.randint(1, self.expected.calls)
            end = self.begin(moment=Moment(call, signal_me(signal.SIGTERM))).wait()
            if saved := SAVED.search(end.err):
                return int(saved[1])
            shutil.rmtree(self.directory, ignore_errors=True)
        raise RuntimeError(f"a run cannot be stopped: {end}\n{end.err}")

    # ---- checks ----

    def problem(self, kind: str, text: str) -> None:
        assert kind in PROBLEMS
        self.problems.append((kind, f"{text} ({self.task}: {'; '.join(self.done)})"))

    def check_end(self, end: Ended) -> None:
        """No traceback and no hang, whatever else happened."""
        if end.hung:
            self.problem("hangs", f"still running after {end.seconds:.0f} s")
        if end.has_traceback:
            places = [line.strip() for line in end.lines if line.startswith("  File ")]
            self.problem("tracebacks", f"{end.lines[-1]}, {places[-1:]}")

    def saved_step(self) -> int:
        """The step of the checkpoint, 0 if there is none."""
        from truenorm.lab import run

        if not (self.directory / "checkpoint.safetensors").exists():
            return 0
        try:
            return run.load(self.directory).step
        except ValueError as error:
            self.problem("lost", f"the checkpoint cannot be read: {error}")
            return 0

    def check_finishes(self) -> None:
        """The run can be resumed, and its files are those of the undisturbed run."""
        end = self.begin().wait()
        self.check_end(end)
        if end.code:
            self.problem("lost", f"the run cannot be resumed: {end}")
        else:
            self.check_files()

    def check_files(self) -> None:
        found = read(self.directory)
        if found != self.expected.files:
            names = sorted(found.keys() | self.expected.files.keys())
            other = [name for name in names if found.get(name) != self.expected.files.get(name)]
            self.problem("lost", f"not as in an undisturbed run: {', '.join(other)}")

    def snapshot(self) -> dict[str, tuple[object, ...]]:
        """Everything beside the run directory: names, kinds, modes, inodes, times and contents."""
        found: dict[str, tuple[object, ...]] = {}
        for folder, folders, files in os.walk(self.place):
            for name in [*folders, *files]:
                path = Path(folder, name)
                if self.directory not in (path, *path.parents):
                    status = path.lstat()
                    # The times of directories change with the attack itself.
                    changed = 0 if stat.S_ISDIR(status.st_mode) else status.st_mtime_ns
                    entry = (status.st_mode, status.st_ino, changed, _content(path))
                    found[str(path.relative_to(self.place))] = entry
        return found

    def check_outside(self, before: dict[str, tuple[object, ...]]) -> None:
        after = self.snapshot()
        changed = [name for name in sorted(before.keys() | after.keys()) if before.get(name) != after.get(name)]
        if changed:
            self.problem("outside", f"changed beside the run: {', '.join(changed)}")

    def clean(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)


def read(directory: Path) -> Files:
    """The files of a run, without its lock. What is not a regular file, or is very large, gets a name instead."""
    return {file.name: _content(file) for file in sorted(directory.iterdir()) if file.name != "lock"}


def _content(path: Path) -> bytes:
    status = path.lstat()
    if not stat.S_ISREG(status.st_mode):
        return f"(mode {status.st_mode:o})".encode()
    return path.read_bytes() if status.st_size < LARGE else f"({status.st_size} bytes)".encode()


def result_of(end: Ended) -> str:
    """What a run prints at its end, up to the line that names the directory."""
    return end.out.split(" Saved in ")[0]


def steps_shown(end: Ended) -> Sequence[int]:
    """The steps that the command reported."""
    return [int(step) for step in SHOWN.findall(end.err)]
