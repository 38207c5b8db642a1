"""Weights from and to Keras and Flax, without these libraries: names, conventions and mistakes."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fingerprint import fingerprint
from foreign_layers import CHANNELS, LAYERS, trained
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
BATCH_NORM = {"epsilon": 1e-3, "momentum": 0.99}
GOOD = {
    "gamma": np.linspace(-1, 2, CHANNELS), "beta": np.linspace(3, 1, CHANNELS),
    "moving_mean": np.linspace(-4, 4, CHANNELS), "moving_variance": np.linspace(0, 5, CHANNELS),
}  # fmt: skip


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("library", ["keras", "flax"])
@pytest.mark.parametrize("count", [None, 20])
def test_there_and_back_is_the_identity(name: str, library: str, count: int | None) -> None:
    layer, other = trained(name), trained(name, seed=20)
    count = count if "BatchNorm" in name else None
    found = getattr(tnt, f"to_{library}")(layer, count=count)
    if hasattr(other, "momentum"):
        other.momentum = None
    assert getattr(tnt, f"from_{library}")(other, found, count=count) is other
    assert other.eps == (layer.eps or torch.finfo(torch.float32).eps)
    assert getattr(other, "momentum", 0) == getattr(layer, "momentum", 0) or "Instance" in name
    for key, value in layer.state_dict().items():
        if key == "num_batches_tracked":
            assert int(other.state_dict()[key]) == 0
        else:
            torch.testing.assert_close(other.state_dict()[key], value, rtol=1e-7 if count else 0, atol=0)
    assert all(one.requires_grad for one in other.parameters())


@pytest.mark.parametrize("momentum", [0.0, 0.1, 0.9, 0.99, 0.999, 1.0])
def test_momentum_becomes_the_weight_of_the_old_and_back(momentum: float) -> None:
    layer = tnt.BatchNorm1d(CHANNELS)
    tnt.from_keras(layer, {"epsilon": 1e-3, "momentum": momentum}, GOOD)
    assert abs(layer.momentum - (1 - momentum)) < 1e-15
    assert tnt.to_keras(layer).config["momentum"] == momentum
    assert tnt.to_flax(layer).config["momentum"] == momentum


def test_the_conversion_of_the_variance_commutes_with_training() -> None:
    """With n, and with n - 1: plain formulas on one side, the layer on the other."""
    x, keep = normal(7, CHANNELS, dtype=torch.float64), 0.8
    layer = tnt.BatchNorm1d(CHANNELS).double()
    tnt.from_keras(layer, {"epsilon": 1e-3, "momentum": keep}, GOOD, count=7)
    layer(x)
    found = tnt.to_keras(layer, count=7).weights
    expected = keep * GOOD["moving_variance"] + (1 - keep) * x.numpy().var(0)
    np.testing.assert_allclose(found["moving_variance"], expected, rtol=1e-12)
    np.testing.assert_allclose(found["moving_mean"], keep * GOOD["moving_mean"] + (1 - keep) * x.numpy().mean(0))
    plain = tnt.BatchNorm1d(CHANNELS).double()
    tnt.from_keras(plain, {"epsilon": 1e-3, "momentum": keep}, GOOD)
    plain(x)
    excess = plain.running_var.numpy() - expected  # a step without count: the new part alone is n / (n - 1) larger
    np.testing.assert_allclose(excess, (1 - keep) * x.numpy().var(0) / 6, rtol=1e-9)


def test_weights_that_the_source_does_not_have_are_1_and_0_and_stay() -> None:
    layer = trained("BatchNorm1d")
    arrays = {name: GOOD[name] for name in ("moving_mean", "moving_variance")}
    tnt.from_keras(layer, BATCH_NORM | {"center": False, "scale": False}, arrays)
    assert layer.weight.tolist() == [1.0] * CHANNELS
    assert layer.bias.tolist() == [0.0] * CHANNELS
    assert not any(one.requires_grad for one in layer.parameters())


def test_dtypes_and_parameters_of_the_layer_stay() -> None:
    layer = tnt.BatchNorm1d(CHANNELS).to(torch.bfloat16)
    before = list(layer.parameters())
    tnt.from_keras(layer, BATCH_NORM, GOOD)
    assert all(one is other for one, other in zip(layer.parameters(), before, strict=True))
    assert layer.weight.dtype == torch.bfloat16
    assert layer.running_var.dtype == torch.float32
    assert torch.equal(layer.weight, torch.from_numpy(GOOD["gamma"]).to(torch.bfloat16))
    assert tnt.to_flax(layer).weights["params"]["scale"].dtype == np.float32


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_tensors_and_lists_are_arrays_too(dtype: Any) -> None:
    gamma = nn.Parameter(torch.tensor([1.5, -0.25, 3.0], dtype=dtype))
    layer = tnt.RMSNorm(3)
    tnt.from_keras(layer, {"epsilon": 1e-6}, {"scale": gamma})
    assert layer.weight.tolist() == [1.5, -0.25, 3.0]
    tnt.from_flax(layer, {"epsilon": 1e-6}, {"scale": [2, 3, 4]})
    assert layer.weight.tolist() == [2.0, 3.0, 4.0]


def test_names_as_keras_2_writes_them() -> None:
    class BatchNormalization:
        built, epsilon, momentum, axis = True, 1e-3, 0.99, (3,)
        weights = tuple(
            SimpleNamespace(name=f"model/bn_1/{name}:0", numpy=lambda value=value: value)
            for name, value in GOOD.items()
        )

    layer = tnt.BatchNorm2d(CHANNELS)
    tnt.from_keras(layer, BatchNormalization())
    np.testing.assert_allclose(layer.running_var.numpy(), GOOD["moving_variance"], rtol=1e-7)


def test_neither_library_is_imported() -> None:
    folder = Path(tnt.__file__).parent
    text = "\n".join(file.read_text("utf-8") for file in folder.glob("*.py"))
    assert "from_keras" in text
    assert re.findall(r"^\s*(?:import|from) (?:keras|flax|jax|tensorflow)\b", text, re.MULTILINE) == []


def test_exported_arrays_are_copies() -> None:
    layer = trained("BatchNorm1d")
    before = copy.deepcopy(layer.state_dict())
    for array in tnt.to_keras(layer).weights.values():
        array += 1
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())


def changed(**arrays: Any) -> dict[str, Any]:
    return GOOD | arrays


class LayerNormalization:
    """As Keras's, before it is built."""

    built = False


