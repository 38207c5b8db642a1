"""Descriptions of the arguments that layers and functions share, and the signatures of the layers.

The constructors of the layers take `*args` and `**kwargs` and pass them on to torch's. `signature_of` puts together
what that means, so that `help(tnt.BatchNorm1d)` shows every argument.
"""

from __future__ import annotations

import inspect
from inspect import Parameter, Signature

from truenorm.core.documentation import RAGGED, described_by

TORCH = {
    "num_features": "the number of channels",
    "num_groups": "the number of groups; it divides the number of channels",
    "num_channels": "the number of channels",
    "normalized_shape": "the sizes of the last axes, which are averaged over",
    "eps": "added to the variance",
    "momentum": "the weight of a new batch in the running statistics; None: a cumulative average over batches",
    "affine": "whether there are a weight and a bias for each channel",
    "elementwise_affine": "whether there are a weight and, but for RMS norm, a bias for each element",
    "bias": "whether there is a bias if there is a weight",
    "track_running_stats": "keep running statistics, and use them in evaluation",
    "running_mean": "(c,), or None; both are given, or neither",
    "running_var": "(c,), or None",
    "device": "of parameters and buffers",
    "dtype": "of parameters and buffers",
    "padding": 'what comes out where nothing is valid: "zero", or "keep" for the input itself',
    "on_single": 'in training with one valid value per channel: torch\'s "error", or use the "running" statistics',
    "activation": 'what y goes through last: "relu", "gelu", "silu" or "tanh"; None: nothing',
    "half_life": "instead of momentum, in valid values per channel: after so many, older ones weigh half as much",
}
documented = described_by(RAGGED | TORCH)

_VARIADIC = (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)


def signature_of(cls: type) -> Signature:
    """The arguments of a class whose constructors pass on what they do not know to the next one.

    >>> from truenorm.torch import GroupNorm
    >>> list(signature_of(GroupNorm).parameters)
    ['num_groups', 'num_channels', 'eps', 'affine', 'device', 'dtype', 'bias', 'padding', 'activation']
    """
    found: dict[str, Parameter] = {}
    for one in cls.__mro__:
        if "__init__" not in vars(one):
            continue
        parameters = list(inspect.signature(vars(one)["__init__"]).parameters.values())[1:]
        named = {parameter.name: parameter for parameter in parameters if parameter.kind not in _VARIADIC}
        found = named | found  # those of the last one come first: they may be passed by position
        if len(named) == len(parameters):
            break
    return Signature(sorted(found.values(), key=lambda parameter: parameter.kind))
