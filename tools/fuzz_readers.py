"""Coverage-guided fuzzing of everything that reads text and files: `python -m tools.fuzz_readers --seconds 600`.

A target takes bytes, and hands them to a reader as a user's text or file. The reader may return, or raise a
`ValueError` with a message of one line, within a second. Anything else is a finding, also a warning: it is printed with
the name of a file that holds its input, which `--replay FILE` runs again without the fuzzer.

    pattern      `Norm`: pattern, affine, sizes and a shape, one a line
    words        a list of words for `--data`
    table        a CSV file for `--task table`; the target column is the first
    numbers      a table, a row and integers for `truenorm explain`
    config       `config.json` of a run
    checkpoint   `checkpoint.safetensors` of a run

Seeds are in `tools/corpus`, by target. Digests are switched off for checkpoints, as no random change would get past
them. The fuzzer is atheris. The Makefile does not install it, as it has no wheels for some platforms.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib
import importlib.util
import re
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FunctionType
from typing import Any
from unittest import mock

CORPUS = Path(__file__).resolve().parent / "corpus"
MAX_BYTES = 4096
MAX_SECONDS = 1.0  # for one input; a quiet machine takes milliseconds
MAX_MEGABYTES = 2048
Target = Callable[[bytes], None]


class Finding(AssertionError):  # noqa: N818  (of the fuzzer, not an error of it)
    """A reader did what it must not do."""


def check(call: Callable[[], object]) -> None:
    """Raises a `Finding` unless the reader returns, or refuses its input in one line."""
    begin = time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            call()
    except ValueError as error:
        message = str(getattr(error, "summary", error))  # a PatternError adds a caret in lines of its own
        if isinstance(error, UnicodeError) or len(message.splitlines()) != 1:
            raise Finding(f"{type(error).__name__} with the message {message!r}") from error
    except Exception as error:
        raise Finding(f"{type(error).__name__}: {error}") from error
    if (seconds := time.process_time() - begin) > MAX_SECONDS:
        raise Finding(f"took {seconds:.1f} seconds")


def pattern_target(folder: Path) -> Target:
    from truenorm.core.norm import Norm, norm_from_text, text_of

    def read(data: bytes) -> None:
        pattern, affine, sizes, shape = (data.decode("utf-8", "replace").split("\n", 3) + [""] * 3)[:4]
        known = {name: int(size) for name, size in re.findall(r"(\w+)=([0-9]{1,6})", sizes)}
        norm = Norm(pattern, sizes=known, affine=affine or None)
        assert norm_from_text(text_of(norm)) == norm, "a norm is not the one that was written"
        layout = norm.view([int(size) for size in re.findall(r"[0-9]{1,6}", shape)])
        assert sorted(layout.order) == list(range(len(layout.axes))), "an axis is lost"

    return lambda data: check(partial(read, data))


def words_target(folder: Path) -> Target:
    from truenorm.lab import data as lab

    def read(path: Path) -> None:
        words = lab.read_words(path)
        alphabet = lab.Alphabet.of(words)
        assert [alphabet.decode(alphabet.encode(word)) for word in words] == words, "words are not what was read"
        lab.next_character_examples(words, alphabet, 3)

    return partial(read_file, folder / "words.txt", read)


def table_target(folder: Path) -> Target:
    from truenorm.lab import table as lab

    def read(path: Path) -> None:
        first = path.read_bytes().decode("utf-8-sig", "replace").split(",", 1)[0].split("\n", 1)[0].strip()
        found = lab.read_csv(path, first)
        assert found.features.shape == (len(found.targets), len(found.columns)), "a cell is lost"

    return partial(read_file, folder / "table.csv", read)


def numbers_target(folder: Path) -> Target:
    from truenorm.cli import numbers

    def read(data: bytes) -> None:
        text = data.decode("utf-8", "replace")
        check(lambda: numbers.parse_row(text, "--dy"))
        check(lambda: numbers.parse_integers(text, "--lengths"))
        path = folder / "numbers.csv"
        path.write_bytes(data)
        check(lambda: numbers.read_table(str(path)))

    return read


def config_target(folder: Path) -> Target:
    from truenorm.lab import run

    def read(data: bytes) -> None:
        (folder / "config.json").write_bytes(data)
        check(lambda: run.read_config(folder))

    return read


def checkpoint_target(folder: Path) -> Target:
    from truenorm.lab import checkpoint, run
    from truenorm.lab.config import make_config

    words, directory = folder / "words.txt", folder / "run"
    words.write_text("ab\nba\nabba\nbaab\n")
    options = {"data": str(words), "steps": 2, "hidden": 2, "embedding": 2, "block": 1, "batch": 2}

    class NoDigest:
        def __init__(self, *content: object) -> None: ...
        def update(self, content: object) -> None: ...
        def hexdigest(self) -> str:
            return "0" * 64

    hashes = mock.Mock(sha256=NoDigest)
    with mock.patch.object(checkpoint, "hashlib", hashes):
        run.start(directory, make_config(options), lambda report: None, lambda: False)
    made = directory / "checkpoint.safetensors"
    (folder / "seed").write_bytes(made.read_bytes())

    def read(data: bytes) -> None:
        made.write_bytes(data)
        with mock.patch.object(checkpoint, "hashlib", hashes):
            check(lambda: run.load_words(directory))
            check(lambda: run.load(directory))

    return read


TARGETS: dict[str, Callable[[Path], Target]] = {
    "pattern": pattern_target,
    "words": words_target,
    "table": table_target,
    "numbers": numbers_target,
    "config": config_target,
    "checkpoint": checkpoint_target,
}


def read_file(path: Path, read: Callable[[Path], object], data: bytes) -> None:
    path.write_bytes(data)
    check(lambda: read(path))


@contextlib.contextmanager
def prepared(name: str) -> Iterator[tuple[Target, list[Path]]]:
    """A target, and its seeds."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        target = TARGETS[name](folder)
        made = folder / "seed"
        yield target, [*sorted((CORPUS / name).glob("*")), *([made] if made.exists() else [])]


