"""Tensors that several tests of the layers draw."""

from typing import Any


def normal(*shape: int, seed: int = 0, dtype: Any = None) -> Any:
    """Normal numbers, the same for the same seed. torch is imported here: it may not be installed."""
    import torch

    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype or torch.float32)
