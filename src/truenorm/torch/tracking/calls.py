"""Arguments of calls of torch: the tensors in them, the first of them, the name of the function."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

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
    if isinstance(value, Tensor):
        found.append(value)
    elif isinstance(value, (tuple, list)):
        if not isinstance(value, torch.Size):
            for one in value:
                _collect(one, found)
    elif isinstance(value, dict):
        for one in value.values():
            _collect(one, found)


def name_of(func: Any) -> str:
    """The name of a function, for messages: that of the attribute for `Tensor.mT.__get__`."""
    name = getattr(func, "__name__", str(func))
    if name == "__get__":
        name = getattr(func.__self__, "__name__", name)
    return str(name)
