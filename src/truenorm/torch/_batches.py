"""How a batch of a loader, or a micro-batch, is given to a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from torch.nn.utils.rnn import PackedSequence

Forward = Callable[[Any, Any], Any]  # of a model and a batch


def call_model(model: Any, batch: Any) -> Any:
    """The model's output for a batch: an input, a tuple or list that begins with it, or a dict of arguments."""
    if isinstance(batch, Mapping):
        return model(**batch)
    begins_with_input = isinstance(batch, tuple | list) and not isinstance(batch, PackedSequence)  # which is a tuple
    return model(batch[0] if begins_with_input else batch)
