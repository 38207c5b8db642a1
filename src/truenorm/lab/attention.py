"""Self-attention, forward and backward by hand. No position attends to padding, and the output there is 0.

q, k, v = x Wq, x Wk, x Wv            (batch, heads, positions, size of a head)
a = softmax(q kᵀ / √size)             over the valid positions
y = (a v) Wo + b                      0 at padded positions
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.lab.layers import ForwardContext, Layer

Array = NDArray[Any]


class SelfAttention(Layer):
    """(batch, positions, features) -> the same shape. `project` is (features, 3 · features), for q, k and v."""

    def __init__(self, project: Array, weight: Array, bias: Array, heads: int = 1) -> None:
        super().__init__(project=project, weight=weight, bias=bias)
        if len(project) % heads:
            raise ValueError(f"SelfAttention: heads must divide the {len(project)} features, got {heads}.")
        self.heads = heads

    def forward(self, x: Array, ctx: ForwardContext) -> Array:
        batch, positions, features = x.shape
        lengths = np.full(batch, positions) if ctx.lengths is None else ctx.lengths
        self.valid = np.arange(positions) < lengths[:, None]
        self.x = np.where(self.valid[:, :, None], x, 0)
        self.q, self.k, self.v = self._split(self.x @ self.parameters["project"])
        scores = self.q @ self.k.swapaxes(-1, -2) / math.sqrt(features // self.heads)
        keys = self.valid[:, None, None, :]
        scores = np.where(keys, scores, -np.inf)
        scores -= np.where(np.isfinite(top := scores.max(-1, keepdims=True)), top, 0)
        exps = np.where(keys, np.exp(scores), 0)
        self.a = exps / np.maximum(exps.sum(-1, keepdims=True), np.finfo(x.dtype).tiny)
        self.mixed = self._join(self.a @ self.v)
        y = self.mixed @ self.parameters["weight"] + self.parameters["bias"]
        return np.where(self.valid[:, :, None], y, 0)

    def backward(self, dy: Array) -> Array:
        features = dy.shape[-1]
        dy = np.where(self.valid[:, :, None], dy, 0)
        rows = dy.reshape(-1, features)
        np.matmul(self.mixed.reshape(-1, features).T, rows, out=self.gradients["weight"])
        np.add.reduce(rows, 0, out=self.gradients["bias"])
        dmixed = self._split(dy @ self.parameters["weight"].T, 1)[0]
        da = dmixed @ self.v.swapaxes(-1, -2)
        dv = self.a.swapaxes(-1, -2) @ dmixed
        dscores = self.a * (da - (da * self.a).sum(-1, keepdims=True)) / math.sqrt(features // self.heads)
        dq, dk = dscores @ self.k, dscores.swapaxes(-1, -2) @ self.q
        dprojected = np.concatenate([self._join(one) for one in (dq, dk, dv)], axis=-1)
        np.matmul(self.x.reshape(-1, features).T, dprojected.reshape(-1, 3 * features), out=self.gradients["project"])
        return np.where(self.valid[:, :, None], dprojected @ self.parameters["project"].T, 0)

    def _split(self, x: Array, parts: int = 3) -> Array:
        """(batch, positions, parts · features) -> (parts, batch, heads, positions, size of a head)."""
        batch, positions, _ = x.shape
        return x.reshape(batch, positions, parts, self.heads, -1).transpose(2, 0, 3, 1, 4)

    def _join(self, x: Array) -> Array:
        """(batch, heads, positions, size) -> (batch, positions, features)."""
        batch, _, positions, _ = x.shape
        return x.swapaxes(1, 2).reshape(batch, positions, -1)
