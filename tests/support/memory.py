"""Programs that call everything with ever new shapes, and look at the resident set.

`tests/native/test_memory.py` runs them. Caches have up to 512 entries. If an entry held 8 bytes for each row of x, they
would grow by 16 MiB with 4,000 rows.
"""

import ctypes
import gc
import os
import random
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import truenorm as tn
from truenorm import engine

ROWS, SHAPES = 4_000, 2_000
LIMIT = 8 << 20
MIB = 1 << 20


def resident() -> int:
    """The bytes that this process has in memory, after everything that is free was returned."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def growth(call: Callable[[int], object], shapes: int = SHAPES) -> int:
    """By how much the resident set grows from the first shapes to the last."""
    for number in range(20):
        call(number)
    before = resident()
    for number in range(20, shapes):
        call(number)
    return resident() - before


def numpy_verbs() -> None:
    """Every verb at every shape; every ragged argument in turns, on padded and on packed rows."""
    rows = np.ones((ROWS + SHAPES, 2), np.float32)
    norms = [tn.batch(), tn.layer(), tn.group(2), tn.instance()]

    def call(number: int) -> None:
        norm, x = norms[number % 4], rows[: ROWS + number]
        steps = x[: len(x) // 2 * 2].reshape(2, -1, 2)
        out = tn.forward(x, norm)
        moments = tn.measure(x, norm)
        if number % 4 == 0:  # of two channels, and not of each row
            tn.merge(out.moments, moments)
        tn.backward(x, out)
        tn.backward(x, out, sums=tn.backward_sums(x, out))
        ragged: list[dict[str, Any]] = [
            {"lengths": [steps.shape[1], number]},
            {"valid": np.ones(steps.shape[:2], bool)},
            {"sample_weight": np.ones(steps.shape[:2])},
        ]
        tn.backward(steps, tn.forward(steps, norm, **ragged[number % 3]))
        if norm.pattern.startswith("b"):
            tn.backward(x, tn.forward(x, norm, offsets=[0, number, len(x)]))
        if number % 200 == 0:  # it takes longer than everything else
            tn.explain(x[: 20 + number // 200], norm, dy=x[: 20 + number // 200])

    check(growth(call))


def torch_layers() -> None:
    """Every layer, forward and backward, with every ragged argument."""
    import torch

    import truenorm.torch as tnt

    rows = torch.ones(ROWS + SHAPES, 2)
    second = [tnt.BatchNorm1d(2), tnt.InstanceNorm1d(2, affine=True), tnt.GroupNorm(1, 2)]
    second += [tnt.Normalize(tn.instance("second"), 2), tnt.BatchNorm2d(2), tnt.BatchNorm3d(2)]
    last = [tnt.LayerNorm(2), tnt.RMSNorm(2), tnt.Normalize(tn.layer(), 2)]

    def call(number: int) -> None:
        steps = (ROWS + number) // 2
        by_steps = rows[: 2 * steps].view(2, steps, 2).requires_grad_()
        ragged: list[dict[str, Any]] = [
            {},
            {"lengths": torch.tensor([steps, number])},
            {"valid": torch.ones(2, steps, dtype=torch.bool)},
            {"sample_weight": torch.ones(2, steps)},
        ]
        for i, layer in enumerate([*second, *last]):  # each meets each argument, at another shape
            options = ragged[(i + number) % 4]
            x = by_steps if layer in last else by_steps.mT
            axes = 2 if isinstance(layer, torch.nn.BatchNorm3d) else 1 if isinstance(layer, torch.nn.BatchNorm2d) else 0
            if axes:
                options = {}
            y: Any = layer(x[(..., *[None] * axes)], **options)
            y.sum().backward()
        offsets = torch.tensor([0, number, ROWS + number])
        tnt.GroupNorm(1, 2)(rows[: ROWS + number], offsets=offsets)

    check(growth(call))


def hundred_thousand_calls() -> None:
    """NumPy and torch in turns, mostly on small arrays, each 200th time on up to a million rows."""
    import torch

    import truenorm.torch as tnt

    rng, rows = random.Random(1), np.ones((1_000_000, 2), np.float32)
    tensor = torch.from_numpy(rows)
    norms, layers = [tn.batch(), tn.layer(), tn.instance()], [tnt.BatchNorm1d(2), tnt.LayerNorm(2), tnt.GroupNorm(2, 2)]
    seen = []
    for number in range(100_000):
        count = rng.randint(2, 1_000_000 if number % 200 == 0 else 3000)
        if number % 2:
            x = rows[:count]
            tn.backward(x, tn.forward(x, norms[number % 3]))
        else:
            layers[number % 3](tensor[:count])
        if number % 10_000 == 9_999:
            seen.append(resident())
    print([size // MIB for size in seen], "MiB")
    check(max(seen) - seen[1])  # all caches are full after 20,000 calls


def check(grown: int) -> None:
    print(f"{grown / MIB:.1f} MiB")
    assert grown < LIMIT, f"grown by {grown / MIB:.1f} MiB"


PROGRAMS = {program.__name__: program for program in (numpy_verbs, torch_layers, hundred_thousand_calls)}

if __name__ == "__main__":
    engine.set_threads(1)  # other threads would only wait for processors here
    PROGRAMS[sys.argv[1]]()
