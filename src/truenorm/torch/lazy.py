"""torch's lazy layers: the number of channels comes from the first input, in any form."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.parameter import UninitializedBuffer

from truenorm.torch._documentation import documented
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
        """Called by torch with the first input."""
        module: Any = super()
        x = unpack(input).x
        values = self._buffers.get(VALUES)
        if isinstance(values, UninitializedBuffer):  # torch knows only its own
            values.materialize((x.shape[1],))
            values.zero_()
        module.initialize_parameters(x)


@documented
class LazyBatchNorm1d(_Lazy, _BatchNorm, nn.LazyBatchNorm1d):
    """torch's LazyBatchNorm1d: it becomes a `BatchNorm1d` at its first call, which shows the number of channels.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.LazyBatchNorm1d()
        >>> y = layer(torch.randn(2, 4, 9))
        >>> type(layer) is tnt.BatchNorm1d, layer.num_features
        (True, 4)
    """

    cls_to_become = BatchNorm1d


@documented
class LazyBatchNorm2d(_Lazy, _BatchNorm, nn.LazyBatchNorm2d):
    """torch's LazyBatchNorm2d: it becomes a `BatchNorm2d` at its first call, which shows the number of channels.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.LazyBatchNorm2d()
        >>> y = layer(torch.randn(2, 4, 5, 7))
        >>> type(layer) is tnt.BatchNorm2d, layer.num_features
        (True, 4)
    """

    cls_to_become = BatchNorm2d


@documented
class LazyBatchNorm3d(_Lazy, _BatchNorm, nn.LazyBatchNorm3d):
    """torch's LazyBatchNorm3d: it becomes a `BatchNorm3d` at its first call, which shows the number of channels.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.LazyBatchNorm3d()
        >>> y = layer(torch.randn(2, 4, 3, 5, 7))
        >>> type(layer) is tnt.BatchNorm3d, layer.num_features
        (True, 4)
    """

    cls_to_become = BatchNorm3d


@documented
class LazyInstanceNorm1d(_Lazy, _InstanceNorm, nn.LazyInstanceNorm1d):
    """torch's LazyInstanceNorm1d: it becomes an `InstanceNorm1d` at its first call, which shows the number of channels.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.LazyInstanceNorm1d()
        >>> y = layer(torch.randn(2, 4, 9))
        >>> type(layer) is tnt.InstanceNorm1d, layer.num_features
        (True, 4)
    """

    cls_to_become = InstanceNorm1d


@documented
class LazyInstanceNorm2d(_Lazy, _InstanceNorm, nn.LazyInstanceNorm2d):
    """torch's LazyInstanceNorm2d: it becomes an `InstanceNorm2d` at its first call, which shows the number of channels.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.LazyInstanceNorm2d()
        >>> y = layer(torch.randn(2, 4, 5, 7))
        >>> type(layer) is tnt.InstanceNorm2d, layer.num_features
        (True, 4)
    """

    cls_to_become = InstanceNorm2d


@documented
class LazyInstanceNorm3d(_Lazy, _InstanceNorm, nn.LazyInstanceNorm3d):
    """torch's LazyInstanceNorm3d: it becomes an `InstanceNorm3d` at its first call, which shows the number of channels.

    Args:
        eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> layer = tnt.LazyInstanceNorm3d()
        >>> y = layer(torch.randn(2, 4, 3, 5, 7))
        >>> type(layer) is tnt.InstanceNorm3d, layer.num_features
        (True, 4)
    """

    cls_to_become = InstanceNorm3d
