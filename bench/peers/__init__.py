"""The implementations that are measured. A peer is imported when it is bound: a missing library costs only its rows."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bench.inputs import Inputs
from bench.suite import OURS, Implementation, Run


def _lazy(module: str, function: str = "bind") -> Callable[[Inputs], Run]:
    def bind(inputs: Inputs) -> Run:
        found: Run = getattr(import_module(f"bench.peers.{module}"), function)(inputs)
        return found

    return bind


TRUENORM = Implementation(OURS, _lazy("truenorm_numpy"))
TORCH = Implementation("torch eager", _lazy("torch_eager"))
TORCH_WITH_PADDING = Implementation("torch eager, padding averaged in", _lazy("torch_eager"), ignores_padding=False)
TORCH_COMPILED = Implementation("torch.compile", _lazy("torch_eager", "bind_compiled"))
GATHER = Implementation("torch gather + scatter", _lazy("torch_gather"))
WHERE = Implementation("torch where-and-sum", _lazy("torch_where"))
WHERE_COMPILED = Implementation("torch where-and-sum, compiled", _lazy("torch_where", "bind_compiled"))
JAX = Implementation("jax jit", _lazy("jax_jit"))
NUMPY = Implementation("numpy", _lazy("numpy_plain"))
