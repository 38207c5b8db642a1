"""Weights of normalization layers from and to Keras and Flax. Neither library is imported.

    from_keras(layer, keras_layer)        writes into a torch or truenorm layer, and returns it
    from_flax(layer, module, variables)   a linen module; an nnx module holds its variables itself
    to_keras(layer), to_flax(layer)       a `ForeignLayer`: class name, arguments of the constructor, arrays

                         torch                       Keras                           Flax
    weight and bias      weight, bias                gamma, beta (RMS norm: scale)   scale, bias
    running statistics   running_mean, running_var   moving_mean, moving_variance    mean, var
    momentum             weight of the new batch     weight of the old statistics    weight of the old statistics
    stored variance      divided by n - 1            divided by n                    divided by n
    default of eps       1e-5                        1e-3 (RMS norm: 1e-6)           1e-6 (batch norm: 1e-5)
    channels             second                      last                            last

All three use the stored variance in evaluation as it is. So it is copied, and outputs in evaluation are equal. `count`,
the number of values per channel in a batch, converts it as well: times n / (n - 1) on the way to torch. Then a training
step on such batches changes the running statistics on both sides by the same rule, but outputs in evaluation differ by
that factor. Where batches differ in size no factor is exact: no library stores the counts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from truenorm.torch.layer_state import (
    INSTANCE,
    Array,
    Kind,
    LayerForm,
    LayerState,
    check_arrays,
    form_of,
    read_state,
    write_state,
)


@dataclass(frozen=True)
class ForeignLayer:
    """A normalization layer of Keras or Flax, as a value.

    Args:
        kind: the name of its class: "BatchNormalization"
        config: the arguments of its constructor, for channels last
        weights: arrays by name. Keras: in the order of `set_weights`. Flax: the collections "params" and "batch_stats"

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> tnt.to_flax(nn.RMSNorm(2, eps=1e-6)).kind
        'RMSNorm'
    """

    kind: str
    config: dict[str, Any]
    weights: dict[str, Any]


def from_keras(
    layer: nn.Module, source: object, weights: Mapping[str, Any] | None = None, *, count: int | None = None
) -> nn.Module:
    """Copy weights, running statistics, eps and momentum of a Keras layer into `layer`, in place; returns `layer`.

    Values are rounded to the dtypes of `layer`. A weight or bias that the source does not have becomes 1 or 0 and is
    not trained (`requires_grad=False`); `num_batches_tracked` becomes 0, and `half_life` None: momentum applies. If an
    error is raised, nothing was changed.

    Args:
        layer: of torch or truenorm
        source: a Keras layer that was built, a `ForeignLayer`, or a dictionary of the arguments of its constructor
        weights: with a dictionary: gamma, beta, moving_mean and moving_variance; scale for RMS norm
        count: values per channel in the batches that it was trained on: also convert the variance from n to n - 1

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> layer = tnt.from_keras(
        ...     nn.BatchNorm1d(2),
        ...     {"epsilon": 1e-3, "momentum": 0.99, "center": False},
        ...     {"gamma": [2.0, 3.0], "moving_mean": [0.5, 0.25], "moving_variance": [4.0, 9.0]},
        ... )
        >>> layer.eps, layer.momentum, layer.running_var, layer.bias.requires_grad
        (0.001, 0.01, tensor([4., 9.]), False)
    """
    return _load("from_keras", layer, KERAS, source, weights, count)


def from_flax(
    layer: nn.Module, source: object, variables: Mapping[str, Any] | None = None, *, count: int | None = None
) -> nn.Module:
    """Copy weights, running statistics, eps and momentum of a Flax module into `layer`, in place; returns `layer`.

    Args:
        layer: of torch or truenorm
        source: a linen module with its `variables`, an nnx module, a `ForeignLayer`, or a dictionary of the
            arguments of its constructor
        variables: {"params": ..., "batch_stats": ...} of this one module, or the same without these two levels
        count: values per channel in the batches that it was trained on: also convert the variance from n to n - 1

    The rest is as for `from_keras`.

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> layer = tnt.from_flax(nn.RMSNorm(2), {"epsilon": 1e-6}, {"params": {"scale": [2.0, 3.0]}})
        >>> layer.eps, layer.weight.tolist()
        (1e-06, [2.0, 3.0])
    """
    return _load("from_flax", layer, FLAX, source, variables, count)


def to_keras(layer: nn.Module, *, count: int | None = None) -> ForeignLayer:
    """The Keras layer that computes what `layer` does, with its weights as float32 or float64.

    `getattr(keras.layers, found.kind)(**found.config)` makes it; when it is built, it takes
    `set_weights(list(found.weights.values()))`. Instance norm becomes GroupNormalization.

    Args:
        layer: of torch or truenorm
        count: see `from_keras`; a layer with a half-life needs it

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> found = tnt.to_keras(nn.GroupNorm(2, 4))
        >>> found.kind, found.config, list(found.weights)
        ('GroupNormalization', {'epsilon': 1e-05, 'center': True, 'scale': True, 'groups': 2}, ['gamma', 'beta'])
    """
    state = _with_ddof_0("to_keras", read_state("to_keras", layer, count), count)
    form, arrays = state.form, state.arrays
    config: dict[str, Any] = {} if state.momentum is None else {"momentum": _other(state.momentum)}
    config["epsilon"] = state.eps
    if form.kind == "rms":
        arrays.setdefault("weight", np.ones(form.shape, np.float32))  # Keras always has one
    else:
        config |= {"center": "bias" in arrays, "scale": "weight" in arrays}
    if form.kind == "group":
        config["groups"] = form.groups
    if len(form.shape) > 1:
        config["axis"] = _last_axes(form)
    kind = next(name for name, one in KERAS.kinds.items() if one == form.kind)
    names = KERAS.names(form.kind)
    return ForeignLayer(kind, config, {names[name]: one for name, one in arrays.items()})


def to_flax(layer: nn.Module, *, count: int | None = None) -> ForeignLayer:
    """The Flax module that computes what `layer` does, with its variables as float32 or float64.

    `getattr(flax.linen, found.kind)(**found.config).apply(found.weights, x)` runs it; classes of `flax.nnx` also want
    `num_features` and `rngs`, and are set by `nnx.update`.

    Args:
        layer: of torch or truenorm
        count: see `from_keras`; a layer with a half-life needs it

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> found = tnt.to_flax(nn.GroupNorm(2, 4))
        >>> found.kind, found.config
        ('GroupNorm', {'epsilon': 1e-05, 'use_scale': True, 'use_bias': True, 'num_groups': 2})
    """
    state = _with_ddof_0("to_flax", read_state("to_flax", layer, count), count)
    form, arrays = state.form, state.arrays
    config: dict[str, Any] = {} if state.momentum is None else {"momentum": _other(state.momentum)}
    config |= {"epsilon": state.eps, "use_scale": "weight" in arrays}
    if form.kind != "rms":
        config["use_bias"] = "bias" in arrays
    instance = isinstance(layer, INSTANCE)
    if form.kind == "group" and not instance:
        config["num_groups"] = form.groups
    if len(form.shape) > 1:
        config |= dict.fromkeys(FLAX.axes, tuple(_last_axes(form)))
    variables: dict[str, dict[str, Array]] = {"params": {}, "batch_stats": {}}
    for name, one in arrays.items():
        variables["batch_stats" if name.startswith("running") else "params"][FLAX.names(form.kind)[name]] = one
    kind = "InstanceNorm" if instance else next(name for name, one in FLAX.kinds.items() if one == form.kind)
    return ForeignLayer(kind, config, {name: one for name, one in variables.items() if one})


# ---- what the libraries call things ----


@dataclass(frozen=True)
class _Library:
    name: str
    kinds: dict[str, Kind]  # by the names of the classes
    tensors: dict[str, str]  # torch's names: theirs
    weight_of_rms: str
    switches: dict[str, str]  # arguments that leave out weight or bias
    groups: str
    axes: tuple[str, ...]  # arguments of layer norm

    def names(self, kind: Kind) -> dict[str, str]:
        return self.tensors | ({"weight": self.weight_of_rms} if kind == "rms" else {})


KERAS = _Library(
    "Keras",
    {
        "BatchNormalization": "batch",
        "LayerNormalization": "layer",
        "GroupNormalization": "group",
        "RMSNormalization": "rms",
    },
    {"weight": "gamma", "bias": "beta", "running_mean": "moving_mean", "running_var": "moving_variance"},
    "scale",
    {"weight": "scale", "bias": "center"},
    "groups",
    ("axis",),
)
FLAX = _Library(
    "Flax",
    {"BatchNorm": "batch", "LayerNorm": "layer", "GroupNorm": "group", "InstanceNorm": "group", "RMSNorm": "rms"},
    {"weight": "scale", "bias": "bias", "running_mean": "mean", "running_var": "var"},
    "scale",
    {"weight": "use_scale", "bias": "use_bias"},
    "num_groups",
    ("reduction_axes", "feature_axes"),
)


# ---- from theirs ----


@dataclass(frozen=True)
class _Source:
    kind: str | None  # the name of the class, where it is known
    config: dict[str, Any]
    arrays: dict[str, Any]


def _load(
    who: str, layer: nn.Module, library: _Library, source: object, weights: Mapping[str, Any] | None, count: int | None
) -> nn.Module:
    form = form_of(who, layer)
    theirs = _unpack(who, library, source, weights)
    if theirs.kind is not None and library.kinds[theirs.kind] != form.kind:
        raise TypeError(f"{who}: the layers must be of the same kind, got {type(layer).__name__} for {theirs.kind}.")
    _check_axes(who, library, theirs.config, form)
    if form.kind == "group":
        _check_groups(who, library, theirs, form)
    eps = _number(who, library, theirs.config, "epsilon", math.inf)
    momentum = _other(_number(who, library, theirs.config, "momentum", 1.0)) if form.kind == "batch" else None
    arrays = _rename(who, library, theirs, form.kind)
    factor = _bessel(who, form.kind, count)
    if factor is not None:
        arrays["running_var"] = arrays["running_var"] * factor
    check_arrays(who, layer, arrays, library.names(form.kind))
    write_state(layer, LayerState(form, eps, momentum, arrays))
    return layer


def _unpack(who: str, library: _Library, source: Any, weights: Mapping[str, Any] | None) -> _Source:
    """A layer of theirs as plain dictionaries."""
    if isinstance(source, ForeignLayer) and source.kind in library.kinds:
        return _Source(source.kind, source.config, _flat(source.weights))
    if isinstance(source, Mapping):
        if weights is None:
            raise TypeError(f"{who}: arguments without arrays. Pass the arrays after them.")
        return _Source(None, dict(source), _flat(weights))
    kind = next((cls.__name__ for cls in type(source).__mro__ if cls.__name__ in library.kinds), None)
    if kind is None or (library is FLAX and isinstance(source, nn.Module)):  # torch has a LayerNorm too
        raise TypeError(
            f"{who}: source must be a {', '.join(library.kinds)} of {library.name}, "
            f"or a dictionary of its arguments, got {type(source).__name__}."
        )
    arguments = ["epsilon", "momentum", "rms_scaling", "group_size", library.groups]
    arguments += [*library.switches.values(), *library.axes]
    config = {name: getattr(source, name) for name in arguments if hasattr(source, name)}
    if weights is not None:
        return _Source(kind, config, _flat(weights))
    if library is KERAS:
        if not source.built:
            raise ValueError(f"{who}: {kind} has no weights before it is built. Call it once, or build(shape).")
        return _Source(kind, config, _flat({one.name: one.numpy() for one in source.weights}))
    held = {name: getattr(source, name, None) for name in library.tensors.values()}
    arrays = {name: one for name, one in held.items() if one is not None}
    if not arrays and (kind == "BatchNorm" or any(config.get(name) for name in library.switches.values())):
        raise TypeError(f"{who}: a linen module does not hold its variables. Pass them after it.")
    return _Source(kind, config, arrays)


def _flat(weights: Mapping[str, Any]) -> dict[str, Any]:
    """Without the collections of Flax, and without prefixes and suffixes: Keras 2 writes "bn/gamma:0"."""
    parts = [weights[name] for name in ("params", "batch_stats") if name in weights] or [weights]
    return {name.split("/")[-1].split(":")[0]: one for part in parts for name, one in part.items()}


def _rename(who: str, library: _Library, theirs: _Source, kind: Kind) -> dict[str, Array]:
    """The arrays by torch's names; all that there must be, and no others."""
    affine = ["weight"] if kind == "rms" else ["weight", "bias"]
    wanted = [name for name in affine if theirs.config.get(library.switches[name]) is not False]
    wanted += ["running_mean", "running_var"] if kind == "batch" else []
    names = {name: library.names(kind)[name] for name in wanted}
    if set(names.values()) != set(theirs.arrays):
        expected, got = (", ".join(one) or "none" for one in (names.values(), theirs.arrays))
        switches = " and ".join(f"{library.switches[name]}=False" for name in affine)
        raise ValueError(f"{who}: the arrays must be {expected}, got {got}. {switches} leave out weights.")
    return {name: _to_float64(theirs.arrays[their_name]) for name, their_name in names.items()}


