"""What the speed map says, as numbers: medians, how many cells are slower than torch's, which are the slowest.

`render` makes the section of docs/speed.md, `limits` compares the results with what a change of the kernels must keep.
Every number is the time of torch's layer divided by ours: above 1, ours is faster.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from bench.map.results import Results, Row
from bench.table import duration, markdown_table
from bench.timing import spread

WORST = 10


@dataclass(frozen=True)
class Limit:
    """A number of the results, and what it must at least (or at most) be. `cells`: how many it is of."""

    text: str
    value: float | None
    bound: float
    cells: int
    breaking: int
    at_most: bool = False

    @property
    def kept(self) -> bool | None:
        """None if no cell says."""
        if self.value is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def limits(rows: Sequence[Row]) -> list[Limit]:
    """No cell much slower than torch's, few slower at all, and most clearly faster."""
    plain, half = (chosen(rows, padding=share) for share in (0, 50))
    ratios = _ratios(rows)
    below = sum(one < 1 for one in ratios)
    return [
        _lowest("lowest ratio, 100 us and more", [row for row in rows if not row["small"]], 0.95),
        _lowest("lowest ratio, under 100 us", [row for row in rows if row["small"]], 0.9),
        Limit("share below 1.0", below / len(rows) if rows else None, 0.1, len(rows), below, at_most=True),
        _median("median ratio without a mask", plain, 1.2),
        _median("median ratio with 50 % padding", half, 1.6),
        _lowest("lowest ratio with 50 % padding", half, 1.0),
    ]


def _lowest(text: str, rows: Sequence[Row], bound: float) -> Limit:
    ratios = _ratios(rows)
    return Limit(text, min(ratios, default=None), bound, len(rows), sum(one < bound for one in ratios))


def _median(text: str, rows: Sequence[Row], bound: float) -> Limit:
    ratios = _ratios(rows)
    value = statistics.median(ratios) if ratios else None
    return Limit(text, value, bound, len(rows), sum(one < bound for one in ratios))


def render_limits(rows: Sequence[Row]) -> str:
    """A table for the terminal."""
    lines = [f"{'':34} {'value':>7} {'bound':>8} {'cells':>6} {'beyond':>7}  kept"]
    for one in limits(rows):
        form = "{:.1%}" if one.at_most else "{:.3f}"
        value = "-" if one.value is None else form.format(one.value)
        bound = ("<= " if one.at_most else ">= ") + ("{:.0%}" if one.at_most else "{:.2f}").format(one.bound)
        kept = {True: "yes", False: "NO", None: "not measured"}[one.kept]
        lines.append(f"{one.text:34} {value:>7} {bound:>8} {one.cells:6} {one.breaking:7}  {kept}")
    return "\n".join(lines)


def chosen(rows: Iterable[Row], **values: Any) -> list[Row]:
    """The rows whose cells have these values."""
    return [row for row in rows if all(row["cell"][axis] == value for axis, value in values.items())]


def worst(rows: Sequence[Row], count: int) -> list[Row]:
    return sorted(rows, key=lambda row: row["ratio"]["median"])[:count]


def render_rows(rows: Iterable[Row]) -> str:
    """One line for each cell, for the terminal."""
    return "\n".join(
        f"{row['ratio']['median']:6.2f}  ({row['ratio']['low']:.2f} to {row['ratio']['high']:.2f})  "
        f"{duration(row['torch']['median']):>8} / {duration(row['ours']['median']):<8}  {row['name']}"
        + ("  under 100 us" if row["small"] else "")
        for row in rows
    )


# ---- the section of docs/speed.md ----

GROUPS: dict[str, Callable[[Row], bool]] = {
    "all": lambda row: True,
    "no mask": lambda row: row["cell"]["padding"] == 0,
    "30 % padding": lambda row: row["cell"]["padding"] == 30,
    "50 % padding": lambda row: row["cell"]["padding"] == 50,
    "90 % padding": lambda row: row["cell"]["padding"] == 90,
    "training": lambda row: row["cell"]["mode"] == "training",
    "evaluation": lambda row: row["cell"]["mode"] == "evaluation",
    "float32": lambda row: row["cell"]["dtype"] == "float32",
    "bfloat16": lambda row: row["cell"]["dtype"] == "bfloat16",
    "float16": lambda row: row["cell"]["dtype"] == "float16",
    "contiguous": lambda row: row["cell"]["order"] == "contiguous",
    "transposed": lambda row: row["cell"]["order"] == "transposed",
    "channels_last": lambda row: row["cell"]["order"] == "channels_last",
    "torch under 100 us": lambda row: row["small"],
    "torch 100 us and more": lambda row: not row["small"],
}


def render(results: Results, total: int) -> str:
    """The section between the markers: a table of groups, the slowest cells, and how it was measured."""
    rows = results.reliable()
    heads = ("cells", "number", "median", "quartiles", "below 1.0", "lowest")
    lines = [line for name, belongs in GROUPS.items() if (line := _group(name, [r for r in rows if belongs(r)]))]
    slowest = [
        (
            f"`{row['name']}`",
            f"{row['ratio']['median']:.2f} ({row['ratio']['low']:.2f} to {row['ratio']['high']:.2f})",
            duration(row["torch"]["median"]),
            duration(row["ours"]["median"]),
        )
        for row in worst(rows, WORST)
    ]
    return "\n\n".join(
        [
            markdown_table(heads, lines),
            f"The {len(slowest)} slowest cells beside torch's:",
            markdown_table(("cell", "torch / ours", "torch", "ours"), slowest),
            caption(results, total),
        ]
    )


def _group(name: str, rows: Sequence[Row]) -> tuple[str, ...] | None:
    if not rows:
        return None
    ratios = _ratios(rows)
    found, below = spread(ratios), sum(one < 1 for one in ratios) / len(ratios)
    quartiles = f"{found['low']:.2f} to {found['high']:.2f}"
    return name, str(len(rows)), f"{found['median']:.2f}", quartiles, f"{below:.0%}", f"{min(ratios):.2f}"


def caption(results: Results, total: int) -> str:
    machine, settings, rows = results.session["machine"], results.session["settings"], results.rows
    reliable = results.reliable()
    others = {
        "disturbed by other processes": sum(
            row["status"] == "ok" and row["rounds"]["disturbed"] for row in rows.values()
        ),
        "failed": sum(row["status"] != "ok" for row in rows.values()),
    }
    left_out = "".join(f", {count} {why}" for why, count in others.items() if count)
    rounds = sorted(row["rounds"]["quiet"] for row in reliable)
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "truenorm", "torch"))
    return (
        f"{len(reliable)} of {total} cells{left_out}; medians of {rounds[0]} to {rounds[-1]} interleaved rounds. "
        f"{results.session['date']}; {machine['cpu']}, {settings['threads']} threads, {machine['system']}; {versions}; "
        f"revision {machine['revision'] or 'unknown'}."
    )


def _ratios(rows: Iterable[Row]) -> list[float]:
    return [row["ratio"]["median"] for row in rows]
