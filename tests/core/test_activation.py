"""Activations: their values and derivatives at single numbers, and their gradients behind a normalization."""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from oracle import finite_difference

import truenorm as tn
from truenorm.core.activation import ACTIVATIONS, Activation, activate, derive

FUNCTIONS: dict[str, Callable[[float], float]] = {
    "relu": lambda z: max(z, 0.0),
    "gelu": lambda z: z * math.erfc(-z / math.sqrt(2)) / 2,
    "silu": lambda z: z / (1 + math.exp(-z)),
    "tanh": math.tanh,
}
SMOOTH: tuple[Activation, ...] = ("gelu", "silu", "tanh")


def numbers(seed: int) -> Any:
    """Where activations bend, and far enough on both sides that they are almost straight."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.uniform(-1, 1, 23), rng.uniform(-9, 9, 31)])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_values_are_those_of_the_formula(activation: Activation) -> None:
    z = np.append(numbers(20), [0.0, -30.0, 30.0])
    expected = [FUNCTIONS[activation](float(one)) for one in z]
    np.testing.assert_allclose(activate(activation, z), expected, rtol=1e-13)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_derivatives_agree_with_finite_differences(activation: Activation) -> None:
    z, dy = numbers(21), np.random.default_rng(22).normal(2, 1, 54)
    expected = finite_difference(lambda z: np.vectorize(FUNCTIONS[activation])(z), z, dy, 1e-5)
    np.testing.assert_allclose(derive(activation, dy, z), expected, rtol=1e-9, atol=1e-9)


def test_without_activation_values_and_gradients_stay() -> None:
    z, dy = numbers(23), numbers(24)
    np.testing.assert_array_equal(activate(None, z), z)
    np.testing.assert_array_equal(derive(None, dy, z), dy)


def test_relu_keeps_the_sign_of_0() -> None:
    np.testing.assert_array_equal(np.signbit(activate("relu", np.array([-0.0, 0.0, -5e-324]))), [True, False, False])


def test_the_derivative_of_relu_at_0_is_0() -> None:
    np.testing.assert_array_equal(derive("relu", np.array([3.0, 3.0, 3.0]), np.array([-0.0, 0.0, 5e-324])), [0, 0, 3])


def test_the_derivative_of_tanh_keeps_its_digits_where_tanh_is_almost_1() -> None:
    z = np.array([-300.0, -21.5, 12.25, 40.0])
    expected = [1 / math.cosh(one) ** 2 for one in z]
    np.testing.assert_allclose(derive("tanh", np.ones(4), z), expected, rtol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_very_large_numbers_stay_finite(activation: Activation) -> None:
    z = np.array([-1e30, -800.0, 800.0, 1e30])
    with np.errstate(over="ignore", invalid="raise"):
        y, slopes = activate(activation, z), derive(activation, np.ones(4), z)
    np.testing.assert_array_equal(y, [-1, -1, 1, 1] if activation == "tanh" else [0, 0, 800, 1e30])
    np.testing.assert_array_equal(slopes, [0, 0, 0, 0] if activation == "tanh" else [0, 0, 1, 1])


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_gradients_behind_a_normalization_agree_with_finite_differences(activation: Activation) -> None:
    rng = np.random.default_rng(25)
    norm = tn.Norm("b [t] c", activation=activation, eps=0.1)
    x, dy = rng.normal(3, 2, (3, 5, 4)), rng.normal(size=(3, 5, 4))
    parameters: dict[str, Any] = {"weight": rng.normal(size=4), "bias": rng.normal(size=4)}
    given = {"x": x, **parameters}

    def y(name: str, value: Any) -> Any:
        arguments = given | {name: value}
        return tn.forward(arguments.pop("x"), norm, **arguments, lengths=[3, 0, 5]).y

    gradients: Any = tn.backward(dy, tn.forward(x, norm, **parameters, lengths=[3, 0, 5]))
    for name, found in zip(given, gradients, strict=True):
        expected = finite_difference(partial(y, name), given[name], dy, 1e-5)
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9, err_msg=name)
