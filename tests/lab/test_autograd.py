"""The lab's hand-written gradients against torch's autograd: every layer, every network, in float64.

`torch_layer` computes each layer in torch; autograd gives the expected gradients.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import numpy as np
import pytest
from numpy.typing import NDArray

import truenorm as tn
from truenorm.lab.attention import SelfAttention
from truenorm.lab.explanation import PARAMETERS, explain_network
from truenorm.lab.layers import (
    GELU,
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
from truenorm.lab.networks import (
    ActivationName,
    ModelConfig,
    Network,
    NormAt,
    NormName,
    character_mlp,
    sequence_classifier,
    table_network,
)

torch = pytest.importorskip("torch", reason="torch is not installed")
functional = torch.nn.functional

Array = NDArray[Any]
LENGTHS = np.array([5, 2, 1, 4])


def tensor(array: Array) -> Any:
    """A leaf tensor; integers have no gradient."""
    return torch.tensor(array, requires_grad=array.dtype.kind == "f")


def valid_positions(x: Any, lengths: Array | None) -> Any:
    """(batch, positions): which positions are valid."""
    counts = torch.full((len(x),), x.shape[1]) if lengths is None else torch.from_numpy(lengths)
    return torch.arange(x.shape[1]) < counts[:, None]


def torch_layer(layer: Layer, own: dict[str, Any], x: Any, lengths: Array | None) -> Any:
    """The same layer in torch."""
    match layer:
        case Embedding():
            y = functional.embedding(x, own["table"])
            return y.flatten(1) if layer.flat else y
        case Positions():
            return x + own["table"][: x.shape[1]]
        case Linear():
            return functional.linear(x, own["weight"].T, own["bias"])
        case Tanh():
            return torch.tanh(x)
        case ReLU():
            return functional.relu(x)
        case Sigmoid():
            return torch.sigmoid(x)
        case GELU():
            return functional.gelu(x, approximate="tanh")
        case MeanOverPositions():
            valid = valid_positions(x, lengths)
            return torch.where(valid[:, :, None], x, 0).sum(1) / valid.sum(1, keepdim=True)
        case SelfAttention():
            return attention(layer, own, x, valid_positions(x, lengths))
        case Normalize():
            return normalized(layer, own, x, lengths if layer.statistics_over == "valid" else None)
        case _:
            raise AssertionError(layer)


def attention(layer: SelfAttention, own: dict[str, Any], x: Any, valid: Any) -> Any:
    batch, positions, features = x.shape
    parts = (x @ own["project"]).reshape(batch, positions, 3, layer.heads, -1).permute(2, 0, 3, 1, 4)
    mixed = functional.scaled_dot_product_attention(*parts, attn_mask=valid[:, None, None, :])
    y = mixed.transpose(1, 2).reshape(batch, positions, features) @ own["weight"] + own["bias"]
    return torch.where(valid[:, :, None], y, 0)


def normalized(layer: Normalize, own: dict[str, Any], x: Any, lengths: Array | None) -> Any:
    """Select the valid rows, normalize them with torch's mean and var, and put them back among zeros."""
    norm, features = layer.norm, x.shape[-1]
    if "g" in norm.sizes and x.ndim == 3:  # each sample has statistics of its own
        ends = [x.shape[1]] * len(x) if lengths is None else list(lengths)
        alone = [group_norm(norm, one[:end]) * own["weight"] + own["bias"] for one, end in zip(x, ends, strict=True)]
        padded = [functional.pad(one, (0, 0, 0, x.shape[1] - len(one))) for one in alone]
        return torch.stack(padded)
    valid = None if lengths is None else valid_positions(x, lengths)
    rows = x.reshape(-1, features) if valid is None else x[valid]
    if norm == tn.rms(eps=norm.eps):
        scaled = functional.rms_norm(rows, (features,), eps=norm.eps)
    elif "g" in norm.sizes:
        scaled = functional.group_norm(rows, norm.sizes["g"], eps=norm.eps)
    else:
        over = 0 if norm == tn.batch(ddof=norm.ddof) else -1
        var, mean = torch.var_mean(rows, over, correction=norm.ddof, keepdim=True)
        scaled = (rows - mean) / torch.sqrt(var + norm.eps)
    y = scaled * own["weight"] + own["bias"]
    if valid is None:
        return y.reshape(x.shape)
    return torch.zeros_like(x).masked_scatter(valid[:, :, None].expand_as(x), y)


