"""`torch.nn.functional`'s normalizations, with torch's signatures and these arguments more:

    valid=          booleans: x without its channel axis, or the rank of x
    lengths=        (b,): the first lengths[b] positions of sample b are valid; or one vector for each position axis
    offsets=        x is packed, (rows, c): sample i is the rows offsets[i] to offsets[i + 1]
    segments=       x is packed, (rows, c): rows with the same id are one sample
    sample_weight=  how often a position counts in the statistics
    along=          the axis that lengths run along, if there are several

At most one of the first four. `input` may also be a nested tensor (jagged) or a PackedSequence; the result has the same
form. Without any of this they compute what torch computes: on the CPU with the compiled kernels, elsewhere with torch's
own operators.

Each function unpacks its input and calls that of `_runs.py`, as the layer does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from truenorm.core.activation import Activation
from truenorm.core.inputs import Padding
from truenorm.torch import _runs
from truenorm.torch._documentation import documented
from truenorm.torch._inputs import Input, LengthsLike, MaskLike, UnpackedInput, VectorLike, WeightLike, unpack
from truenorm.torch._norms import batch_norms, group_norms, instance_norms, rms_norms, row_norm
from truenorm.torch._residual import normalize_sum
from truenorm.torch._runs import OnSingle, check_options

__all__ = ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]


@documented
def batch_norm(
    input: Input,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    valid: MaskLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: VectorLike | None = None,
    segments: VectorLike | None = None,
    sample_weight: WeightLike | None = None,
    along: int | str | None = None,
    padding: Padding = "zero",
    on_single: OnSingle = "error",
    activation: Activation | None = None,
) -> Input:
    """Batch normalization over the valid values of each channel.

    Args:
        input: (b, c) or (b, c, ...); packed rows (rows, c); jagged; PackedSequence
        running_mean, running_var: both or neither, of shape (c,)
        weight: (c,), or None
        bias: (c,), or None
        training: use the statistics of the batch, and update the running ones in place
        momentum: the weight of the batch in this update
        eps: added to the variance
        valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        padding, on_single, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> x = torch.tensor([[[1.0, 3.0]], [[5.0, float("nan")]]])  # (b, c, t)
        >>> tnt.functional.batch_norm(x, None, None, training=True, lengths=[2, 1]).flatten()
        tensor([-1.2247,  0.0000,  1.2247,  0.0000])
    """
    check_options(padding, on_single, activation)
    unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along)
    y, _ = _runs.run_batch_norm(
        unpacked,
        running_mean,
        running_var,
        weight,
        bias,
        training,
        momentum,
        eps,
        padding,
        on_single,
        None,
        batch_norms(eps, activation),
    )
    found: Input = _repack(unpacked, y)
    return found


@documented
def layer_norm(
    input: Input,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    valid: MaskLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: VectorLike | None = None,
    segments: VectorLike | None = None,
    sample_weight: WeightLike | None = None,
    along: int | str | None = None,
    padding: Padding = "zero",
    activation: Activation | None = None,
    residual: Input | None = None,
) -> Any:
    """Layer normalization of each position over its last axes.

    Args:
        input: (..., normalized_shape); packed rows (rows, c); jagged; PackedSequence
        normalized_shape: the sizes of the last axes
        weight: of normalized_shape, or None
        bias: of normalized_shape, or None
        eps: added to the variance
        valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        padding, activation: truenorm's own
        residual: added to the input before it is normalized, in its form; the result is then a pair, with the sum

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> x = torch.tensor([[[1.0, 3.0], [float("nan"), 0.0]]])  # (b, t, c)
        >>> tnt.functional.layer_norm(x, (2,), lengths=[1])
        tensor([[[-1.0000,  1.0000],
                 [ 0.0000,  0.0000]]])
    """
    check_options(padding, activation=activation)
    shape = tuple(normalized_shape)
    norms = row_norm(len(shape), eps, True, activation)

    def unpacked(x: Input) -> UnpackedInput:
        return unpack(x, valid, lengths, offsets, segments, sample_weight, along, rows_only=True)

    def run(x: UnpackedInput) -> Tensor:
        return _runs.run_layer_norm(x, shape, weight, bias, eps, padding, norms)

    if residual is not None:
        return normalize_sum(input, residual, unpacked, run, norms, weight, bias, padding, shape)
    plain = unpacked(input)
    return _repack(plain, run(plain))


@documented
def rms_norm(
    input: Input,
    normalized_shape: Sequence[int],
    weight: Tensor | None = None,
    eps: float | None = None,
    *,
    valid: MaskLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: VectorLike | None = None,
    segments: VectorLike | None = None,
    sample_weight: WeightLike | None = None,
    along: int | str | None = None,
    padding: Padding = "zero",
    activation: Activation | None = None,
    residual: Input | None = None,
) -> Any:
    """RMS normalization of each position over its last axes.

    Args:
        input: (..., normalized_shape); packed rows (rows, c); jagged; PackedSequence
        normalized_shape: the sizes of the last axes
        weight: of normalized_shape, or None
        eps: added to the mean square; None: torch's choice, which depends on the dtype
        valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        padding, activation: truenorm's own
        residual: added to the input before it is normalized, in its form; the result is then a pair, with the sum

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> tnt.functional.rms_norm(torch.tensor([[[3.0, 4.0], [float("nan"), 0.0]]]), (2,), lengths=[1])
        tensor([[[0.8485, 1.1314],
                 [0.0000, 0.0000]]])
    """
    check_options(padding, activation=activation)
    shape = tuple(normalized_shape)
    norms = rms_norms(len(shape), eps, activation)

    def unpacked(x: Input) -> UnpackedInput:
        return unpack(x, valid, lengths, offsets, segments, sample_weight, along, rows_only=True)

    def run(x: UnpackedInput) -> Tensor:
        return _runs.run_rms_norm(x, shape, weight, None, eps, padding, norms)

    if residual is not None:
        own = _runs.rms_norms_of(input, norms)
        return normalize_sum(input, residual, unpacked, run, own, weight, None, padding, shape)
    plain = unpacked(input)
    return _repack(plain, run(plain))


@documented
def group_norm(
    input: Input,
    num_groups: int,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    eps: float = 1e-5,
    *,
    valid: MaskLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: VectorLike | None = None,
    segments: VectorLike | None = None,
    sample_weight: WeightLike | None = None,
    along: int | str | None = None,
    padding: Padding = "zero",
    activation: Activation | None = None,
) -> Input:
    """Group normalization of each sample, over its valid positions and the channels of a group.

    Args:
        input: (b, c, ...); packed rows (rows, c); jagged; PackedSequence
        num_groups: it divides the number of channels
        weight: (c,), or None
        bias: (c,), or None
        eps: added to the variance
        valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        padding, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> rows = torch.tensor([[1.0, 3.0], [5.0, 3.0], [7.0, 9.0]])  # (rows, c): two samples, of two rows and one
        >>> tnt.functional.group_norm(rows, 1, offsets=[0, 2, 3])[:, 0]
        tensor([-1.4142,  1.4142, -1.0000])
    """
    check_options(padding, activation=activation)
    unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along, sequences=True)
    y = _runs.run_group_norm(unpacked, num_groups, weight, bias, eps, padding, group_norms(num_groups, eps, activation))
    found: Input = _repack(unpacked, y)
    return found


@documented
def instance_norm(
    input: Input,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
    *,
    valid: MaskLike | None = None,
    lengths: LengthsLike | None = None,
    offsets: VectorLike | None = None,
    segments: VectorLike | None = None,
    sample_weight: WeightLike | None = None,
    along: int | str | None = None,
    padding: Padding = "zero",
    activation: Activation | None = None,
) -> Input:
    """Instance normalization of each sample and channel, over its valid positions.

    Args:
        input: (b, c, ...); packed rows (rows, c); jagged; PackedSequence
        running_mean, running_var: both or neither, of shape (c,)
        weight: (c,), or None
        bias: (c,), or None
        use_input_stats: use the statistics of the input, and update the running ones in place; False: use those
        momentum: the weight of the input in this update
        eps: added to the variance
        valid, lengths, offsets, segments, sample_weight, along: which positions are valid
        padding, activation: truenorm's own

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> tnt.functional.instance_norm(torch.tensor([[[1.0, 3.0, 99.0]]]), lengths=[2])
        tensor([[[-1.0000,  1.0000,  0.0000]]])
    """
    check_options(padding, activation=activation)
    unpacked = unpack(input, valid, lengths, offsets, segments, sample_weight, along, sequences=True)
    y, _ = _runs.run_instance_norm(
        unpacked,
        running_mean,
        running_var,
        weight,
        bias,
        use_input_stats,
        momentum,
        eps,
        padding,
        instance_norms(eps, activation),
        batch_norms(eps, activation),
    )
    found: Input = _repack(unpacked, y)
    return found


def _repack(input: UnpackedInput, y: Tensor) -> Any:
    return y if input.repack is None else input.repack(y)
