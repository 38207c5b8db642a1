"""Calls that repeat: the layers of a model are alike, so what a rule has found for one is used for the next one.

A rule that is registered with `repeats=True` mostly calls its function as it is and sets the state of the result. That
state is kept under a key that has everything it follows from. The next call with the same key is made without the rule.

A rule may also do more: fill padding, report something, read values. It then says so by `Tracker.acts`, and nothing is
kept. Nor is there a key for tensors of unknown positions, which the call may settle, and for values that the key does
not describe.

What was kept is also used by later contexts with the same lengths, as when a batch passes through several models.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from truenorm.torch.tracking import registry
from truenorm.torch.tracking.numbers import Count, plain
from truenorm.torch.tracking.states import MADE, UNCHANGING, State
from truenorm.torch.tracking.tag import Extent, Gaps, Tag

if TYPE_CHECKING:
    from truenorm.torch.tracking.tracker import Tracker

# Values that are what they are equal to, if they also have the same type: 1 == 1.0 == True.
SIMPLE = {
    int, float, bool, str, complex, type(None), type(...), torch.dtype, torch.device, torch.memory_format, torch.layout
}  # fmt: skip

# They may change a mask without its version: by way of `mask.data`, whose own version it is then.
_data: Any = Tensor.data
UNCOUNTED_WRITES: set[Any] = {Tensor.__setitem__, _data.__set__, Tensor.copy_, Tensor.fill_, Tensor.masked_fill_}

MOST_KEPT = 8  # for so many different lengths
MOST_CALLS = 10_000  # of each


class Repeats:
    """What is kept for contexts with the same lengths: no tensors."""

    def __init__(self) -> None:
        self.states: dict[tuple[Any, ...], State] = {}  # of results, by the key of the call
        self.tags: dict[Any, Tag] = {}  # the first one of those that are equal, which keys have in them

    def keep(self, key: tuple[Any, ...], state: State) -> None:
        if max(len(self.states), len(self.tags)) >= MOST_CALLS:
            self.states.clear()
            self.tags.clear()
        self.states[key] = state


_kept: dict[Any, Repeats] = {}
_lock = threading.Lock()


def repeats_for(extents: tuple[Extent, ...], batch_size: int, along: Any) -> Repeats:
    """What is kept for these lengths. Masks with gaps are objects of their context."""
    if any(isinstance(extent, Gaps) for extent in extents):
        return Repeats()
    key = (extents, batch_size, along, registry.registrations)
    with _lock:
        found = _kept.pop(key, None) or Repeats()
        _kept[key] = found  # as the last one that was used
        if len(_kept) > MOST_KEPT:
            del _kept[next(iter(_kept))]
    return found


def key_of(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...] | None:
    """What the state of the result follows from; None if that cannot be said.

    Of a tensor with a tag that is the tag, which has its shape; of others the shape, and whether it is a constant of
    the model. Its dtype and `requires_grad` say whether gradients pass. Which sizes may be positions changes as more
    tensors with lengths come.
    """
    states, parameter, beside = tracker.states, nn.Parameter, tracker.has_beside
    entries = states.entries
    key: list[Any] = [func, torch.is_grad_enabled(), states.sizes]
    for one in (*args, *kwargs, *kwargs.values()) if kwargs else args:
        kind = type(one)
        if kind is Tensor or kind is parameter:
            entry = entries.get(id(one))
            state: State | None = None
            if entry is not None and entry[0]() is one:
                state = entry[1] if entry[2] == UNCHANGING or entry[2] == one._version else states.get(one)
            if type(state) is Tag:
                key += (state, one.dtype, one.requires_grad)
            elif kind is parameter and (state is None or state is MADE):
                key += (kind, one.shape, one.dtype, one.requires_grad)
            elif state is MADE and not one.is_nested:
                key += (tracker.is_constant(one), one.shape, one.dtype, one.requires_grad)
            else:
                return None
            if beside and tracker.is_beside(one):
                return None
        elif kind in SIMPLE:
            key += (kind, one)
        else:
            value = _hashable(one)
            if value is None:
                return None
            key += (kind, value)
    return tuple(key)


def _hashable(value: Any) -> Any:
    """A value that may be part of a key, with its types; None for any other."""
    kind = type(value)
    if kind in SIMPLE:
        return kind, value
    if kind is Count:
        each = value.each
        return None if each is None else (plain(value), each)
    if kind is slice:
        value = (value.start, value.stop, value.step)
    elif not issubclass(kind, (tuple, list)):
        return None
    found = tuple(map(_hashable, value))
    return None if None in found else (kind, found)
