"""The lab's layers and networks: every gradient against finite differences, in float64, with padding that holds NaN."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

import truenorm as tn
from truenorm.lab.attention import SelfAttention
from truenorm.lab.layers import (
    GELU,
    Dropout,
    Embedding,
    ForwardContext,
    Layer,
    Linear,
    MeanOverPositions,
    Normalize,
    Positions,
    ReLU,
    Sigmoid,
    StatisticsOver,
    Tanh,
    cross_entropy,
    squared_error,
)
from truenorm.lab.networks import ModelConfig, Network, character_mlp, sequence_classifier, table_network
from truenorm.lab.optimizers import SGD, Adam, learning_rate

Array = NDArray[Any]
LENGTHS = np.array([5, 2, 1, 4])
TRAINING = ForwardContext(training=True)


def finite_differences(loss: Callable[[], float], at: Array, step: float = 1e-6) -> Array:
    """Central differences of the loss for each element of an array, which is changed in place and restored."""
    found = np.zeros_like(at)
    for i in np.ndindex(at.shape):
        before = at[i]
        at[i] = before + step
        above = loss()
        at[i] = before - step
        found[i] = (above - loss()) / (2 * step)
        at[i] = before
    return found


def check(layer: Layer, x: Array, ctx: ForwardContext = TRAINING, *, inputs: bool = True) -> None:
    """dx and the gradients of all parameters, for random cotangents: the sum of a normalized output is constant."""
    rng = np.random.default_rng(5)
    for value in layer.parameters.values():
        value += rng.normal(0, 0.3, value.shape)
    cotangent = rng.standard_normal(layer.forward(x, ctx).shape)

    def loss() -> float:
        return float((layer.forward(x, ctx) * cotangent).sum())

    layer.forward(x, ctx)
    dx = layer.backward(cotangent)
    found = {name: value.copy() for name, value in layer.gradients.items()}
    assert found.keys() == layer.parameters.keys()
    if inputs:
        np.testing.assert_allclose(dx, finite_differences(loss, x), rtol=1e-6, atol=1e-8)
    for name, value in layer.parameters.items():
        np.testing.assert_allclose(found[name], finite_differences(loss, value), rtol=1e-6, atol=1e-8, err_msg=name)


def draw(*shape: int) -> Array:
    return np.random.default_rng(list(shape)).normal(0.3, 1.2, shape)


def test_linear() -> None:
    check(Linear(draw(4, 3), draw(3)), draw(5, 4))
    check(Linear(draw(4, 3), draw(3)), draw(2, 5, 4))


def test_rows_that_are_used_twice_get_both_gradients() -> None:
    x = np.array([[0, 3, 3], [2, 0, 3]])
    layer = Embedding(draw(5, 2))
    check(layer, x, inputs=False)
    layer.forward(x, ForwardContext())
    layer.backward(np.ones((2, 3, 2)))
    np.testing.assert_array_equal(layer.gradients["table"], np.array([[2, 0, 1, 3, 0]] * 2).T)


def test_rows_side_by_side() -> None:
    check(Embedding(draw(5, 2), flat=True), np.array([[0, 3, 3], [2, 0, 3]]), inputs=False)
    layer = Embedding(draw(5, 2))
    layer.forward(np.array([[0, 3, 3], [2, 0, 3]]), ForwardContext())
    with pytest.raises(ValueError, match=r"Embedding: dy has 2 values for each index of x \(2, 3\), got \(2, 3\)"):
        layer.backward(np.ones((2, 3)))


def test_positions() -> None:
    check(Positions(draw(5, 3)), draw(4, 5, 3))
    check(Positions(draw(7, 3)), draw(4, 5, 3))


@pytest.mark.parametrize("activation", [Tanh, ReLU, Sigmoid, GELU])
def test_activations(activation: type[Layer]) -> None:
    check(activation(), draw(4, 7))


def test_sigmoid_and_tanh_stay_finite_and_exact_at_the_ends() -> None:
    assert Sigmoid().forward(np.array([-1e4, 0.0, 1e4]), ForwardContext()).tolist() == [0.0, 0.5, 1.0]


@pytest.mark.parametrize("norm", [tn.batch(ddof=1), tn.layer(), tn.rms(), tn.group(2)])
def test_normalize_in_training(norm: tn.Norm) -> None:
    check(Normalize(norm, 6, running=False), draw(5, 6))


@pytest.mark.parametrize("statistics_over", get_args(StatisticsOver))
def test_normalize_with_padding(statistics_over: StatisticsOver) -> None:
    x = draw(4, 5, 3)
    layer = Normalize(tn.batch(), 3, running=True, statistics_over=statistics_over)
    check(layer, x, ForwardContext(training=True, lengths=LENGTHS))


def test_normalize_uses_running_statistics_where_it_is_not_in_training() -> None:
    layer = Normalize(tn.batch(), 3, running=True)
    for _ in range(300):
        layer.forward(draw(40, 3), ForwardContext(training=True))
    alone = layer.forward(draw(40, 3)[:1], ForwardContext())
    np.testing.assert_allclose(alone, layer.forward(draw(40, 3), ForwardContext())[:1], rtol=1e-12)
    # n - 1 in what is stored
    mean, std = draw(40, 3).mean(0), draw(40, 3).std(0, ddof=1)
    np.testing.assert_allclose(alone[0], (draw(40, 3)[0] - mean) / np.sqrt(std**2 + 1e-5), rtol=1e-6)
    check(layer, draw(2, 3), ForwardContext())


def test_dropout_keeps_the_mean_and_its_gradient_is_its_mask() -> None:
    layer, x = Dropout(0.25), np.ones((200, 300))
    y = layer.forward(x, ForwardContext(training=True, rng=np.random.default_rng(1)))
    assert set(np.unique(y).round(12)) == {0.0, round(4 / 3, 12)}
    assert abs(y.mean() - 1) < 0.01
    np.testing.assert_array_equal(layer.backward(x), y)
    np.testing.assert_array_equal(layer.forward(x, ForwardContext()), x)
    np.testing.assert_array_equal(layer.backward(x), x)


def test_mean_over_positions() -> None:
    check(MeanOverPositions(), draw(4, 5, 3), ForwardContext(lengths=LENGTHS))
    x = draw(4, 5, 3)
    found = MeanOverPositions().forward(x, ForwardContext(lengths=LENGTHS))
    np.testing.assert_allclose(found, [one[:length].mean(0) for one, length in zip(x, LENGTHS, strict=True)])
    x[1, 2:] = np.nan
    np.testing.assert_array_equal(MeanOverPositions().forward(x, ForwardContext(lengths=LENGTHS)), found)
    assert not MeanOverPositions().forward(x, ForwardContext(lengths=np.zeros(4, int))).any()


def attention(heads: int, features: int = 6) -> SelfAttention:
    return SelfAttention(draw(features, 3 * features) / 3, draw(features, features) / 3, draw(features), heads)


@pytest.mark.parametrize("heads", [1, 3])
def test_self_attention(heads: int) -> None:
    check(attention(heads), draw(4, 5, 6), ForwardContext(lengths=LENGTHS))
    check(attention(heads), draw(2, 3, 6))


def test_padding_is_never_attended_to_and_comes_out_as_0() -> None:
    layer, x = attention(2), draw(4, 5, 6)
    y = layer.forward(x, ForwardContext(lengths=LENGTHS))
    for i, length in enumerate(LENGTHS):
        np.testing.assert_allclose(y[i, :length], layer.forward(x[i : i + 1, :length], ForwardContext())[0], rtol=1e-12)
        assert not y[i, length:].any()
    x[1, 2:] = np.nan
    np.testing.assert_array_equal(layer.forward(x, ForwardContext(lengths=LENGTHS)), y)
    dx = layer.backward(np.ones_like(y))
    assert np.isfinite(dx).all()
    assert not dx[1, 2:].any()


def test_attention_to_nothing_is_0_and_not_nan() -> None:
    layer = attention(1)
    assert not layer.forward(draw(2, 3, 6), ForwardContext(lengths=np.array([0, 0]))).any()
    assert not layer.backward(draw(2, 3, 6)).any()


def test_cross_entropy() -> None:
    logits, targets = draw(5, 4), np.array([0, 3, 3, 1, 2])
    loss, dlogits = cross_entropy(logits, targets)
    exps = np.exp(logits)
    assert loss == pytest.approx(-np.log(exps[np.arange(5), targets] / exps.sum(1)).mean(), rel=1e-12)
    np.testing.assert_allclose(
        dlogits, finite_differences(lambda: cross_entropy(logits, targets)[0], logits), atol=1e-9
    )
    far = np.array([[1000.0, -1000.0]])
    assert cross_entropy(far, np.array([1]))[0] == 2000.0


def test_compiled_and_plain_loops_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(3)
    logits, targets = rng.normal(0, 9, (50, 7)), rng.integers(0, 7, 50)
    layer, x, dy = Embedding(draw(6, 3)), rng.integers(0, 6, (5, 4)), rng.standard_normal((5, 4, 3))
    found = []
    for _ in range(2):
        layer.forward(x, ForwardContext())
        layer.backward(dy)
        found.append((*cross_entropy(logits, targets), layer.gradients["table"].copy()))
        monkeypatch.setattr("truenorm.lab.layers.compiled", lambda: None)
    for one, two in zip(*found, strict=True):
        np.testing.assert_allclose(one, two, rtol=1e-12, atol=1e-15)


def test_a_target_that_is_not_a_class_is_refused() -> None:
    for wrong in (-8, 4):
        with pytest.raises(IndexError):
            cross_entropy(draw(2, 4), np.array([0, wrong]))


def test_squared_error() -> None:
    predicted, targets = draw(5, 1), draw(5, 2)[:, 0]
    found = squared_error(predicted, targets)[1]
    np.testing.assert_allclose(
        found, finite_differences(lambda: squared_error(predicted, targets)[0], predicted), atol=1e-9
    )


# ---- networks ----

SHARED: Mapping[str, Any] = {"hidden": 6, "dtype": "float64", "groups": 3}
CONFIGS = [
    ModelConfig(**SHARED, norm="none"),
    ModelConfig(**SHARED, norm="batch", ddof=1),
    ModelConfig(**SHARED, norm="batch", norm_at="after", activation="relu", depth=2),
    ModelConfig(**SHARED, norm="layer", activation="gelu"),
    ModelConfig(**SHARED, norm="rms", activation="sigmoid", depth=2),
    ModelConfig(**SHARED, norm="group", norm_at="after"),
]


def check_network(network: Network, x: Array, targets: Array, ctx: ForwardContext, loss: Callable[..., Any]) -> None:
    rng = np.random.default_rng(7)
    for value in network.parameters.values():  # odd values: zeros and ones hide a wrong backward
        value += rng.normal(0, 0.2, value.shape)
    _, dy = loss(network.forward(x, ctx), targets)
    found = {name: value.copy() for name, value in network.backward(dy).items()}
    assert found.keys() == network.parameters.keys()
    for name, value in network.parameters.items():
        expected = finite_differences(lambda: float(loss(network.forward(x, ctx), targets)[0]), value)
        np.testing.assert_allclose(found[name], expected, rtol=1e-5, atol=1e-8, err_msg=name)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.norm}-{config.norm_at}")
def test_gradients_of_the_character_mlp(config: ModelConfig) -> None:
    rng = np.random.default_rng(1)
    network = character_mlp(config, rng, vocab_size=5, block=3, embedding=2)
    x, targets = rng.integers(0, 5, (7, 3)), rng.integers(0, 5, 7)
    check_network(network, x, targets, ForwardContext(training=True), cross_entropy)


@pytest.mark.parametrize("statistics_over", get_args(StatisticsOver))
@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.norm}-{config.norm_at}")
def test_gradients_of_the_sequence_classifier(config: ModelConfig, statistics_over: StatisticsOver) -> None:
    rng = np.random.default_rng(2)
    config = replace(config, statistics_over=statistics_over)
    network = sequence_classifier(config, rng, vocab_size=5, classes=2, max_length=6, embedding=4, heads=2)
    x, targets = rng.integers(0, 5, (4, 5)), np.array([0, 1, 1, 0])
    check_network(network, x, targets, ForwardContext(training=True, lengths=LENGTHS), cross_entropy)


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: f"{config.norm}-{config.norm_at}")
def test_gradients_of_the_table_network(config: ModelConfig) -> None:
    rng = np.random.default_rng(3)
    network = table_network(config, rng, features=3, outputs=1)
    check_network(
        network, rng.standard_normal((6, 3)), rng.standard_normal(6), ForwardContext(training=True), squared_error
    )


def test_more_padding_changes_no_output_if_statistics_are_over_valid_positions() -> None:
    rng = np.random.default_rng(4)
    x, change = rng.integers(0, 5, (4, 5)), {}
    wider = np.concatenate([x, np.full((4, 20), 4)], axis=1)
    for statistics_over in get_args(StatisticsOver):
        config = ModelConfig(norm="batch", hidden=6, dtype="float64", statistics_over=statistics_over)
        start = np.random.default_rng(1)
        network = sequence_classifier(config, start, vocab_size=5, classes=2, max_length=25, embedding=4)
        ctx = ForwardContext(training=True, lengths=LENGTHS)
        change[statistics_over] = np.abs(network.forward(x, ctx) - network.forward(wider, ctx)).max()
    assert change["valid"] < 1e-15  # the sums of a matrix product round differently
    assert change["all"] > 0.01


# ---- optimizers ----


def test_sgd_with_momentum() -> None:
    w = np.array([1.0])
    sgd = SGD(w, momentum=0.5)
    for _ in range(2):
        sgd.step(w, np.array([2.0]), 0.1)
    assert w[0] == pytest.approx(1 - 0.1 * 2 - 0.1 * 3)


def test_adam_moves_by_the_learning_rate_at_first_whatever_the_size_of_the_gradient() -> None:
    for size in (1e-3, 1e3):
        w = np.array([1.0])
        Adam(w).step(w, np.array([size]), 0.1)
        assert w[0] == pytest.approx(0.9, rel=1e-4)


def test_schedules() -> None:
    assert learning_rate(0.1, "constant", 99, 100) == 0.1
    assert learning_rate(0.1, "cosine", 0, 100) == 0.1
    assert learning_rate(0.1, "cosine", 50, 100) == pytest.approx(0.05)
    assert learning_rate(0.1, "cosine", 100, 100) == pytest.approx(0)
