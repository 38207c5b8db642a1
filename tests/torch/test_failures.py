"""Failures of normalization layers that really happened, one test each: what torch's layers, or others', did wrong.

The numbers behind the names are those of threads that are quoted in the tests.
"""

import copy
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
LOW = (torch.float16, torch.bfloat16)


# ---- numbers that were seen, and the true ones ----


def test_a_mean_of_1000_over_a_million_rows() -> None:
    """torch is off by 3.7 to 8.9 in the mean and 15 to 80 times in the variance."""
    x = normal(1_000_000, 2) + 1000
    layer = tnt.BatchNorm1d(2, momentum=1.0)
    y = layer(x)
    torch.testing.assert_close(layer.running_mean.double(), x.double().mean(0), rtol=1e-6, atol=0)
    torch.testing.assert_close(layer.running_var.double(), x.double().var(0), rtol=1e-4, atol=0)
    assert abs(float(y.detach().double().var(correction=0)) - 1) < 1e-3


@pytest.mark.parametrize("offset", [1e3, 3e3])
def test_group_norm_of_channels_last_at_an_offset(offset: float) -> None:
    """torch's outputs are off by 0.3 to 1360."""
    x = (normal(2, 8, 9, 9) + offset).to(memory_format=torch.channels_last)
    exact = nn.functional.group_norm(x.double().contiguous(), 4)
    y = tnt.GroupNorm(4, 8)(x)
    assert y.is_contiguous(memory_format=torch.channels_last)
    torch.testing.assert_close(y.detach().double(), exact, rtol=0, atol=offset * 1e-6)


@pytest.mark.parametrize("value", [1e6, 1e8, -3e-30, 0.1])
def test_a_constant_channel_gives_exactly_the_bias(value: float) -> None:
    """torch: off by 8.7 at 1e6 and by 484 at 1e8 (pytorch#5410)."""
    layer = tnt.BatchNorm1d(3)
    with torch.no_grad():
        layer.bias.copy_(torch.tensor([0.3, -7.0, 1e-3]))
        layer.weight.copy_(torch.tensor([5.0, 1e10, -2.0]))
    y = layer(torch.full((64, 3), value))
    assert torch.equal(y, layer.bias.expand(64, 3))


def test_bfloat16_of_two_values() -> None:
    """torch: 0.988 and -1.008 (pytorch#140112)."""
    y = tnt.BatchNorm1d(1).to(torch.bfloat16)(torch.tensor([[1.3047], [0.8789]], dtype=torch.bfloat16))
    assert y.flatten().tolist() == [1.0, -1.0]


@pytest.mark.parametrize("bad", [float("inf"), -float("inf"), float("nan")])
def test_22_one_value_that_is_not_finite_leaves_the_running_statistics(bad: float) -> None:
    """torch: inf and NaN for ever (pytorch#90342)."""
    layer = tnt.BatchNorm1d(2)
    layer(normal(8, 2))
    before = copy.deepcopy(layer.state_dict())
    x = normal(8, 2, seed=1)
    x[3, 1] = bad
    layer(x)
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())
    assert layer.skipped_batches == 1
    layer(normal(8, 2, seed=2))
    assert int(layer.num_batches_tracked) == 2
    masked = tnt.BatchNorm1d(2)
    masked(x[:, :, None].repeat(1, 1, 2), valid=torch.arange(8)[:, None] != 3)
    assert masked.skipped_batches == 0
    assert int(masked.num_batches_tracked) == 1


def test_statistics_of_a_bfloat16_layer_reach_their_limit() -> None:
    """torch: buffers in bfloat16 stall at 4.0 of 10 (fairscale#442)."""
    layer = tnt.BatchNorm1d(1, momentum=1e-3).to(torch.bfloat16)
    x = (10 + torch.tensor([[-1.0], [1.0]])).to(torch.bfloat16)
    for _ in range(5000):
        layer(x)
    assert abs(float(layer.running_mean) - 10 * (1 - 0.999**5000)) < 1e-3


