"""The diagnostics of a training report, as a table for the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

BARS = " ▁▂▃▄▅▆▇█"


def sparkline(counts: Sequence[int]) -> str:
    """A histogram in one line of text.

    >>> sparkline([0, 1, 4, 8])
    ' ▁▄█'
    """
    most = max(counts, default=0) or 1
    return "".join(BARS[-(-count * (len(BARS) - 1) // most)] for count in counts)


def diagnostics_table(report: dict[str, Any], title: str) -> Table:
    """One row for each layer."""
    diagnostics = report["diagnostics"]
    updates, drift, lag = diagnostics["updates"], diagnostics["drift"], diagnostics["running_lag"]
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for name in ("layer", "output, -3 to 3", "mean", "std", "saturated", "update", "drift", "lag"):
        table.add_column(name, justify="left" if name in ("layer", "output, -3 to 3") else "right")
    for name, layer in diagnostics["layers"].items():
        update = updates.get(f"{name}.weight") or updates.get(f"{name}.table")
        table.add_row(
            name,
            sparkline(layer["histogram"]),
            f"{layer['mean']:.2f}",
            f"{layer['std']:.2f}",
            f"{layer['saturated']:.0%}" if "saturated" in layer else "",
            f"{update['update']:.0e}" if update else "",
            f"{drift[name]:.2f}" if name in drift else "",
            f"{lag[name]:.2f}" if name in lag else "",
        )
    return table
