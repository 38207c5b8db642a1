"""A copy of the array into memory that is already allocated: the speed of memory."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bench.inputs import Array
from bench.process import THREADS


def copier(source: Array, target: Array) -> tuple[str, Callable[[], object]]:
    """The library that copies, and the call: torch's `copy_`, which uses all its threads, or NumPy without torch."""
    try:
        import torch
    except ImportError:
        return copier_in_threads(source, target)
    torch.set_num_threads(THREADS)
    source_tensor, target_tensor = torch.from_numpy(source), torch.from_numpy(target)
    return "torch", lambda: target_tensor.copy_(source_tensor)


def copier_in_threads(source: Array, target: Array) -> tuple[str, Callable[[], object]]:
    """NumPy's copy in THREADS threads; in one for small arrays, as waking a thread takes about 100 us."""
    if source.nbytes < 2**20:
        return "numpy", lambda: np.copyto(target, source)
    pool = ThreadPoolExecutor(THREADS)
    parts = list(zip(np.array_split(target, THREADS), np.array_split(source, THREADS), strict=True))
    return "numpy", lambda: list(pool.map(lambda part: np.copyto(*part), parts))
