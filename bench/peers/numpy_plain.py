"""The formulas in float32 NumPy, one array operation after the other, in one thread."""

from __future__ import annotations

import numpy as np

from bench.inputs import Array, Inputs
from bench.suite import Run


def bind(inputs: Inputs) -> Run:
    """Sums over `where` in forward, and the gradient as the papers write it."""
    mask, count, axes = inputs.split_mask, inputs.count, inputs.axes
    x, dy = (array.reshape(inputs.split) for array in (inputs.x, inputs.dy))
    weight = inputs.weight.reshape(inputs.affine)
    bias = None if inputs.bias is None else inputs.bias.reshape(inputs.affine)
    eps, zero = np.float32(inputs.case.eps), np.float32(0)
    shared = tuple(axis for axis, size in enumerate((1,) * (x.ndim - weight.ndim) + weight.shape) if size == 1)

    def zero_padding(array: Array) -> Array:
        return array if mask is None else np.where(mask, array, zero)

    def normalize() -> tuple[Array, Array]:
        mean = zero_padding(x).sum(axes, keepdims=True) / count if inputs.centered else zero
        centered = zero_padding(x - mean)
        rstd = 1 / np.sqrt(np.square(centered).sum(axes, keepdims=True) / count + eps)
        return centered * rstd, rstd

    def output(xhat: Array) -> Array:
        y = xhat * weight
        return (y if bias is None else zero_padding(y + bias)).reshape(inputs.x.shape)

    def forward() -> Array:
        return output(normalize()[0])

    def both() -> tuple[Array, Array, Array, Array | None]:
        xhat, rstd = normalize()
        g = zero_padding(dy)
        g_xhat = g * xhat
        dbias = None if bias is None else g.sum(shared).ravel()
        dxhat = g * weight
        dx = dxhat - xhat * ((dxhat * xhat).sum(axes, keepdims=True) / count)
        if inputs.centered:
            dx -= dxhat.sum(axes, keepdims=True) / count
        dx = zero_padding(dx * rstd).reshape(inputs.x.shape)
        return output(xhat), dx, g_xhat.sum(shared).ravel(), dbias

    return Run(forward, both)
