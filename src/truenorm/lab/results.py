"""A results directory: the plan of a comparison, and one file for each finished trial.

    grid.json          the plan: format, version of truenorm, hash of the data, and the grids (`lab.grid`)
    trial-NAME.json    one finished trial: measure, config, result (`lab.trial`). NAME is a hash of measure and config
    machine.json       what depends on the machine: seconds of each trial, workers that were lost, trials that failed,
                       and for each process that ran trials: how many, for how long, on how many workers
    lock               locked while a process works on the directory

grid.json and the trials do not depend on how many workers ran the trials, on their kind, or on how often the work was
interrupted: two directories of the same grid have the same files, byte for byte, once they are complete. So shards are
merged by taking over files, and a directory is resumed by running the trials that have no file.

A trial is written as a whole or not at all. A file that is damaged, or that belongs to another configuration, counts
as missing, and its trial is run again. Failed trials have no file: they are listed in machine.json and tried again.

`read` yields the trials of a directory in the order of the grid, one at a time: curves are never all in memory.
"""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypedDict

import numpy as np

from truenorm.lab import checkpoint, table
from truenorm.lab.config import STUDENTS, Config
from truenorm.lab.data import first_names
from truenorm.lab.directory import RunDirectory
from truenorm.lab.grid import Grid
from truenorm.lab.measures import Result
from truenorm.lab.text_file import read_text
from truenorm.lab.training import read_source
from truenorm.lab.trial import Trial

FORMAT = "truenorm-results-2"  # also changes when a measure does: results of different measures must not be mixed
GRID, MACHINE = "grid.json", "machine.json"


class Session(TypedDict):
    """A process that ran trials."""

    trials: int
    workers: int
    seconds: float


@dataclass(frozen=True)
class Machine:
    """What machine.json holds.

    about      the machine and its versions, for people
    seconds    of each trial, by its name
    events     what happened to workers
    failed     trial -> its error
    sessions   the processes that ran trials
    """

    about: str = ""
    seconds: dict[str, float] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)


