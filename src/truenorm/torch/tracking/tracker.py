"""The tracker of one `padded` context: what is known of each tensor, and the masks.

A tensor is in one of these states:

    Tag      its valid positions are known
    Lost     it comes from such a tensor by a function without a rule
    FRESH    it was there before the context, or comes from such a tensor: an input of the model. Which of its axes are
             positions follows from the first layer of known kind that reads it: axis 2 for Conv1d, axis 1 for Embedding
    MADE     it was made inside, from neither: a parameter, a constant, positions of an embedding

Every function of torch passes through the tracker, so a tensor that it has never seen existed before, and is an input
unless it is a parameter, a buffer or another attribute of a module.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from enum import Enum
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

from truenorm.torch._compat import name_of_autograd_function, version_of
from truenorm.torch.tracking.registry import RULES
from truenorm.torch.tracking.report import Notes
from truenorm.torch.tracking.tag import Extent, Factor, Gaps, Lengths, Lost, Padding, Tag, make_mask, make_tag


class Untagged(Enum):
    """A tensor without a tag that is not lost."""

    FRESH = "an input of the model"
    MADE = "made inside"


WITHOUT_TENSORS = {int, float, bool, str, type(None), torch.Size, torch.dtype, torch.device}
FRESH, MADE = Untagged.FRESH, Untagged.MADE
State = Tag | Lost | Untagged


class Tracker:
    """What `with padded(...) as tracked` gives: follow it with `tracked.report`, and declare tensors with `follow`."""

    def __init__(self, extents: tuple[Extent, ...], batch_size: int, along: tuple[int, ...] | None) -> None:
        self.extents, self.batch_size, self.along = extents, batch_size, along
        self.states = States()
        self.parts: Any = WeakTensorKeyDictionary()  # tensors that are views outside of `padded`, but not inside
        self.backward_pass = -1  # in which it works: none, unless it recomputes a checkpoint
        # The state of a tensor that was never seen. Replaced while checkpoints record and replay.
        self.first_look: Callable[[Tensor], State] = self._first_look
        self.recording = False  # inside a checkpoint whose recomputation will be followed
        self.modules: list[nn.Module] = []  # that are being called, the outermost first
        self.paused: nn.Module | None = None  # the module whose inside is not followed
        self.pending: Callable[[Any], None] | None = None  # what to do with its output
        self.notes = Notes()
        self._masks: dict[Any, Tensor] = {}
        self._constants: dict[nn.Module, set[int]] = {}

    # ---- what users call ----

    @property
    def report(self) -> Any:
        """What was given lengths, and what was not."""
        return self.notes.report()

    def follow(self, x: Tensor, along: int | tuple[int, ...] | None = None, lengths: Any = ()) -> Tensor:
        """Declare the position axes of a tensor, and the lengths if they are not those of the context.

        lengths=None declares that the tensor has no padding.
        """
        from truenorm.torch.tracking.arguments import axes_of, extents_of

        if lengths is None:
            self.set(x, Tag(tuple((Factor(size),) for size in x.shape)))
            return x
        given = self.extents if isinstance(lengths, tuple) and not lengths else extents_of(lengths, None)[0]
        axes = axes_of("follow", along, x.dim(), len(given))
        self.set(x, self._root(x, dict(zip(axes, given, strict=True)), "follow"))
        return x

    # ---- states ----

    def look(self, x: Tensor) -> State:
        """The state of a tensor."""
        found: State | None = self.states.get(x)
        if found is None:
            found = self.states[x] = self.first_look(x)
        return found

    def _first_look(self, x: Tensor) -> State:
        if isinstance(x, nn.Parameter) or self._is_constant(x):
            return MADE
        # Hooks on all modules see positional arguments only: inputs that are passed by name are followed here.
        if self.along is not None and x.is_floating_point() and x.dim() > 1 and len(x) == self.batch_size:
            axes = tuple(axis % x.dim() if -x.dim() <= axis < x.dim() else 0 for axis in self.along)
            if 0 not in axes:
                return self._root(x, dict(zip(axes, self.extents, strict=True)), "along")
        return FRESH

    def tag(self, x: Any) -> Tag | None:
        """The tag of a tensor that has one."""
        if not isinstance(x, Tensor):
            return None
        found = self.look(x)
        return found if isinstance(found, Tag) else None

    def set(self, x: Any, state: State) -> None:
        """Set the state of a tensor, or of all tensors in a tuple or list."""
        if isinstance(x, Tensor):
            self.states[x] = state
        elif isinstance(x, (tuple, list)):
            for one in x:
                self.set(one, state)

    def lose(self, result: Any, func: Any, why: str = "") -> Any:
        """The result of a function that reads ragged tensors and is not followed."""
        where = self.notes.lost(name_of(func), self.module, why)
        self.set(result, Lost(where))
        return result

    def _is_constant(self, x: Tensor) -> bool:
        """Whether a tensor is a buffer, or another attribute of a module of the model that runs."""
        if not self.modules:
            return False
        model = self.modules[0]
        if model not in self._constants:
            self._constants[model] = {
                id(one)
                for module in model.modules()
                for place in (module._buffers, vars(module))
                for one in place.values()
                if isinstance(one, Tensor)
            }
        return id(x) in self._constants[model]

    # ---- positions ----

    def positions(self, x: Tensor, axes: Collection[int], who: Any = None) -> Tag | None:
        """The tag of a tensor that a function of known kind reads, with positions on these axes.

        An input of the model gets its tag here. None if it has none; an error if it was lost.
        """
        found = self.look(x)
        if isinstance(found, Tag):
            return found if found.is_ragged else None
        if isinstance(found, Lost):
            raise self.lost_error(x, found, who)
        if found is MADE:
            return None
        if len(axes) != len(self.extents):
            raise ValueError(
                f"padded: {self.place(who)} reads {tuple(x.shape)} with {len(axes)} position axes, "
                f"got {len(self.extents)} {'vector' if len(self.extents) == 1 else 'vectors'} of lengths. "
                f"Pass one vector for each, lengths=(heights, widths), or say which axis of the model's input has "
                f"positions: along=."
            )
        tag = self._root(x, dict(zip(sorted(axes), self.extents, strict=True)), self.place(who))
        self.set(x, tag)
        return tag

    def is_shared(self, x: Tensor) -> bool:
        """Whether a tensor is one for all sequences, as positions of an embedding (1, t, c) are."""
        return len(x) == 1 and self.batch_size != 1

    def _root(self, x: Tensor, extents: dict[int, Extent], who: str) -> Tag:
        rows = len(x) if x.dim() else 0
        for axis, extent in extents.items():
            count = len(extent.valid) if isinstance(extent, Gaps) else len(extent)
            if rows != count:
                raise ValueError(
                    f"padded: {who} reads a batch of {rows}, shape {tuple(x.shape)}, got lengths of {count} sequences. "
                    "Pass one length for each, or declare a tensor that has other lengths or none: "
                    "tracked.follow(x, lengths=None)."
                )
            longest = extent.valid.shape[1] if isinstance(extent, Gaps) else max(extent, default=0)
            exact = isinstance(extent, Gaps)
            if x.shape[axis] < longest or (exact and x.shape[axis] != longest):
                raise ValueError(
                    f"padded: {who} reads {x.shape[axis]} positions on axis {axis} of {tuple(x.shape)}, "
                    f"got {'a mask of' if exact else 'a length of'} {longest}. Pass lengths in positions of the model's"
                    " input, or declare a tensor that has other lengths or none: tracked.follow(x, lengths=None)."
                )
        return make_tag(x.shape, 0, extents)

    def lost_error(self, x: Tensor, lost: Lost, who: Any) -> ValueError:
        """For a layer that has to know lengths."""
        return ValueError(
            f"padded: {self.place(who)} has to know the valid positions of its input {tuple(x.shape)}, but they were "
            f"lost at {lost.where}. Declare them: padded.rule(ModuleClass, fn) with fn(module, lengths) -> lengths for "
            "the module that changes them, or tracked.follow(x, along=..., lengths=...)."
        )

    # ---- masks ----

    def mask(self, tag: Tag, device: torch.device) -> Tensor:
        """Booleans that broadcast to the tensor: True where it is padding."""
        key = (tag.axes, device)
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = make_mask(tag.axes, device)
        return found

    def lengths_on(self, lengths: Lengths, device: torch.device) -> Tensor:
        """Lengths as a tensor."""
        key = (lengths, device)
        found = self._masks.get(key)
        if found is None:
            found = self._masks[key] = torch.tensor(lengths, device=device)
        return found

    def fill(self, x: Tensor, tag: Tag, value: float = 0.0) -> Tensor:
        """x with its padding set to a value. Its gradient there is 0."""
        if (value == 0 and tag.padding is Padding.ZERO) or not tag.has_padding:
            return x
        if x.requires_grad and not torch.is_grad_enabled():
            own = name_of_autograd_function()
            if own is not None:
                self.notes.lost(own, self.module, "an autograd.Function that mixes positions: its backward is its own")
        return x.masked_fill(self.mask(tag, x.device), value)

    def fill_unless_finite(self, x: Tensor, tag: Tag) -> tuple[Tensor, Tag]:
        """x without NaN and inf in its padding, which gradients of parameters would pick up as 0 * NaN."""
        if tag.padding >= Padding.FINITE or not tag.has_padding or not x.is_floating_point():
            return x, tag
        return x.masked_fill(self.mask(tag, x.device), 0.0), tag.having(Padding.ZERO)

    # ---- calls ----

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch, with its rule."""
        rule = RULES.get(func)
        if rule is None:
            return self.call_unknown(func, args, kwargs)
        if not args and kwargs:
            args, kwargs = first_by_position(kwargs)
        return rule(self, func, args, kwargs)

    def call_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function without a rule: what it makes of ragged tensors is lost."""
        result = func(*args, **kwargs)
        if type(result) in WITHOUT_TENSORS or not any(True for _ in tensors_in(result)):
            return result
        states = [self.look(one) for one in tensors_in((args, kwargs))]
        lost = next((one for one in states if isinstance(one, Lost)), None)
        if any(isinstance(one, Tag) and one.is_ragged for one in states):
            return self.lose(result, func)
        if lost is None and any(map(self._may_be_input, tensors_in((args, kwargs)))):
            lost = Lost(self.notes.describe(name_of(func), self.module, ""))
        self.set(result, lost or MADE)
        return result

    def _may_be_input(self, x: Tensor) -> bool:
        """Whether a tensor has values of the sequences, on an axis that is not known yet."""
        return (
            self.look(x) is FRESH
            and x.is_floating_point()
            and len(x.shape[1:]) > 0
            and len(x) == self.batch_size
            and max(x.shape[1:])
            >= max((max(one, default=0) for one in self.extents if isinstance(one, tuple)), default=0)
        )

    @property
    def module(self) -> nn.Module | None:
        """The module that is being called, the innermost."""
        return self.modules[-1] if self.modules else None

    def place(self, who: Any = None) -> str:
        """The name of the layer or function, for messages."""
        module = self.module
        if module is None:
            return name_of(who) if who is not None else "the context"
        name, kind = self.notes.name(module), type(module).__name__
        return kind if name == kind else f"{name} ({kind})"

    def copy(self) -> Tracker:
        """A tracker of the same lengths and masks that has seen no tensor."""
        new = Tracker(self.extents, self.batch_size, self.along)
        new._masks = self._masks
        return new

    def close(self) -> None:
        """Forget all tensors."""
        self.states = States()
        self.parts = WeakTensorKeyDictionary()
        self.modules, self.paused, self.pending = [], None, None
        self._masks, self._constants = {}, {}


class States:
    """States by tensor, without keeping a tensor alive.

    If a tensor has changed in place since its state was set, perhaps through a view, its padding may hold anything.
    """

    def __init__(self) -> None:
        self._states: Any = WeakTensorKeyDictionary()

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

    def __contains__(self, x: Tensor) -> bool:
        return x in self._states

    def __len__(self) -> int:
        return len(self._states)

    def __iter__(self) -> Iterator[Tensor]:
        return iter(list(self._states))

    def update(self, other: States) -> None:
        """Take over all states of another one."""
        self._states.update(other._states)


FIRST_NAMES = ("condition", "query", "equation", "tensors", "input", "self", "x", "A")


def first_by_position(kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call by name, as rules expect them: the first one by position, the others as they were."""
    name = next((name for name in FIRST_NAMES if name in kwargs), None)
    if name is None:
        return (), kwargs
    return (kwargs[name],), {key: one for key, one in kwargs.items() if key != name}


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in an argument or result."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        if not isinstance(value, torch.Size):
            for one in value:
                yield from tensors_in(one)
    elif isinstance(value, dict):
        for one in value.values():
            yield from tensors_in(one)


def name_of(func: Any) -> str:
    """The name of a function, for messages: that of the attribute for `Tensor.mT.__get__`."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(func.__self__, "__name__", name)
    return str(name)