def _to_float64(value: Any) -> Array:
    """A copy. Every float of a network is exact in float64; NumPy has no bfloat16 of its own."""
    if isinstance(value, Tensor):
        value = value.detach().to("cpu", torch.float64)
    return np.array(np.asarray(value), np.float64)


def _check_axes(who: str, library: _Library, config: Mapping[str, Any], form: LayerForm) -> None:
    """torch's layer and RMS norms take the last axes; group norm takes all but the first."""
    if config.get("rms_scaling"):
        raise ValueError(f"{who}: rms_scaling=True has no counterpart in torch. Use RMSNormalization.")
    if form.kind == "group" and config.get("reduction_axes") is not None:
        raise ValueError(f"{who}: group norm with reduction_axes has no counterpart in torch. Leave them out.")
    if form.kind not in ("layer", "rms"):
        return
    for name in library.axes:
        found = config.get(name, -1)
        axes = sorted(found) if isinstance(found, Iterable) else [found]
        if axes != _last_axes(form):
            raise ValueError(
                f"{who}: {name} must be the last axes, {_last_axes(form)}, as in torch, got {axes}. "
                "Count them from the end."
            )


def _check_groups(who: str, library: _Library, theirs: _Source, form: LayerForm) -> None:
    (channels,) = form.shape
    groups, size = theirs.config.get(library.groups), theirs.config.get("group_size")
    if size:
        groups = channels // size
    if groups == -1 or theirs.kind == "InstanceNorm":  # -1 in Keras: as many as channels
        groups = channels
    if groups is not None and groups != form.groups:
        raise ValueError(f"{who}: both layers must have the same number of groups, got {form.groups} for {groups}.")