@pytest.mark.parametrize("way", ["half", "bfloat16", "to", "double"])
def test_25_statistics_keep_their_precision_under_half_and_to(way: str) -> None:
    layer = tnt.BatchNorm1d(3)
    layer(normal(8, 3))
    mean = layer.running_mean.clone()
    layer = layer.to(torch.float16) if way == "to" else getattr(layer, way)()
    assert layer.running_mean.dtype == (torch.float64 if way == "double" else torch.float32)
    assert torch.equal(layer.running_mean.float(), mean)
    assert layer.num_batches_tracked.dtype == torch.int64
    assert layer.weight.dtype == {"half": torch.float16, "to": torch.float16, "bfloat16": torch.bfloat16}.get(
        way, torch.float64
    )


# ---- B: dtypes ----


@pytest.mark.parametrize("size", [300, 7600, 60000])
def test_17_squares_of_half_numbers_do_not_overflow(size: float) -> None:
    x = (normal(4, 64) * size / 4).clamp(-size, size).half()
    for layer in (tnt.LayerNorm(64), tnt.RMSNorm(64, eps=1e-5)):
        y = layer.half()(x)
        assert torch.isfinite(y).all()
        assert abs(float(y.detach().double().pow(2).mean()) - 1) < 0.01


def test_17_a_sum_of_70000_halves() -> None:
    y = tnt.LayerNorm(70_000, elementwise_affine=False).half()(torch.ones(1, 70_000, dtype=torch.float16))
    assert not y.any()


def test_18_rms_norm_without_eps_is_the_same_in_every_dtype() -> None:
    x = normal(8, 32).to(torch.bfloat16) * 0.058
    low, wide = tnt.RMSNorm(32).to(torch.bfloat16)(x), tnt.RMSNorm(32)(x.float())
    torch.testing.assert_close(low.float(), wide, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("parameters", [torch.float32, torch.float64, *LOW, None], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, *LOW], ids=str)
def test_19_20_every_combination_of_dtypes(dtype: Any, parameters: Any, training: bool) -> None:
    layer = tnt.BatchNorm2d(3, affine=parameters is not None).to(parameters or torch.float32).train(training)
    exact = copy.deepcopy(layer).double()
    x = normal(4, 3, 5, 2).to(dtype)
    for laid in (x, x.to(memory_format=torch.channels_last)):
        leaf, wide = laid.clone().requires_grad_(), laid.double().contiguous().requires_grad_()
        y, expected = copy.deepcopy(layer)(leaf), copy.deepcopy(exact)(wide)
        assert y.dtype == dtype
        dy = normal(4, 3, 5, 2, seed=1).to(dtype)
        y.backward(dy)
        expected.backward(dy.double())
        rounding = {torch.float64: 1e-10, torch.float32: 1e-5, torch.float16: 5e-3, torch.bfloat16: 4e-2}[dtype]
        torch.testing.assert_close(y.double(), expected, rtol=rounding, atol=rounding)
        torch.testing.assert_close(leaf.grad.double(), wide.grad, rtol=rounding, atol=rounding)


def test_23_counts_are_no_halves() -> None:
    layer = tnt.BatchNorm1d(1, momentum=1.0).half()
    layer(torch.ones(70_000, 1, dtype=torch.float16) * torch.tensor([1.0, 3.0]).repeat(35_000)[:, None].half())
    assert float(layer.running_mean) == 2.0
    assert abs(float(layer.running_var) - 70_000 / 69_999) < 1e-6


def test_24_a_large_variance_survives_autocast() -> None:
    layer = tnt.BatchNorm1d(2).eval()
    layer.running_var.fill_(70_000.0)
    with torch.no_grad():
        layer.weight.fill_(70_000.0)
    with torch.autocast("cpu", torch.float16):
        y = layer(torch.full((3, 2), 1.5))
    torch.testing.assert_close(y.float(), torch.full((3, 2), 1.5 * 70_000 / 70_000**0.5), rtol=2e-3, atol=0)


