"""How much memory a run takes: estimated before anything is allocated, and refused if it is not free."""

from __future__ import annotations

import os
import resource
from dataclasses import dataclass
from pathlib import Path

# Arrays of the size of all parameters, while the network is made, trained and saved: parameters, gradients, the
# state of the optimizer, temporaries, and two copies of what a checkpoint holds.
COPIES = 10
LAYER_BYTES = 100_000  # of Python objects, small arrays and diagnostics, for each hidden layer


@dataclass(frozen=True)
class NetworkSize:
    """What a network takes.

    parameters   numbers that are trained
    depth        hidden layers
    values       numbers that all layers keep for one example, forward and backward
    item_bytes   of a number
    """

    parameters: int
    depth: int
    values: int
    item_bytes: int

    @property
    def network_bytes(self) -> int:
        return self.parameters * self.item_bytes * COPIES + self.depth * LAYER_BYTES

    def batch_bytes(self, examples: int) -> int:
        return examples * self.values * self.item_bytes


def require(advice: str, **parts: int) -> None:
    """Raise an error if these parts, in bytes, do not fit into the free memory together. `advice`: what to change."""
    needed, free = sum(parts.values()), free_memory()
    if needed > free:
        listed = ", ".join(f"{name} {in_units(size)}" for name, size in parts.items())
        raise ValueError(
            f"memory: the run must fit into {in_units(free)}, which are free, got about {in_units(needed)} "
            f"({listed}). Choose a smaller {advice}."
        )


def in_units(size: int) -> str:
    """A number of bytes, for people.

    >>> in_units(3_500_000), in_units(22_000_000_000), in_units(2 * 10**15)
    ('4 MB', '22 GB', '2,000,000 GB')
    """
    return (
        f"{size / 1e9:,.0f} GB" if size >= 9.5e9 else f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    )


def free_memory() -> int:
    """Bytes that this process may still take: of the machine, of its container, and of its own limit."""
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            limits.append(int(line.split()[1]) * 1024)
    largest, used = (_lines(f"/sys/fs/cgroup/memory.{name}") for name in ("max", "current"))
    if largest and used and largest[0].isdigit():
        limits.append(max(0, int(largest[0]) - int(used[0])))
    own, _ = resource.getrlimit(resource.RLIMIT_AS)
    if own != resource.RLIM_INFINITY:
        limits.append(own)
    return min(limits)


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text("ascii").splitlines()
    except (OSError, ValueError):
        return []
