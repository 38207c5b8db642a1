"""Arguments of calls of torch: the tensors in them, the first of them, the name of the function; tensors of a model."""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

WITHOUT_TENSORS = {int, float, bool, str, slice, type(None), type(...), torch.Size, torch.dtype, torch.device}
FIRST_NAMES = ("condition", "query", "equation", "tensors", "input", "self", "x", "A")


def first_by_position(kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call by name, as rules expect them: the first one by position, the others as they were."""
    name = next((name for name in FIRST_NAMES if name in kwargs), None)
    if name is None:
        return (), kwargs
    return (kwargs[name],), {key: one for key, one in kwargs.items() if key != name}


def tensors_in(value: Any) -> list[Tensor]:
    """The tensors in an argument or result."""
    found: list[Tensor] = []
    _collect(value, found)
    return found


def _collect(value: Any, found: list[Tensor]) -> None:
    kind = type(value)
    if kind in WITHOUT_TENSORS:
        return
    if kind is Tensor or isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        for one in value:
            _collect(one, found)
    elif isinstance(value, dict):
        for one in value.values():
            _collect(one, found)


def tensors_of(model: nn.Module) -> set[int]:
    """The ids of the buffers and other attributes of a model. Not by `modules()`, which takes ten times as long."""
    modules: dict[int, nn.Module] = {}
    left: list[nn.Module | None] = [model]
    for module in left:  # which grows
        if module is not None and id(module) not in modules:
            modules[id(module)] = module
            left += module._modules.values()
    attributes = [vars(module).values() for module in modules.values()]
    kinds = {kind for kind in set(map(type, chain.from_iterable(attributes))) if issubclass(kind, Tensor)}
    found = {id(one) for module in modules.values() if module._buffers for one in module._buffers.values()}
    if kinds:  # mostly there are none
        found.update(id(one) for one in chain.from_iterable(attributes) if type(one) in kinds)
    return found - {id(None)}


def name_of(func: Any) -> str:
    """The name of a function, for messages: that of the attribute for `Tensor.mT.__get__`."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(func.__self__, "__name__", name)
    return str(name)
