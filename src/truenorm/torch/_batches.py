"""How a batch of a loader, or a micro-batch, is given to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Forward = Callable[[Any, Any], Any]  # of a model and a batch


def call_model(model: Any, batch: Any) -> Any:
    """The model's output for a batch: a tensor, a tuple or list that begins with the input, or a dict of arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    return model(batch[0] if isinstance(batch, tuple | list) else batch)
