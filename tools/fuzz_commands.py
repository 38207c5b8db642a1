"""Random calls of the commands, with hostile files and arguments: each must compute, or end in one line.

A failure is a call that shows a traceback or ends with another exit code than 0, 2 or 3; that prints a control
character; that warns; that takes too long; or that writes outside its directory. The commands run in this process, each
in an empty directory with the files of its case. A case follows from the seed and its number alone.

    python -m tools.fuzz_commands --seconds 60 --seed 1
    python -m tools.fuzz_commands --seed 1 --case 1234        that case, with its files, output and traceback
"""

import argparse
import contextlib
import io
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

from tools.hostile_files import csv_file, damaged, hostile_json, hostile_state, number, word_file, words
from truenorm.cli import COMMANDS, main
from truenorm.lab import memory
from truenorm.lab.training import Trainer

HANGS = 30  # seconds: a call takes well under one, even on a busy machine
MEMORY = 100 << 20  # what the lab may take for free: larger runs are refused
ENOUGH = 20  # failures to show
RUN_FILES = ("config.json", "metrics.jsonl", "checkpoint.safetensors", "result.json")


@dataclass(frozen=True)
class Case:
    """A call, and the files that it finds. `state_seed`: of the changes to the checkpoint of the run that it finds."""

    arguments: tuple[str, ...]
    files: dict[str, bytes]
    stdin: bytes = b""
    steps_before: int = 0  # of a run in the directory "run"; 0: there is none
    state_seed: int | None = None
    damaged_file: str | None = None  # a pattern: the first file in "run" that it names
    damage_seed: int = 0
    before: tuple[str, ...] = ()  # a call that makes the directory "run"


# ---- cases ----

NORMS = ("batch", "layer", "instance", "group", "rms", "none", "middle")
EXPLAIN = ("--norm", "--pattern", "--groups", "--lengths", "--eps", "--ddof", "--eps-at", "--weight", "--bias", "--dy")
SIZES = ("--batch", "--block", "--embedding", "--hidden", "--depth", "--groups", "--heads", "--max-length", "--ddof")
RATES = ("--dropout", "--init-scale", "--momentum", "--lr", "--seed")
NAMED: dict[str, tuple[str, ...]] = {
    "--norm": NORMS,
    "--pattern": (
        "[b] c",
        "b [c]",
        "[b c]",
        "b [t] c",
        "b (g [c])",
        "[",
        "...",
        "[...] c",
        "b b",
        "[b] (c d)",
        "\x1b[2J",
    ),
    "--eps-at": ("var", "std", "x"),
    "--dy": ("1,0;0,1", "1,0,0;0,1,0;1,1,1", "dy.csv", "-", "1" * 300, "", ";", "a.csv", "1,\udcff"),
    "--task": ("words", "gender", "table", "x"),
    "--data": ("words.txt", "table.csv", "none", "", ".", "\udcff", "a" * 300, "/dev/null"),
    "--target": ("a", "b", "y", "", "\x1b[31m", "\udcff", "0"),
    "--norm-at": ("before", "after"),
    "--statistics-over": ("valid", "all"),
    "--activation": ("tanh", "relu", "sigmoid", "gelu"),
    "--optimizer": ("sgd", "adam"),
    "--schedule": ("constant", "step", "cosine"),
    "--dtype": ("float32", "float64", "float16"),
    "--statistics": ("running", "reestimated", "none"),
}


def make(seed: int, case: int) -> Case:
    rng = random.Random(f"{seed} {case}")
    kinds = {explain_case: 42, train_case: 17, run_case: 20, predict_case: 6, grid_case: 4, results_case: 6}
    (kind,) = rng.choices([*kinds, page_case, plain_case], weights=[*kinds.values(), 2, 3])
    return kind(rng)


def value_of(rng: random.Random, option: str) -> str:
    if option in NAMED and rng.random() < 0.9:
        return rng.choice(NAMED[option])
    if option in ("--lengths", "--weight", "--bias"):
        return ",".join(number(rng) for _ in range(rng.randint(1, 5)))
    return number(rng)


def options_of(rng: random.Random, options: tuple[str, ...], most: int) -> list[str]:
    chosen = rng.sample(options, rng.randint(0, min(most, len(options))))
    return [text for option in chosen for text in (option, value_of(rng, option))]


