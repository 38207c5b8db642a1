"""A suite: one case, the implementations that compute it, and the check of their results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from bench.inputs import Array, Case, Inputs
from bench.oracle import Expected

# The largest error that `validate` accepts, in roundings of float32.
ROUNDINGS = 64
OURS = "truenorm"
RESULTS = ("y", "dx", "dweight", "dbias")


@dataclass(frozen=True)
class Run:
    """An implementation bound to its inputs. Everything that can be prepared is done before timing.

    forward    returns y
    both       forward and backward: returns y, dx, dweight and dbias (None for RMS norm)
    to_numpy   converts a result; not timed
    """

    forward: Callable[[], Any]
    both: Callable[[], tuple[Any, Any, Any, Any]]
    to_numpy: Callable[[Any], Array] = np.asarray


@dataclass(frozen=True)
class Implementation:
    """A name and a function that binds it. One with `ignores_padding=False` must count padding as data."""

    name: str
    bind: Callable[[Inputs], Run]
    ignores_padding: bool = True


@dataclass(frozen=True)
class Suite:
    """A case and the implementations that are timed on it.

    baseline        the implementation whose time the others' speeds are relative to
    compared_with   the peers in the published tables, forward and backward
    """

    name: str
    title: str
    case: Case
    implementations: tuple[Implementation, ...]
    baseline: str
    compared_with: tuple[str, ...]

    def __post_init__(self) -> None:
        names = [implementation.name for implementation in self.implementations]
        unknown = {OURS, self.baseline, *self.compared_with} - set(names)
        if unknown:
            raise ValueError(f"Suite {self.name}: implementations must contain {sorted(unknown)}, got {names}.")
        if len(set(names)) < len(names):
            raise ValueError(f"Suite {self.name}: names of implementations must differ, got {names}.")

    def published_only(self) -> Suite:
        """The same suite with truenorm, the baseline and the peers of the published tables."""
        names = {OURS, self.baseline, *self.compared_with}
        return replace(self, implementations=tuple(one for one in self.implementations if one.name in names))


def validate(run: Run, expected: Mapping[str, Expected]) -> list[str]:
    """The mistakes of an implementation in values, dtypes and shapes; an empty list if there are none.

    Errors are counted in roundings of float32 (1.2e-7), relative to the largest value of y and dx, and to the summed
    magnitudes of the terms of dweight and dbias. Measured on 32768 rows: JAX 2; torch's batch norm 18 and NumPy 27,
    which add rows one by one. The smallest mistake, n - 1 for n in the variance, gives 128.
    """
    found = dict(zip(RESULTS, run.both(), strict=True)) | {"y of forward alone": run.forward()}
    wrong = []
    for name, value in found.items():
        want = expected.get(name.split()[0])
        if want is None or value is None:
            if (want is None) != (value is None):
                wrong.append(f"{name}: {'missing' if value is None else 'not expected'}")
            continue
        got = run.to_numpy(value)
        if got.dtype != np.float32 or got.shape != want.value.shape:
            wrong.append(f"{name}: float32 {want.value.shape}, got {got.dtype} {got.shape}")
            continue
        roundings = np.max(abs(got - want.value) / want.scale) / np.finfo(np.float32).eps
        if not roundings <= ROUNDINGS:  # NaN is wrong too
            wrong.append(f"{name}: at most {ROUNDINGS} roundings from the float64 oracle, got {roundings:.3g}")
    return wrong
