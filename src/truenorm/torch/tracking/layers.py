"""Layers that are given lengths by hooks: the converted norms, modules with a rule of `padded.rule`, and the model."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from truenorm.torch._compat import keywords_of_call
from truenorm.torch._layer_bases import _RaggedLayer
from truenorm.torch.layers import GroupNorm
from truenorm.torch.pattern_layer import Normalize
from truenorm.torch.row_layers import LayerNorm, RMSNorm
from truenorm.torch.tracking.calls import tensors_in
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.normalization import valid_or_lengths
from truenorm.torch.tracking.registry import MODULE_RULES, module_rule_of
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Lost, Padding, Tag, has_role, make_tag
from truenorm.torch.tracking.tracker import Tracker

PADDING_LAYERS = (
    nn.modules.conv._ConvNd,
    nn.modules.padding._ConstantPadNd,
    nn.modules.padding._CircularPadNd,
    nn.modules.padding._ReflectionPadNd,
    nn.modules.padding._ReplicationPadNd,
)
BATCH_SECOND = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm, GroupNorm)


def begin_model(tracker: Tracker, model: nn.Module, args: tuple[Any, ...]) -> None:
    """The outermost module is called: its tensors are inputs, wherever they were made."""
    tracker.notes.models.append(model)
    given = list(tensors_in(args))
    if not any(tag.is_ragged for tag in map(tracker.tag, given) if tag is not None):
        tracker.first = None
    for x in given:
        if tracker.states.get(x) is MADE:
            tracker.set(x, tracker.first_look(x))
    states = [tracker.look(x) for x in given]
    fresh = [(x, state.source) for x, state in zip(given, states, strict=True) if isinstance(state, Fresh)]
    if tracker.along is not None and tracker.first is None and fresh:
        values = [x for x, source in fresh if source.has_values]
        if values or len(fresh) == 1:  # tokens without anything beside them
            tracker.follow((values or [fresh[0][0]])[0], tracker.along)


Reader = Callable[[Tracker, Any, tuple[Any, ...]], "tuple[Any, ...] | None"]


def reader_of(module: nn.Module) -> Reader | None:
    """What reads the arguments of a module before it is called, and returns others or None. None for most modules."""
    kind: Any = type(module)
    found = _reader_of(kind)
    if MODULE_RULES and found is not _before_norm and module_rule_of(module) is not None:
        return _before_declared
    return None if found is _before_padding and _pads_with_zeros(module) else found


@cache
def _reader_of(kind: Any) -> Reader | None:
    if issubclass(kind, _RaggedLayer):
        return _before_norm
    return _before_padding if issubclass(kind, PADDING_LAYERS) else None


def _pads_with_zeros(module: Any) -> bool:
    return getattr(module, "padding_mode", "") == "zeros"


def note_inside(tracker: Tracker, module: nn.Module) -> None:
    """A module is called inside one that is not followed, because it has a rule of its own."""
    if isinstance(module, _RaggedLayer):
        tracker.notes.not_given[module] = None


def after_unfollowed(tracker: Tracker, output: Any) -> None:
    """The state of the output of a module whose inside was not followed."""
    tracker.paused = None
    pending, tracker.pending = tracker.pending, None
    if pending is not None and output is not None:
        pending(output)


def after(tracker: Tracker, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
    """The states of tensors that were made by code that no mode sees, such as torch.jit or torch.from_numpy."""
    for one in tensors_in(output):
        if one in tracker.states or tracker.is_constant(one):
            continue
        read = [tracker.look(x) for x in tensors_in(args)]
        kind = getattr(module, "original_name", type(module).__name__)
        if any(isinstance(state, (Tag, Lost)) for state in read):
            tracker.lose(one, kind, "not a function of torch")
        elif (fresh := next((state for state in read if isinstance(state, Fresh)), None)) is not None:
            tracker.set(one, tracker.unknown(kind, fresh))


def _before_padding(tracker: Tracker, module: Any, args: tuple[Any, ...]) -> None:
    """Layers (b, c, ...) that pad their input first: `pad` does not say which axis has the positions, they do."""
    x = args[0] if args else None
    if not isinstance(x, Tensor) or _pads_with_zeros(module):
        return
    count = len(module.kernel_size) if isinstance(module, nn.modules.conv._ConvNd) else len(module.padding) // 2
    if x.dim() == count + 2 and isinstance(tracker.look(x), Fresh):
        tracker.positions(x, range(2, x.dim()), module)


# ---- norms ----


# What says which values are valid, in the order of the layers' arguments behind the first one.
RAGGED = ("valid", "lengths", "offsets", "segments")


@cache
def _first_name(forward: Any) -> str:
    """The name of the first argument behind self: `input`, or `x` in RMSNorm, as in torch."""
    return list(inspect.signature(forward).parameters)[1]


def _before_norm(tracker: Tracker, module: Any, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    keywords = keywords_of_call(module)
    if not args and (name := _first_name(type(module).forward)) in keywords:
        args = (keywords.pop(name),)
        return _before_norm(tracker, module, args) or args
    x = args[0] if args else None
    tracker.paused = module
    if not isinstance(x, Tensor):
        tracker.notes.not_given[module] = None
        return None
    found = tracker.look(x)
    if (len(args) > 1 or keywords) and _are_given(args, keywords):  # lengths that the model itself passes
        own = found.having(Padding.ANY) if isinstance(found, Tag) else found
        tracker.pending = lambda y: tracker.set(y, own)
        return None
    if isinstance(found, Fresh):
        found = _read_input(tracker, module, x)
    by_row = isinstance(module, (LayerNorm, RMSNorm))  # each position by itself, whether it is valid or not
    if isinstance(found, Lost) and not by_row:
        raise tracker.lost_error(x, found, module)
    if not isinstance(found, Tag):
        if not by_row and _position_axes(module, x) is not None:
            tracker.notes.not_given[module] = None
        state = found
        tracker.pending = lambda y: tracker.set(y, state)
        return None
    tag = found
    if tag.has_open:
        if not by_row:
            raise tracker.open_error(x, module)
        tracker.pending = lambda y: tracker.set(y, tag)
        return None
    tracker.notes.given[module] = None
    keeps = module.padding == "keep"
    tracker.pending = lambda y: tracker.set(y, tag if keeps or not tag.is_ragged else tag.having(Padding.ZERO))
    if not tag.is_ragged:
        return None
    for name in RAGGED[:2]:  # None by name
        keywords.pop(name, None)
    return (x, *_valid_and_lengths(tracker, module, x, tag), *args[3:])


def _are_given(args: tuple[Any, ...], keywords: dict[str, Any]) -> bool:
    """Whether a norm is called with arguments that say which values are valid."""
    given = {**dict(zip(RAGGED, args[1:], strict=False)), **keywords}
    return any(given.get(name) is not None for name in (*RAGGED, "along"))


def _read_input(tracker: Tracker, module: Any, x: Tensor) -> Any:
    """The state of an input of the model whose first layer is a norm."""
    if tracker.is_shared(x):
        return MADE
    if isinstance(module, (LayerNorm, RMSNorm)):
        return tracker.read_rows(x, x.dim() - len(module.normalized_shape), module)
    axes = _position_axes(module, x)
    if axes is None:
        return tracker.read_rows(x, 1, module) if isinstance(module, BATCH_SECOND) else tracker.look(x)
    tracker.positions(x, sorted(axes), module)
    return tracker.look(x)


def _position_axes(module: Any, x: Tensor) -> set[int] | None:
    """The axes that positions have in an input of the model, by the kind of layer; None if it has none."""
    if isinstance(module, (LayerNorm, RMSNorm)):
        last = x.dim() - len(module.normalized_shape)
        return set(range(1, last)) if last > 1 else None
    if isinstance(module, BATCH_SECOND):
        return set(range(2, x.dim())) if x.dim() > 2 else None
    if isinstance(module, Normalize):
        names = [piece.name for axis in module.norm.axes for piece in axis.pieces]
        return {names.index("t")} if "t" in names and "..." not in names else None
    return None


def _valid_and_lengths(tracker: Tracker, module: Any, x: Tensor, tag: Tag) -> tuple[Any, Any]:
    """valid and lengths for a layer: the same tensors for all layers that read tensors like this one."""
    by_row = isinstance(module, (LayerNorm, RMSNorm))
    key = (tag, x.device, ("rows", len(module.normalized_shape)) if by_row else isinstance(module, Normalize))
    found: tuple[Any, Any] | None = tracker.norms.get(key)
    if found is None:
        if by_row:
            _check_normalized_axes(tracker, module, x, tag)
        if isinstance(module, Normalize):
            found = tracker.valid(tag, x.device), None
        else:
            found = valid_or_lengths(tracker, x, tag, 1 if by_row else 2)
        tracker.norms[key] = found
    return found


def _check_normalized_axes(tracker: Tracker, module: Any, x: Tensor, tag: Tag) -> None:
    first = x.dim() - len(module.normalized_shape)
    if any(map(has_role, tag.axes[first:])):
        raise ValueError(
            f"padded: {tracker.place(module)} normalizes over positions, with a weight for each, got "
            f"{tuple(x.shape)} with positions on axis {min(tag.extents, default=first)}. A shorter sequence alone "
            "does not fit this layer."
        )


# ---- modules with a rule of their own ----


def _before_declared(tracker: Tracker, module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if isinstance(module, PADDING_LAYERS):
        _before_padding(tracker, module, args)
    x = args[0] if args else None
    if not isinstance(x, Tensor):
        return None
    found = tracker.look(x)
    if isinstance(found, Fresh):
        raise ValueError(
            f"padded: {tracker.place(module)} is the first layer that reads the model's input {tuple(x.shape)}, and "
            "has a rule of its own, so which axis has the positions is not known. Say it: padded(..., along=...)."
        )
    if isinstance(found, Lost):
        raise tracker.lost_error(x, found, module)
    if not isinstance(found, Tag) or not found.is_ragged:
        return None
    tag = found
    if tag.batch is None or len(tag.lengths) != 1 or len(tag.extents) != 1:
        raise ValueError(
            f"padded: {tracker.place(module)} has a rule for one axis of positions with lengths, got {tuple(x.shape)} "
            f"with {len(tag.lengths)}."
        )
    ((axis, lengths),) = tag.lengths.items()
    batch = tag.batch
    declared: Any = module_rule_of(module)
    tracker.paused = module

    def pending(output: Any) -> None:
        new = torch.as_tensor(declared(module, torch.tensor(lengths)))
        if new.shape != (len(lengths),) or new.is_floating_point():
            raise ValueError(
                f"padded.rule: fn for {type(module).__name__} returns {len(lengths)} whole numbers, got {new!r}."
            )
        values = tuple(max(0, one) for one in new.tolist())
        for y in tensors_in(output):
            if y.dim() != x.dim() or y.shape[batch] != len(values) or y.shape[axis] < max(values, default=0):
                raise ValueError(
                    f"padded.rule: {tracker.place(module)} gives the lengths {list(values)} on axis {axis}, "
                    f"got an output of shape {tuple(y.shape)}."
                )
            tracker.set(y, make_tag(y.shape, batch, {axis: values}))

    tracker.pending = pending
    return (tracker.fill(x, tag), *args[1:])