def explain_case(rng: random.Random) -> Case:
    file = csv_file(rng)
    source = rng.choice((["table.csv"], ["table.csv"], ["-"], [], ["--example", "table"], ["--example", "sentences"]))
    arguments = ["explain", *source, *options_of(rng, EXPLAIN, rng.choice((0, 1, 1, 4))), *rng.choice(([], ["--json"]))]
    return Case(tuple(arguments), {"table.csv": file, "dy.csv": csv_file(rng)}, file)


def train_case(rng: random.Random) -> Case:
    task = rng.choice(("words", "words", "words", "table", "table", "gender" if rng.random() < 0.1 else "words"))
    arguments = ["train", "--out", "run", "--task", task, "--steps", rng.choice("123330")]
    if task != "gender" or rng.random() < 0.1:
        arguments += ["--data", "table.csv" if task == "table" else "words.txt"]
    if task == "table":
        arguments += ["--target", rng.choice(("a", "b", "y", "c"))]
    arguments += ["--hidden", "8"] if rng.random() < 0.8 else []
    named = tuple(name for name in NAMED if name not in ("--pattern", "--eps-at", "--dy", "--task", "--statistics"))
    arguments += options_of(rng, SIZES + RATES + named, rng.choice((0, 1, 3))) + rng.choice(([], [], ["--watch"]))
    return Case(tuple(arguments), {"table.csv": csv_file(rng), "words.txt": word_file(rng)})


def run_case(rng: random.Random) -> Case:
    """`train --resume` and `sample` on a run of somebody else."""
    if rng.random() < 0.5:
        arguments = ["train", "--resume", "--out", "run", *rng.choice(([], ["--watch"]))]
    else:
        options = ("--count", "--temperature", "--seed", "--statistics")
        arguments = ["sample", "run", *options_of(rng, options, 3)]
        if "--count" in arguments:
            arguments[arguments.index("--count") + 1] = rng.choice(("1", "3", "0", "-1", "1500", "x"))
    change = rng.choice(("state", "state", "file", "none"))
    return Case(
        tuple(arguments),
        {"words.txt": words(rng, 12)},
        steps_before=rng.choice((3, 60)),
        state_seed=rng.randrange(2**32) if change == "state" else None,
        damaged_file=rng.choice(RUN_FILES) if change == "file" else None,
        damage_seed=rng.randrange(2**32),
    )


def predict_case(rng: random.Random) -> Case:
    """`predict` with a table of somebody else, or with a run of somebody else."""
    rows = "".join(f"{rng.gauss(0, 3):.3g},{rng.gauss(0, 3):.3g},{i % 2}\n" for i in range(8))
    nearly_right = "".join(f"{number(rng)},{rng.gauss(0, 3):.3g}\n" for _ in range(6))
    file = csv_file(rng) if rng.random() < 0.5 else f"a,b\n{nearly_right}".encode()
    return Case(
        ("predict", "run", rng.choice(("table.csv", "-"))),
        {"train.csv": f"a,b,y\n{rows}".encode(), "table.csv": file},
        file,
        damaged_file=rng.choice(RUN_FILES) if rng.random() < 0.2 else None,
        damage_seed=rng.randrange(2**32),
        before=("train", "--task", "table", "--data", "train.csv", "--target", "y", "--steps", "3", "--out", "run"),
    )


def grid_case(rng: random.Random) -> Case:
    """`compare` with options without sense. Two values of some come from the same places as one."""
    options = options_of(rng, (*SIZES, *RATES, "--norm", "--norm-at", "--activation", "--optimizer"), 3)
    values = [f"{one},{number(rng)}" if not one.startswith("--") and rng.random() < 0.3 else one for one in options]
    more = options_of(rng, ("--seeds", "--shard", "--csv"), 1) if rng.random() < 0.3 else ["--seeds", "2"]
    where = rng.choice((["--dry-run"], ["--out", "new"]))
    sizes = ["--data", "words.txt", "--hidden", "8", "--steps", "1,2", "--workers", "1"]
    return Case(("compare", *sizes, *values, *more, *where), {"words.txt": word_file(rng)})


