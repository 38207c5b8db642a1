"""The tracker of one `padded` context: what is known of each tensor, and the masks.

Every function of torch passes through the tracker, so a tensor that it has never seen existed before, and is an input
unless it is a parameter, a buffer or another attribute of a module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from truenorm.torch._compat import name_of_autograd_function
from truenorm.torch.tracking.calls import WITHOUT_TENSORS, first_by_position, name_of, tensors_in, tensors_of
from truenorm.torch.tracking.inputs import Fresh, Input
from truenorm.torch.tracking.masks import Masks
from truenorm.torch.tracking.numbers import plain
from truenorm.torch.tracking.registry import READS_INPUTS, REPEATS, RULES
from truenorm.torch.tracking.repeats import UNCOUNTED_WRITES, key_of, repeats_for
from truenorm.torch.tracking.report import Notes
from truenorm.torch.tracking.states import MADE, ByTensor, State, States
from truenorm.torch.tracking.tag import Extent, Factor, Gaps, Lost, Padding, Tag, longest, make_tag

SEQUENCE_LAYERS = (nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)


class Tracker(Masks):
    """What `with padded(...) as tracked` gives: follow it with `tracked.report`, and declare tensors with `follow`."""

    def __init__(self, extents: tuple[Extent, ...], batch_size: int, along: tuple[int, ...] | None) -> None:
        super().__init__()
        self.extents, self.batch_size, self.along = extents, batch_size, along
        self.longest = min(longest(extent) for extent in extents)  # no axis with fewer positions has them
        self.first: tuple[int, ...] | None = None  # positions of the first input that the running model has read
        self.repeats = repeats_for(extents, batch_size, along)
        self.states = States(self.repeats.tags)
        self.parts = ByTensor()  # tensors that are views outside of `padded`, but not inside
        self.shifts = ByTensor()  # tensors between the steps of `relative_shift.py`
        self.scalars = ByTensor()  # tensors of one number of positions: those of each sequence
        self.has_scalars = self.has_beside = False  # any scalars, any of both, so far
        self.backward_pass = -1  # in which it works: none, unless it recomputes a checkpoint
        # The state of a tensor that was never seen. Replaced while checkpoints record and replay.
        self.first_look: Callable[[Tensor], State] = self._first_look
        self.is_first_look = False
        self.recording = False  # inside a checkpoint whose recomputation will be followed
        self.modules: list[nn.Module] = []  # that are being called, the outermost first
        self.mode: Any = None  # passes functions of torch to this tracker, and whether it is off
        self.is_off = False
        self.paused: nn.Module | None = None  # the module whose inside is not followed
        self.pending: Callable[[Any], None] | None = None  # what to do with its output
        self.notes = Notes()
        self.acts = 0  # how often a rule did more than to call its function as it is, and to set the result's state
        self.norms: dict[Any, Any] = {}  # what norms are given (`layers.py`)
        self.attention: Any = None  # the last call of attention that may repeat (`attention.py`)
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

        shape = tuple(map(plain, x.shape))
        if lengths is None:
            self.set(x, Tag(tuple((Factor(size),) for size in shape)))
            return x
        given = self.extents if isinstance(lengths, tuple) and not lengths else extents_of(lengths, None)[0]
        axes = axes_of("follow", along, x.dim(), len(given))
        self.set(x, self._root(shape, 0, dict(zip(axes, given, strict=True)), lambda: "follow"))
        return x

    # ---- states ----

    def look(self, x: Tensor) -> State:
        """The state of a tensor."""
        found: State | None = self.states.get(x)
        if found is None:
            self.is_first_look = True
            try:
                found = self.states[x] = self.first_look(x)
            finally:
                self.is_first_look = False
        if type(found) is Fresh and found.source.tag is not None:
            found = self.states[x] = found.resolve()
        return found

    def _first_look(self, x: Tensor) -> State:
        if self.is_constant(x) or x.is_nested:
            return MADE
        source = Input(x)
        if x.dim() < 2 and not (source.has_values and source.shape not in ((), (self.batch_size,))):
            return MADE
        # Hooks on all modules see positional arguments only: inputs that are passed by name are followed here.
        if source.has_values and (found := self._along(source)) is not None:
            return found
        if source.has_values and x.dim() == 2 and len(x) == self.batch_size and x.shape[1] < self.longest:
            return make_tag(x.shape, 0, {})  # features of each sequence: too few for its positions
        return source.fresh()

    def _along(self, source: Input) -> Tag | None:
        """The tag of an input that has the axis of `along=`."""
        ndim = len(source.shape)
        if self.along is None or ndim < 2 or source.shape[0] != self.batch_size:
            return None
        axes = [axis % ndim if -ndim <= axis < ndim else 0 for axis in self.along]
        if 0 in axes or any(source.shape[axis] < longest(one) for axis, one in zip(axes, self.extents, strict=True)):
            return None
        if self.modules and self.first is not None:
            raise ValueError(
                f"padded: along={self.along[0] if len(self.along) == 1 else self.along} fits several inputs of the "
                f"model, one of them {source.shape}. Declare all but one of them: tracked.follow(x, along=...), or "
                "tracked.follow(x, lengths=None) for a tensor without padding."
            )
        tag = self._root(source.shape, 0, dict(zip(axes, self.extents, strict=True)), lambda: "along")
        self.first = tuple(source.shape[axis] for axis in axes)
        return tag

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

    def put_beside(self, table: ByTensor, x: Tensor, value: Any) -> None:
        """Keep something beside a tensor, in `parts`, `shifts` or `scalars`."""
        table[x] = value
        self.acts += 1
        self.has_beside = self.has_beside or table is not self.parts

    def is_beside(self, x: Tensor) -> bool:
        """Whether a function of a tensor also depends on something beside it."""
        return x in self.scalars or x in self.shifts

    def is_constant(self, x: Tensor) -> bool:
        """Whether a tensor is a parameter, a buffer, or another attribute of a module of the model that runs."""
        if type(x) is not Tensor and isinstance(x, nn.Parameter):
            return True
        if not self.modules:
            return False
        model = self.modules[0]
        if model not in self._constants:
            self._constants[model] = tensors_of(model)
        return id(x) in self._constants[model]

    # ---- positions ----

    def positions(self, x: Tensor, axes: Sequence[int], who: Any = None, batch: int = 0) -> Tag | None:
        """The tag of a tensor that a function of known kind reads, with positions on these axes.

        An input of the model gets its tag here. None if it has none; an error if it was lost.
        """
        found = self.look(x)
        if isinstance(found, Fresh):
            origins = [found.origin(axis) for axis in (batch, *axes)]
            self._check_count(x, len(axes), who)
            if None in origins:
                raise self.unknown_error(found, self.place(who))
            first, *others = [origin.axis for origin in origins if origin is not None]
            self._settle(found.source, first, others, who)
            found = self.look(x)
        if isinstance(found, Lost):
            raise self.lost_error(x, found, who)
        if not isinstance(found, Tag) or not found.is_ragged:
            return None
        if found.has_open:
            raise self.open_error(x, who)
        return found

    def read_rows(self, x: Tensor, first: int, who: Any = None) -> State:
        """The state of a tensor (b, ..., c) that a function of known kind reads: channels begin at axis `first`.

        An input of the model gets its tag here, with positions on all axes between.
        """
        found = self.look(x)
        if not isinstance(found, Fresh):
            return found
        origins = found.origins(found.axes[:first])
        if not origins or self.is_shared(x):
            return MADE
        layer = next((one for one in reversed(self.modules) if isinstance(one, SEQUENCE_LAYERS)), None)
        batch = origins.pop(len(origins) > 1 and layer is not None and not layer.self_attn.batch_first)
        axes = [axis for axis in origins if found.source.shape[axis] > 1 or self.longest < 2]
        if axes:
            self._check_count(x, len(axes), who)
            self._settle(found.source, batch, axes, who)
        elif found.source.shape[batch] == self.batch_size:
            found.source.tag = make_tag(found.source.shape, batch, {})
        else:
            return MADE
        return self.look(x)

    def _check_count(self, x: Tensor, count: int, who: Any) -> None:
        if count != len(self.extents):
            raise ValueError(
                f"padded: {self.place(who)} reads {tuple(x.shape)} with {count} position axes, "
                f"got {len(self.extents)} {'vector' if len(self.extents) == 1 else 'vectors'} of lengths. "
                f"Pass one vector for each, lengths=(heights, widths), or say which axis of the model's input has "
                f"positions: along=."
            )

    def _settle(self, source: Input, batch: int, axes: Sequence[int], who: Any) -> None:
        """An input has its sequences and positions on these axes."""
        tag = self._root(source.shape, batch, dict(zip(axes, self.extents, strict=True)), lambda: self.place(who))
        sizes = tuple(source.shape[axis] for axis in axes)
        if self.modules and self.first not in (None, sizes):
            raise ValueError(
                f"padded: {self.place(who)} reads an input {source.shape} with {sizes[0]} positions on axis {axes[0]}, "
                f"but the model's first input has {self.first and self.first[0]}. Declare its own lengths: "
                f"tracked.follow(x, along={axes[0]}, lengths=...), or tracked.follow(x, lengths=None) if it has no "
                "padding."
            )
        self.first = sizes
        source.tag = tag

    def is_shared(self, x: Tensor) -> bool:
        """Whether a tensor is one for all sequences, as positions of an embedding (1, t, c) are."""
        return self.batch_size != 1 and bool(plain(x.shape[0]) == 1)

    def _root(self, shape: Sequence[int], batch: int, extents: dict[int, Extent], who: Callable[[], str]) -> Tag:
        rows, shape = shape[batch] if shape else 0, tuple(shape)
        for axis, extent in extents.items():
            count = len(extent.valid) if isinstance(extent, Gaps) else len(extent)
            if rows != count:
                raise ValueError(
                    f"padded: {who()} reads a batch of {rows}, shape {shape}, got lengths of {count} sequences. "
                    "Pass one length for each, or declare a tensor that has other lengths or none: "
                    "tracked.follow(x, lengths=None)."
                )
            most = longest(extent)
            exact = isinstance(extent, Gaps)
            if shape[axis] < most or (exact and shape[axis] != most):
                raise ValueError(
                    f"padded: {who()} reads {shape[axis]} positions on axis {axis} of {shape}, "
                    f"got {'a mask of' if exact else 'a length of'} {most}. Pass lengths in positions of the model's"
                    " input, or declare a tensor that has other lengths or none: tracked.follow(x, lengths=None)."
                )
        return make_tag(shape, batch, extents)

    def unknown_error(self, found: Fresh, where: str) -> ValueError:
        """For a function that has to know the positions of an input before a layer has shown them."""
        return ValueError(
            f"padded: {where} has to know which axis of the input {found.source.shape} has the positions, and no layer "
            f"has shown it before: {self._along_hint(found.source.shape)}. If the model has several inputs, declare "
            "this one: tracked.follow(x, along=...), or tracked.follow(x, lengths=None) if it has no padding."
        )

    def open_error(self, x: Tensor, who: Any) -> ValueError:
        """For a layer that reads neighbours of an axis that has the size of positions."""
        return ValueError(
            f"padded: {self.place(who)} has to know the valid positions of its input {tuple(x.shape)}, which the model "
            "has made with as many positions as a padded tensor has; for a sequence alone there would be fewer. "
            "Declare it: tracked.follow(x, along=...), or tracked.follow(x, lengths=None) if their number does not "
            "depend on the sequences."
        )

    def _along_hint(self, shape: Sequence[int]) -> str:
        fitting = [f"along={axis}" for axis in range(1, len(shape)) if shape[axis] >= self.longest]
        return f"pass {' or '.join(fitting) or 'along='} to padded"

    def lost_error(self, x: Tensor, lost: Lost, who: Any) -> ValueError:
        """For a layer that has to know lengths."""
        return ValueError(
            f"padded: {self.place(who)} has to know the valid positions of its input {tuple(x.shape)}, but they were "
            f"lost at {lost.where}. Declare them: padded.rule(ModuleClass, fn) with fn(module, lengths) -> lengths for "
            "the module that changes them, or tracked.follow(x, along=..., lengths=...)."
        )

    # ---- padding ----

    def fill(self, x: Tensor, tag: Tag, value: float = 0.0) -> Tensor:
        """x with its padding set to a value. Its gradient there is 0."""
        if (value == 0 and tag.padding is Padding.ZERO) or not tag.has_padding:
            return x
        if x.requires_grad and not torch.is_grad_enabled():
            own = name_of_autograd_function()
            if own is not None:
                self.notes.lost(own, self.module, "an autograd.Function that mixes positions: its backward is its own")
        self.acts += 1
        return x.masked_fill(self.mask(tag, x.device), value)

    def fill_unless_finite(self, x: Tensor, tag: Tag) -> tuple[Tensor, Tag]:
        """x without NaN and inf in its padding, which gradients of parameters would pick up as 0 * NaN."""
        if tag.padding >= Padding.FINITE or not tag.has_padding or not x.is_floating_point():
            return x, tag
        self.acts += 1
        return x.masked_fill(self.mask(tag, x.device), 0.0), tag.having(Padding.ZERO)

    # ---- calls ----

    def call(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function of torch, with its rule, unless a call like it had it."""
        if func in UNCOUNTED_WRITES:
            self.attention = None
        key = key_of(self, func, args, kwargs) if func in REPEATS and not self.recording else None
        state = self.repeats.states.get(key) if key is not None else None
        if state is not None:
            result = func(*args, **kwargs)
            self.states.put(result, state)
        elif key is None:
            result = self._call_rule(func, args, kwargs)
        else:
            before = self.acts + self.notes.count
            result = self._call_rule(func, args, kwargs)
            if before == self.acts + self.notes.count and type(result) is Tensor:
                state = self.states.get(result)
                if isinstance(state, Tag) or state is MADE:
                    self.repeats.keep(key, state)
        self.acts += 1
        return result

    def _call_rule(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rule = RULES.get(func, Tracker.call_unknown)
        if rule is not Tracker.call_unknown:
            if not args and kwargs:
                args, kwargs = first_by_position(kwargs)
            if func not in READS_INPUTS and (found := self._unknown_input(func, args, kwargs)) is not None:
                return self.refuse(func, args, kwargs, found)
        if kwargs and (kwargs.get("inplace") or kwargs.get("out") is not None):
            from truenorm.torch.tracking.assignment import write

            self.acts += 1
            return write(rule, self, func, args, kwargs)
        return rule(self, func, args, kwargs)

    def _unknown_input(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Fresh | None:
        """An argument whose positions are not known. A mask beside a tensor whose positions are known is none."""
        if func is Tensor.__setitem__ and not self.modules:
            return None  # a batch is put together
        mask: Fresh | None = None
        has_tag = False
        constants: list[tuple[Tensor, Fresh]] = []
        for one in tensors_in(args[2:] if func is Tensor.__setitem__ else (args, kwargs)):
            found = self.look(one)
            if isinstance(found, Fresh):
                if not self.batch_axes(found):
                    constants.append((one, found))
                elif found.source.has_values:
                    return found
                else:
                    mask = found
            has_tag = has_tag or isinstance(found, Tag)
        if not has_tag:
            return mask or next((found for _, found in constants), None)
        for one, _ in constants:  # a window or a matrix from outside, beside the sequences
            self.states[one] = MADE
        return None

    def batch_axes(self, found: Fresh) -> list[int]:
        """Which axes of an input may be the batch; if there is none, it cannot be the sequences."""
        return [axis for axis, size in enumerate(found.source.shape[:-1][:2]) if size == self.batch_size]

    def refuse(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], found: Fresh) -> Any:
        """A function that has to know the positions of an input. An error, unless it cannot be the sequences."""
        state = self.unknown(func, found)
        result = func(*args, **kwargs)
        if (
            isinstance(result, Tensor)
            and result.dim() < 2
            and not (result.is_floating_point() or found.source.has_values)
        ):
            state = MADE  # a number for each sequence, such as the sum of a mask
        self.set(args[0] if func is Tensor.__setitem__ else result, state)
        return result

    def unknown(self, func: Any, found: Fresh) -> State:
        """The state of a result that depends on positions of an input that are not known, or an error."""
        shape = found.source.shape
        batches = self.batch_axes(found)
        if not batches:
            return MADE
        name, why = name_of(func), f"an input whose positions are not known: {self._along_hint(shape)}"
        if not found.source.has_values:
            return Lost(self.notes.place(name, self.module, why), is_mask=True)
        fits = any(shape[axis] >= self.longest for batch in batches for axis in range(len(shape)) if axis != batch)
        if fits and self.modules:
            raise self.unknown_error(found, self.notes.describe(name, self.module, ""))
        return Lost(self.notes.lost(name, self.module, why), is_prepared=not self.modules)

    def call_unknown(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A function without a rule: what it makes of ragged tensors is lost."""
        result = func(*args, **kwargs)
        if type(result) in WITHOUT_TENSORS or not tensors_in(result):
            return result
        states = [self.look(one) for one in tensors_in((args, kwargs))]
        lost = next((one for one in states if isinstance(one, Lost)), None)
        if any(isinstance(one, Tag) and one.is_ragged for one in states):
            return self.lose(result, func)
        inputs = [one for one in states if isinstance(one, Fresh) and self.batch_size in one.source.shape[:2]]
        if lost is None and inputs:
            is_mask = not any(one.source.has_values for one in inputs)
            note = self.notes.place if is_mask else self.notes.lost
            lost = Lost(note(name_of(func), self.module, ""), is_mask)
        self.set(result, lost or MADE)
        return result

    @property
    def module(self) -> nn.Module | None:
        """The module that is being called, the innermost."""
        return self.modules[-1] if self.modules else None

    def place(self, who: Any = None) -> str:
        """The name of the layer or function, for messages."""
        module = self.module
        if module is None:
            return name_of(who) if who is not None else "the context"
        name, kind = self.notes.quoted(module), type(module).__name__
        return kind if name == kind else f"{kind} {name}"

    def copy(self) -> Tracker:
        """A tracker of the same lengths and masks that has seen no tensor."""
        new = Tracker(self.extents, self.batch_size, self.along)
        new.share_masks(self)
        return new

    def close(self) -> None:
        """Forget all tensors."""
        for one in (self.states, self.parts, self.shifts, self.scalars):
            one.clear()
        self.modules, self.mode, self.paused, self.pending = [], None, None, None
        self.attention, self.norms = None, {}
        self.forget_masks()
        self._constants = {}