LAYER_NORM, GROUP_NORM = {"epsilon": 1e-3}, {"epsilon": 1e-3, "groups": 2}
AFFINE = {name: GOOD[name] for name in ("gamma", "beta")}
FLAX_AFFINE = {"scale": GOOD["gamma"], "bias": GOOD["beta"]}
FLAX = {"params": FLAX_AFFINE, "batch_stats": {"mean": GOOD["moving_mean"], "var": GOOD["moving_variance"]}}
MISTAKES: list[tuple[Callable[[], Any], Callable[[Any], Any], type[Exception], str]] = [
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, {"momentum": 0.9}, GOOD), ValueError,
        "from_keras: epsilon is missing; the defaults of Keras and torch differ. Pass it.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_flax(layer, {"epsilon": 1e-5}, GOOD), ValueError,
        "from_flax: momentum is missing; the defaults of Flax and torch differ. Pass it.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, BATCH_NORM, AFFINE), ValueError,
        "from_keras: the arrays must be gamma, beta, moving_mean, moving_variance, got gamma, beta. "
        "scale=False and center=False leave out weights.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, BATCH_NORM | {"center": False}, GOOD), ValueError,
        "from_keras: the arrays must be gamma, moving_mean, moving_variance, "
        "got gamma, beta, moving_mean, moving_variance. scale=False and center=False leave out weights.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, BATCH_NORM, changed(beta=np.ones(5))), ValueError,
        "from_keras: beta must have the shape (6,), got (5,).",
    ),
    (
        LAYERS["BatchNorm1d"],
        lambda layer: tnt.from_keras(layer, BATCH_NORM, changed(moving_variance=-GOOD["moving_variance"])),
        ValueError,
        "from_keras: moving_variance must be finite and not negative, got -1. Repair the checkpoint first.",
    ),
    (
        LAYERS["BatchNorm1d"],
        lambda layer: tnt.from_keras(layer, BATCH_NORM, changed(moving_mean=np.full(CHANNELS, np.nan))), ValueError,
        "from_keras: moving_mean must be finite, got nan. Repair the checkpoint first.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, BATCH_NORM | {"momentum": 1.5}, GOOD), ValueError,
        "from_keras: momentum must be a number from 0 to 1, got 1.5. Pass what Keras was given.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_flax(layer, BATCH_NORM | {"momentum": None}, FLAX), ValueError,
        "from_flax: momentum must be a number from 0 to 1, got None. Pass what Flax was given.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, BATCH_NORM | {"epsilon": -1}, GOOD), ValueError,
        "from_keras: epsilon must be a number >= 0, got -1. Pass what Keras was given.",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_flax(layer, {"epsilon": np.inf}, FLAX_AFFINE), ValueError,
        "from_flax: epsilon must be a number >= 0, got inf. Pass what Flax was given.",
    ),
    (
        LAYERS["BatchNorm1d"],
        lambda layer: tnt.from_keras(layer, BATCH_NORM, changed(moving_variance=np.full(CHANNELS, 1e300))), ValueError,
        "from_keras: moving_variance must be at most 3.40282e+38 for a layer of float32, got 1e+300. "
        "Repair the checkpoint, or use layer.double().",
    ),
    (
        LAYERS["BatchNorm1d"],
        lambda layer: tnt.from_keras(layer, BATCH_NORM, changed(moving_variance=np.full(CHANNELS, 3e38)), count=2),
        ValueError,
        "from_keras: moving_variance must be at most 3.40282e+38 for a layer of float32, got 6e+38. "
        "Repair the checkpoint, or use layer.double().",
    ),
    (
        lambda: nn.RMSNorm(CHANNELS, elementwise_affine=False), tnt.to_flax, ValueError,
        "to_flax: other libraries have a number as epsilon, got eps=None, which depends on the dtype of x. "
        "Set layer.eps to a number, such as torch.finfo(x.dtype).eps.",
    ),
    (
        lambda: nn.BatchNorm1d(CHANNELS, affine=False), lambda layer: tnt.from_keras(layer, BATCH_NORM, GOOD),
        ValueError,
        "from_keras: the layer must have a weight for gamma, got None. Make it with one.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, BATCH_NORM), TypeError,
        "from_keras: arguments without arrays. Pass the arrays after them.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, nn.Linear(2, 2)), TypeError,
        "from_keras: source must be a BatchNormalization, LayerNormalization, GroupNormalization, RMSNormalization of "
        "Keras, or a dictionary of its arguments, got Linear.",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_flax(layer, nn.LayerNorm(6)), TypeError,
        "from_flax: source must be a BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm of Flax, "
        "or a dictionary of its arguments, got LayerNorm.",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_keras(layer, tnt.to_flax(layer)), TypeError,
        "from_keras: source must be a BatchNormalization, LayerNormalization, GroupNormalization, RMSNormalization of "
        "Keras, or a dictionary of its arguments, got ForeignLayer.",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_keras(layer, tnt.to_keras(nn.RMSNorm(6))), TypeError,
        "from_keras: the layers must be of the same kind, got LayerNorm for RMSNormalization.",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_keras(layer, LayerNormalization()), ValueError,
        "from_keras: LayerNormalization has no weights before it is built. Call it once, or build(shape).",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_keras(layer, LAYER_NORM | {"axis": [1]}, AFFINE), ValueError,
        "from_keras: axis must be the last axes, [-1], as in torch, got [1]. Count them from the end.",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_keras(layer, LAYER_NORM | {"rms_scaling": True}, AFFINE),
        ValueError, "from_keras: rms_scaling=True has no counterpart in torch. Use RMSNormalization.",
    ),
    (
        LAYERS["LayerNorm"],
        lambda layer: tnt.from_flax(layer, LAYER_NORM | {"reduction_axes": (-2, -1)}, FLAX_AFFINE), ValueError,
        "from_flax: reduction_axes must be the last axes, [-1], as in torch, got [-2, -1]. Count them from the end.",
    ),
    (
        LAYERS["LayerNorm"], lambda layer: tnt.from_keras(layer, LAYER_NORM, AFFINE, count=5), ValueError,
        "from_keras: count is for the running variance of batch norm. Leave it out.",
    ),
    (
        LAYERS["BatchNorm1d"], lambda layer: tnt.from_keras(layer, BATCH_NORM, GOOD, count=1), ValueError,
        "from_keras: count is a whole number >= 2, the values per channel in a batch, got 1.",
    ),
    (
        LAYERS["GroupNorm"], lambda layer: tnt.from_keras(layer, GROUP_NORM, AFFINE), ValueError,
        "from_keras: both layers must have the same number of groups, got 3 for 2.",
    ),
    (
        LAYERS["GroupNorm"],
        lambda layer: tnt.from_flax(layer, LAYER_NORM | {"reduction_axes": (-2, -1)}, FLAX_AFFINE), ValueError,
        "from_flax: group norm with reduction_axes has no counterpart in torch. Leave them out.",
    ),
    (
        lambda: nn.LazyBatchNorm1d(), lambda layer: tnt.from_keras(layer, BATCH_NORM, GOOD), ValueError,
        "from_keras: the channels of LazyBatchNorm1d are not known yet. Run the model once before.",
    ),
    (
        lambda: nn.utils.parametrizations.weight_norm(nn.LayerNorm(CHANNELS)), tnt.to_keras, ValueError,
        "to_keras: ParametrizedLayerNorm computes its weights. Call remove_parametrizations first.",
    ),
    (
        lambda: nn.BatchNorm1d(CHANNELS, momentum=None), tnt.to_flax, ValueError,
        "to_flax: other libraries have no cumulative average, got momentum=None. Set layer.momentum to a number.",
    ),
    (
        lambda: nn.BatchNorm1d(6, track_running_stats=False), tnt.to_flax, ValueError,
        "to_flax: batch norm has running statistics in other libraries, got a layer without. "
        "Use track_running_stats=True.",
    ),
    (
        lambda: nn.InstanceNorm1d(6, track_running_stats=True), tnt.to_flax, ValueError,
        "to_flax: instance norm has no running statistics in other libraries, got track_running_stats=True. Use False.",
    ),
    (
        lambda: nn.Linear(2, 2), tnt.to_keras, TypeError,
        "to_keras: layer must be a batch, layer, group, instance or RMS norm of torch or truenorm, got Linear.",
    ),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named_and_change_nothing(number: int) -> None:
    make, call, error, text = MISTAKES[number]
    layer = make()
    before = fingerprint(layer)
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        call(layer)
    assert fingerprint(layer) == before
