"""What a tracker of `padded` does while something runs."""

from collections.abc import Callable
from typing import Any

import pytest

from truenorm.torch.tracking.tracker import Tracker


def count_calls(method: str, run: Callable[[], Any]) -> int:
    """How often trackers call one of their methods."""
    found = 0
    call = getattr(Tracker, method)

    def counted(*args: Any) -> Any:
        nonlocal found
        found += 1
        return call(*args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Tracker, method, counted)
        run()
    return found
