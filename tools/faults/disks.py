"""Full disks, and outputs that cannot be written: the last good checkpoint stays, and the run can be resumed."""

from __future__ import annotations

import ctypes
import os
import shutil
from functools import cache
from pathlib import Path

from tools.faults.command import Ended
from tools.faults.laboratory import STEPS, Attempt

NEW_MOUNTS = 0x0002_0000  # CLONE_NEWNS
PRIVATE = 0x4000 | 0x4_0000  # MS_REC | MS_PRIVATE
DETACH = 2  # MNT_DETACH
FULL = "/dev/full"  # every write to it fails


@cache
def can_mount() -> bool:
    """Give this process mounts of its own, which end with it. Whether that is permitted: usually only to root."""
    libc = ctypes.CDLL(None, use_errno=True)
    return libc.unshare(NEW_MOUNTS) == 0 and libc.mount(b"none", b"/", None, PRIVATE, None) == 0


class SmallDisk:
    """A file system in memory, mounted on a directory of the attempt."""

    def __init__(self, place: Path, size: int, inodes: int) -> None:
        self.place, self.libc = place, ctypes.CDLL(None, use_errno=True)
        options = f"size={size},nr_inodes={inodes}".encode()
        if self.libc.mount(b"tmpfs", os.fsencode(place), b"tmpfs", 0, options):
            raise OSError(ctypes.get_errno(), "cannot mount a tmpfs", str(place))

    def fill(self, left: int, files: int) -> None:
        """Leave about so many bytes and files."""
        with (self.place / "filler").open("wb", buffering=0) as file:
            free = os.statvfs(self.place).f_bavail * 4096
            file.write(bytes(max(0, free - left)))
        for number in range(os.statvfs(self.place).f_ffree - files):
            (self.place / f"filler{number}").touch()

    def empty(self) -> None:
        for file in self.place.glob("filler*"):
            file.unlink()

    def unmount(self) -> None:
        self.libc.umount2(os.fsencode(self.place), DETACH)


def fill_disk(attempt: Attempt) -> None:
    """A disk that is full when the run begins, becomes full later, or a limit on the size of files."""
    if attempt.rng.random() < 0.75 and can_mount():
        _fill_mounted(attempt)
    else:
        _limit_file_size(attempt)


def _fill_mounted(attempt: Attempt) -> None:
    rng = attempt.rng
    (disk_place := attempt.place / "disk").mkdir()
    attempt.directory = disk_place / "run"
    before = attempt.snapshot()
    disk = SmallDisk(disk_place, 1 << 20, 40)
    try:
        saved = attempt.partly_trained() if rng.random() < 0.6 else 0
        left, files = rng.choice((0, 4096, rng.randrange(64 << 10))), rng.choice((0, 1, 2, 3, 40))
        attempt.done.append(f"step {saved} saved, {left} bytes and {files} files left on the disk")
        if rng.random() < 0.5:
            disk.fill(left, files)
            end = attempt.begin().wait()
        else:
            end = attempt.begin(moment=attempt.some_call(lambda: disk.fill(left, files))).wait()
        _check_refused(attempt, end, saved)
        disk.empty()
        attempt.check_finishes()
    finally:
        disk.unmount()
        attempt.directory = attempt.place / "run"
    shutil.rmtree(disk_place)
    before.pop("disk", None)
    attempt.check_outside(before)


def _limit_file_size(attempt: Attempt) -> None:
    rng, before = attempt.rng, attempt.snapshot()
    saved = attempt.partly_trained() if rng.random() < 0.6 else 0
    most = rng.randrange(2 * max(map(len, attempt.expected.files.values())))
    attempt.done.append(f"step {saved} saved, files limited to {most} bytes")
    # What it prints goes to a pipe, to which the limit does not apply.
    _check_refused(attempt, _with_pipes(attempt, most), saved)
    attempt.check_finishes()
    attempt.check_outside(before)


def _with_pipes(attempt: Attempt, most: int) -> Ended:
    """Run with a limit on the size of files, and collect the output from pipes: it is far smaller than they hold."""
    pipes = os.pipe(), os.pipe()
    end = attempt.begin(file_size=most, outputs=(pipes[0][1], pipes[1][1])).wait()
    texts = []
    for reading, writing in pipes:
        os.close(writing)
        with os.fdopen(reading, encoding="utf-8", errors="replace") as stream:
            texts.append(stream.read())
    end.out, end.err = texts
    return end


def _check_refused(attempt: Attempt, end: Ended, saved: int) -> None:
    """Finished, or ended with one line; and the checkpoint is as good as before."""
    attempt.check_end(end)
    if end.code and not end.refused:
        attempt.problem("exits", f"expected one line and exit code 2: {end}")
    step = attempt.saved_step()
    if step < saved:
        attempt.problem("lost", f"step {saved} was saved, the checkpoint holds step {step}")
    if end.code == 0 and step != STEPS:
        attempt.problem("lost", f"finished, but the checkpoint holds step {step}")


# ---- outputs ----


def full_device() -> int:
    return os.open(FULL, os.O_WRONLY)


def closed_pipe() -> int:
    reading, writing = os.pipe()
    os.close(reading)
    return writing


def closed() -> int:
    return -1


OUTPUTS = (full_device, closed_pipe, closed)


def fail_outputs(attempt: Attempt) -> None:
    """Standard output, standard error or both are full, closed, or a pipe that nobody reads, maybe not any more."""
    rng, before = attempt.rng, attempt.snapshot()
    which = rng.choice(((True, True), (True, False), (False, True)))
    kind = rng.choice((*OUTPUTS, None))
    saved = attempt.partly_trained() if rng.random() < 0.3 else 0
    places = " and ".join(name for name, chosen in zip(("stdout", "stderr"), which, strict=True) if chosen)
    attempt.done.append(f"step {saved} saved, {places}: {kind.__name__ if kind else 'reader leaves'}")
    if kind is None:
        end = _reader_leaves(attempt, which)
    else:
        output = kind()
        outputs = (output if which[0] else None, output if which[1] else None)
        end = attempt.begin(outputs=outputs, new=rng.random() < 0.5).wait()
        if output >= 0:
            os.close(output)
    attempt.check_end(end)
    step = attempt.saved_step()
    finished = (attempt.directory / "result.json").exists()
    if step <= saved and not finished:
        attempt.problem("lost", f"nothing was saved: {end}")
    if end.code < 0 or (end.code == 0 and not finished):
        attempt.problem("exits", f"finished: {finished}, but {end}")
    attempt.check_finishes()
    attempt.check_outside(before)


def _reader_leaves(attempt: Attempt, which: tuple[bool, bool]) -> Ended:
    """The reader of a pipe leaves at some file operation, as in `truenorm train ... | head`.

    The child itself holds the only reading end, and closes it.
    """
    reading, writing = os.pipe()
    moment = attempt.some_call(lambda: os.close(reading))
    child = attempt.begin(moment=moment, outputs=(writing if which[0] else None, writing if which[1] else None))
    os.close(reading)
    os.close(writing)
    return child.wait()