class Results:
    """A results directory that this process has locked, to add trials to."""

    def __init__(self, directory: Path, plan: Mapping[str, Any], *, replace: bool = False) -> None:
        """Open or make the directory for a plan.

        A plan may have more trials than the one that is there: values and seeds can be added. `replace`: any other plan
        may be there.
        """
        self.directory = directory
        self.plan = dict(plan)
        self.seconds: dict[str, float] = {}
        self.events: list[str] = []
        self.failed: dict[str, str] = {}
        self.sessions: list[Session] = []
        self._files = RunDirectory.create(directory)
        try:
            self._refuse_other_files()  # before a lock is made among them
            self._files.lock()
            self._refuse_other_files()
            found = _plan(self._files) if self._files.holds(GRID) else None
            if found is not None:
                _check_version(directory, found, self.plan)
                # The hashes of data that another plan used stay: its trials do.
                self.plan["data"] = dict(sorted((found["data"] | self.plan["data"]).items()))
                if not replace and not _extends(self.plan, found):
                    raise ValueError(f"{directory}: holds the results of another grid. Choose another --out.")
                machine = _machine(self._files)
                self.seconds, self.events = machine.seconds, machine.events
                self.failed, self.sessions = machine.failed, machine.sessions
            if found != self.plan:
                self._files.write(GRID, checkpoint.encode_json(self.plan))
        except BaseException:
            self._files.__exit__(None, None, None)
            raise

    def _refuse_other_files(self) -> None:
        """Raise unless this is a results directory, or empty. A first write that was killed leaves a temporary file."""
        ours = {"lock", f".{GRID}.part"}
        if not self._files.holds(GRID) and (others := set(self._files.names()) - ours):
            raise ValueError(f"{self.directory}: a new or empty directory, got one with {min(others)}. Choose another.")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # If the disk is full or the directory is gone, that error is on its way already.
        with self._files, suppress(OSError, ValueError):
            self.write_machine()

    def finished(self) -> set[str]:
        """The names of the trials that have an intact file."""
        return {trial.name for trial, result in self.read() if result is not None}

    def read(self, grids: Sequence[Grid] | None = None) -> Iterator[tuple[Trial, Result | None]]:
        """The trials of the plan in order, or of some of its grids; None for those that have no result."""
        return _read(self._files, self.trials() if grids is None else _once(grids))

    def trials(self) -> Iterator[Trial]:
        """The trials of the plan in order, whether they have a result or not."""
        return _trials(self.plan)

    def add(self, trial: Trial, file: bytes, seconds: float | None = None) -> None:
        """Write the file of a finished trial."""
        self._files.write(_file(trial), file, durable=False)  # a file that a power failure damages is written again
        self.failed.pop(trial.name, None)
        if seconds is not None:
            self.seconds[trial.name] = round(seconds, 4)

    def merge(self, other: Path) -> int:
        """Take over the trials of this plan that another directory has. Returns how many."""
        count = 0
        with _open(other) as files:
            require_same(other, _plan(files), self.plan)
            machine = _machine(files)
            self.events += machine.events
            self.sessions += machine.sessions
            for trial in _trials(self.plan):
                if _intact(self._files, trial) is not None:
                    continue
                if (file := _intact(files, trial)) is not None:
                    self.add(trial, file, machine.seconds.get(trial.name))
                    count += 1
                elif trial.name in machine.failed:
                    self.failed[trial.name] = machine.failed[trial.name]
        return count

    def write_machine(self) -> None:
        """Write machine.json; it is also written when this object is closed."""
        content = {
            "machine": f"{platform.system()} {platform.machine()}, {os.cpu_count()} processors",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "seconds": self.seconds,
            "events": self.events,
            "failed": self.failed,
            "sessions": self.sessions,
        }
        self._files.write(MACHINE, checkpoint.encode_json(content))


def make_plan(grids: Sequence[Grid]) -> dict[str, Any]:
    """What grid.json holds."""
    sources = {(config.task, config.data) for grid in grids for config in _sources(grid)}
    data = {f"{task} {source}": _fingerprint(task, source) for task, source in sorted(sources)}
    return {
        "format": FORMAT,
        "truenorm": version("truenorm"),
        "data": data,
        "grids": [grid.as_dict() for grid in grids],
    }


def read_plan(directory: Path) -> dict[str, Any]:
    """What grid.json of a results directory holds."""
    with _open(directory) as files:
        return _plan(files)


def read(
    directory: Path, wanted: Callable[[Trial], bool] = lambda _: True
) -> tuple[list[Grid], Iterator[tuple[Trial, Result | None]]]:
    """The grids of a results directory, and its trials in order: None for those that have no result yet.

    wanted   chooses trials; the files of others are not read
    """
    plan = read_plan(directory)

    def trials() -> Iterator[tuple[Trial, Result | None]]:
        with _open(directory) as files:
            yield from _read(files, filter(wanted, _trials(plan)))

    return [Grid.from_dict(grid) for grid in plan["grids"]], trials()


def read_machine(directory: Path) -> Machine:
    """What machine.json of a results directory holds."""
    with _open(directory) as files:
        return _machine(files)


def _read(files: RunDirectory, trials: Iterable[Trial]) -> Iterator[tuple[Trial, Result | None]]:
    present = set(files.names())
    for trial in trials:
        yield trial, trial.decode(files.read(_file(trial))) if _file(trial) in present else None


def _trials(plan: Mapping[str, Any]) -> Iterator[Trial]:
    return _once([Grid.from_dict(grid) for grid in plan["grids"]])


def _once(grids: Iterable[Grid]) -> Iterator[Trial]:
    """The trials of all grids, each once."""
    seen: set[str] = set()
    for grid in grids:
        for trial in grid.trials():
            if trial.name not in seen:
                seen.add(trial.name)
                yield trial


