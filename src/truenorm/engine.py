"""The one place that chooses an implementation of the five verbs: measure, merge, forward, backward_sums, backward.

Everything above calls the verbs from here, so a faster twin can stand in for the reference without being known.
"""

from __future__ import annotations

import os

from truenorm.moments import measure, merge
from truenorm.reference import backward, backward_sums, forward

__all__ = ["NAME", "backward", "backward_sums", "forward", "measure", "merge", "native_build", "threads"]

NAME = "reference"


def native_build() -> dict[str, str] | None:
    """How the compiled part was built; None where it was not."""
    try:
        from truenorm import _native
    except ImportError:
        return None
    return _native.build_info()


def threads() -> int:
    """How many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
