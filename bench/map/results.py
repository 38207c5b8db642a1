"""The results of the speed map: a file of JSON lines, to which each cell is added as soon as it is measured.

A line with `session` says on what machine, at what revision and when the lines after it were measured. Nothing in the
file is ever changed: an interruption loses one cell, and a last line that is not whole is ignored. A cell that was
measured undisturbed on the same machine, with the same code and settings, is not measured again. Of several lines for a
cell the last counts.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.machine import ROOT, facts

# What the times depend on.
CODE = (
    *(f"src/truenorm/{part}" for part in ("core", "engine", "native", "torch")),
    *(f"bench/{name}.py" for name in ("map/cells", "map/pair", "timing", "process")),
)
FILE = Path(__file__).resolve().parents[1] / "map.jsonl"
SMALL = 100e-6  # seconds of torch's layer: below, calls cost more than arithmetic

Row = dict[str, Any]


@dataclass
class Results:
    """The rows of one session, or of several with the same facts, by the name of the cell."""

    session: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, Row] = field(default_factory=dict)

    def finished(self) -> set[str]:
        """The cells that need not be measured again. One whose results are wrong stays wrong at this revision."""
        return {name for name, row in self.rows.items() if row["status"] != "ok" or not row["rounds"]["disturbed"]}

    def reliable(self) -> list[Row]:
        """The cells that were measured and not disturbed."""
        return [row for row in self.rows.values() if row["status"] == "ok" and not row["rounds"]["disturbed"]]


def start_session(path: Path, settings: dict[str, Any], date: str) -> Results:
    """Begin a session in the file; what is known already of this machine, code and settings."""
    session = {"machine": facts(), "code": code_version(), "settings": settings, "date": date}
    append(path, {"session": session})
    return newest(path)


def newest(path: Path) -> Results:
    """The results of the session that was used last; empty if there is none."""
    found = read(path)
    return found[-1] if found else Results()


def read(path: Path) -> list[Results]:
    """All sessions of a file, the one that was used last at the end."""
    found: list[Results] = []
    for line in _lines(path):
        if "session" in line:
            known = [one for one in found if _same(one.session, line["session"])]
            current = Results(line["session"], known[0].rows if known else {})
            found = [one for one in found if one not in known]
            found.append(current)
        else:
            found[-1].rows[line["name"]] = line
    return found


def append(path: Path, line: dict[str, Any]) -> None:
    """Add a line. If the last one is not whole, it stays behind as a line of its own."""
    with path.open("a+b") as file:
        whole = file.seek(0, os.SEEK_END) == 0 or (file.seek(-1, os.SEEK_END), file.read(1))[1] == b"\n"
        file.write((b"" if whole else b"\n") + json.dumps(line).encode() + b"\n")


def _lines(path: Path) -> list[dict[str, Any]]:
    found = []
    for line in path.read_text("utf-8").splitlines() if path.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:  # an interruption cut it
            continue
    return found


def _same(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether their times can be compared. The revision may differ: `code` says whether what is measured does."""
    first, second = ({**session["machine"], "revision": None} for session in (one, other))
    return first == second and all(one[key] == other[key] for key in ("code", "settings"))


def code_version(root: Path = ROOT) -> str:
    """A digest of what is measured, with changes that are not committed, and of the compiled kernels."""
    from truenorm import engine

    digest = hashlib.sha256()
    for name in CODE:
        path = root / name
        for file in sorted(path.rglob("*") if path.is_dir() else [path]):
            if file.is_file() and "__pycache__" not in file.parts:
                digest.update(file.relative_to(root).as_posix().encode() + file.read_bytes())
    if engine.kernels is not None:
        digest.update(Path(engine.kernels.native.__file__).read_bytes())
    return digest.hexdigest()[:12]
