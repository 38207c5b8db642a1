"""The counts of attacks and fuzzers, as two tables. Each says at which revision it was run."""

from __future__ import annotations

import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.machine import revision
from bench.table import replace

from tools.faults.fuzzers import Fuzzed
from tools.faults.laboratory import PROBLEMS, Attempt

HEADS = ("attack", "attempts", "survived", *PROBLEMS)
FUZZER_HEADS = ("fuzzer", "cases", "findings", "seed", "revision")


@dataclass
class Counts:
    """How many attacks of a kind there were, and how many cases had which problem."""

    attempts: int = 0
    problems: dict[str, int] = field(default_factory=lambda: dict.fromkeys(PROBLEMS, 0))
    failed: int = 0  # cases with any problem
    slowest: float = 0.0  # seconds from a signal to the exit

    def add(self, attempt: Attempt) -> None:
        self.attempts += attempt.attacks
        for kind in {kind for kind, _ in attempt.problems}:
            self.problems[kind] += 1
        self.failed += bool(attempt.problems)
        self.slowest = max(self.slowest, attempt.slowest)

    @property
    def row(self) -> list[str]:
        numbers = (self.attempts, self.attempts - self.failed, *self.problems.values())
        return [f"{number:,}" for number in numbers]


def total(counts: Sequence[Counts]) -> Counts:
    """The sum of the counts of several processes."""
    return Counts(
        sum(one.attempts for one in counts),
        {kind: sum(one.problems[kind] for one in counts) for kind in PROBLEMS},
        sum(one.failed for one in counts),
        max(one.slowest for one in counts),
    )


def attacks_table(counts: Mapping[str, Counts]) -> str:
    """The attacks that were run, as Markdown; empty if none was."""
    rows = [[name, *one.row] for name, one in counts.items() if one.attempts]
    return _markdown(HEADS, rows) if rows else ""


def fuzzer_row(title: str, counts: Fuzzed, seed: int) -> list[str]:
    return [title, f"{counts.cases:,}", f"{counts.findings:,}", str(seed), revision() or "unknown"]


def write_fuzzer(page: Path, row: Sequence[str]) -> None:
    """Replace the row of this fuzzer. The others keep theirs, each with the revision at which it was run."""
    text = page.read_text("utf-8")
    lines = text.split("<!-- fuzzers -->")[1].split("<!-- /fuzzers -->")[0].strip().splitlines()
    rows = {cells[0]: cells for line in lines[2:] if (cells := line.strip("| ").split(" | "))}
    rows[row[0]] = list(row)
    page.write_text(replace(text, _markdown(FUZZER_HEADS, list(rows.values())), "fuzzers"), "utf-8")


def caption(counts: Mapping[str, Counts], seeds: range, seconds: float) -> str:
    slowest = max(one.slowest for one in counts.values())
    signals = f" From a signal to the exit it took at most {slowest:.2f} s." if slowest else ""
    named = f"Seeds {seeds[0]} to {seeds[-1]}" if len(seeds) > 1 else f"Seed {seeds[0]}"
    return (
        f"{named}, {seconds / 60:.0f} minutes.{signals} {platform.system()} {platform.machine()}, "
        f"Python {platform.python_version()}, revision {revision() or 'unknown'}."
    )


def write_attacks(page: Path, table: str, caption: str) -> None:
    page.write_text(replace(page.read_text("utf-8"), f"{table}\n\n{caption}", "attacks"), "utf-8")


def _markdown(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)
