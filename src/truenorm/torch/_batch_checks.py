"""Training batches that have too few values, another number of channels, or a mask that is True nowhere."""

from __future__ import annotations

import warnings
from collections.abc import Callable

from torch import Tensor

from truenorm.torch._dispatch import Moments, check_channels
from truenorm.torch._inputs import UnpackedInput, values_are_readable


def max_count(input: UnpackedInput, moments: Moments) -> int:
    """The number of valid values of the statistic that has most; 2, as good as many, if that cannot be known."""
    ragged = input.ragged
    if ragged is not None and ragged.sample_weight is not None:
        return 2
    if not isinstance(moments, Tensor):
        return int(moments.max_count)
    if ragged is None:
        statistics = moments.numel() // 3
        return input.x.numel() // statistics if statistics else 2
    if not values_are_readable(moments) or not moments.numel():
        return 2
    return int(moments[..., 0].max())


def is_single(input: UnpackedInput, moments: Moments) -> Tensor | None:
    """Whether `max_count` is 1, where that cannot be read; None where it can."""
    ragged = input.ragged
    if ragged is None or ragged.sample_weight is not None or not isinstance(moments, Tensor):
        return None
    return None if values_are_readable(moments) else moments[..., 0].amax() == 1


def refuse_single(input: UnpackedInput, operator: Callable[[], Tensor] | None) -> None:
    """One value per channel has no variance. operator: None if x is a part of a batch."""
    if input.ragged is None and not input.packed and operator is not None:
        operator()  # raises
    valid = "" if input.ragged is None else " with 1 valid"
    valid += "" if operator is not None else " and 1 value in all parts together"
    raise ValueError(f"Expected more than 1 value per channel when training, got input size {input.x.size()}{valid}")


def refuse_channels(
    input: UnpackedInput, channels: int, mean: Tensor, var: Tensor, operator: Callable[[], Tensor]
) -> None:
    """Running statistics of another number of channels."""
    if input.ragged is None and not input.packed:
        operator()  # raises
    check_channels(channels, mean, var)


def refuse_features(features: int, affine: bool, x: Tensor, axis: int) -> None:
    """An instance norm made for another number of channels: an error or a warning, as torch's layers do."""
    if affine:
        raise ValueError(
            f"expected input's size at dim={axis} to match num_features ({features}), but got: {x.size(axis)}."
        )
    warnings.warn(
        f"input's size at dim={axis} does not match num_features. "
        "You can silence this warning by not passing in num_features, "
        "which is not used because affine=False",
        stacklevel=3,
    )


_warned = False


def warn_of_empty_mask() -> None:
    """Once in a process."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn(
            "valid: True somewhere in a training batch, got True nowhere. The running statistics stay as they are. "
            "True means valid: a mask such as key_padding_mask has to be inverted.",
            stacklevel=2,
        )