def _number(who: str, library: _Library, config: Mapping[str, Any], name: str, most: float) -> float:
    """From 0 to the most that it can be."""
    if name not in config:
        raise ValueError(f"{who}: {name} is missing; the defaults of {library.name} and torch differ. Pass it.")
    try:
        found = float(config[name])
    except (TypeError, ValueError):
        found = math.nan
    if not (0 <= found <= most and math.isfinite(found)):
        rule = "a number >= 0" if most == math.inf else f"a number from 0 to {most:g}"
        raise ValueError(f"{who}: {name} must be {rule}, got {config[name]!r}. Pass what {library.name} was given.")
    return found


# ---- conventions ----


def _last_axes(form: LayerForm) -> list[int]:
    return list(range(-len(form.shape), 0))


def _other(momentum: float) -> float:
    """The weight of the old statistics from that of the new batch, or back: 0.99 from 0.01, without 1e-17 more."""
    return round(1 - momentum, 15)


def _bessel(who: str, kind: Kind, count: int | None) -> float | None:
    """From a variance with n to one with n - 1."""
    if count is None:
        return None
    if kind != "batch":
        raise ValueError(f"{who}: count is for the running variance of batch norm. Leave it out.")
    if not isinstance(count, int) or isinstance(count, bool) or count < 2:
        raise ValueError(f"{who}: count is a whole number >= 2, the values per channel in a batch, got {count!r}.")
    return count / (count - 1)


def _with_ddof_0(who: str, state: LayerState, count: int | None) -> LayerState:
    factor = _bessel(who, state.form.kind, count)
    if factor is not None:
        var = state.arrays["running_var"]
        state.arrays["running_var"] = (var.astype(np.float64) / factor).astype(var.dtype)
    return state
