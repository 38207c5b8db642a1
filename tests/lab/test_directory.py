"""The directory of a run: other files are never written, and a directory that was taken away is left alone."""

import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from runs import FILES, always, contents, ignore_report, never, small_config

from truenorm.lab import run
from truenorm.lab.config import Config

TAKEN = (
    r"run: deleted, moved or changed by something else during training\. "
    r"The run was stopped; nothing was written after that\."
)


def short_config(words: Path, **options: int) -> Config:
    return small_config(words, steps=10, **options)


def stopped_run(words: Path, out: Path) -> None:
    with pytest.raises(run.Stopped):
        run.start(out, short_config(words), ignore_report, always)


# ---- a directory that is taken away during training ----


def delete_and_use_again(words: Path, out: Path) -> None:
    shutil.rmtree(out)
    run.start(out, short_config(words, seed=1), ignore_report, never)


def empty(_: Path, out: Path) -> None:
    for file in out.iterdir():
        file.unlink()


def move(_: Path, out: Path) -> None:
    out.rename(out.with_name("moved"))


def replace_by_link(_: Path, out: Path) -> None:
    shutil.copytree(out, out.with_name("elsewhere"))
    shutil.rmtree(out)
    out.symlink_to("elsewhere")


def replace_by_file(_: Path, out: Path) -> None:
    shutil.rmtree(out)
    out.write_text("precious", "utf-8")


def replace_lock(_: Path, out: Path) -> None:
    (out / "lock").unlink()
    (out / "lock").touch()


def replace_metrics(_: Path, out: Path) -> None:
    (out / "metrics.jsonl").unlink()
    (out / "metrics.jsonl").symlink_to("config.json")


def snapshot(directory: Path) -> dict[str, bytes | str]:
    """Every file below a directory, links as their targets."""
    return {
        str(file.relative_to(directory)): os.readlink(file) if file.is_symlink() else file.read_bytes()
        for file in sorted(directory.rglob("*"))
        if file.is_symlink() or file.is_file()
    }


@pytest.mark.parametrize(
    "take",
    [delete_and_use_again, empty, move, replace_by_link, replace_by_file, replace_lock, replace_metrics],
)
@pytest.mark.parametrize("resumed", [False, True])
def test_a_directory_that_was_taken_away_is_not_written(
    words: Path, tmp_path: Path, take: Callable[[Path, Path], None], resumed: bool
) -> None:
    out = tmp_path / "run"
    after: list[dict[str, bytes | str]] = []

    def on_report(report: run.Report) -> None:
        if report["step"] == 5:
            take(words, out)
            after.append(snapshot(tmp_path))

    if resumed:
        stopped_run(words, out)
        begin = partial(run.resume, out)
    else:
        begin = partial(run.start, out, short_config(words))
    with pytest.raises(ValueError, match=TAKEN):
        begin(on_report, never)
    assert snapshot(tmp_path) == after[0]


