"""The process that measures: two processors, two threads, and an allocator that keeps what was freed.

A fresh large array costs a page fault for each page at its first touch: more than normalising it. By default every
implementation therefore runs under one setting of glibc: freed memory is reused, and in huge pages (NumPy asks for
these by itself, torch does not). `allocator="system"` leaves all as it comes. The page faults of each call are
counted, so that the results show whether it worked.
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
    """What has to be set before NumPy and torch are loaded."""
    pools = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
    return dict.fromkeys(pools, str(threads)) | ALLOCATORS[allocator]


def enter(allocator: Allocator, threads: int = THREADS, processors: int | None = None) -> None:
    """Start this very command again, with everything set; return where that has happened."""
    mark = f"{allocator} {threads}"
    if os.environ.get(MARK) == mark:
        return
    if hasattr(os, "sched_setaffinity"):
        # XLA has no number of threads to set, but obeys this.
        os.sched_setaffinity(0, some_processors(processors or threads, sorted(os.sched_getaffinity(0))))
    sys.stdout.flush()
    changed = variables(allocator, threads) | {MARK: mark}
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], os.environ | changed)


def some_processors(count: int, allowed: list[int], topology: Path = Path("/sys/devices/system/cpu")) -> list[int]:
    """`count` of the allowed processors, on different cores where there are enough."""
    first_of_core: dict[str, int] = {}
    for number in reversed(allowed):
        siblings = topology / f"cpu{number}/topology/thread_siblings_list"
        first_of_core[siblings.read_text().strip() if siblings.exists() else str(number)] = number
    chosen = sorted(first_of_core.values())
    return (chosen + [number for number in allowed if number not in chosen])[:count]
