"""Correct calls of the compiled plans: their sizes, and arrays for every argument. Tests and the fuzzer change them."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from truenorm import _native

Array = np.ndarray[Any, Any]
STORED = {"float32": np.float32, "float64": np.float64, "float16": np.float16, "bfloat16": np.uint16}
RAGGED = ("lengths", "starts", "valid", "sample_weight")


@dataclass(frozen=True)
class Sizes:
    """The sizes of a plan. `runs`: outer, reduced, kept, channels, positions."""

    layout: str
    runs: tuple[int, int, int, int, int]
    sequences: int
    extent: int

    @property
    def rows(self) -> int:
        return self.sequences * self.extent

    @property
    def width(self) -> int:
        return self.runs[2] * self.runs[3]

    @property
    def statistics(self) -> int:
        return self.runs[0] * self.runs[2]

    def plan(
        self, dtype: str = "float32", *, center: bool = True, ddof: int = 0, eps: float = 1e-5, outside: bool = False
    ) -> _native.Plan:
        return _native.Plan(
            self.layout,
            list(self.runs),
            self.sequences,
            self.extent,
            dtype,
            center=center,
            ddof=ddof,
            eps=eps,
            eps_outside=outside,
        )


def columns(outer: int, each: int, extent: int, kept: int, channels: int = 1) -> Sizes:
    """x[outer][each][extent][kept][channels]: a statistic for each outer and kept."""
    return Sizes("columns", (outer, each * extent, kept, channels, 1), outer * each, extent)


def rows(sequences: int, extent: int, channels: int, kept: int = 1) -> Sizes:
    """x[sequences][extent][kept][channels]: a statistic for each row and kept."""
    return Sizes("rows", (sequences * extent, 1, kept, channels, 1), sequences, extent)


def planes(outer: int, reduced: int, kept: int, channels: int, positions: int) -> Sizes:
    """x[outer][reduced][kept][channels][positions]: a statistic for each outer and kept."""
    return Sizes("planes", (outer, reduced, kept, channels, positions), outer * reduced, positions)


def to_bfloat16(values: Array) -> Array:
    """As bfloat16, cut off and not rounded: any such numbers will do."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)


def from_bfloat16(bits: Array) -> Array:
    return (bits.astype(np.uint32) << 16).view(np.float32)


def stored(values: Array, dtype: str) -> Array:
    return to_bfloat16(values) if dtype == "bfloat16" else values.astype(STORED[dtype])


def arguments(
    verb: str, sizes: Sizes, dtype: str = "float32", rng: np.random.Generator | None = None, *, rows: int | None = None
) -> dict[str, Any]:
    """What a call takes, all of it right and everything valid. `rows`: so many, packed."""
    rng = rng or np.random.default_rng(0)
    size = (sizes.rows if rows is None else rows) * sizes.width
    ragged = dict.fromkeys(RAGGED)
    x = stored(rng.normal(3.0, 1.5, size), dtype)
    moments = rng.uniform(2.0, 9.0, 3 * sizes.statistics)
    weight = rng.uniform(0.4, 2.3, sizes.width)
    if verb == "measure":
        return {"x": x, "moments": moments} | ragged
    if verb == "forward":
        bias = rng.normal(size=sizes.width).astype(np.float32)
        first = {"x": x, "y": np.zeros_like(x), "moments": moments, "weight": weight, "bias": bias}
        return first | ragged | {"keep_padding": False, "given": False}
    first = {"x": x, "dy": stored(rng.normal(0.3, 1.0, size), dtype), "dx": np.zeros_like(x), "moments": moments}
    sums = {"sums": rng.normal(size=2 * sizes.statistics)}
    sums |= {"dweight": np.zeros(sizes.width), "dbias": np.zeros(sizes.width)}
    return first | {"weight": weight} | sums | ragged | {"keep_padding": False, "given": False, "constant": False}


def outputs(verb: str, taken: dict[str, Any]) -> tuple[str, ...]:
    """What a call writes."""
    if verb == "measure":
        return ("moments",)
    if verb == "forward":
        return ("y",) if taken["given"] is True else ("y", "moments")
    return ("dx",) if taken["given"] is True else ("dx", "sums", "dweight", "dbias")
