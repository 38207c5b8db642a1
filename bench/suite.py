"""A suite: inputs, implementations, a validator, and the baseline that ratios are told against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bench.oracle import Expected
from bench.problem import Array, Case, Problem

# How many roundings of float32 an implementation may be off: see `validate`.
ROUNDINGS = 64
OURS = "truenorm"
COPY_SHARE = 0.7
GRADIENTS = ("y", "dx", "dweight", "dbias")


@dataclass(frozen=True)
class Run:
    """An implementation bound to its inputs, so that nothing is left to prepare inside the clock.

    forward    returns y
    both       forward and backward: returns y, dx, dweight and dbias (None for RMS norm)
    to_numpy   reads what they returned; outside the clock
    """

    forward: Callable[[], Any]
    both: Callable[[], tuple[Any, Any, Any, Any]]
    to_numpy: Callable[[Any], Array] = np.asarray


@dataclass(frozen=True)
class Implementation:
    """A name and a way to bind it; `masked=False` says that it takes padding for data, and is judged by that."""

    name: str
    bind: Callable[[Problem], Run]
    masked: bool = True


@dataclass(frozen=True)
class Suite:
    """One row of results.

    baseline   the implementation that every other one's ratio is told against
    targets    how many times faster than each of these truenorm has to be, forward and backward
    """

    name: str
    title: str
    case: Case
    implementations: tuple[Implementation, ...]
    baseline: str
    targets: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        names = [implementation.name for implementation in self.implementations]
        unknown = {OURS, self.baseline, *self.targets} - set(names)
        if unknown or len(set(names)) < len(names):
            raise ValueError(f"Suite {self.name}: each name once, and {sorted(unknown)} among them, got {names}.")

    def named_only(self) -> Suite:
        """The same suite with truenorm and the peers that a target or the baseline names."""
        named = {OURS, self.baseline, *self.targets}
        kept = tuple(one for one in self.implementations if one.name in named)
        return Suite(self.name, self.title, self.case, kept, self.baseline, self.targets)


def validate(run: Run, expected: Mapping[str, Expected]) -> list[str]:
    """What is wrong with an implementation: values, dtypes, shapes; empty if nothing is.

    Errors are counted in roundings of float32 (1.2e-7), relative to the largest value of y and dx, and to the summed
    sizes of the terms of dweight and dbias. Measured on 32768 rows: JAX 2, torch's batch norm 18, NumPy 27, which
    add rows one by one; n - 1 for n in the variance, the smallest mistake, 128.
    """
    found = dict(zip(GRADIENTS, run.both(), strict=True)) | {"y of forward alone": run.forward()}
    wrong = []
    for name, value in found.items():
        want = expected.get(name.split()[0])
        if want is None or value is None:
            if (want is None) != (value is None):
                wrong.append(f"{name}: {'missing' if value is None else 'not asked for'}")
            continue
        got = run.to_numpy(value)
        if got.dtype != np.float32 or got.shape != want.value.shape:
            wrong.append(f"{name}: float32 {want.value.shape}, got {got.dtype} {got.shape}")
            continue
        roundings = np.max(abs(got - want.value) / want.scale) / np.finfo(np.float32).eps
        if not roundings <= ROUNDINGS:  # NaN is wrong too
            wrong.append(f"{name}: at most {ROUNDINGS} roundings from the float64 oracle, got {roundings:.3g}")
    return wrong
