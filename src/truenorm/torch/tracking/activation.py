"""While a tracker is active: a mode for functions of torch, hooks for modules, both in the thread that entered it.

The hooks are those of all modules. They are installed while any tracker is active in the process, and removed with the
last one; in other threads they do nothing.
"""

from __future__ import annotations

import sys
import threading
from typing import Any

import torch
import torch.utils.checkpoint
from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.overrides import TorchFunctionMode

from truenorm.torch._compat import backward_pass, saved_tensors_are_hooked
from truenorm.torch.tracking import layers
from truenorm.torch.tracking.tracker import Tracker

CHECKPOINT_FILE = torch.utils.checkpoint.__file__


class _Active(threading.local):
    """The trackers of this thread, the innermost last."""

    def __init__(self) -> None:
        self.trackers: list[Tracker] = []


active = _Active()
_lock = threading.Lock()
_hooks: list[Any] = []
_contexts = 0  # active, in all threads


class Activation:
    """While this context lasts, functions and modules of this thread pass through the tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self._mode: Any = _TrackingMode(tracker)

    def __enter__(self) -> Tracker:
        _install_hooks()
        try:
            self._mode.__enter__()
        except BaseException:
            _remove_hooks()
            raise
        active.trackers.append(self.tracker)
        return self.tracker

    def __exit__(self, *error: Any) -> None:
        active.trackers.remove(self.tracker)
        try:
            self._mode.__exit__(*error)
        finally:
            _remove_hooks()
            self.tracker.close()


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
        if active.trackers[-1] is not tracker:
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
    trackers = active.trackers
    if not trackers:
        return None
    tracker = trackers[-1]
    if backward_pass() != tracker.backward_pass:
        return None
    tracker.modules.append(module)
    if tracker.paused is not None:
        return None
    _check_checkpoint(tracker, module)
    if len(tracker.modules) == 1:
        layers.begin_model(tracker, module, args)
    return layers.before(tracker, module, args)


def _after(module: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
    trackers = active.trackers
    if trackers and trackers[-1].modules and trackers[-1].modules[-1] is module:
        tracker = trackers[-1]
        try:
            layers.after(tracker, module, args, output)
        finally:
            tracker.modules.pop()


def _check_checkpoint(tracker: Tracker, module: nn.Module) -> None:
    """Raises inside a checkpoint that would be recomputed without lengths."""
    if tracker.recording or not (saved_tensors_are_hooked() or (module.training and not torch.is_grad_enabled())):
        return
    frame: Any = sys._getframe(2)
    while frame is not None:
        if frame.f_code.co_filename == CHECKPOINT_FILE:
            raise RuntimeError(
                f"padded: {tracker.place()} is called inside torch.utils.checkpoint, which calls it again in the "
                "backward, without lengths. Pass checkpoint(..., use_reentrant=False, context_fn=padded.recomputation)."
            )
        frame = frame.f_back
