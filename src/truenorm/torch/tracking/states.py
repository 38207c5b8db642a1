"""What a tracker knows of each tensor.

A tensor is in one of these states:

    Tag      its valid positions are known
    Lost     it comes from such a tensor by a function without a rule
    Fresh    it was there before the context, or comes from such a tensor: an input of the model. Which of its axes are
             positions follows from the first layer of known kind that reads it (`inputs.py`)
    MADE     it was made inside, from none of these: a parameter, a constant, positions of an embedding
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any

from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from truenorm.torch._compat import version_of
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.tag import Lost, Padding, Tag


class Untagged(Enum):
    """A tensor without positions."""

    MADE = "made inside"


MADE = Untagged.MADE
State = Tag | Lost | Fresh | Untagged


class States:
    """States by tensor, without keeping a tensor alive.

    If a tensor has changed in place since its state was set, perhaps through a view, its padding may hold anything.
    """

    def __init__(self) -> None:
        self._states: Any = WeakTensorKeyDictionary()
        self.sizes: set[int] = set()  # of all position axes so far

    def get(self, x: Tensor) -> State | None:
        found = self._states.get(x)
        if found is None:
            return None
        state: State = found[0]
        if isinstance(state, Tag) and state.padding is not Padding.ANY and found[1] != version_of(x):
            return state.having(Padding.ANY)
        return state

    def __setitem__(self, x: Tensor, state: State) -> None:
        self._states[x] = (state, version_of(x))
        if type(state) is Tag and not state.sizes <= self.sizes:
            self.sizes |= state.sizes

    def __contains__(self, x: Tensor) -> bool:
        return x in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(list(self._states))

    def update(self, other: States) -> None:
        """Take over all states of another one."""
        self._states.update(other._states)
        self.sizes |= other.sizes
