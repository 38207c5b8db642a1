"""Weights from and to Keras and Flax: their layers give the same outputs, and train to the same running statistics."""

import os
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from foreign_layers import CHANNELS, LAYERS, data, run_ours, trained
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

pytestmark = [
    pytest.mark.slow,  # it takes up to ten seconds to import Keras
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),  # Keras 3.15 of itself
]
ONE_OF_EACH = ("BatchNorm3d", "GroupNorm", "InstanceNorm2d", "LayerNorm of two axes", "RMSNorm of two axes")


@pytest.fixture(scope="module")
def keras(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Keras on torch. It writes a configuration file to its home."""
    before = dict(os.environ)
    os.environ |= {"KERAS_BACKEND": "torch", "KERAS_HOME": str(tmp_path_factory.mktemp("keras"))}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield pytest.importorskip("keras", reason="keras is not installed")
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def linen() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flax.linen", reason="flax is not installed")


@pytest.fixture(scope="module")
def nnx() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip("flax.nnx", reason="flax is not installed")


def assert_close(found: Any, expected: Any, tolerance: float = 2e-6) -> None:
    """In float32: outputs are below 20, and the libraries compute variances as E[x^2] - E[x]^2."""
    found, expected = np.asarray(found, np.float64), np.asarray(expected, np.float64)
    assert np.isfinite(found).all()
    np.testing.assert_allclose(found, expected, rtol=tolerance, atol=10 * tolerance)


def keras_twin(keras: Any, layer: Any, shape: Any, count: int | None = None) -> Any:
    found = tnt.to_keras(layer, count=count)
    twin = getattr(keras.layers, found.kind)(**found.config)
    twin.build(shape)
    assert [one.name for one in twin.weights] == list(found.weights)
    twin.set_weights(list(found.weights.values()))
    return twin


@pytest.mark.parametrize("name", LAYERS)
def test_a_keras_layer_computes_what_ours_does_and_ours_what_it_does(keras: Any, name: str) -> None:
    layer, x = trained(name).eval(), data(name)
    twin = keras_twin(keras, layer, x.shape)
    expected = run_ours(layer, x)
    assert_close(twin(x).detach().numpy(), expected)
    other = LAYERS[name]().eval()
    tnt.from_keras(other, twin)
    assert_close(run_ours(other, x), expected)
    assert abs(expected - run_ours(LAYERS[name]().eval(), x)).max() > 0.1 or not list(layer.parameters())


@pytest.mark.parametrize("options", [{"center": False}, {"scale": False}, {"center": False, "scale": False}], ids=str)
@pytest.mark.parametrize("kind", ["BatchNormalization", "LayerNormalization", "GroupNormalization"])
def test_keras_layers_without_gamma_or_beta(keras: Any, kind: str, options: Any) -> None:
    x = data("")
    groups = {"groups": -1} if kind == "GroupNormalization" else {}
    twin = getattr(keras.layers, kind)(**options, **groups, name="bn_7")
    twin.build(x.shape)
    twin.set_weights([normal(CHANNELS, seed=i).abs().numpy() for i in range(len(twin.weights))])
    make = {"Batch": tnt.BatchNorm1d, "Layer": tnt.LayerNorm, "Group": tnt.InstanceNorm1d}[kind[:5]]
    layer = make(CHANNELS, **({"affine": True} if groups else {})).eval()
    assert_close(run_ours(tnt.from_keras(layer, twin), x), twin(x).detach().numpy())


@pytest.mark.parametrize("name", ["BatchNorm1d", "BatchNorm2d", "BatchNorm3d"])
@pytest.mark.parametrize("axis", [-1, 1])
def test_a_training_step_of_keras_and_ours_leave_the_same_statistics(keras: Any, name: str, axis: int) -> None:
    x = data(name)
    count = x.numel() // CHANNELS
    layer = trained(name)
    twin = keras_twin(keras, layer, x.shape, count)
    if axis == 1:
        found = tnt.to_keras(layer, count=count)
        twin = keras.layers.BatchNormalization(**found.config, axis=1)
        twin.build(x.movedim(-1, 1).shape)
        twin.set_weights(list(found.weights.values()))
    for seed in (5, 6):
        x = data(name, seed)
        theirs = twin(x.movedim(-1, 1), training=True).movedim(1, -1) if axis == 1 else twin(x, training=True)
        assert_close(run_ours(layer, x), theirs.detach().numpy(), 1e-5)
    after = tnt.to_keras(layer, count=count).weights
    assert_close(after["moving_mean"], twin.moving_mean.numpy())
    assert_close(after["moving_variance"], twin.moving_variance.numpy())
    biased = tnt.to_keras(layer).weights["moving_variance"]
    assert abs(biased - twin.moving_variance.numpy()).max() > 1e-3  # the factor is there


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_linen_module_computes_what_ours_does_and_ours_what_it_does(linen: Any, name: str) -> None:
    layer, x = trained(name).eval(), data(name)
    found = tnt.to_flax(layer)
    fixed = {"use_running_average": True} if "Batch" in name else {}
    module = getattr(linen, found.kind)(**found.config, **fixed)
    expected = run_ours(layer, x)
    assert_close(module.apply(found.weights, x.numpy()), expected)
    other = LAYERS[name]().eval()
    tnt.from_flax(other, module, found.weights)
    assert_close(run_ours(other, x), expected)


@pytest.mark.parametrize("options", [{"use_bias": False}, {"use_scale": False}], ids=str)
@pytest.mark.parametrize("kind", ["BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm"])
def test_linen_modules_without_scale_or_bias(linen: Any, kind: str, options: Any) -> None:
    import jax

    x = data("").numpy()
    groups = {"num_groups": None, "group_size": 3} if kind == "GroupNorm" else {}
    fixed = {"use_running_average": True} if kind == "BatchNorm" else {}
    module = getattr(linen, kind)(**options, **groups, **fixed)
    seeds = iter(range(4))
    started = module.init(jax.random.key(0), x)
    variables = jax.tree.map(lambda one: normal(*one.shape, seed=next(seeds)).abs().numpy(), started)
    layers: dict[str, Any] = {
        "BatchNorm": tnt.BatchNorm1d(CHANNELS), "LayerNorm": tnt.LayerNorm(CHANNELS),
        "GroupNorm": tnt.GroupNorm(2, CHANNELS), "InstanceNorm": tnt.InstanceNorm1d(CHANNELS, affine=True),
    }  # fmt: skip
    layer = layers[kind].eval()
    tnt.from_flax(layer, module, variables)
    assert_close(run_ours(layer, data("")), module.apply(variables, x))
    if kind != "InstanceNorm":
        with pytest.raises(TypeError, match=r"a linen module does not hold its variables\. Pass them after it"):
            tnt.from_flax(layer, module)


def test_a_training_step_of_linen_and_ours_leave_the_same_statistics(linen: Any) -> None:
    layer, x = trained("BatchNorm2d"), data("BatchNorm2d")
    found = tnt.to_flax(layer, count=x.numel() // CHANNELS)
    module, variables = linen.BatchNorm(**found.config, use_running_average=False), found.weights
    for seed in (5, 6):
        x = data("BatchNorm2d", seed)
        theirs, updated = module.apply(variables, x.numpy(), mutable=["batch_stats"])
        variables = {**variables, **updated}
        assert_close(run_ours(layer, x), theirs, 1e-5)
    after = tnt.to_flax(layer, count=x.numel() // CHANNELS).weights["batch_stats"]
    for name, value in variables["batch_stats"].items():
        assert_close(after[name], value)


@pytest.mark.parametrize("name", [name for name in LAYERS if "two axes" not in name])
def test_nnx_modules_in_both_directions(nnx: Any, name: str) -> None:
    import jax.numpy as jnp

    layer, x = trained(name), data(name)
    count = x.numel() // CHANNELS if "Batch" in name else None
    found = tnt.to_flax(layer, count=count)
    module = getattr(nnx, found.kind)(CHANNELS, **found.config, rngs=nnx.Rngs(0))
    nnx.update(module, {key: jnp.asarray(one) for part in found.weights.values() for key, one in part.items()})
    assert_close(run_ours(layer, x), module(jnp.asarray(x.numpy())), 1e-5)
    other = LAYERS[name]()
    tnt.from_flax(other, module, count=count)
    for key, value in layer.state_dict().items():  # after a training step of each
        if key != "num_batches_tracked":
            assert_close(other.state_dict()[key], value)
    third = tnt.from_flax(LAYERS[name](), module, nnx.state(module), count=count)
    assert all(torch.equal(value, other.state_dict()[key]) for key, value in third.state_dict().items())


def test_bfloat16_weights_of_flax_arrive_exactly(nnx: Any) -> None:
    import jax.numpy as jnp

    module = nnx.LayerNorm(3, param_dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    nnx.update(module, {"scale": jnp.asarray([1.3046875, 0.87890625, -7.0], jnp.bfloat16)})
    layer = tnt.from_flax(tnt.LayerNorm(3), module)
    assert layer.get_parameter("weight").tolist() == [1.3046875, 0.87890625, -7.0]
