"""What a tracker knows of each tensor.

A tensor is in one of these states:

    Tag      its valid positions are known
    Lost     it comes from such a tensor by a function without a rule
    Fresh    it was there before the context, or comes from such a tensor: an input of the model. Which of its axes are
             positions follows from the first layer of known kind that reads it (`inputs.py`)
    MADE     it was made inside, from none of these: a parameter, a constant, positions of an embedding
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from enum import Enum
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakIdRef

from truenorm.torch._compat import version_of
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.tag import Lost, Padding, Tag


class Untagged(Enum):
    """A tensor without positions."""

    MADE = "made inside"


MADE = Untagged.MADE
referent = weakref.ref.__call__  # for a tensor that is known to be alive; WeakIdRef's own also revives one
State = Tag | Lost | Fresh | Untagged


class Reference(WeakIdRef):
    """To a tensor, with its id. Unlike torch's own it is made without a call of Python code."""

    __slots__ = ("key",)
    __init__: Any = weakref.ref.__init__
    key: int


class States:
    """States by tensor, without keeping a tensor alive.

    If a tensor has changed in place since its state was set, perhaps through a view, its padding may hold anything.

    A dictionary by id, and not torch's WeakTensorKeyDictionary: every function of torch asks for several states, which
    takes a fifth of the time this way.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[Reference, State, int]] = {}  # the state, and the version that it is of
        self.sizes: set[int] = set()  # of all position axes so far
        entries = self._entries

        def forget(dead: Reference) -> None:
            found = entries.get(dead.key)
            if found is not None and found[0] is dead:
                del entries[dead.key]

        self._forget = forget

    def get(self, x: Tensor) -> State | None:
        found = self._entries.get(id(x))
        if found is None or referent(found[0]) is not x:
            return None
        state = found[1]
        if type(state) is Tag and state.padding is not Padding.ANY and found[2] != version_of(x):
            return state.having(Padding.ANY)
        return state

    def __setitem__(self, x: Tensor, state: State) -> None:
        key = id(x)
        found = self._entries.get(key)
        if found is None or referent(found[0]) is not x:
            ref = Reference(x, self._forget)
            ref.key = key
        else:
            ref = found[0]
        if type(state) is not Tag:
            self._entries[key] = (ref, state, 0)
            return
        self._entries[key] = (ref, state, 0 if state.padding is Padding.ANY else version_of(x))
        if not state.sizes <= self.sizes:
            self.sizes |= state.sizes

    def __contains__(self, x: Tensor) -> bool:
        found = self._entries.get(id(x))
        return found is not None and referent(found[0]) is x

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[Tensor]:
        alive = (ref() for ref, _, _ in list(self._entries.values()))
        return iter([x for x in alive if x is not None])

    def update(self, other: States) -> None:
        """Take over all states of another one."""
        for x in other:
            _, state, version = other._entries[id(x)]
            self[x] = state
            self._entries[id(x)] = (self._entries[id(x)][0], state, version)
        self.sizes |= other.sizes
