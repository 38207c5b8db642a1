"""Who is measured. A peer is loaded when it is bound, so that a missing library costs only its own rows."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module

from bench.problem import Problem
from bench.suite import OURS, Implementation, Run


def _later(module: str, function: str = "bind") -> Callable[[Problem], Run]:
    def bind(problem: Problem) -> Run:
        found: Run = getattr(import_module(f"bench.peers.{module}"), function)(problem)
        return found

    return bind


TRUENORM = Implementation(OURS, _later("truenorm_numpy"))
TORCH = Implementation("torch eager", _later("torch_eager"))
TORCH_UNMASKED = Implementation("torch eager, padding averaged in", _later("torch_eager"), masked=False)
TORCH_COMPILED = Implementation("torch.compile", _later("torch_eager", "bind_compiled"))
GATHER = Implementation("torch gather + scatter", _later("torch_gather"))
WHERE = Implementation("torch where-and-sum", _later("torch_where"))
WHERE_COMPILED = Implementation("torch where-and-sum, compiled", _later("torch_where", "bind_compiled"))
JAX = Implementation("jax jit", _later("jax_jit"))
NUMPY = Implementation("numpy", _later("numpy_plain"))
