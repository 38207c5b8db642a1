"""torch's normalization layers with these arguments more: `layer(x, valid, lengths, offsets, segments, sample_weight)`.

Each subclasses torch's own: constructor, attributes, `state_dict` and errors are torch's, and without the new
arguments so are the numbers. The differences, and the reasons for them, are listed in docs/torch.md. The options
padding, on_single, half_life and activation are described in `_documentation.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from truenorm.core.activation import Activation
from truenorm.core.inputs import Padding
from truenorm.torch import _norms, _running, _runs
from truenorm.torch._batch_checks import refuse_features
from truenorm.torch._documentation import documented
from truenorm.torch._half_life import HalfLifeOption
from truenorm.torch._inputs import Input, LengthsLike, MaskLike, VectorLike, WeightLike, unpack, with_batch_axis
from truenorm.torch._layer_bases import _RaggedLayer, _TrackingLayer
from truenorm.torch._norms import NormPair
from truenorm.torch._pooled import Exchange
from truenorm.torch._runs import OnSingle
from truenorm.torch._torch_sync import RefusesTorchSync
from truenorm.torch._traced_call import Proxy, record_call


class _BatchNorm(RefusesTorchSync, HalfLifeOption, _TrackingLayer):
    on_single: OnSingle = "error"
    _exchange: Exchange | None = None  # how `sync` and `together` share the statistics
    _stage: Exchange | None = None  # how `accumulate` and `reestimate` collect them, after that

    def _make_norms(self) -> NormPair:
        return _norms.batch_norms(self.eps, self.activation)

    def __init__(
        self,
        *args: Any,
        padding: Padding = "zero",
        on_single: OnSingle = "error",
        activation: Activation | None = None,
        **kwargs: Any,
    ) -> None:
        _runs.check_options(padding, on_single, activation)
        super().__init__(*args, **kwargs)
        self.padding, self.on_single, self.activation = padding, on_single, activation
        self._skip_counter()

    def _weight_of_batch(self, counter: Tensor | None) -> Any:
        return self._weight_by_half_life() or super()._weight_of_batch(counter)

    @documented
    def forward(
        self,
        input: Input,
        valid: MaskLike | None = None,
        lengths: LengthsLike | None = None,
        offsets: VectorLike | None = None,
        segments: VectorLike | None = None,
        sample_weight: WeightLike | None = None,
        *,
        along: int | str | None = None,
    ) -> Input:
        """The normalized input, in its own form: a tensor, a jagged tensor or a PackedSequence.

        Args:
            input: (b, c) or (b, c, ...); packed rows (rows, c); jagged; PackedSequence
            valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        """
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along)
        if not unpacked.packed:
            self._check_input_dim(unpacked.x)
        weight, bias, mean, var, counter = self._state()
        training, tracking = self.training and not self.frozen, self.track_running_stats
        used = tracking or not training
        y: Any
        y, done = _runs.run_batch_norm(
            unpacked,
            mean if used else None,
            var if used else None,
            weight,
            bias,
            training or (mean is None and var is None),
            0.0
            if not training
            else self.momentum
            if self.momentum is not None and self.half_life is None
            else self._weight_of_batch(counter),
            self.eps,
            self.padding,
            self.on_single,
            counter if training and tracking else None,
            self._norms,
            None
            if not training or (exchange := self._stage or self._exchange) is None or not exchange.is_active()
            else exchange,
            self._skip_counter if training and tracking else None,
        )
        if done == _running.NOT_FINITE:
            self.skipped_batches += 1
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found


@documented
class BatchNorm1d(_BatchNorm, nn.BatchNorm1d):
    """torch's BatchNorm1d, with the statistics of the valid values only.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: truenorm's own

    Shape: (b, c), (b, c, t); packed rows (rows, c); jagged (b, c, t) or (b, t, c); PackedSequence

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> x = torch.tensor([[[2.0, 4.0, 0.0, 0.0]], [[1.0, 5.0, 2.0, 10.0]]])  # (b, c, t); lengths 2 and 4
        >>> tnt.BatchNorm1d(1)(x, lengths=torch.tensor([2, 4]))[1].data  # mean 4, deviation 3
        tensor([[-1.0000,  0.3333, -0.6667,  2.0000]])
    """


@documented
class BatchNorm2d(_BatchNorm, nn.BatchNorm2d):
    """torch's BatchNorm2d, with the statistics of the valid values only.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: truenorm's own

    Shape: (b, c, h, w); packed rows (rows, c)

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> spectrograms = torch.randn(2, 3, 80, 100)  # (b, c, f, t), padded in time
        >>> y = tnt.BatchNorm2d(3)(spectrograms, lengths=torch.tensor([100, 60]), along=3)
        >>> bool(y[1, :, :, 60:].any())
        False
    """


@documented
class BatchNorm3d(_BatchNorm, nn.BatchNorm3d):
    """torch's BatchNorm3d, with the statistics of the valid values only.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, on_single, half_life, activation: truenorm's own

    Shape: (b, c, d, h, w); packed rows (rows, c)

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> videos = torch.randn(2, 3, 8, 5, 5)  # (b, c, frames, h, w)
        >>> y = tnt.BatchNorm3d(3)(videos, lengths=torch.tensor([8, 6]), along=2)
        >>> bool(y[1, :, 6:].any())
        False
    """


class _InstanceNorm(_TrackingLayer):
    _get_no_batch_dim: Callable[[], int]

    def _make_norms(self) -> Any:
        return _norms.instance_norms(self.eps, self.activation), _norms.batch_norms(self.eps, self.activation)

    def __init__(
        self, *args: Any, padding: Padding = "zero", activation: Activation | None = None, **kwargs: Any
    ) -> None:
        _runs.check_options(padding, activation=activation)
        super().__init__(*args, **kwargs)
        self.padding, self.activation = padding, activation
        self._skip_counter()

    @documented
    def forward(
        self,
        input: Input,
        valid: MaskLike | None = None,
        lengths: LengthsLike | None = None,
        offsets: VectorLike | None = None,
        segments: VectorLike | None = None,
        sample_weight: WeightLike | None = None,
        *,
        along: int | str | None = None,
    ) -> Input:
        """The normalized input, in its own form: a tensor, a jagged tensor or a PackedSequence.

        Args:
            input: (b, c, ...) or (c, ...); packed rows (rows, c); jagged; PackedSequence
            valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        """
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along, sequences=True)
        x, unbatched = unpacked.x, False
        if unpacked.packed:
            if x.shape[-1] != self.num_features:
                raise ValueError(
                    f"expected input's size at dim=1 to match num_features"
                    f" ({self.num_features}), but got: {x.shape[-1]}."
                )
        else:
            self._check_input_dim(x)
            axis = x.dim() - self._get_no_batch_dim()
            unbatched = axis == 0
            if x.size(axis) != self.num_features:
                refuse_features(self.num_features, self.affine, x, axis)
        if unbatched:
            unpacked = with_batch_axis(unpacked)
        weight, bias, mean, var, _ = self._state()
        training = self.training and not self.frozen
        norms, fixed_norms = self._norms
        y: Any
        y, done = _runs.run_instance_norm(
            unpacked,
            mean,
            var,
            weight,
            bias,
            training or not self.track_running_stats,
            self.momentum if self.momentum is not None else 0.0,
            self.eps,
            self.padding,
            norms,
            fixed_norms,
            self._skip_counter if training and self.track_running_stats else None,
        )
        if done == _running.NOT_FINITE and training and self.track_running_stats:
            self.skipped_batches += 1
        if unbatched:
            y = y.squeeze(0)
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found


@documented
class InstanceNorm1d(_InstanceNorm, nn.InstanceNorm1d):
    """torch's InstanceNorm1d: each sample and channel by itself, over its valid positions.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, activation: truenorm's own

    Shape: (b, c, t), (c, t); packed rows (rows, c); jagged; PackedSequence

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> x, norm = torch.randn(2, 3, 9), tnt.InstanceNorm1d(3)
        >>> torch.allclose(norm(x, lengths=[9, 4])[1, :, :4], norm(x[1:, :, :4])[0], atol=1e-6)
        True
    """


@documented
class InstanceNorm2d(_InstanceNorm, nn.InstanceNorm2d):
    """torch's InstanceNorm2d: each sample and channel by itself, over its valid positions.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, activation: truenorm's own

    Shape: (b, c, h, w), (c, h, w); packed rows (rows, c)

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> images, heights, widths = torch.randn(2, 3, 5, 7), torch.tensor([5, 2]), torch.tensor([4, 7])
        >>> y = tnt.InstanceNorm2d(3)(images, lengths=(heights, widths))
        >>> bool(y[0, :, :, 4:].any()), bool(y[1, :, 2:].any())
        (False, False)
    """


@documented
class InstanceNorm3d(_InstanceNorm, nn.InstanceNorm3d):
    """torch's InstanceNorm3d: each sample and channel by itself, over its valid positions.

    Args:
        num_features, eps, momentum, affine, track_running_stats, device, dtype, bias: as torch's
        padding, activation: truenorm's own

    Shape: (b, c, d, h, w), (c, d, h, w); packed rows (rows, c)

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> y = tnt.InstanceNorm3d(3)(torch.randn(2, 3, 8, 5, 5), lengths=torch.tensor([8, 6]), along=2)
        >>> bool(y[1, :, 6:].any())
        False
    """


@documented
class GroupNorm(_RaggedLayer, nn.GroupNorm):
    """torch's GroupNorm: each sample by itself, over its valid positions and the channels of a group.

    Args:
        num_groups, num_channels, eps, affine, device, dtype, bias: as torch's
        padding, activation: truenorm's own

    Shape: (b, c, ...); packed rows (rows, c); jagged; PackedSequence

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> x, norm = torch.randn(2, 4, 9), tnt.GroupNorm(2, 4)
        >>> torch.allclose(norm(x, lengths=[9, 5])[1, :, :5], norm(x[1:, :, :5])[0], atol=1e-6)
        True
    """

    def __init__(
        self, *args: Any, padding: Padding = "zero", activation: Activation | None = None, **kwargs: Any
    ) -> None:
        _runs.check_options(padding, activation=activation)
        super().__init__(*args, **kwargs)
        self.padding, self.activation = padding, activation

    @documented
    def forward(
        self,
        input: Input,
        valid: MaskLike | None = None,
        lengths: LengthsLike | None = None,
        offsets: VectorLike | None = None,
        segments: VectorLike | None = None,
        sample_weight: WeightLike | None = None,
        *,
        along: int | str | None = None,
    ) -> Input:
        """The normalized input, in its own form: a tensor, a jagged tensor or a PackedSequence.

        Args:
            input: (b, c, ...); packed rows (rows, c); jagged; PackedSequence
            valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        """
        if isinstance(input, Proxy):
            return record_call(self, input, valid, lengths, offsets, segments, sample_weight, along=along)
        unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along, sequences=True)
        weight, bias = self._affine()
        y: Any = _runs.run_group_norm(unpacked, self.num_groups, weight, bias, self.eps, self.padding, self._norms)
        found: Input = y if unpacked.repack is None else unpacked.repack(y)
        return found

    def _make_norms(self) -> Any:
        return _norms.group_norms(self.num_groups, self.eps, self.activation)