def results_case(rng: random.Random) -> Case:
    """`compare`, `claims` and `report` on the results of somebody else."""
    small = ("--data", "words.txt", "--hidden", "4", "--steps", "2", "--seeds", "2", "--norm", "none,batch")
    compare = ("compare", *small, "--workers", "1", "--out", "run")
    claims = ("claims", "--only", "undo", "--seeds", "2", "--workers", "1", "--out", "run")
    before, arguments, plan = rng.choice(
        (
            (compare, compare, False),
            (compare, ("compare", "--merge", "run", "--out", "new"), True),
            (compare, ("compare", "--merge", "run", "--out", "new", "--csv", "new.csv"), True),
            (claims, (*claims, "--json"), False),
            (claims, ("compare", "--out", "run"), True),
            (compare, ("report", "run", "--out", "new.html"), True),
        )
    )
    # A plan of somebody else may be valid and take hours: it is not run.
    files = ("machine.json", "trial-*.json", *(("grid.json",) * 2 if plan else ()))
    damage = {"damaged_file": rng.choice(files), "damage_seed": rng.randrange(2**32)}
    return Case(arguments, {"words.txt": words(rng, 12)}, before=before, **damage)


def page_case(rng: random.Random) -> Case:
    target = rng.choice(("page.html", ".", "table.csv", "none/page.html", "", "a" * 300, "\udcff.html", "run/"))
    return Case(("page", target, "--no-open"), {"table.csv": csv_file(rng)})


def plain_case(rng: random.Random) -> Case:
    """Arguments without sense."""
    pieces = (
        *COMMANDS,
        "--help",
        "-h",
        "--version",
        "--bogus",
        "--json",
        "",
        "-",
        "--",
        "\x1b[2J",
        "\udcff",
        "table.csv",
    )
    arguments = rng.choices(pieces, k=rng.randint(0, 4))
    if arguments and arguments[0] in ("claims", "demo", "env", "page"):  # slow, or writes into the directory above
        arguments.insert(1, "--bogus")
    return Case(tuple(arguments), {"table.csv": csv_file(rng)})


# ---- calls ----


class Hang(BaseException):
    """A call takes too long."""


@dataclass(frozen=True)
class Ended:
    """How a call ended."""

    code: int | None  # None: not by SystemExit
    out: str
    err: str
    written: tuple[str, ...]  # paths outside the directory that were opened for writing, renamed or removed
    escaped: str = ""  # the traceback of an exception that reached the top


_allowed: Path | None = None
_written: list[str] = []


def watch_writes(event: str, details: tuple[Any, ...]) -> None:
    """An audit hook: records writes outside the directory of the case."""
    if _allowed is None:
        return
    changes = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
    if event == "open" and not (isinstance(details[2], int) and details[2] & changes):
        return
    if event not in ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.link", "os.symlink", "os.truncate"):
        return
    for path in details[: 2 if event in ("os.rename", "os.link", "os.symlink") else 1]:
        if isinstance(path, (str, bytes)) and os.fsdecode(path) != os.devnull:
            real = os.path.realpath(os.fsdecode(path))
            if real != str(_allowed) and not real.startswith(f"{_allowed}/"):
                _written.append(f"{event} {real}")


