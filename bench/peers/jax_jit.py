"""The formulas under `jax.jit`, differentiated by JAX. It uses as many threads as the process has processors."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.problem import Problem
from bench.suite import Run


def bind(problem: Problem) -> Run:
    """Where-and-sum, or plain means where nothing is padded."""
    mask = None if problem.split_mask is None else jnp.asarray(problem.split_mask)
    count, axes, affine, eps = jnp.asarray(problem.count), problem.axes, problem.affine, problem.case.eps

    def real(array: Any) -> Any:
        return array if mask is None else jnp.where(mask, array, 0.0)

    def function(x: Any, weight: Any, bias: Any) -> Any:
        wide = x.reshape(problem.split)
        if problem.centered:
            wide = wide - real(wide).sum(axes, keepdims=True) / count
        centered = real(wide)
        var = (centered * centered).sum(axes, keepdims=True) / count
        y = centered * jax.lax.rsqrt(var + eps) * weight.reshape(affine)
        return (y if bias is None else real(y + bias.reshape(affine))).reshape(x.shape)

    def with_gradients(x: Any, weight: Any, bias: Any, dy: Any) -> Any:
        y, pull_back = jax.vjp(function, x, weight, bias)
        return (y, *pull_back(dy))

    arguments = [None if array is None else jnp.asarray(array) for array in (problem.x, problem.weight, problem.bias)]
    dy = jnp.asarray(problem.dy)
    compiled, compiled_both = jax.jit(function), jax.jit(with_gradients)

    def forward() -> Any:
        return jax.block_until_ready(compiled(*arguments))

    def both() -> tuple[Any, Any, Any, Any]:
        y, dx, dweight, dbias = jax.block_until_ready(compiled_both(*arguments, dy))
        return y, dx, dweight, dbias

    return Run(forward, both)
