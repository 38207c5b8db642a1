"""Short names for the patterns of `norm.py`: batch, layer, rms, instance and group."""

from __future__ import annotations

from typing import Literal, TypedDict, Unpack, get_args

from truenorm.core.activation import Activation
from truenorm.core.norm import EpsAt, Norm, check_choice

Channels = Literal["last", "second"]


class Options(TypedDict, total=False):
    """The options that every recipe passes on to `Norm`."""

    eps: float
    ddof: Literal[0, 1]
    eps_at: EpsAt
    activation: Activation | None


def batch(channels: Channels = "last", **options: Unpack[Options]) -> Norm:
    """Batch normalization: one mean and variance for each channel, over everything else.

    Args:
        channels: "last" for x of shape (b, ..., c), "second" for (b, c, ...)
        options: eps, ddof, eps_at and activation of `Norm`

    Examples:
        >>> import truenorm as tn
        >>> tn.batch().pattern, tn.batch("second").pattern
        ('[...] c', '[b] c [...]')
        >>> tn.forward([[1.0], [2.0], [6.0]], tn.batch(eps=0)).y.round(4).ravel()
        array([-0.9258, -0.4629,  1.3887])
    """
    return Norm(_pattern(channels, last="[...] c", second="[b] c [...]"), **options)


def layer(**options: Unpack[Options]) -> Norm:
    """Layer normalization: one mean and variance for each position, over its channels, which come last.

    Args:
        options: eps, ddof, eps_at and activation of `Norm`

    Examples:
        >>> import truenorm as tn
        >>> tn.forward([[1.0, 2.0, 6.0], [10.0, 20.0, 60.0]], tn.layer(eps=0)).y.round(4)
        array([[-0.9258, -0.4629,  1.3887],
               [-0.9258, -0.4629,  1.3887]])
    """
    return Norm("... [c]", **options)


def rms(**options: Unpack[Options]) -> Norm:
    """RMS normalization: layer normalization that does not subtract the mean.

    Args:
        options: eps, eps_at and activation of `Norm`; ddof is 0

    Examples:
        >>> import truenorm as tn
        >>> tn.forward([[3.0, 4.0, 0.0, 0.0]], tn.rms(eps=0)).y
        array([[1.2, 1.6, 0. , 0. ]])
    """
    return Norm("... [c]", center=False, **options)


def instance(channels: Channels = "last", **options: Unpack[Options]) -> Norm:
    """Instance normalization: one mean and variance for each sample and channel.

    Args:
        channels: "last" for x of shape (b, ..., c), "second" for (b, c, ...)
        options: eps, ddof, eps_at and activation of `Norm`

    Examples:
        >>> import truenorm as tn
        >>> tn.instance("second").view((8, 3, 50)).statistics
        (8, 3)
    """
    return Norm(_pattern(channels, last="b [...] c", second="b c [...]"), **options)


def group(groups: int, channels: Channels = "last", **options: Unpack[Options]) -> Norm:
    """Group normalization: one mean and variance for each sample and group of neighbouring channels.

    Args:
        groups: their number; it divides the number of channels
        channels: "last" for x of shape (b, ..., c), "second" for (b, c, ...)
        options: eps, ddof, eps_at and activation of `Norm`

    Examples:
        >>> import truenorm as tn
        >>> tn.group(4).view((8, 50, 12)).statistics
        (8, 4)
    """
    pattern = _pattern(channels, last="b [...] (g [c])", second="b (g [c]) [...]")
    return Norm(pattern, sizes={"g": groups}, **options)


def _pattern(channels: Channels, *, last: str, second: str) -> str:
    check_choice("Norm", "channels", channels, get_args(Channels))
    return last if channels == "last" else second
