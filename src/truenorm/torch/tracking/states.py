"""What a tracker knows of each tensor.

A tensor is in one of these states:

    Tag      its valid positions are known
    Lost     it comes from such a tensor by a function without a rule
    Fresh    it was there before the context, or comes from such a tensor: an input of the model. Which of its axes are
             positions follows from the first layer of known kind that reads it (`inputs.py`)
    MADE     it was made inside, from none of these: a parameter, a constant, positions of an embedding
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Any
from weakref import ref

from torch import Tensor

from truenorm.torch._compat import revive, version_of
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.tag import OPEN, Factor, Lost, Padding, Tag


class Untagged(Enum):
    """A tensor without positions."""

    MADE = "made inside"


MADE = Untagged.MADE
UNCHANGING = -1  # instead of a version: what is known does not depend on values, or torch does not count changes
State = Tag | Lost | Fresh | Untagged


class ByTensor:
    """Values by tensor, without keeping a tensor alive.

    A dictionary by id, and not torch's WeakTensorKeyDictionary: every function of torch asks for several states, which
    takes a tenth of the time this way. Entries of tensors that are gone are thrown away together, when there may be as
    many as others.
    """

    def __init__(self) -> None:
        self.entries: dict[int, tuple[Any, ...]] = {}  # a reference, the value, and what a subclass adds
        self._most = 1000

    def find(self, x: Tensor) -> tuple[Any, ...] | None:
        """The entry of a tensor."""
        found = self.entries.get(id(x))
        return found if found is not None and found[0]() is x else None

    def _put(self, x: Tensor, *values: Any) -> None:
        entries = self.entries
        entries[id(x)] = (ref(x), *values)
        if len(entries) > self._most:
            for key in [key for key, found in entries.items() if found[0]() is None]:
                del entries[key]
            self._most = max(1000, 2 * len(entries))

    def get(self, x: Tensor) -> Any:
        found = self.find(x)
        return None if found is None else found[1]

    def __setitem__(self, x: Tensor, value: Any) -> None:
        self._put(x, value)

    def __contains__(self, x: Tensor) -> bool:
        return self.find(x) is not None

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __iter__(self) -> Iterator[Tensor]:
        alive = [x for found in list(self.entries.values()) if (x := found[0]()) is not None]
        for x in alive:
            revive(x)
        return iter(alive)

    def clear(self) -> None:
        self.entries.clear()


class States(ByTensor):
    """What is known of each tensor: its state, and the version of its values when that was set.

    If a tensor has changed in place since, perhaps through a view, its padding may hold anything.
    """

    def __init__(self, tags: dict[Any, Tag]) -> None:
        super().__init__()
        self.tags = tags  # the first one of those that are equal
        self.sizes: frozenset[int] = frozenset()  # of all position axes so far

    def get(self, x: Tensor) -> State | None:
        found = self.entries.get(id(x))
        if found is None or found[0]() is not x:
            return None
        state: State = found[1]
        if isinstance(state, Tag) and found[2] != UNCHANGING and found[2] != x._version:
            self[x] = state = state.having(Padding.ANY)
        return state

    def __setitem__(self, x: Tensor, state: State) -> None:
        if type(state) is Tag and not state.has_crop:  # which are equal to other lengths, but mean something else
            state = self.tags.setdefault((state.axes, state.padding), state)
        self.put(x, state)

    def put(self, x: Tensor, state: State) -> None:
        """Set a state that some tensor has had before, here or in a context with the same lengths."""
        version = UNCHANGING
        if type(state) is Tag:
            if not state.sizes <= self.sizes:
                self.sizes |= state.sizes
            if state.padding is not Padding.ANY:
                version = version_of(x)
        self._put(x, state, version)

    def reopen(self, tag: Tag, before: Sequence[int] | None = None) -> Tag:
        """A tag without positions: new axes that have the size of positions are open.

        before   the sizes of the axes before, aligned at the end; an axis is new if it had the size 1
        """
        if tag.is_ragged:
            return tag
        axes = list(tag.axes)
        for axis in range(-len(axes), 0):
            (size, role), *more = axes[axis]
            new = before is None or -axis > len(before) or before[axis] == 1
            if new and size > 1 and role is None and not more and size in self.sizes:
                axes[axis] = (Factor(size, OPEN),)
        return tag if axes == list(tag.axes) else tag.with_axes(axes)

    def clear(self) -> None:
        super().clear()
        self.sizes = frozenset()

    def update(self, other: States) -> None:
        """Take over all states of another one."""
        for x in other:
            self.entries[id(x)] = other.entries[id(x)]
        self.sizes |= other.sizes
