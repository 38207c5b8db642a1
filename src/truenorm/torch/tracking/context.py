"""`padded`: tells every converted layer below which positions are real, and keeps padding out of everything else.

    with tnt.padded(lengths=lengths):
        y = model(x)

Two mechanisms work while a context is active, both in the thread that entered it only. A TorchFunctionMode passes every
function of torch to the rules (`registry.py`), which follow the lengths and set padding to what the function ignores.
Hooks on all modules give lengths to the converted layers, whose kernels no mode sees, and know the names of layers.
They are installed while any context is active, and removed with the last one.

A nested context is followed by itself: to the outer one it is a function without a rule.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Sequence
from types import TracebackType
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from truenorm.torch.tracking import layers
from truenorm.torch.tracking.arguments import LengthsLike, axes_of, extents_of
from truenorm.torch.tracking.registry import MODULE_RULES, LengthsRule
from truenorm.torch.tracking.report import PaddingWarning
from truenorm.torch.tracking.tracker import Tracker


class _Active(threading.local):
    """The trackers of this thread, the innermost last."""

    def __init__(self) -> None:
        self.trackers: list[Tracker] = []


_active = _Active()
_lock = threading.Lock()
_hooks: list[Any] = []
_contexts = 0  # active, in all threads


class padded:  # noqa: N801 - called like a function, as torch.no_grad
    """A context in which each sequence of a padded batch is computed as if it were alone.

    lengths   (b,): the first lengths[i] positions of sequence i are valid; a pair for two position axes
    valid     (b, t): instead of lengths, a mask. Valid positions behind padding are not followed through convolutions
    along     the axis of the model's input that has the positions, or one for each vector of lengths. By default it
              follows from the first layer that reads the input: axis 2 for Conv1d, axis 1 for Embedding and Linear

    Lengths are read when the context is created: on another device than the CPU that waits for them once.

    >>> import torch
    >>> model = nn.Sequential(nn.Conv1d(1, 2, 3, stride=2), nn.ReLU())
    >>> x = torch.randn(2, 1, 9)
    >>> with padded(lengths=[9, 5]):
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
        self._modes: list[Any] = []

    def __enter__(self) -> Tracker:
        tracker = Tracker(self._extents, self._batch_size, self._along)
        mode: Any = _TrackingMode(tracker)
        _install_hooks()
        try:
            mode.__enter__()
        except BaseException:
            _remove_hooks()
            raise
        self._modes.append(mode)
        _active.trackers.append(tracker)
        return tracker

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        mode = self._modes.pop()
        _active.trackers.remove(mode.tracker)
        try:
            mode.__exit__(kind, error, trace)
        finally:
            _remove_hooks()
            mode.tracker.close()
        if error is None:
            _warn(mode.tracker)

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


def _warn(tracker: Tracker) -> None:
    notes = tracker.notes
    for modules, reason, fix in (
        (notes.not_given, "were called without lengths", "Declare their inputs: tracked.follow(x, along=...)."),
        (notes.not_converted, "are not converted, and padding counts in their statistics", "Call convert(model)."),
    ):
        if modules:
            names = ", ".join(notes.name(module) for module in modules)
            warnings.warn(f"padded: {names} {reason}. {fix}", PaddingWarning, stacklevel=3)


class _TrackingMode(TorchFunctionMode):
    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self.tracker = tracker

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tracker = self.tracker
        if tracker.paused is not None:
            return func(*args, **(kwargs or {}))
        if _active.trackers[-1] is not tracker:
            return tracker.call_unknown(func, args, kwargs or {})
        return tracker.call(func, args, kwargs or {})


# ---- hooks on modules ----


def _install_hooks() -> None:
    global _contexts
    with _lock:
        _contexts += 1
        if not _hooks:
            before: Any = _before  # torch's types do not know that it may return arguments
            _hooks.append(register_module_forward_pre_hook(before))
            _hooks.append(register_module_forward_hook(_after, always_call=True))


def _remove_hooks() -> None:
    global _contexts
    with _lock:
        _contexts -= 1
        while not _contexts and _hooks:
            _hooks.pop().remove()


def _before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    trackers = _active.trackers
    if not trackers:
        return None
    tracker = trackers[-1]
    tracker.modules.append(module)
    if tracker.paused is not None:
        return None
    if len(tracker.modules) == 1:
        layers.begin_model(tracker, module, args)
    return layers.before(tracker, module, args)


def _after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    trackers = _active.trackers
    if trackers and trackers[-1].modules and trackers[-1].modules[-1] is module:
        tracker = trackers[-1]
        try:
            layers.after(tracker, module, args, output)
        finally:
            tracker.modules.pop()
