"""While a tracker is active: a mode for functions of torch, hooks for modules, both in the thread that entered it.

The hooks are those of all modules. They are installed while any tracker is active in the process, and removed with the
last one; in other threads they do nothing. So is torch.compile's stance, which is one for all threads: as long as any
tracker is active, compiled models run as they are written.
"""

from __future__ import annotations

import sys
import threading
from contextlib import ExitStack
from contextvars import ContextVar
from typing import Any, cast

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from truenorm.torch import _compat
from truenorm.torch._compat import backward_pass, push_function_mode, saved_tensor_hooks, take_off_function_mode
from truenorm.torch.tracking import layers
from truenorm.torch.tracking.registry import attribute, rule
from truenorm.torch.tracking.tracker import Tracker

CHECKPOINT_FILE = torch.utils.checkpoint.__file__


class _Active(threading.local):
    """The trackers of this thread, the innermost last."""

    def __init__(self) -> None:
        self.trackers: list[Tracker] = []


active = _Active()
# The tracker of this thread, or of this task of asyncio: tasks of one thread have contexts of their own, modes do not.
_current: ContextVar[Tracker | None] = ContextVar("tracker", default=None)
_lock = threading.Lock()
_contexts = 0  # active, in all threads
_process = ExitStack()  # undone when there are none
_is_eager = False


class Activation:
    """While this context lasts, functions and modules of this thread pass through the tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.thread = threading.get_ident()

    def __enter__(self) -> Tracker:
        tracker = self.tracker
        _begin()
        try:
            tracker.mode = cast("Any", _TrackingMode(tracker))
            tracker.mode.__enter__()
        except BaseException:
            _end()
            raise
        active.trackers.append(tracker)
        self._outer = _current.get()
        _current.set(tracker)
        return tracker

    def __exit__(self, *error: Any) -> None:
        tracker = self.tracker
        try:
            _current.set(self._outer)
            active.trackers.remove(tracker)
            _switch_on(tracker)  # an interrupt inside a norm has left it off
            tracker.mode.__exit__(*error)
        finally:
            tracker.close()
            _end()


class _TrackingMode(TorchFunctionMode):
    def __init__(self, tracker: Tracker) -> None:
        super().__init__()
        self.tracker = tracker

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        tracker = self.tracker
        if tracker.paused is not None or backward_pass() != tracker.backward_pass:
            return func(*args, **(kwargs or {}))
        if saved_tensor_hooks(False) is not None and not tracker.recording:
            _refuse_checkpoint(tracker, func)
        if active.trackers[-1] is not tracker:
            return tracker.call_unknown(func, args, kwargs or {})
        if _current.get() is not tracker:
            raise RuntimeError(
                "padded: a function of torch is called by another task than the one that entered padded last, got "
                "contexts that do not nest. Leave padded before each await."
            )
        return tracker.call(func, args, kwargs or {})


def _switch_off(tracker: Tracker) -> None:
    """The mode sees nothing until it is on again: not what hooks do, nor the inside of a module that is not followed.

    Each of its looks takes a microsecond, and a norm in a kernel asks its tensors for some dozens of attributes.
    """
    tracker.is_off = tracker.is_off or take_off_function_mode(tracker.mode)


def _switch_on(tracker: Tracker) -> None:
    if tracker.is_off:
        tracker.is_off = False
        push_function_mode(tracker.mode)


def padding_is_followed() -> bool:
    """Whether this thread is inside of `padded`."""
    return bool(active.trackers)


# ---- hooks on modules ----


def _begin() -> None:
    """What holds for the whole process: set by the first context, in any thread, and undone by the last one."""
    global _contexts
    with _lock:
        _contexts += 1
        if _contexts == 1:
            before: Any = _before  # torch's types do not know that it may return arguments
            _process.callback(register_module_forward_pre_hook(before).remove)
            _process.callback(register_module_forward_hook(_after, always_call=True).remove)
        if not _is_eager and _compat.compiler_is_loaded():  # otherwise nothing was compiled: importing it takes seconds
            _run_compiled_code_eagerly()


def _run_compiled_code_eagerly() -> None:
    """A compiled graph was made without lengths. Inside, compiled models run as they are written."""
    global _is_eager
    _is_eager = True
    _process.enter_context(torch.compiler.set_stance("force_eager"))
    _process.callback(_set_not_eager)


def _set_not_eager() -> None:
    global _is_eager
    _is_eager = False


def _end() -> None:
    global _contexts
    with _lock:
        _contexts -= 1
        if not _contexts:
            _process.close()


def _before(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    trackers = active.trackers
    if not trackers:
        return None
    tracker = trackers[-1]
    if backward_pass() != tracker.backward_pass:
        return None
    modules = tracker.modules
    modules.append(module)
    if tracker.paused is not None:
        layers.note_inside(tracker, module)
        return None
    if not tracker.recording and (
        saved_tensor_hooks(False) is not None or (module.training and not torch.is_grad_enabled())
    ):
        _refuse_checkpoint(tracker)  # if it is one, which would be recomputed without lengths
    before = layers.reader_of(module)
    if before is None and len(modules) > 1:
        return None
    _switch_off(tracker)
    try:
        if len(modules) == 1:
            layers.begin_model(tracker, module, args)
        return None if before is None else before(tracker, module, args)
    finally:
        if tracker.paused is None:
            _switch_on(tracker)


def _after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    trackers = active.trackers
    if not trackers:
        return
    tracker = trackers[-1]
    modules = tracker.modules
    if not modules or modules[-1] is not module:
        return
    try:
        if tracker.paused is module:
            layers.after_unfollowed(tracker, output)
        elif tracker.paused is None and tracker.states.find(output) is None:
            layers.after(tracker, module, args, output)
    finally:
        modules.pop()
        if tracker.is_off and tracker.paused is None:
            _switch_on(tracker)


def _refuse_checkpoint(tracker: Tracker, func: Any = None) -> None:
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != CHECKPOINT_FILE:
        frame = frame.f_back
    if frame is None:
        return
    while frame.f_code.co_filename == CHECKPOINT_FILE:
        func = frame.f_locals.get("run_function", func)  # of a checkpoint with use_reentrant=True
        frame = frame.f_back
    module = getattr(func, "__self__", func)  # of a method such as Module.__call__
    name = type(module).__name__ if isinstance(module, nn.Module) else tracker.place(func)
    raise RuntimeError(
        f"padded: {name} is called inside torch.utils.checkpoint, which calls it again in the backward, without "
        "lengths. Pass checkpoint(..., use_reentrant=False, context_fn=padded.recomputation)."
    )


@rule(attribute("requires_grad"), reads_inputs=True)
def requires_grad(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """A checkpoint with use_reentrant=True asks its inputs for it, before it calls a module or a function."""
    result = func(*args, **kwargs)
    if result and sys._getframe(4).f_code.co_filename == CHECKPOINT_FILE:
        _refuse_checkpoint(tracker)
    return result