def call(arguments: tuple[str, ...], directory: Path, stdin: bytes = b"") -> Ended:
    """Run a command in a directory."""
    global _allowed
    streams = sys.stdin, sys.stdout, sys.stderr
    out, err = io.BytesIO(), io.BytesIO()
    sys.stdin, sys.stdout, sys.stderr = captured = (
        io.TextIOWrapper(io.BytesIO(stdin), "utf-8", "surrogateescape"),
        io.TextIOWrapper(out, "utf-8", "surrogateescape"),
        io.TextIOWrapper(err, "utf-8", "backslashreplace"),
    )
    code, escaped = None, ""
    _written.clear()
    os.chdir(directory)
    _allowed = directory
    signal.alarm(HANGS)
    try:
        main(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0
    except BaseException:
        escaped = traceback.format_exc()
    finally:
        signal.alarm(0)
        _allowed = None
        for stream in captured[1:]:
            stream.flush()
        sys.stdin, sys.stdout, sys.stderr = streams
        os.chdir(directory.parent)
    shown = out.getvalue().decode("utf-8", "replace"), err.getvalue().decode("utf-8", "replace")
    return Ended(code, *shown, tuple(_written), escaped)


def prepare(case: Case, directory: Path) -> None:
    """Write the files of a case."""
    for name, content in case.files.items():
        (directory / name).write_bytes(content)
    if not case.steps_before and not case.before:
        return
    rng = random.Random(case.state_seed)
    original = Trainer.state
    if case.state_seed is not None:
        # A checkpoint with a right digest and wrong content: as of another version, or made on purpose.
        Trainer.state = lambda self: hostile_state(rng, *original(self))  # type: ignore[method-assign]
    stopped = ("train", "--data", "words.txt", "--hidden", "4", "--steps", str(case.steps_before), "--out", "run")
    try:
        call(case.before or stopped, directory)
    finally:
        Trainer.state = original  # type: ignore[method-assign]
    result = directory / "run/result.json"
    if case.steps_before > 3 and case.damaged_file != result.name:
        result.unlink(missing_ok=True)  # as if the run had been killed before its end
    for file in sorted((directory / "run").glob(case.damaged_file))[:1] if case.damaged_file is not None else ():
        content, rng = file.read_bytes(), random.Random(case.damage_seed)
        as_json = file.suffix == ".json" and rng.random() < 0.7
        file.write_bytes(hostile_json(rng, content) if as_json else damaged(rng, content))


def problem_of(ended: Ended) -> str | None:
    """What is wrong with how a call ended; None if nothing is."""
    if ended.escaped:
        return f"an exception reached the top:\n{ended.escaped}"
    if ended.code not in (0, 2, 3):
        return f"exit code {ended.code}: {ended.err}"
    if "Traceback" in ended.err:
        return f"a traceback: {ended.err}"
    if ended.code == 2 and not (ended.err.splitlines() or [""])[-1].startswith("truenorm: "):
        return f"an error without a line: {ended.err!r}"
    if control := [one for one in ended.out + ended.err if one != "\n" and unicodedata.category(one) == "Cc"]:
        return f"control characters in the output: {sorted(set(control))}"
    if ended.written:
        return f"written outside: {', '.join(ended.written)}"
    return None


def run_case_in(root: Path, case: Case, *, debug: bool = False) -> Ended:
    """Run a case in an empty directory below `root`."""
    directory = root / "case"
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir()
    prepare(case, directory)
    if debug:
        print(f"{case}\n\n{sorted(str(one.relative_to(directory)) for one in directory.rglob('*'))}\n")
    ended = call((*case.arguments, "--debug") if debug else case.arguments, directory, case.stdin)
    # What `predict` writes to a file is a copy of its input, with everything that is in it.
    return replace(ended, out="") if case.arguments[:1] == ("predict",) else ended


@contextlib.contextmanager
def guarded() -> Iterator[Path]:
    """A directory for the cases. Warnings are errors, calls that hang are ended, and the lab takes little memory."""
    before = memory.free_memory

    def hang(_: int, __: FrameType | None) -> None:
        raise Hang(f"more than {HANGS} seconds")

    handler = signal.signal(signal.SIGALRM, hang)
    memory.free_memory = lambda: MEMORY
    sys.addaudithook(watch_writes)
    place = os.getcwd()
    try:
        with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
            warnings.simplefilter("error")
            yield Path(root).resolve()
            os.chdir(place)
    finally:
        os.chdir(place)
        memory.free_memory = before
        signal.signal(signal.SIGALRM, handler)


def fuzz(seed: int, cases: int | None, seconds: float) -> tuple[Counter[str], list[str]]:
    """How often each command ended with each exit code, and the failures."""
    counts: Counter[str] = Counter()
    failures: list[str] = []
    end = time.monotonic() + seconds
    with guarded() as root:
        case_number = 0
        while (cases is None or case_number < cases) and time.monotonic() < end and len(failures) < ENOUGH:
            case = make(seed, case_number)
            ended = run_case_in(root, case)
            command = case.arguments[0] if case.arguments and case.arguments[0] in COMMANDS else "other"
            counts[f"{command} {ended.code}"] += 1
            if problem := problem_of(ended):
                failures.append(f"--seed {seed} --case {case_number}: {case.arguments}: {problem}")
            case_number += 1
    return counts, failures


def run() -> int:
    parser = argparse.ArgumentParser(description="Random calls of the commands.")
    parser.add_argument("--seconds", type=float, default=10.0, help="at most")
    parser.add_argument("--cases", type=int, help="at most")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--case", type=int, help="only this one, with its files, output and traceback")
    options = parser.parse_args()
    sys.dont_write_bytecode = True
    if options.case is not None:
        case = make(options.seed, options.case)
        with guarded() as root:
            ended = run_case_in(root, case, debug=True)
        print(f"exit code {ended.code}\n{ended.out}{ended.err}{ended.escaped}", *ended.written, sep="\n")
        return 0
    counts, failures = fuzz(options.seed, options.cases, options.seconds)
    for failure in failures:
        print(failure)
    by_code = ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))
    print(f"{counts.total()} calls ({by_code}), {len(failures)} failures")
    return bool(failures)


if __name__ == "__main__":
    sys.exit(run())
