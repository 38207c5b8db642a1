"""Work for every layout of the kernels that takes part of the pool of threads.

The sizes are such that the pool takes part (more than 2^16 elements) and that every kind of item occurs more than once:
chunks of 512 rows, blocks of 64 rows or 2048 elements, tiles of 512 columns.
"""

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from patterns import (
    Array,
    Pattern,
    Results,
    odd,
    offset_data,
    run,
)

import truenorm as tn

PATTERNS = {
    "batch": Pattern(tn.batch(), "b:2600* c:40+"),
    "batch, wide": Pattern(tn.batch(), "b:130* c:530+"),
    "batch (b t c)": Pattern(tn.batch(), "b:40* t:70* c:33+"),
    "batch second": Pattern(tn.batch("second"), "b:24* c:7+ t:500*"),
    "layer": Pattern(tn.layer(), "b:20 t:65 c:66*+"),
    "layer, long": Pattern(tn.layer(), "b:140 c:5000*+"),
    "rms": Pattern(tn.rms(), "b:20 t:65 c:66*+"),
    "instance": Pattern(tn.instance(), "b:30 t:90* c:33+"),
    "instance second": Pattern(tn.instance("second"), "b:30 c:17+ t:170*"),
    "instance second, long": Pattern(tn.instance("second"), "b:6 c:5+ t:4500*"),
    "group": Pattern(tn.group(3), "b:30 t:90* g:3+|c:11*+"),
    "group second": Pattern(tn.group(4, "second"), "b:30 g:4+|c:3*+ t:260*"),
}
SEQUENCES = {name: pattern for name, pattern in PATTERNS.items() if pattern.has_lengths}


def ragged(pattern: Pattern, rng: np.random.Generator) -> dict[str, dict[str, Array]]:
    """Ways to say which elements are valid."""
    valid, times = rng.random(pattern.positions) < 0.7, rng.choice([0.0, 0.5, 2.0], pattern.positions)
    found = {"everything": {}, "valid": {"valid": valid}, "sample_weight": {"valid": valid, "sample_weight": times}}
    if pattern.has_lengths:
        found["lengths"] = {"lengths": lengths_of(pattern, rng)}
    return found


def lengths_of(pattern: Pattern, rng: np.random.Generator) -> Array:
    """Some of every sample, but nothing of the second and all of the last."""
    samples, extent = pattern.positions
    lengths = rng.integers(1, extent + 1, samples)
    lengths[[1, -1]] = 0, extent
    return lengths


Work = list[tuple[str, Callable[[], Results]]]


def work(name: str, dtypes: tuple[type, ...] = (np.float32,)) -> Work:
    """All that there is to do for a pattern, forward and back."""
    pattern, rng = PATTERNS[name], np.random.default_rng(1)
    parameters, found = pattern.parameters(rng), Work()
    for dtype in dtypes:
        x: Array = offset_data(rng, pattern.shape).astype(dtype)
        dy: Array = odd(rng, pattern.shape).astype(dtype)
        for kind, options in ragged(pattern, rng).items():

            def call(x: Array = x, dy: Array = dy, options: dict[str, Any] = options) -> Results:
                return run(x, dy, pattern.norm, **options, **parameters)

            found.append((f"{name}, {dtype.__name__}, {kind}", call))
    return found


def in_subprocess(code: str, *, timeout: float = 60) -> None:
    """A process of its own, as a fork may hang: then this raises."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, f"exit code {done.returncode}:\n{done.stdout}\n{done.stderr}"
