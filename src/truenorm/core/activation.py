"""Activations that may follow a normalization, and their derivatives: y = activation(xhat · weight + bias).

    relu  max(z, 0)     gelu  z · Φ(z)     silu  z / (1 + exp(-z))     tanh  tanh(z)

Φ(z) = (1 + erf(z / √2)) / 2 is the normal distribution: this is torch's exact gelu. The derivative of relu at 0 is 0.
All of them are 0 at 0, so padding stays 0.
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

import numpy as np

from truenorm.core.arrays import Floats

Activation = Literal["relu", "gelu", "silu", "tanh"]
ACTIVATIONS: tuple[Activation, ...] = get_args(Activation)


def check_activation(rule: str, activation: object) -> None:
    """Raises a `ValueError` unless it is the name of an activation, or None."""
    if activation is not None and not (isinstance(activation, str) and activation in ACTIVATIONS):
        names = ", ".join(map(repr, ACTIVATIONS))
        raise ValueError(f"{rule} {names} or None, got {activation!r}.")


def activate(activation: str | None, z: Floats) -> Floats:
    """activation(z)

    >>> activate("relu", np.array([-1.0, 2.0]))
    array([0., 2.])
    """
    if activation == "relu":
        return np.where(z < 0, 0.0, z)
    if activation == "gelu":
        return z * _normal(z)
    if activation == "silu":
        return z * _sigmoid(z)
    return np.tanh(z) if activation == "tanh" else z


def derive(activation: str | None, dy: Floats, z: Floats) -> Floats:
    """dy times the derivative of the activation at z.

    >>> derive("relu", np.array([3.0, 3.0]), np.array([-1.0, 2.0]))
    array([0., 3.])
    """
    if activation == "relu":
        return np.where(z <= 0, 0.0, dy)
    if activation == "gelu":
        return dy * (_normal(z) + z * np.exp(-z * z / 2) / math.sqrt(2 * math.pi))
    if activation == "silu":
        s = _sigmoid(z)
        return dy * (s * (1 + z * _sigmoid(-z)))
    if activation == "tanh":
        return dy * 4 * (_sigmoid(2 * z) * _sigmoid(-2 * z))  # 1 - tanh², without cancellation
    return dy


def _sigmoid(z: Floats) -> Floats:
    e = np.exp(-np.abs(z))
    found: Floats = np.where(z < 0, e, 1.0) / (1 + e)
    return found


_erfc: Any = np.vectorize(math.erfc, otypes=[np.float64])  # NumPy has none


def _normal(z: Floats) -> Floats:
    found: Floats = _erfc(z / -math.sqrt(2)) / 2
    return found
