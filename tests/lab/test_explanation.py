"""One training step of the character network, line by line."""

import json

import numpy as np
import pytest

from truenorm.lab.explanation import PARAMETERS, NetworkExplanation, explain_network
from truenorm.lab.layers import ForwardContext, cross_entropy
from truenorm.lab.networks import ModelConfig, Network, character_mlp

CHARACTERS = ".aeimn"


def small_network(**options: object) -> Network:
    config = ModelConfig(**{"hidden": 4, "ddof": 1, "dtype": "float64", **options})  # type: ignore[arg-type]
    network = character_mlp(config, np.random.default_rng(6), vocab_size=6)
    network.flat_parameters += np.random.default_rng(7).normal(0, 0.3, network.flat_parameters.shape)
    return network


X = np.array([[0, 0, 1], [0, 1, 5], [1, 5, 5], [5, 5, 1], [0, 0, 2]])
TARGETS = np.array([5, 5, 1, 0, 4])


def explained(network: Network | None = None, learning_rate: float = 0.1) -> NetworkExplanation:
    return explain_network(
        network or small_network(), X, TARGETS, learning_rate=learning_rate, characters=list(CHARACTERS)
    )


def test_every_gradient_agrees_with_finite_differences() -> None:
    checks = {step.name: step.check for step in explained().steps if step.check is not None}
    assert len(checks) == 15
    for name, check in checks.items():
        assert check.tried == check.elements, name
        assert check.difference < 1e-8, name


def test_a_wrong_gradient_disagrees_with_finite_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    network = small_network()
    linear = network.layers["linear1"]
    right = type(linear).backward
    monkeypatch.setattr(linear, "backward", lambda dy: 1.01 * right(linear, dy))
    checks = {step.name: step.check for step in explained(network).steps if step.check is not None}
    assert {name for name, check in checks.items() if check.difference > 1e-6} == {"dE", "dC"}


def test_of_large_arrays_only_some_elements_are_tried() -> None:
    check = next(step.check for step in explained(small_network(hidden=100)).steps if step.name == "dH0")
    assert check is not None
    assert (check.tried, check.elements) == (200, 500)
    assert str(check).endswith("at most (at 200 of 500 elements)")


def test_paths_add_up() -> None:
    found = explained()
    np.testing.assert_allclose(found["dμ (through HN)"] + found["dμ (through σ²)"], found["dμ"], atol=1e-15)
    paths = found["dH0 (through HN)"] + found["dH0 (through σ²)"] + found["dH0 (through μ)"]
    np.testing.assert_allclose(paths, found["dH0"], atol=1e-15)
    np.testing.assert_allclose(found["Ŷ"].sum(1), 1, rtol=1e-14)


def test_rows_of_c_that_are_used_twice_add_their_gradients() -> None:
    found = explained()
    assert found["uses"].tolist() == [5, 4, 1, 0, 0, 5]
    rows = found["dE"].reshape(5, 3, 2)
    np.testing.assert_allclose(found["dC"][1], rows[X == 1].sum(0), atol=1e-15)
    assert not found["dC"][3:5].any()


def test_the_update_lowers_the_loss_and_leaves_the_network_alone() -> None:
    network = small_network()
    before = network.flat_parameters.copy()
    found = explained(network)
    assert np.array_equal(network.flat_parameters, before)
    assert found.loss_after < found.loss == found["L"]
    for name, own in PARAMETERS.items():
        network.parameters[own][...] = found[f"new {name}"]
        np.testing.assert_allclose(found[f"new {name}"], found[name] - 0.1 * found[f"d{name}"], atol=1e-15)
    assert cross_entropy(network.forward(X, ForwardContext(training=True)), TARGETS)[0] == found.loss_after


def test_text_html_and_json_show_every_step() -> None:
    found = explained()
    text, page = str(found), found._repr_html_()
    for step in found.steps:
        assert f"{step.name} = {step.formula}" in text
        assert step.name in page
    assert "..a→n" in text
    assert "finite differences differ by" in page
    data = json.loads(json.dumps(found.as_dict(), allow_nan=False))
    assert [step["name"] for step in data["steps"]] == [step.name for step in found.steps]
    assert data["loss"] == found.loss


def test_other_networks_are_refused() -> None:
    with pytest.raises(ValueError, match="explain_network: needs one norm, before the activation, got the layers"):
        explained(small_network(norm_at="after"))
    with pytest.raises(ValueError, match="explain_network: needs batch norm"):
        explained(small_network(norm="layer"))
