"""Rules for values that leave torch: what is computed from them is not followed, and the report says so.

Code that torch's functions do not show at all is reported where it can be noticed: a module of torch.jit by its hooks
(`layers.py`), an `autograd.Function` that sums over padding by the padding that it has set to 0 (`Tracker.fill`).
A function of torch.jit cannot be noticed.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.registry import rule
from truenorm.torch.tracking.tag import Tag
from truenorm.torch.tracking.tracker import Tracker


@rule(Tensor.numpy, Tensor.tolist, Tensor.__array__, Tensor.__dlpack__, reads_inputs=True)
def leave(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    found = tracker.look(args[0])
    padded = found.has_padding if isinstance(found, Tag) else isinstance(found, Fresh) and found.source.has_values
    if padded:
        tracker.notes.lost(func.__name__, tracker.module, "values leave torch, with padding")
    return func(*args, **kwargs)
