"""The suites: which cases are measured, and against which implementations."""

from __future__ import annotations

from bench.inputs import Case, Kind
from bench.peers import (
    GATHER,
    JAX,
    NUMPY,
    TORCH,
    TORCH_COMPILED,
    TORCH_WITH_PADDING,
    TRUENORM,
    WHERE,
    WHERE_COMPILED,
)
from bench.suite import Suite


def _padded_batch() -> Suite:
    return Suite(
        name="batch-ragged",
        title="batch norm, 64x512x256, lengths uniform in 1..512",
        case=Case("batch", (64, 512, 256), ragged=True, seed=3),
        implementations=(TRUENORM, GATHER, WHERE_COMPILED, TORCH_WITH_PADDING, WHERE, JAX, NUMPY),
        baseline=GATHER.name,
        compared_with=(GATHER.name, WHERE_COMPILED.name, TORCH_WITH_PADDING.name),
    )


def _padded_samples(kind: Kind, title: str) -> Suite:
    return Suite(
        name=f"{kind}-ragged",
        title=f"{title}, 32x256x2000 channels second, lengths uniform in 1..2000",
        case=Case(kind, (32, 256, 2000), channels="second", ragged=True, groups=8, seed=3),
        implementations=(TRUENORM, WHERE, WHERE_COMPILED, TORCH_WITH_PADDING, JAX, NUMPY),
        baseline=WHERE.name,
        compared_with=(WHERE.name,),
    )


def _unpadded(kind: Kind, shape: tuple[int, int], title: str) -> Suite:
    size = "x".join(map(str, shape))
    return Suite(
        name=f"{kind}-{size}",
        title=f"{title}, {size}",
        case=Case(kind, shape, seed=3),
        implementations=(TRUENORM, TORCH, TORCH_COMPILED, JAX, NUMPY),
        baseline=TORCH.name,
        compared_with=(TORCH.name,),
    )


SUITES = (
    _padded_batch(),
    _padded_samples("group", "group norm (8)"),
    _padded_samples("instance", "instance norm"),
    _unpadded("rms", (8192, 768), "RMS norm"),
    *(_unpadded("layer", shape, "layer norm") for shape in ((1024, 256), (8192, 512), (32768, 512))),
    *(_unpadded("batch", shape, "batch norm") for shape in ((1024, 256), (8192, 512), (32768, 512))),
    # 13 kB: most of the time is call overhead. torch is given tensors, truenorm NumPy arrays.
    _unpadded("batch", (32, 100), "batch norm"),
)
