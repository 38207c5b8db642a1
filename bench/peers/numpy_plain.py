"""The formulas in float32 NumPy, one array after the other; one thread."""

from __future__ import annotations

import numpy as np

from bench.problem import Array, Problem
from bench.suite import Run


def bind(problem: Problem) -> Run:
    """Where-and-sum forward, and the gradient as the papers write it."""
    mask, count, axes = problem.split_mask, problem.count, problem.axes
    x, dy = (array.reshape(problem.split) for array in (problem.x, problem.dy))
    weight = problem.weight.reshape(problem.affine)
    bias = None if problem.bias is None else problem.bias.reshape(problem.affine)
    eps, zero = np.float32(problem.case.eps), np.float32(0)
    shared = tuple(axis for axis, size in enumerate((1,) * (x.ndim - weight.ndim) + weight.shape) if size == 1)

    def real(array: Array) -> Array:
        return array if mask is None else np.where(mask, array, zero)

    def normalize() -> tuple[Array, Array]:
        centered = real(x - real(x).sum(axes, keepdims=True) / count) if problem.centered else real(x)
        rstd = 1 / np.sqrt(np.square(centered).sum(axes, keepdims=True) / count + eps)
        return centered * rstd, rstd

    def output(xhat: Array) -> Array:
        y = xhat * weight
        return (y if bias is None else real(y + bias)).reshape(problem.x.shape)

    def forward() -> Array:
        return output(normalize()[0])

    def both() -> tuple[Array, Array, Array, Array | None]:
        xhat, rstd = normalize()
        g = real(dy)
        g_xhat = g * xhat
        dbias = None if bias is None else g.sum(shared).ravel()
        dxhat = g * weight
        dx = dxhat - xhat * ((dxhat * xhat).sum(axes, keepdims=True) / count)
        if problem.centered:
            dx -= dxhat.sum(axes, keepdims=True) / count
        dx = real(dx * rstd).reshape(problem.x.shape)
        return output(xhat), dx, g_xhat.sum(shared).ravel(), dbias

    return Run(forward, both)
