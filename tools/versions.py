"""Tests the wheels in dist/ with the oldest and newest versions of what they need: `make test-versions`.

Each row of the table is an environment of its own below build/versions: a Python, a NumPy and a torch, the wheel,
pytest, and no compiler on the path. Its tests are those of `make dist` and tests/torch; those that need another
library are skipped. With `--write docs/versions.md` the table goes into that page.

    python -m tools.versions [--only "3.13 torch"] [--write docs/versions.md]

torch takes about 2 GB in each environment that has it; `--remove` deletes each environment after its run.
"""

from __future__ import annotations

import argparse
import datetime
import json
import re
import shutil
import sys
from pathlib import Path
from typing import NamedTuple

from tools import torch_on_cpu
from tools.dist import PYTEST, TEST_PACKAGES, TESTS, version, wheel_for
from tools.pythons import ROOT, Environment, MissingError, newest

WORK = ROOT / "build/versions"
RESULTS = WORK / "results.json"
NEWEST = "newest"
OLDEST_NUMPY, OLDEST_TORCH = "2.0.0", "2.10.0"  # a test compares them with pyproject.toml
PACKAGES = (*TEST_PACKAGES, "expecttest", "onnx", "onnxscript", "onnxruntime")
BEGIN, END = "<!-- versions -->\n", "<!-- /versions -->"


class Row(NamedTuple):
    """One environment. numpy and torch: a version, or NEWEST."""

    python: str
    numpy: str
    torch: str

    @property
    def name(self) -> str:
        return f"{self.python} numpy {self.numpy} torch {self.torch}"


ROWS = (
    Row("3.11", OLDEST_NUMPY, OLDEST_TORCH),
    Row("3.12", NEWEST, "2.13.0"),
    Row("3.13", NEWEST, NEWEST),
)


def make(row: Row) -> Environment:
    """The environment of a row, with everything installed."""
    environment = Environment(WORK / row.name.replace(" ", "-"), row.python)
    numpy = newest(environment, "numpy") if row.numpy == NEWEST else row.numpy
    torch = newest(environment, "torch") if row.torch == NEWEST else row.torch
    if environment.versions().get("torch", "").split("+")[0] != torch:
        torch_on_cpu.install(environment, torch)
    # Not the pinned versions: some of them do not exist for this Python, or need another NumPy.
    environment.install("--upgrade", wheel_for(row.python), f"numpy=={numpy}", *PACKAGES, constrained=False)
    environment.install("--force-reinstall", "--no-deps", wheel_for(row.python))  # an older build has the same version
    return environment


def run(row: Row) -> dict[str, str]:
    """One row of the table."""
    environment = make(row)
    info = json.loads(environment.run(environment.bin / "truenorm", "env", "--json", cwd=environment.folder).stdout)
    if info["engine"] != "native":
        sys.exit(f"versions: the kernels are expected to be in use, got {info}.")
    log = WORK / f"{environment.folder.name}.log"
    command: list[str | Path] = [environment.python, "-m", "pytest", *PYTEST, "-rfE", *TESTS, "tests/torch"]
    done = environment.run(*command, check=False, variables={"OMP_NUM_THREADS": "1"})
    log.write_text(done.stdout + done.stderr)
    return {
        "name": row.name,
        "python": info["python"],
        "numpy": info["numpy"],
        "torch": info["optional"]["torch"],
        "tensors": info["tensors"] or "",
        "tests": counts(done.stdout),
        "truenorm": version(),
        "date": f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d}",
    }


def counts(text: str) -> str:
    """The numbers of the last line of pytest, without its time.

    >>> counts("....\\n3 failed, 1043 passed, 12 skipped, 9 deselected in 61.20s (0:01:01)\\n")
    '3 failed, 1043 passed, 12 skipped'
    >>> counts("Killed")
    'did not end'
    """
    lines = text.strip().splitlines()
    found = re.findall(r"\d+ (?:failed|errors?|passed|skipped)\b", lines[-1]) if lines else []
    return ", ".join(found) or "did not end"


def table(results: dict[str, dict[str, str]], old: str = "") -> str:
    """The table in Markdown. Rows that were not run here stay those of the old table."""
    lines = ["| Python | NumPy | torch | torch's tensors | tests | when |", "|---|---|---|---|---|---|"]
    for row in ROWS:
        if one := results.get(row.name):
            cells = (one["python"], one["numpy"], one["torch"], one["tensors"], one["tests"], one["date"])
            lines.append(f"| {' | '.join(cells)} |")
        else:
            lines += [line for line in old.splitlines() if line.startswith(f"| {row.python}.")]
    return "\n".join(lines) + "\n"


def write(page: Path, results: dict[str, dict[str, str]]) -> None:
    """Write what was run into the table of a page."""
    before, rest = page.read_text("utf-8").split(BEGIN)
    old, after = rest.split(END)
    page.write_text(before + BEGIN + table(results, old) + END + after, "utf-8")


def main() -> None:
    """Test the wheels in dist/ with the oldest and newest versions of what they need."""
    parser = argparse.ArgumentParser(prog="python -m tools.versions", description=main.__doc__)
    parser.add_argument("--only", default="", help="only rows whose name has this text, such as '3.13' or 'torch 2.10'")
    parser.add_argument("--write", type=Path, help="the page whose table is written")
    parser.add_argument("--remove", action="store_true", help="delete each environment after its run")
    arguments = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    results = {one["name"]: one for one in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    try:
        for row in (row for row in ROWS if arguments.only in row.name):
            results[row.name] = run(row)
            print(" | ".join(results[row.name].values()), flush=True)
            RESULTS.write_text(json.dumps(list(results.values()), indent=2))
            if arguments.remove:
                shutil.rmtree(WORK / row.name.replace(" ", "-"))
    except MissingError as error:
        sys.exit(str(error))
    if arguments.write:
        write(arguments.write, results)
    listed = [results[row.name]["tests"] for row in ROWS if row.name in results]
    sys.exit(any("failed" in tests or "error" in tests or "not" in tests for tests in listed))


if __name__ == "__main__":
    main()
