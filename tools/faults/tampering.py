"""Damaged and replaced files: refused with one line, or the same result; and nothing outside is touched."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from tools.faults.laboratory import STEPS, TASKS, Attempt, Files, Laboratory, Stopped, read, result_of

LARGE = 1 << 40  # bytes of a sparse file
# Names that the run opens for writing besides its files. Files of any other name are not touched.
HIDDEN = (".config.json.part", ".metrics.jsonl.part", ".checkpoint.safetensors.part", ".result.json.part", "lock")


# ---- damage to the content of a file ----


def flip_bits(attempt: Attempt, file: Path) -> str:
    content, flipped = bytearray(file.read_bytes()), []
    for _ in range(attempt.rng.choice((1, 1, 1, 2, 8))):
        place, bit = attempt.rng.randrange(len(content)), attempt.rng.randrange(8)
        content[place] ^= 1 << bit
        flipped.append(f"{place}.{bit}")
    file.write_bytes(content)
    return f"bits {', '.join(flipped)} flipped"


def truncate(attempt: Attempt, file: Path) -> str:
    size = attempt.rng.choice((0, attempt.rng.randrange(file.stat().st_size)))
    os.truncate(file, size)
    return f"cut to {size} bytes"


def append(attempt: Attempt, file: Path) -> str:
    added = attempt.rng.choice((b"\0", b"\n", b"}", b"\n{}\n", b"[" * 100_000, attempt.rng.randbytes(100)))
    with file.open("ab") as stream:
        stream.write(added)
    return f"{added[:10]!r} appended"


def overwrite(attempt: Attempt, file: Path) -> str:
    content = bytearray(file.read_bytes())
    place = attempt.rng.randrange(len(content))
    part = attempt.rng.choice((bytes(8), b"\xff" * 8, b"1e999", b"null", attempt.rng.randbytes(8)))
    content[place : place + len(part)] = part
    file.write_bytes(content)
    return f"{part!r} at {place}"


def replace_content(attempt: Attempt, file: Path) -> str:
    content = attempt.rng.choice((b"null", b"[]", b"{}", b'"', b"1" * 5000, b"\xff\xfe", b'{"step": 1e400}\n'))
    file.write_bytes(content)
    return f"replaced by {content[:20]!r}"


def enlarge(_: Attempt, file: Path) -> str:
    os.truncate(file, LARGE)
    return f"made a sparse file of {LARGE} bytes"


def swap(attempt: Attempt, file: Path) -> str:
    other = attempt.rng.choice([one for one in sorted(file.parent.iterdir()) if one != file])
    content = file.read_bytes()
    file.write_bytes(other.read_bytes())
    other.write_bytes(content)
    return f"exchanged with {other.name}"


def take_from_other_run(attempt: Attempt, file: Path) -> str:
    """The same file of another task's run, or of the end of this one."""
    task = attempt.rng.choice(list(attempt.lab.undisturbed))
    file.write_bytes(attempt.lab.undisturbed[task].files[file.name])
    return f"taken from the end of {task}"


# ---- something else in place of a file, or of a temporary file ----


def link_to_victim(attempt: Attempt, file: Path) -> str:
    file.unlink(missing_ok=True)
    file.symlink_to(attempt.victim)
    return "a link to a file outside"


def hard_link_to_victim(attempt: Attempt, file: Path) -> str:
    file.unlink(missing_ok=True)
    file.hardlink_to(attempt.victim)
    return "a hard link to a file outside"


def link_to_moved(attempt: Attempt, file: Path) -> str:
    """The file itself moved outside, and a link to it."""
    moved = attempt.outside / "moved"
    if file.exists():
        file.rename(moved)
    else:
        moved.write_bytes(b"")
    file.symlink_to(moved)
    return "moved outside, with a link to it"


def link_to_nothing(attempt: Attempt, file: Path) -> str:
    file.unlink(missing_ok=True)
    file.symlink_to(attempt.outside / "new")
    return "a link to a name outside that does not exist"


def link_to_itself(_: Attempt, file: Path) -> str:
    file.unlink(missing_ok=True)
    file.symlink_to(file.name)
    return "a link to itself"


def make_directory(_: Attempt, file: Path) -> str:
    file.unlink(missing_ok=True)
    file.mkdir()
    return "a directory"