# ---- C: degenerate counts and shapes ----


def test_26_one_value_per_channel_by_shape_by_mask_and_by_lengths() -> None:
    layer = tnt.BatchNorm1d(2)
    before = copy.deepcopy(layer.state_dict())
    words = "Expected more than 1 value per channel when training, got input size"
    for x, ragged in (
        (torch.ones(1, 2), {}),
        (torch.ones(3, 2, 4), {"lengths": torch.tensor([0, 1, 0])}),
        (torch.ones(3, 2, 4), {"valid": torch.eye(12)[5].bool().reshape(3, 4)}),
        (torch.ones(1, 2), {"offsets": torch.tensor([0, 1])}),
    ):
        with pytest.raises(ValueError, match=words):
            layer(x, **ragged)
        assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())


def test_26_one_value_per_group_by_shape_and_by_lengths() -> None:
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        nn.GroupNorm(4, 4)(torch.ones(1, 4))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        tnt.GroupNorm(4, 4)(torch.ones(1, 4))
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        tnt.GroupNorm(4, 4)(torch.ones(2, 4, 3), lengths=torch.tensor([1, 0]))
    tnt.GroupNorm(4, 4)(torch.ones(2, 4, 3), lengths=torch.tensor([2, 0]))
    tnt.GroupNorm(2, 4)(torch.ones(2, 4, 3), lengths=torch.tensor([1, 0]))


def test_34_one_value_per_channel_may_be_left_to_the_running_statistics() -> None:
    layer = tnt.BatchNorm1d(2, on_single="running")
    layer(normal(8, 2))
    before = copy.deepcopy(layer.state_dict())
    x = torch.tensor([[0.5, 2.0]])
    assert torch.equal(layer(x), copy.deepcopy(layer).eval()(x))
    layer(torch.ones(3, 2, 4), lengths=torch.tensor([0, 1, 0]))
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())
    assert "on_single='running'" in repr(layer)


@pytest.mark.parametrize("shape", [(0, 5), (0, 5, 9), (3, 5, 0)])
def test_28_an_empty_batch_changes_nothing(shape: tuple[int, ...]) -> None:
    layer = tnt.BatchNorm1d(5)
    layer(normal(4, 5))
    before = copy.deepcopy(layer.state_dict())
    x = torch.empty(shape, requires_grad=True)
    y = layer(x)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape
    assert not layer.weight.grad.any()
    assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())


@pytest.mark.parametrize("shape", [(0, 4, 9), (3, 4, 0), (3, 0, 9)])
def test_group_norm_of_nothing_is_empty(shape: tuple[int, ...]) -> None:
    x = torch.empty(shape, requires_grad=True)
    y = tnt.functional.group_norm(x, 2)
    y.sum().backward()
    assert y.shape == x.grad.shape == shape


def test_30_33_arguments_that_make_no_sense_are_refused() -> None:
    for groups in (0, -1, 4):
        with pytest.raises((ValueError, ZeroDivisionError, RuntimeError)):
            tnt.GroupNorm(groups, 6)(normal(2, 6, 3))
    with pytest.raises(ValueError, match="eps must be positive"):
        tnt.BatchNorm1d(3, eps=-1.0)(normal(4, 3))
    wrong: Any = ({"padding": "same"}, {"on_single": "warn"})
    for options in wrong:
        with pytest.raises(ValueError, match=f"{next(iter(options))}: '"):
            tnt.BatchNorm1d(3, **options)


def test_32_gradients_of_constants_are_finite() -> None:
    for layer in (tnt.BatchNorm1d(3), tnt.LayerNorm(3), tnt.GroupNorm(1, 3), tnt.RMSNorm(3, eps=1e-12)):
        x = torch.zeros(5, 3, requires_grad=True)
        layer(x).backward(normal(5, 3))
        assert torch.isfinite(x.grad).all()


# ---- D: masks ----


