"""torch's lazy layers: the number of channels comes from the first input, in any form."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedBuffer

from truenorm.torch._half_life import VALUES
from truenorm.torch._inputs import unpack
from truenorm.torch.layers import (
    BatchNorm1d,
    BatchNorm2d,
    BatchNorm3d,
    InstanceNorm1d,
    InstanceNorm2d,
    InstanceNorm3d,
    _BatchNorm,
    _InstanceNorm,
)


class _Lazy:
    _buffers: dict[str, Any]

    def initialize_parameters(self, input: Any, *_: Any, **__: Any) -> None:
        module: Any = super()
        x = unpack(input).x
        values = self._buffers.get(VALUES)
        if isinstance(values, UninitializedBuffer):  # torch knows only its own
            values.materialize((x.shape[1],))
            values.zero_()
        module.initialize_parameters(x)


class LazyBatchNorm1d(_Lazy, _BatchNorm, nn.LazyBatchNorm1d):
    """torch's LazyBatchNorm1d: it becomes a BatchNorm1d at its first call."""

    cls_to_become = BatchNorm1d


class LazyBatchNorm2d(_Lazy, _BatchNorm, nn.LazyBatchNorm2d):
    """torch's LazyBatchNorm2d: it becomes a BatchNorm2d at its first call."""

    cls_to_become = BatchNorm2d


class LazyBatchNorm3d(_Lazy, _BatchNorm, nn.LazyBatchNorm3d):
    """torch's LazyBatchNorm3d: it becomes a BatchNorm3d at its first call."""

    cls_to_become = BatchNorm3d


class LazyInstanceNorm1d(_Lazy, _InstanceNorm, nn.LazyInstanceNorm1d):
    """torch's LazyInstanceNorm1d: it becomes an InstanceNorm1d at its first call."""

    cls_to_become = InstanceNorm1d


class LazyInstanceNorm2d(_Lazy, _InstanceNorm, nn.LazyInstanceNorm2d):
    """torch's LazyInstanceNorm2d: it becomes an InstanceNorm2d at its first call."""

    cls_to_become = InstanceNorm2d


class LazyInstanceNorm3d(_Lazy, _InstanceNorm, nn.LazyInstanceNorm3d):
    """torch's LazyInstanceNorm3d: it becomes an InstanceNorm3d at its first call."""

    cls_to_become = InstanceNorm3d
