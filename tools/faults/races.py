"""Two processes on one directory, and directories that are moved, deleted or replaced under a living run."""

from __future__ import annotations

import shutil
from collections.abc import Callable

from tools.faults.command import Ended, Pause
from tools.faults.laboratory import Attempt, Files, read, steps_shown


def race(attempt: Attempt) -> None:
    """One of the races."""
    before = attempt.snapshot()
    chosen = attempt.rng.choice(RACES)
    attempt.done.append(chosen.__name__)
    chosen(attempt)
    attempt.check_outside(before)


def two_at_once(attempt: Attempt) -> None:
    """Two processes start or resume the same run: each finishes it, or refuses to touch it."""
    rng = attempt.rng
    if rng.random() < 0.5:
        attempt.partly_trained()
    first = attempt.begin(new=attempt.is_new())
    moment = None
    if rng.random() < 0.5:
        pause = Pause()
        moment = attempt.some_call(pause)
    second = attempt.begin(moment=moment)
    if moment:
        pause.await_child(second)
        end = first.wait()
        pause.release()
    else:
        end = first.wait()
    for one in (end, second.wait()):
        attempt.check_end(one)
        _check_refused(attempt, one)
    attempt.check_finishes()


def _check_refused(attempt: Attempt, end: Ended) -> None:
    if end.code and not end.refused:
        attempt.problem("exits", f"expected one line and exit code 2: {end}")


def _while_paused(attempt: Attempt, action: Callable[[], object]) -> tuple[bool, Ended]:
    """Run, pause at a file operation, act, and let the run go on.

    Returns whether the run was at work on the directory, and how it ended. A run that had not opened the directory, or
    had finished, has nothing to lose: it works with what it finds afterwards.
    """
    if attempt.rng.random() < 0.5:
        attempt.partly_trained()
    pause = Pause()
    child = attempt.begin(moment=attempt.some_call(pause))
    working = False
    if pause.await_child(child) and attempt.directory.exists():
        working = child.has_open(attempt.directory) and not (attempt.directory / "result.json").exists()
        action()
    pause.release()
    end = child.wait()
    attempt.check_end(end)
    _check_refused(attempt, end)
    return working, end


def deleted_and_used_again(attempt: Attempt) -> None:
    """The directory is deleted, and a new run is started in it (and finished, or stopped) before the old one ends."""
    new_run: list[Files] = []

    def use_again() -> None:
        shutil.rmtree(attempt.directory)
        # Another task has other files: whatever the old run writes makes a difference.
        attempt.task = attempt.rng.choice([one for one in attempt.lab.undisturbed if one != attempt.task])
        attempt.expected = attempt.lab.undisturbed[attempt.task]
        if attempt.rng.random() < 0.5:
            attempt.partly_trained()
        else:
            attempt.check_end(attempt.begin().wait())
        new_run.append(read(attempt.directory))

    working, end = _while_paused(attempt, use_again)
    if working and steps_shown(end) and end.code == 0:
        attempt.problem("exits", "the old run lost its directory, but ended with exit code 0")
    if working and read(attempt.directory) != new_run[0]:
        attempt.problem("lost", f"the old run wrote into the new one: {end}")
    attempt.check_finishes()


def deleted(attempt: Attempt) -> None:
    """The directory is deleted."""
    working, end = _while_paused(attempt, lambda: shutil.rmtree(attempt.directory))
    if working and steps_shown(end) and end.code == 0 and not (attempt.directory / "result.json").exists():
        attempt.problem("exits", "the run lost its directory, but ended with exit code 0")
    attempt.check_finishes()


def moved(attempt: Attempt) -> None:
    """The directory gets another name. Under that name the run can be resumed."""
    other = attempt.folder / "moved"
    _while_paused(attempt, lambda: shutil.move(attempt.directory, other))
    if other.exists():
        if attempt.directory.exists():
            attempt.problem("outside", "the run made a directory under the old name")
            shutil.rmtree(attempt.directory)
        other.rename(attempt.directory)
    attempt.check_finishes()


def replaced_by_link(attempt: Attempt) -> None:
    """The directory is moved away, and a link to a directory outside takes its place."""
    other = attempt.folder / "moved"

    def replace() -> None:
        attempt.directory.rename(other)
        attempt.directory.symlink_to(attempt.outside)

    _while_paused(attempt, replace)
    if other.exists():
        attempt.directory.unlink()
        other.rename(attempt.directory)
    attempt.check_finishes()


def lock_deleted(attempt: Attempt) -> None:
    """The lock file is deleted, and a second process resumes the run: only one of them goes on."""

    def resume() -> None:
        (attempt.directory / "lock").unlink(missing_ok=True)
        end = attempt.begin().wait()
        attempt.check_end(end)
        _check_refused(attempt, end)

    _while_paused(attempt, resume)
    attempt.check_finishes()


RACES = (two_at_once, deleted_and_used_again, deleted, moved, replaced_by_link, lock_deleted)