def test_an_emptied_directory_cannot_be_used_again_until_its_process_has_ended(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"

    def on_report(report: run.Report) -> None:
        empty(words, out)
        with pytest.raises(ValueError, match=r"run: another process works on this run\."):
            run.start(out, short_config(words), ignore_report, never)

    with pytest.raises(ValueError, match=TAKEN):
        run.start(out, short_config(words), on_report, never)
    run.start(out, short_config(words), ignore_report, never)


# ---- links and special files ----


def start(words: Path, out: Path) -> None:
    run.start(out, short_config(words), ignore_report, never)


def resume(_: Path, out: Path) -> None:
    run.resume(out, ignore_report, never)


def load(_: Path, out: Path) -> None:
    run.load(out)


def load_words(_: Path, out: Path) -> None:
    run.load_words(out)


# What opens each of the files.
OPENS = {
    "lock": {start, resume},
    "config.json": {start, resume, load, load_words},
    "metrics.jsonl": {start, resume},
    "checkpoint.safetensors": {start, resume, load, load_words},
    "result.json": {start, resume},
}


@pytest.mark.parametrize("exists", [True, False])
@pytest.mark.parametrize("name", [*OPENS, *(f".{name}.part" for name in FILES)])
def test_nothing_is_opened_through_a_link(words: Path, tmp_path: Path, name: str, exists: bool) -> None:
    out, outside = tmp_path / "run", tmp_path / "outside"
    stopped_run(words, out)
    outside.mkdir()
    if exists and (out / name).exists():
        shutil.copy(out / name, outside / "victim")  # through a link, the run would be accepted
    elif exists:
        (outside / "victim").write_text("precious", "utf-8")
    before = snapshot(outside)
    for action in (start, resume, load, load_words):
        prepared = tmp_path / action.__name__
        if action is start:
            prepared.mkdir()
        else:
            shutil.copytree(out, prepared)
            (prepared / name).unlink(missing_ok=True)
        (prepared / name).symlink_to(outside / "victim")
        message = ""
        try:
            action(words, prepared)
        except ValueError as error:
            message = str(error)
        assert snapshot(outside) == before
        if action not in OPENS.get(name, ()):
            assert message == ""
        elif action is start and name != "lock":
            assert message.startswith(f"{prepared}: already holds a ")
        else:
            assert message == f"{prepared / name}: must be an ordinary file, got a symbolic link. Remove it."


@pytest.mark.parametrize("name", ["lock", *FILES])
def test_special_files_are_refused(words: Path, tmp_path: Path, name: str) -> None:
    out = tmp_path / "run"
    stopped_run(words, out)
    for make, kind in ((os.mkfifo, "a special file"), (os.mkdir, "a directory")):
        (out / name).unlink(missing_ok=True)
        make(out / name)
        with pytest.raises(ValueError, match=rf"{name}: must be an ordinary file, got {kind}\. Remove it\."):
            run.resume(out, ignore_report, never)
        if make is os.mkdir:
            (out / name).rmdir()


def test_a_hard_link_keeps_its_content(words: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    stopped_run(words, out)
    for name in ("lock", "metrics.jsonl", "checkpoint.safetensors"):
        os.link(out / name, tmp_path / name)
    before = {name: (tmp_path / name).read_bytes() for name in ("lock", "metrics.jsonl", "checkpoint.safetensors")}
    run.resume(out, ignore_report, never)
    assert before == {name: (tmp_path / name).read_bytes() for name in before}


def test_a_run_in_a_linked_directory(words: Path, tmp_path: Path) -> None:
    (tmp_path / "large_disk").mkdir()
    (tmp_path / "run").symlink_to("large_disk")
    run.start(tmp_path / "run", short_config(words), ignore_report, never)
    assert contents(tmp_path / "large_disk")


# ---- power failure ----


def test_after_a_power_failure_a_run_continues_from_its_last_checkpoint(
    words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was synced is left: a file's content by fsync, its name by fsync of the directory."""
    run.start(tmp_path / "whole", short_config(words), ignore_report, never)
    out = tmp_path / "run"
    on_disk: dict[str, bytes] = {}
    by_inode: dict[int, bytes] = {}
    fsync = os.fsync

    def synced(fd: int) -> None:
        fsync(fd)
        target = Path(os.readlink(f"/proc/self/fd/{fd}"))
        if target.is_dir():
            on_disk.clear()
            on_disk.update({file.name: by_inode.get(file.stat().st_ino, b"") for file in target.iterdir()})
        else:
            by_inode[target.stat().st_ino] = target.read_bytes()
            on_disk.update({target.name: target.read_bytes()} if target.name in on_disk else {})

    class PowerFailureError(Exception):
        pass

    def fail(report: run.Report) -> None:
        if report["step"] == 8:
            raise PowerFailureError

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", synced)
        patched.setattr(run, "CHECKPOINT_SECONDS", 0)
        patched.setattr(run, "CHECKPOINT_SHARE", 1e9)
        with pytest.raises(PowerFailureError):
            run.start(out, short_config(words), fail, never)
    shutil.rmtree(out)
    out.mkdir()
    for name, content in on_disk.items():
        (out / name).write_bytes(content)
    assert run.load(out).step == 7
    run.resume(out, ignore_report, never)
    assert contents(out) == contents(tmp_path / "whole")
