"""Every private name of torch that truenorm uses, each with a fallback for a torch that lacks it.

A missing name makes calls slower, never wrong: what cannot be asked is assumed to be the case that the kernels do not
handle. tests/torch/test_compat.py removes them one by one.
"""

from __future__ import annotations

import importlib.util
import inspect
import re
import sys
import traceback
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def _private(path: str, fallback: Any) -> Any:
    """The name below `torch._C`, or the fallback."""
    found: Any = torch._C
    for name in path.split("."):
        found = getattr(found, name, None)
    return fallback if found is None else found


def _unknown() -> bool:
    return True


def _is_tracing() -> bool | None:
    jit: Any = torch.jit
    return jit.is_tracing() or None


# Whether a transform of torch.func (grad, vmap, jvp) wraps tensors, which then have no memory of their own.
transform_is_active: Callable[[], bool] = _private("_are_functorch_transforms_active", _unknown)
# Whether torch.jit.trace records operations. The public torch.jit.is_tracing takes five times as long.
_tracing_state: Callable[[], Any] = _private("_get_tracing_state", _is_tracing)
# How many dispatch modes watch every operation, or replace tensors by fake ones.
_count_modes: Callable[[], int] = _private("_len_torch_dispatch_stack", _unknown)
# Whether a gradient is a batch of gradients (is_grads_batched), which looks like a tensor of one.
is_batched_gradient: Callable[[Tensor], bool] = _private("_functorch.is_legacy_batchedtensor", lambda _: True)
# The number of the backward pass that runs in this thread; -1 outside of one.
backward_pass: Callable[[], int] = _private("_current_graph_task_id", lambda: -1)

# The hooks on tensors that autograd saves, the innermost pair, or None; inside most checkpoints there are some.
saved_tensor_hooks: Callable[[bool], Any] = _private("_autograd._top_saved_tensors_default_hooks", lambda _: True)


# The modes of this thread that see functions of torch, the innermost last. Without these names none is taken off.
_count_function_modes: Callable[[], int] = _private("_len_torch_function_stack", lambda: 0)
_function_mode_at: Callable[[int], Any] = _private("_get_function_stack_at", lambda _: None)
_pop_function_mode: Callable[[], Any] = _private("_pop_torch_function_stack", lambda: None)
push_function_mode: Callable[[Any], None] = _private("_push_on_torch_function_stack", lambda _: None)


def take_off_function_mode(mode: Any) -> bool:
    """Take a mode off, so that it sees nothing until `push_function_mode`. False if it is not the innermost one."""
    count = _count_function_modes()
    if not count or _function_mode_at(count - 1) is not mode:
        return False
    _pop_function_mode()
    return True


def version_of(tensor: Tensor) -> int:
    """How often a tensor and all views of it were changed in place; -1 if torch does not count it."""
    try:
        version: int = tensor._version
        return version
    except RuntimeError:  # made in inference mode
        return -1


def revive(tensor: Tensor) -> None:
    """For a tensor that comes out of a weak reference: perhaps only C++ has kept it."""
    if hasattr(tensor, "_fix_weakref"):
        tensor._fix_weakref()


