"""`padded`: tells every converted layer below which positions are real, and keeps padding out of everything else.

    with tnt.padded(lengths=lengths):
        y = model(x)

Two mechanisms work while a context is active (`activation.py`). A TorchFunctionMode passes every function of torch to
the rules (`registry.py`), which follow the lengths and set padding to what the function ignores. Hooks on all modules
give lengths to the converted layers (`layers.py`), whose kernels no mode sees, and know the names of layers.

A nested context is followed by itself: to the outer one it is a function without a rule.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from contextlib import nullcontext
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from truenorm.torch.tracking.activation import Activation, active
from truenorm.torch.tracking.arguments import LengthsLike, axes_of, extents_of
from truenorm.torch.tracking.recomputation import Recording, Replaying
from truenorm.torch.tracking.registry import MODULE_RULES, LengthsRule
from truenorm.torch.tracking.report import PaddingWarning
from truenorm.torch.tracking.states import State
from truenorm.torch.tracking.tracker import Tracker


class padded:  # noqa: N801 - called like a function, as torch.no_grad
    """A context in which each sequence of a padded batch is computed as if it were alone.

    `with padded(lengths=lengths) as tracked:` follows the lengths through convolutions, pooling, attention and so on;
    `tracked.report` says what could not be followed. `convert` the model before.

    Lengths are read when the context is created: on another device than the CPU that waits for them once.

    Args:
        lengths: (b,): the first lengths[i] positions of sequence i are valid; a pair for two position axes
        valid: (b, t): instead of lengths, a mask. Valid positions behind padding are not followed through convolutions
        along: the axis of the model's input that has the positions, or one for each vector of lengths. By default it
            follows from the first layer that reads the input: axis 2 for Conv1d, axis 1 for Embedding and Linear.
            Other inputs that have such an axis are declared: `tracked.follow(x, ...)`, before the model is called

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> model = nn.Sequential(nn.Conv1d(1, 2, 3, stride=2), nn.ReLU())
        >>> x = torch.randn(2, 1, 9)
        >>> with tnt.padded(lengths=[9, 5]):
        ...     y = model(x)
        >>> torch.allclose(y[1, :, :2], model(x[1, :, :5]))
        True
    """

    def __init__(
        self,
        *,
        lengths: LengthsLike | tuple[LengthsLike, ...] | None = None,
        valid: Tensor | None = None,
        along: int | Sequence[int] | None = None,
    ) -> None:
        self._extents, self._batch_size = extents_of(lengths, valid)
        self._along = None if along is None else axes_of("padded", along, None, len(self._extents))
        self._entered: list[Activation] = []

    def __enter__(self) -> Tracker:
        activation = Activation(Tracker(self._extents, self._batch_size, self._along))
        tracker = activation.__enter__()
        self._entered.append(activation)
        return tracker

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mine = [one for one in self._entered if one.thread == threading.get_ident()]
        if not mine:
            raise RuntimeError("padded: left in another thread than the one that entered it. Leave it in that thread.")
        activation = mine[-1]
        self._entered.remove(activation)
        activation.__exit__(kind, error, trace)
        if error is None:
            _warn(activation.tracker)

    @staticmethod
    def rule(cls: type[nn.Module], fn: LengthsRule | None = None) -> Any:
        """Declare how a class of modules changes lengths: fn(module, lengths) -> lengths.

        The inside of such a module is not followed: it gets its input with zeros in the padding, and its output has the
        new lengths on the axis that positions have in its input. Also a decorator: `@padded.rule(MyDownsample)`.
        """
        if not (isinstance(cls, type) and issubclass(cls, nn.Module)):
            raise TypeError(f"padded.rule: a class of modules, got {cls!r}.")

        def register(made: LengthsRule) -> LengthsRule:
            MODULE_RULES[cls] = made
            return made

        return register if fn is None else register(fn)

    @staticmethod
    def recomputation() -> tuple[Any, Any]:
        """For activation checkpoints: `checkpoint(f, x, use_reentrant=False, context_fn=padded.recomputation)`.

        The recomputation in the backward uses the lengths of the forward, also when the context has been left.
        """
        if not active.trackers:
            return nullcontext(), nullcontext()
        tracker = active.trackers[-1]
        states: list[State] = []
        return Recording(tracker, states), Replaying(tracker, states)


def _warn(tracker: Tracker) -> None:
    notes = tracker.notes
    for modules, reason, fix in (
        (notes.not_given, "called without lengths", "Declare the input: tracked.follow(x, along=...)."),
        (notes.not_converted, "not converted, so padding counts in the statistics", "Call convert(model)."),
    ):
        if modules:
            names = ", ".join(notes.quoted(module) for module in modules)
            warnings.warn(f"padded: {reason}: {names}. {fix}", PaddingWarning, stacklevel=3)
