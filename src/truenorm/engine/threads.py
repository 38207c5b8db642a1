"""How many threads a call of the kernels uses."""

from __future__ import annotations

import os
import sys

_chosen: int | None = None
# That this process may use.
PROCESSORS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def threads() -> int:
    """How many threads a call uses: as set, else as many as torch if it is loaded, else one for each processor."""
    if _chosen is not None:
        return _chosen
    torch = sys.modules.get("torch")
    if torch is not None and hasattr(torch, "get_num_threads"):
        return int(torch.get_num_threads())
    return PROCESSORS


def set_threads(count: int | None) -> None:
    """Use this many threads; None goes back to the default. No result depends on it."""
    global _chosen
    if count is not None and (isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= 1024):
        raise ValueError(f"threads must be an integer from 1 to 1024 or None, got {count!r}.")
    _chosen = count