def name_of_autograd_function() -> str | None:
    """The `autograd.Function` whose forward is running; None if there is none, or if it cannot be found."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_name == "apply" and code.co_filename == torch.autograd.function.__file__:
            return str(getattr(frame.f_locals.get("cls"), "__name__", "autograd.Function"))
        # torch 2.15 has no such frame.
        if code.co_name == "forward" and not isinstance(frame.f_locals.get("self"), torch.nn.Module):
            for function in _subclasses(torch.autograd.Function):
                if getattr(inspect.unwrap(function.forward), "__code__", None) is code:
                    return function.__name__
        frame = frame.f_back
    return None


def _subclasses(of: type) -> Iterator[type[torch.autograd.Function]]:
    found: list[Any] = of.__subclasses__()
    for one in found:
        yield one
        yield from _subclasses(one)


def checkpoints_in_forward() -> list[Any]:
    """The activation checkpoints, with use_reentrant=False, whose first forward is running, the innermost first.

    An object for each, which lives as long as it may be recomputed; None for one that cannot be found.
    """
    module = sys.modules.get("torch.utils.checkpoint")
    function = "_checkpoint_impl" if hasattr(module, "_checkpoint_impl") else "checkpoint"  # torch 2.15 has both
    return [
        getattr(getattr(found.get("gen"), "gi_frame", None), "f_locals", {}).get("new_frame")
        for found in _frames_of_checkpoint(function)
    ]


def recomputed_checkpoint() -> Any:
    """The object of the innermost activation checkpoint that is being recomputed; None if there is none."""
    return next((found.get("frame") for found in _frames_of_checkpoint("unpack_hook")), None)


def _frames_of_checkpoint(function: str) -> Iterator[Any]:
    """The variables of the calls of a function of torch.utils.checkpoint, the innermost first."""
    module: Any = sys.modules.get("torch.utils.checkpoint")
    frame: Any = None if module is None else sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == function and frame.f_code.co_filename == module.__file__:
            yield frame.f_locals
        frame = frame.f_back


def leave_checkpoints(error: BaseException) -> None:
    """Leave the activation checkpoints that an error has ended, in the thread that is inside them.

    Newer versions of torch do so by themselves. 2.10 does so when the error is freed, in whatever thread that happens.
    """
    module: Any = sys.modules.get("torch.utils.checkpoint")
    for frame, _ in reversed(list(traceback.walk_tb(error.__traceback__))):
        if module is not None and frame.f_code.co_filename == module.__file__:
            found = frame.f_locals.get("gen")
            if isinstance(found, Generator):
                found.close()


def keywords_of_call(module: torch.nn.Module) -> dict[str, Any]:
    """The arguments by name of the call of a module that is going on: hooks on all modules are not given them.

    It is the dictionary of the call itself: what is taken out of it is not passed on. Empty if it cannot be found.
    """
    frame: Any = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == "_call_impl":  # asked first: f_locals makes a dictionary of all variables
            found = frame.f_locals
            if found.get("self") is module:
                keywords = found.get("kwargs")
                return keywords if isinstance(keywords, dict) else {}
        frame = frame.f_back
    return {}


def under_a_transform() -> bool:
    """Whether a transform of torch.func is active, for what refuses it: False where torch does not say."""
    return transform_is_active is not _unknown and transform_is_active()


def compiler_is_loaded() -> bool:
    """Whether torch.compile may have been used."""
    return "torch._dynamo" in sys.modules


def is_tracing() -> bool:
    """Whether torch.jit.trace records operations."""
    return _tracing_state() is not None


def in_forward_mode() -> bool:
    """Whether forward-mode derivatives are being computed."""
    return getattr(forward_ad, "_current_level", -1) >= 0


def is_exporting() -> bool:
    """Whether operations become nodes of an exported program, which is run without truenorm."""
    # torch.compile of 2.10 takes the public function for True; the flag behind it is right in every version.
    exporting = getattr(torch.compiler, "_is_exporting_flag", None)
    if exporting is None:
        exporting = torch.compiler.is_exporting()
    return bool(exporting) or (torch.compiler.is_compiling() and torch.onnx.is_in_onnx_export())


def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """`x.reshape(shape)`, also where a program is exported for all sizes.

    torch.export of 2.10 cannot merge two axes if the size of one is not known. It can merge all axes.
    """
    return (x.flatten() if is_exporting() else x).reshape(shape)


_is_compiling = torch.compiler.is_compiling  # public, but two lookups away


def in_plain_eager_mode() -> bool:
    """Whether tensors are what they seem: only reverse-mode autograd may be recording."""
    return (
        not _is_compiling()
        and getattr(forward_ad, "_current_level", 0) < 0
        and not transform_is_active()
        and _tracing_state() is None
        and _count_modes() == 0
    )


def apply_of(function: type[torch.autograd.Function]) -> Callable[..., Any]:
    """`function.apply` without its 5 us of preparation for torch.func: for use in plain eager mode only."""
    bound: Any = super(torch.autograd.Function, function)
    return getattr(bound, "apply", function.apply)


def _bump_versions(tensors: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for tensor in tensors:
            tensor.add_(0)


# Bumps the version counters of tensors that were changed outside of torch, as autograd relies on them. It is public,
# but not in every version.
mark_changed: Callable[[Sequence[Tensor]], None] = getattr(torch.autograd.graph, "increment_version", _bump_versions)


def is_zero_tensor(tensor: Tensor) -> bool:
    """Whether torch made it up as zeros without any memory."""
    return bool(getattr(tensor, "_is_zerotensor", bool)())


# How plain tensors and parameters dispatch.
_plain_dispatch: Any = getattr(Tensor, "__torch_dispatch__", None)


def has_own_dispatch(tensor: Tensor) -> bool:
    """Whether its class replaces every operation, as that of fake tensors does: it may hold no values."""
    return getattr(type(tensor), "__torch_dispatch__", None) is not _plain_dispatch


_functorch_off: Any = _private("_DisableFuncTorch", None)
_unwrapped: Any = _private("_functorch.get_unwrapped", None)
_is_wrapped: Callable[[Tensor], bool] = _private("_functorch.is_functorch_wrapped_tensor", lambda _: True)
_is_batched: Callable[[Tensor], bool] = _private("_functorch.is_batchedtensor", lambda _: True)


_is_legacy_batched: Callable[[Tensor], bool] = _private("_functorch.is_legacy_batchedtensor", lambda _: True)


def may_be_batched(tensor: Tensor) -> bool:
    """Whether it may stand for many: in a vmap of torch.func, or as gradients with is_grads_batched."""
    return transform_is_active() or _is_legacy_batched(tensor)


def values_behind_transforms(tensor: Tensor) -> Tensor | None:
    """The tensor that transforms of derivatives (grad, vjp, jvp) have wrapped; None behind a vmap."""
    while _is_wrapped(tensor):
        if _unwrapped is None or _is_batched(tensor):
            return None
        tensor = _unwrapped(tensor)
    return tensor


def outside_transforms() -> AbstractContextManager[Any]:
    """Operations inside are those of torch without torch.func."""
    return nullcontext() if _functorch_off is None else _functorch_off()


def ragged_axis(jagged: Tensor) -> int:
    """The axis of a jagged nested tensor along which sizes differ."""
    found = getattr(jagged, "_ragged_idx", None)
    return next(i for i, size in enumerate(jagged.shape) if type(size) is not int) if found is None else int(found)


# DLPack's C functions, through which the kernels read tensors: torch 2.10 and later have them.
dlpack_exchange: Any = getattr(Tensor, "__dlpack_c_exchange_api__", None)


def load_nodes() -> Any:
    """The module of nodes in C++ that was built against exactly this torch; None if there is none."""
    name = "_torch_" + re.sub(r"\W", "_", torch.__version__)
    found = importlib.util.find_spec(f"truenorm.{name}")
    return None if found is None else importlib.import_module(found.name)


def process_group(name: str) -> Any:
    """The process group of this name, for modules that were copied or pickled."""
    from torch.distributed import distributed_c10d

    resolve = getattr(distributed_c10d, "_resolve_process_group", None)
    if resolve is None:
        raise RuntimeError(f"sync: the process group {name!r} is not known any more. Call sync(model, group) again.")
    return resolve(name)
