"""The formulas under `jax.jit`, differentiated by JAX. JAX uses one thread for each processor of the process."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from bench.inputs import Inputs
from bench.suite import Run


def bind(inputs: Inputs) -> Run:
    """Sums over `where` for padded inputs, plain means otherwise."""
    mask = None if inputs.split_mask is None else jnp.asarray(inputs.split_mask)
    count, axes, affine, eps = jnp.asarray(inputs.count), inputs.axes, inputs.affine, inputs.case.eps

    def zero_padding(array: Any) -> Any:
        return array if mask is None else jnp.where(mask, array, 0.0)

    def function(x: Any, weight: Any, bias: Any) -> Any:
        wide = x.reshape(inputs.split)
        if inputs.centered:
            wide = wide - zero_padding(wide).sum(axes, keepdims=True) / count
        centered = zero_padding(wide)
        var = (centered * centered).sum(axes, keepdims=True) / count
        y = centered * jax.lax.rsqrt(var + eps) * weight.reshape(affine)
        return (y if bias is None else zero_padding(y + bias.reshape(affine))).reshape(x.shape)

    def with_gradients(x: Any, weight: Any, bias: Any, dy: Any) -> Any:
        y, pull_back = jax.vjp(function, x, weight, bias)
        return (y, *pull_back(dy))

    arguments = [None if array is None else jnp.asarray(array) for array in (inputs.x, inputs.weight, inputs.bias)]
    dy = jnp.asarray(inputs.dy)
    compiled, compiled_both = jax.jit(function), jax.jit(with_gradients)

    def forward() -> Any:
        return jax.block_until_ready(compiled(*arguments))

    def both() -> tuple[Any, Any, Any, Any]:
        y, dx, dweight, dbias = jax.block_until_ready(compiled_both(*arguments, dy))
        return y, dx, dweight, dbias

    return Run(forward, both)
