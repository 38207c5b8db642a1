"""The table: which case is measured against whom, and what has to be reached."""

from __future__ import annotations

from bench.peers import (
    GATHER,
    JAX,
    NUMPY,
    TORCH,
    TORCH_COMPILED,
    TORCH_UNMASKED,
    TRUENORM,
    WHERE,
    WHERE_COMPILED,
)
from bench.problem import Case, Kind
from bench.suite import Suite


def _ragged_batch() -> Suite:
    return Suite(
        name="batch-ragged",
        title="batch norm, 64x512x256, lengths uniform in 1..512",
        case=Case("batch", (64, 512, 256), ragged=True, seed=3),
        implementations=(TRUENORM, GATHER, WHERE_COMPILED, TORCH_UNMASKED, WHERE, JAX, NUMPY),
        baseline=GATHER.name,
        targets={GATHER.name: 5.0, WHERE_COMPILED.name: 3.5, TORCH_UNMASKED.name: 2.0},
    )


def _ragged_samples(kind: Kind, title: str) -> Suite:
    return Suite(
        name=f"{kind}-ragged",
        title=f"{title}, 32x256x2000 channels second, lengths uniform in 1..2000",
        case=Case(kind, (32, 256, 2000), channels="second", ragged=True, groups=8, seed=3),
        implementations=(TRUENORM, WHERE, WHERE_COMPILED, TORCH_UNMASKED, JAX, NUMPY),
        baseline=WHERE.name,
        targets={WHERE.name: 6.0},
    )


def _whole(kind: Kind, shape: tuple[int, int], target: float, title: str) -> Suite:
    size = "x".join(map(str, shape))
    return Suite(
        name=f"{kind}-{size}",
        title=f"{title}, {size}",
        case=Case(kind, shape, seed=3),
        implementations=(TRUENORM, TORCH, TORCH_COMPILED, JAX, NUMPY),
        baseline=TORCH.name,
        targets={TORCH.name: target},
    )


SUITES = (
    _ragged_batch(),
    _ragged_samples("group", "group norm (8)"),
    _ragged_samples("instance", "instance norm"),
    _whole("rms", (8192, 768), 4.0, "RMS norm"),
    *(_whole("layer", shape, 1.1, "layer norm") for shape in ((1024, 256), (8192, 512), (32768, 512))),
    *(_whole("batch", shape, 1.1, "batch norm") for shape in ((1024, 256), (8192, 512), (32768, 512))),
    # Arrays of 13 kB: what a call costs beside its arithmetic. torch starts from tensors, truenorm from NumPy arrays.
    _whole("batch", (32, 100), 5.0, "batch norm"),
)