def replay(name: str) -> int:
    """Run the seeds of a target, without the fuzzer; how many there are."""
    with prepared(name) as (target, seeds):
        for seed in seeds:
            try:
                target(seed.read_bytes())
            except Finding as finding:
                raise Finding(f"{name}, {seed.name}: {finding}") from finding
        return len(seeds)


def fuzz(name: str, seconds: int, seed: int, found: Path) -> None:
    """Fuzz one target in this process, which libFuzzer ends."""
    atheris: Any = importlib.import_module("atheris")  # has no types
    with prepared(name) as (target, seeds), tempfile.TemporaryDirectory() as corpus:
        # Imports cannot be instrumented: the finder of an editable installation comes before the fuzzer's.
        for function in gc.get_objects():
            if isinstance(function, FunctionType) and str(function.__module__).startswith("truenorm."):
                atheris.instrument_func(function)
        for i, path in enumerate(seeds):
            (Path(corpus) / str(i)).write_bytes(path.read_bytes())
        limits = [f"-max_len={MAX_BYTES}", "-len_control=20", "-timeout=20", f"-rss_limit_mb={MAX_MEGABYTES}"]
        times = [f"-max_total_time={seconds}", "-print_final_stats=1", f"-seed={seed}"]
        atheris.Setup([sys.argv[0], *limits, *times, f"-artifact_prefix={found}/{name}-", corpus], target)
        atheris.Fuzz()


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Coverage-guided fuzzing of what reads text and files.")
    parser.add_argument("--seconds", type=int, default=60, help="in total; the targets share them")
    parser.add_argument("--target", choices=TARGETS, help="only this one")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--found", type=Path, default=Path(tempfile.gettempdir()), help="where findings are written")
    parser.add_argument("--replay", type=Path, help="run one input of --target again")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.replay is not None:
        with prepared(options.target or parser.error("--replay: needs --target")) as (target, _):
            target(options.replay.read_bytes())
        return 0
    if not _installed("atheris"):
        print(
            "fuzz_readers: needs atheris, got none. pip install -c constraints.txt atheris (wheels: Linux on x86-64)."
        )
        return 2
    if options.child:
        fuzz(options.target, options.seconds, options.seed, options.found)
    names = [options.target] if options.target else list(TARGETS)
    failed = 0
    for name in names:
        words = ["--child", "--target", name, "--seconds", str(max(1, options.seconds // len(names)))]
        words += ["--seed", str(options.seed), "--found", str(options.found)]
        command = [sys.executable, "-m", "tools.fuzz_readers", *words]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
        failed += done.returncode != 0
        print(f"{name:<11}{summary(done)}", flush=True)
    return 1 if failed else 0


def _installed(package: str) -> bool:
    try:
        return importlib.util.find_spec(package) is not None
    except ValueError:  # None in sys.modules: not to be imported
        return False


def summary(done: subprocess.CompletedProcess[str]) -> str:
    """How many inputs a target has run, how many of them reached new code, and the finding, if there is one."""
    log = done.stdout + done.stderr
    runs: Any = re.findall(r"number_of_executed_units:\s*(\d+)", log) or re.findall(r"^#(\d+)", log, re.MULTILINE)
    new = re.findall(r"new_units_added:\s*(\d+)", log)
    text = f"{int(runs[-1]) if runs else 0:>9,} inputs, {int(new[-1]) if new else 0:>5,} of them new"
    if not done.returncode:
        return f"{text}, no finding"
    what = re.findall(r"Finding: (.*)|^(ERROR: libFuzzer: .*|\w+Error: .*)", log, re.MULTILINE)
    where = re.findall(r"Test unit written to (\S+)", log)
    return f"{text}, FINDING: {''.join(what[-1]) if what else log[-2000:]}\n    {where[-1] if where else ''}"


if __name__ == "__main__":
    sys.exit(main())