def _machine(files: RunDirectory) -> Machine:
    """What machine.json holds; nothing if it is missing or damaged, as no result depends on it."""
    try:
        found = checkpoint.decode_json(files.read(MACHINE), MACHINE)
        return Machine(
            about=f"{found['machine']}; Python {found['python']}, NumPy {found['numpy']}",
            seconds={str(name): float(value) for name, value in found["seconds"].items()},
            events=[str(event) for event in found["events"]],
            failed={str(name): str(error) for name, error in found["failed"].items()},
            sessions=[
                Session(trials=int(one["trials"]), workers=int(one["workers"]), seconds=float(one["seconds"]))
                for one in found["sessions"]
            ],
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, OverflowError):
        return Machine()


def _intact(files: RunDirectory, trial: Trial) -> bytes | None:
    """The file of a trial, if it is there and not damaged."""
    if not files.holds(_file(trial)):
        return None
    file = files.read(_file(trial))
    return file if trial.decode(file) is not None else None


def _file(trial: Trial) -> str:
    return f"trial-{trial.name}.json"


def _open(directory: Path) -> RunDirectory:
    try:
        return RunDirectory(directory)
    except FileNotFoundError:
        raise ValueError(f"{directory}: not a results directory, it does not exist.") from None


def _plan(files: RunDirectory) -> dict[str, Any]:
    try:
        plan = checkpoint.decode_json(files.read(GRID), str(files.path / GRID))
    except FileNotFoundError:
        raise ValueError(f"{files.path}: not a results directory, it has no {GRID}.") from None
    if not isinstance(plan, dict) or plan.get("format") != FORMAT:
        raise ValueError(f"{files.path}: the results are of another version of truenorm. Choose another directory.")
    try:
        for grid in plan["grids"]:
            Grid.from_dict(grid)
        if not (isinstance(plan["truenorm"], str) and isinstance(plan["data"], dict)):
            raise TypeError
    except (ValueError, TypeError, LookupError, AttributeError):
        raise ValueError(f"{files.path}: {GRID} is damaged or of another version of truenorm.") from None
    return plan


def require_same(directory: Path, found: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Raise if the trials of a directory cannot be merged with those of a plan."""
    _check_version(directory, found, plan)
    if found["grids"] != plan["grids"]:
        raise ValueError(f"{directory}: holds the results of another grid, so it cannot be merged.")


def _extends(plan: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Whether a plan has all trials of another one."""
    if plan["grids"] == found["grids"]:
        return True
    return {trial.name for trial in _trials(found)} <= {trial.name for trial in _trials(plan)}


def _check_version(directory: Path, found: Mapping[str, Any], plan: Mapping[str, Any]) -> None:
    """Raise if the trials may differ from those that this process would compute."""
    if found["truenorm"] != plan["truenorm"]:
        raise ValueError(
            f"{directory}: the results are of truenorm {found['truenorm']}, not of {plan['truenorm']}. "
            "Choose another directory."
        )
    for source in found["data"].keys() & plan["data"].keys():
        if found["data"][source] != plan["data"][source]:
            raise ValueError(f"{directory}: the data {source!r} changed since these results. Choose another --out.")


# ---- data ----


def _sources(grid: Grid) -> Iterator[Config]:
    """A configuration for each task and list of data in a grid."""
    axes = {name: values if name in ("task", "data") else values[:1] for name, values in grid.axes.items()}
    for trial in Grid(grid.measure, axes).trials():
        yield trial.config


def _fingerprint(task: str, source: str) -> str:
    """A hash of the data, before it is split and encoded."""
    content: object
    match task:
        case "gender":
            content = first_names()
        case "words":
            content = read_source(source)
        case _:
            content = read_text(table.STUDENTS_FILE if source == STUDENTS else Path(source))
    return hashlib.sha256(repr(content).encode()).hexdigest()