def group_norm(norm: tn.Norm, sequence: Any) -> Any:
    """Of one sequence (positions, features)."""
    return functional.group_norm(sequence.T[None], norm.sizes["g"], eps=norm.eps)[0].T


def assert_equal(found: Array, expected: Any, name: str) -> None:
    np.testing.assert_allclose(found, expected.detach().numpy(), rtol=1e-10, atol=1e-13, err_msg=name)


def check_layer(layer: Layer, x: Array, lengths: Array | None = None, training: bool = True) -> None:
    rng = np.random.default_rng(5)
    for value in layer.parameters.values():
        value += rng.normal(0, 0.3, value.shape)
    own = {name: tensor(value) for name, value in layer.parameters.items()}
    leaf = tensor(x)
    y = layer.forward(x, ForwardContext(training=training, lengths=lengths))
    expected = torch_layer(layer, own, leaf, lengths)
    assert_equal(y, expected, "y")
    dy = rng.standard_normal(y.shape)
    dx = layer.backward(dy)
    expected.backward(torch.from_numpy(dy))
    if leaf.requires_grad:
        assert_equal(dx, leaf.grad, "dx")
    for name, gradient in layer.gradients.items():
        assert_equal(gradient, own[name].grad, name)


def draw(*shape: int) -> Array:
    return np.random.default_rng(list(shape)).normal(0.3, 1.2, shape)


LAYERS: dict[str, Callable[[], tuple[Layer, Array]]] = {
    "embedding": lambda: (Embedding(draw(5, 3)), np.array([[0, 3, 3], [2, 0, 3]])),
    "positions": lambda: (Positions(draw(7, 3)), draw(4, 5, 3)),
    "linear": lambda: (Linear(draw(4, 3), draw(3)), draw(6, 4)),
    "linear of sequences": lambda: (Linear(draw(4, 3), draw(3)), draw(2, 5, 4)),
    "tanh": lambda: (Tanh(), draw(4, 7)),
    "relu": lambda: (ReLU(), draw(4, 7)),
    "sigmoid": lambda: (Sigmoid(), draw(4, 7)),
    "gelu": lambda: (GELU(), draw(4, 7)),
    "embedding, flat": lambda: (Embedding(draw(5, 3), flat=True), np.array([[0, 3, 3], [2, 0, 3]])),
}


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name: str) -> None:
    check_layer(*LAYERS[name]())


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "padded"])
def test_layers_of_sequences(lengths: Array | None) -> None:
    check_layer(MeanOverPositions(), draw(4, 5, 3), lengths)
    for heads in (1, 3):
        layer = SelfAttention(draw(6, 18) / 3, draw(6, 6) / 3, draw(6), heads)
        check_layer(layer, draw(4, 5, 6), lengths)


@pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["whole", "padded"])
@pytest.mark.parametrize("norm", [tn.batch(), tn.batch(ddof=1), tn.layer(), tn.layer(ddof=1), tn.rms(), tn.group(3)])
def test_norms(norm: tn.Norm, lengths: Array | None) -> None:
    for statistics_over in get_args(StatisticsOver):
        layer = Normalize(norm, 6, running=False, statistics_over=statistics_over)
        check_layer(layer, draw(4, 5, 6), lengths)


def test_losses() -> None:
    logits, targets = draw(6, 4), np.array([0, 3, 3, 1, 2, 0])
    leaf = tensor(logits)
    expected = functional.cross_entropy(leaf, torch.from_numpy(targets))
    expected.backward()
    loss, dlogits = cross_entropy(logits, targets)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert_equal(dlogits, leaf.grad, "dlogits")
    predicted, numbers = draw(5, 1), draw(5)
    leaf = tensor(predicted)
    expected = functional.mse_loss(leaf[:, 0], torch.from_numpy(numbers))
    expected.backward()
    loss, dpredicted = squared_error(predicted, numbers)
    assert loss == pytest.approx(expected.item(), rel=1e-12)
    assert_equal(dpredicted, leaf.grad, "dpredicted")


# ---- networks ----


