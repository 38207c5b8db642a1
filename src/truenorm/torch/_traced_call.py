"""torch.fx takes torch's layers for leaves of a graph, by the name of their module; truenorm's see to it themselves.

While `torch.fx.symbolic_trace` runs, a layer is called with a Proxy instead of a tensor. It records a call of itself,
as the tracer does for leaves, and returns the Proxy of the result.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Proxy

from truenorm.torch._inputs import Input

__all__ = ["Proxy", "record_call"]

NAMES = ("valid", "lengths", "offsets", "segments", "sample_weight")


def record_call(layer: Any, input: Input, *args: Any, along: Any = None, residual: Any = None) -> Input:
    """The layer as one node of the graph, with the arguments that were given."""
    proxy: Any = input
    ragged: dict[str, Any] = dict(zip(NAMES, args, strict=True)) | {"along": along, "residual": residual}
    given = {name: value for name, value in ragged.items() if value is not None}
    recorded: Input = proxy.tracer.create_proxy("call_module", proxy.tracer.path_of_module(layer), (proxy,), given)
    return recorded
