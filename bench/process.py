"""The process that measures: two processors, two threads, and an allocator that keeps freed memory.

The first access to a page of a new large array costs a page fault, and together these cost more than normalizing the
array. By default glibc is therefore set to reuse freed memory, in huge pages (NumPy asks for these by itself, torch
does not), for all implementations. `allocator="system"` leaves the defaults. The page faults of each call are counted,
so the results show whether the setting worked.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Literal

Allocator = Literal["reuse", "system"]

THREADS = 2
MARK = "TRUENORM_BENCH"
ALLOCATORS: dict[Allocator, dict[str, str]] = {
    "system": {},
    "reuse": {
        "MALLOC_MMAP_MAX_": "0",
        "MALLOC_TRIM_THRESHOLD_": str(2**40),
        "MALLOC_TOP_PAD_": str(2**28),
        "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1",
    },
}


def variables(allocator: Allocator, threads: int = THREADS) -> dict[str, str]:
    """The environment variables to set before NumPy and torch are imported."""
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(pools, str(threads)) | ALLOCATORS[allocator]


def enter(allocator: Allocator, threads: int = THREADS, processors: int | None = None) -> None:
    """Start the same command again with the variables set; return if they are set already."""
    mark = f"{allocator} {threads}"
    if os.environ.get(MARK) == mark:
        return
    if hasattr(os, "sched_setaffinity"):
        # XLA has no setting for its number of threads, but respects the affinity.
        os.sched_setaffinity(0, some_processors(processors or threads, sorted(os.sched_getaffinity(0))))
    sys.stdout.flush()
    changed = variables(allocator, threads) | {MARK: mark}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | changed)


def some_processors(count: int, allowed: list[int], topology: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """`count` of the allowed processors, on different cores if there are enough."""
    first_of_core: dict[str, int] = {}
    for number in reversed(allowed):
        siblings = topology / f"cpu{number}/topology/thread_siblings_list"
        first_of_core[siblings.read_text().strip() if siblings.exists() else str(number)] = number
    chosen = sorted(first_of_core.values())
    return (chosen + [number for number in allowed if number not in chosen])[:count]