def configs() -> list[ModelConfig]:
    activations: tuple[ActivationName, ...] = get_args(ActivationName)
    norms: tuple[NormName, ...] = get_args(NormName)
    places: tuple[NormAt, ...] = get_args(NormAt)
    shared = ModelConfig(hidden=6, groups=3, dtype="float64")
    return [
        replace(shared, depth=1 + i % 2, norm=norm, norm_at=at, activation=activations[i % 4])
        for i, (norm, at) in enumerate(product(norms, places))
    ]


def check_network(network: Network, x: Array, lengths: Array | None, loss: Any, torch_loss: Any) -> None:
    rng = np.random.default_rng(7)
    network.flat_parameters += rng.normal(
        0, 0.2, network.flat_parameters.shape
    )  # odd values: zeros and ones hide a wrong backward
    own = {name: tensor(value) for name, value in network.parameters.items()}
    y = torch.from_numpy(x)
    for name, layer in network.layers.items():
        y = torch_layer(layer, {one: own[f"{name}.{one}"] for one in layer.parameters}, y, lengths)
    torch_loss(y).backward()
    _, dy = loss(network.forward(x, ForwardContext(training=True, lengths=lengths)))
    for name, gradient in network.backward(dy).items():
        np.testing.assert_allclose(gradient, own[name].grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("config", configs(), ids=lambda config: f"{config.norm}-{config.norm_at}")
def test_networks(config: ModelConfig) -> None:
    rng = np.random.default_rng(1)
    classes, numbers = rng.integers(0, 2, 4), rng.standard_normal(4)

    def entropy(y: Array) -> Any:
        return cross_entropy(y, classes)

    def torch_entropy(y: Any) -> Any:
        return functional.cross_entropy(y, torch.from_numpy(classes))

    check_network(character_mlp(config, rng, vocab_size=5), rng.integers(0, 5, (4, 3)), None, entropy, torch_entropy)
    for statistics_over in get_args(StatisticsOver):
        padded = replace(config, statistics_over=statistics_over)
        network = sequence_classifier(padded, rng, vocab_size=5, classes=2, max_length=6, embedding=4)
        check_network(network, rng.integers(0, 5, (4, 5)), LENGTHS, entropy, torch_entropy)
    check_network(
        table_network(config, rng, features=3, outputs=1),
        rng.standard_normal((4, 3)),
        None,
        lambda y: squared_error(y, numbers),
        lambda y: functional.mse_loss(y[:, 0], torch.from_numpy(numbers)),
    )


# ---- the explanation of a training step ----


def test_every_value_and_gradient_of_an_explained_training_step() -> None:
    rng = np.random.default_rng(6)
    network = character_mlp(ModelConfig(ddof=1, dtype="float64"), rng)
    network.flat_parameters += rng.normal(0, 0.1, network.flat_parameters.shape)
    x, targets = rng.integers(0, 27, (32, 3)), rng.integers(0, 27, 32)
    at = {name: tensor(network.parameters[own]) for name, own in PARAMETERS.items()}
    at["E"] = at["C"][x].flatten(1)
    at["H0"] = at["E"] @ at["W1"] + at["b1"]
    at["μ"] = at["H0"].mean(0)
    at["σ²"] = ((at["H0"] - at["μ"]) ** 2).sum(0) / 31  # n - 1
    at["HN"] = (at["H0"] - at["μ"]) / torch.sqrt(at["σ²"] + 1e-5)
    at["HZ"] = at["γ"] * at["HN"] + at["β"]
    at["HA"] = torch.tanh(at["HZ"])
    at["logits"] = at["HA"] @ at["W2"] + at["b2"]
    for value in at.values():
        value.retain_grad()
    loss = functional.cross_entropy(at["logits"], torch.from_numpy(targets))
    loss.backward()
    found = explain_network(network, x, targets)
    values = at | {"Ŷ": torch.softmax(at["logits"], 1), "L": loss}
    for name, value in values.items():
        np.testing.assert_allclose(found[name], value.detach().numpy(), rtol=1e-12, atol=1e-12, err_msg=name)
    gradients = [step.name for step in found.steps if step.check is not None]
    order = ("logits", "W2", "b2", "HA", "HZ", "γ", "β", "HN", "σ²", "μ", "H0", "W1", "b1", "E", "C")
    assert gradients == [f"d{name}" for name in order]
    for name in gradients:
        np.testing.assert_allclose(found[name], at[name[1:]].grad.numpy(), rtol=1e-12, atol=1e-12, err_msg=name)