def make_pipe(_: Attempt, file: Path) -> str:
    file.unlink(missing_ok=True)
    os.mkfifo(file)
    return "a named pipe"


def remove(_: Attempt, file: Path) -> str:
    file.unlink(missing_ok=True)
    return "removed"


Tamper = Callable[[Attempt, Path], str]
CONTENT: tuple[Tamper, ...] = (
    *(flip_bits,) * 8,
    truncate,
    append,
    overwrite,
    overwrite,
    replace_content,
    enlarge,
    swap,
    take_from_other_run,
)
REPLACEMENTS: tuple[Tamper, ...] = (
    link_to_victim,
    link_to_victim,
    hard_link_to_victim,
    link_to_moved,
    link_to_nothing,
    link_to_itself,
    make_directory,
    make_pipe,
    remove,
)


# ---- the attack ----


def tamper(attempt: Attempt) -> None:
    """Tamper with one file of a stopped or finished run, then resume it, and sample from it."""
    rng = attempt.rng
    if not attempt.lab.stopped:
        prepare(attempt.lab)
    attempt.finished = rng.random() < 0.3
    files = attempt.expected.files if attempt.finished else attempt.lab.stopped[attempt.task].files
    attempt.directory.mkdir()
    for name, content in files.items():
        (attempt.directory / name).write_bytes(content)
    (attempt.directory / "lock").touch()
    if rng.random() < 0.75:
        file, how = attempt.directory / rng.choice(sorted(files)), rng.choice(CONTENT)
    else:
        file, how = attempt.directory / rng.choice((*files, *HIDDEN)), rng.choice(REPLACEMENTS)
    text = how(attempt, file)
    attempt.done.append(f"{'finished' if attempt.finished else 'stopped'} run, {file.name}: {text}")
    before = attempt.snapshot()
    _check_sample(attempt)
    _check_resume(attempt, read(attempt.directory))
    attempt.check_outside(before)


def prepare(lab: Laboratory) -> None:
    """For each task a run that was stopped half-way, and what `truenorm sample` prints for it."""
    for task in TASKS:
        made = Attempt(lab, f"stopped-{task}", 0, 0)
        made.task, made.expected = task, lab.undisturbed[task]
        while not 2 < made.partly_trained() < STEPS - 2:
            shutil.rmtree(made.directory)
        sample = "" if task == "table" else lab.sample(made.directory, made.folder).wait().out
        lab.stopped[task] = Stopped(read(made.directory), sample)
        made.clean()


def _check_sample(attempt: Attempt) -> None:
    """`truenorm sample` prints what it prints without tampering, or refuses."""
    if attempt.task == "table":
        return
    end = attempt.lab.sample(attempt.directory, attempt.folder).wait()
    attempt.check_end(end)
    if end.code == 0:
        # A checkpoint from the end of the same run is a good one.
        samples = {attempt.expected.sample, attempt.lab.stopped[attempt.task].sample}
        if end.out not in samples:
            attempt.problem("lost", f"sample: exit code 0, but other words: {end.out.split()}")
    elif not end.refused:
        attempt.problem("exits", f"sample: expected one line and exit code 2: {end}")


def _check_resume(attempt: Attempt, tampered: Files) -> None:
    """`truenorm train --resume` refuses, or prints the same result and leaves the files of an undisturbed run.

    Of a finished run it only shows the result. It need not notice damage to what it does not use, but does not write.
    """
    end = attempt.lab.resume(attempt.directory, attempt.folder).wait()
    attempt.check_end(end)
    if end.code and not end.refused:
        attempt.problem("exits", f"resume: expected one line and exit code 2: {end}")
    if end.code:
        return
    if result_of(end) != attempt.expected.out:
        attempt.problem("lost", f"resume: exit code 0, but another result: {end.out.splitlines()}")
    found, expected = read(attempt.directory), attempt.expected.files
    other = [name for name in expected if not _same(found.get(name, b""), expected[name])]
    if attempt.finished:
        other = [name for name in other if found.get(name) != tampered.get(name)]
    if other:
        attempt.problem("lost", f"resume: exit code 0, but other files: {', '.join(other)}")


def _same(one: bytes, other: bytes) -> bool:
    """Equal bytes, or equal JSON: a blank more makes no difference."""
    try:
        return one == other or json.loads(one) == json.loads(other)
    except (ValueError, RecursionError):
        return False