@pytest.mark.parametrize("name", ["batch_norm", "instance_norm", "group_norm", "layer_norm", "rms_norm"])
@pytest.mark.parametrize("argument", ["valid", "lengths", "sample_weight"])
def test_37_no_entry_point_takes_a_mask_and_ignores_it(name: str, argument: str) -> None:
    extra = {"batch_norm": (None, None), "group_norm": (2,), "layer_norm": ((4,),), "rms_norm": ((4,),)}.get(name, ())
    how = {"training": True} if name == "batch_norm" else {}
    last = name in ("layer_norm", "rms_norm")
    ragged = {
        "valid": torch.arange(5) < torch.tensor([5, 3])[:, None],
        "lengths": torch.tensor([5, 3]),
        "sample_weight": (torch.arange(5) < torch.tensor([5, 3])[:, None]).double(),
    }
    x = normal(2, 5, 4) if last else normal(2, 4, 5)
    changed = x.clone()
    (changed if last else changed.transpose(1, 2))[1, 3:] += 7
    function = getattr(tnt.functional, name)
    one, two = (
        function(value, *extra, **how, **{argument: ragged[argument]}).transpose(-1, -2 if not last else -1)
        for value in (x, changed)
    )
    assert torch.equal(one[0], two[0])
    assert torch.equal(one[1, :3], two[1, :3])
    if not last:
        plain = function(x, *extra, **how).transpose(1, 2)
        assert not torch.allclose(plain[1, :3], one[1, :3])


def test_39_rank_decides_what_valid_means_never_size() -> None:
    x = normal(4, 4, 4)
    valid = torch.arange(4) < torch.tensor([4, 1, 3, 2])[:, None]
    y = tnt.BatchNorm1d(4)(x, valid=valid)
    rows = x.transpose(1, 2)[valid]
    torch.testing.assert_close(y.transpose(1, 2)[valid], nn.BatchNorm1d(4)(rows))
    with pytest.raises(
        ValueError, match=r"valid must have the shape \(4, 4\) .* or \(4, 4, 4\), or 1 along some axes, got \(4,\)"
    ):
        tnt.BatchNorm1d(4)(x, valid=torch.ones(4, dtype=torch.bool))


def test_41_43_nothing_valid_is_no_batch() -> None:
    for layer in (tnt.BatchNorm1d(3), tnt.InstanceNorm1d(3, track_running_stats=True)):
        layer(normal(4, 3, 5))
        before = copy.deepcopy(layer.state_dict())
        x = torch.full((4, 3, 5), float("nan"), requires_grad=True)
        y = layer(x, lengths=torch.zeros(4, dtype=torch.int64))
        y.backward(normal(4, 3, 5))
        assert not y.any()
        assert not x.grad.any()
        assert all(torch.equal(layer.state_dict()[key], value) for key, value in before.items())


def test_45_nan_in_padding_reaches_neither_outputs_nor_gradients() -> None:
    for bad in (float("nan"), float("inf"), 1e38):
        x = normal(3, 4, 5)
        x[1, :, 2:] = bad
        x.requires_grad_()
        layer = tnt.BatchNorm1d(4)
        y = layer(x, lengths=torch.tensor([5, 2, 5]))
        y.backward(normal(3, 4, 5, seed=1))
        for one in (y, x.grad, layer.weight.grad, layer.bias.grad, layer.running_var):
            assert torch.isfinite(one).all()
        assert not x.grad[1, :, 2:].any()


@pytest.mark.parametrize("layer", [tnt.InstanceNorm1d(6, affine=True), tnt.GroupNorm(2, 6), tnt.LayerNorm(6)], ids=str)
def test_48_batch_mates_change_no_bit(layer: Any) -> None:
    last = isinstance(layer, nn.LayerNorm)
    x = normal(5, 7, 6) if last else normal(5, 6, 7)
    lengths = torch.tensor([7, 2, 4, 3, 6])
    together = layer(x, lengths=lengths)
    for order in ([3], [4, 2, 0], [2, 2, 2, 1]):
        assert torch.equal(layer(x[order], lengths=lengths[order]), together[order])
