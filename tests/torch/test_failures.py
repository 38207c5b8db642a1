"""Failures of normalization layers that really happened, one test each: what torch's layers, or others', did wrong.

The numbers behind the names are those of threads that are quoted in the tests.
"""

import copy
import itertools
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
    for x, told in (
        (torch.ones(1, 2), {}),
        (torch.ones(3, 2, 4), {"lengths": torch.tensor([0, 1, 0])}),
        (torch.ones(3, 2, 4), {"valid": torch.eye(12)[5].bool().reshape(3, 4)}),
        (torch.ones(1, 2), {"offsets": torch.tensor([0, 1])}),
    ):
        with pytest.raises(ValueError, match=words):
            layer(x, **told)
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


def test_30_33_arguments_that_make_no_sense_are_refused() -> None:
    for groups in (0, -1, 4):
        with pytest.raises((ValueError, ZeroDivisionError, RuntimeError)):
            tnt.GroupNorm(groups, 6)(normal(2, 6, 3))
    with pytest.raises(ValueError, match="eps must be positive during training"):
        tnt.BatchNorm1d(3, eps=-1.0)(normal(4, 3))
    for options in ({"padding": "same"}, {"on_single": "warn"}):
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
    told = {
        "valid": torch.arange(5) < torch.tensor([5, 3])[:, None],
        "lengths": torch.tensor([5, 3]),
        "sample_weight": (torch.arange(5) < torch.tensor([5, 3])[:, None]).double(),
    }
    x = normal(2, 5, 4) if last else normal(2, 4, 5)
    changed = x.clone()
    (changed if last else changed.transpose(1, 2))[1, 3:] += 7
    function = getattr(tnt.functional, name)
    one, two = (
        function(value, *extra, **how, **{argument: told[argument]}).transpose(-1, -2 if not last else -1)
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


# ---- E: running statistics ----


@pytest.mark.parametrize("mode", ["grad", "no_grad", "inference_mode"])
@pytest.mark.parametrize("backward", [True, False])
def test_51_every_forward_in_training_counts_exactly_once(mode: str, backward: bool) -> None:
    layer, x = tnt.BatchNorm1d(2), normal(8, 2).requires_grad_()
    with {"grad": torch.enable_grad, "no_grad": torch.no_grad, "inference_mode": torch.inference_mode}[mode]():
        y = layer(x)
    if backward and mode == "grad":
        y.backward(normal(8, 2, seed=1))
    torch.testing.assert_close(layer.running_mean, 0.1 * x.detach().mean(0))
    assert int(layer.num_batches_tracked) == 1


@pytest.mark.parametrize("count", [2, 3, 8])
def test_52_the_stored_variance_is_that_of_n_minus_1_real_values(count: int) -> None:
    layer = tnt.BatchNorm1d(1, momentum=1.0)
    x = normal(1, 1, 10, dtype=torch.float64)
    layer(x, lengths=torch.tensor([count]))
    torch.testing.assert_close(layer.running_var.double(), x[0, :, :count].var(1), rtol=1e-6, atol=0)


def test_54_momentum_none_is_cumulative_and_0_is_frozen() -> None:
    batches = [normal(8, 2, seed=i) + i for i in range(4)]
    cumulative, frozen = tnt.BatchNorm1d(2, momentum=None), tnt.BatchNorm1d(2, momentum=0.0)
    for batch in batches:
        cumulative(batch)
        frozen(batch)
    torch.testing.assert_close(cumulative.running_mean, torch.stack([one.mean(0) for one in batches]).mean(0))
    assert not frozen.running_mean.any()
    assert torch.equal(frozen.running_var, torch.ones(2))


def test_59_60_buffers_change_in_place_and_inputs_never() -> None:
    layer, x = tnt.BatchNorm1d(3), normal(4, 3, 5)
    places = [layer.running_mean.data_ptr(), layer.running_var.data_ptr()]
    bytes_before = x.clone()
    lengths = torch.tensor([5, 2, 3, 1])
    layer(x, lengths=lengths)
    assert places == [layer.running_mean.data_ptr(), layer.running_var.data_ptr()]
    assert torch.equal(x, bytes_before)
    assert lengths.tolist() == [5, 2, 3, 1]


def test_63_tracking_that_is_switched_after_construction() -> None:
    ours, theirs = tnt.BatchNorm1d(2), nn.BatchNorm1d(2)
    for step, track in enumerate((True, False, True)):
        for layer in (ours, theirs):
            layer.track_running_stats = track
        x = normal(6, 2, seed=step)
        torch.testing.assert_close(ours(x), theirs(x))
        for key, value in theirs.state_dict().items():
            torch.testing.assert_close(ours.state_dict()[key], value, msg=key)


def test_channels_without_a_real_value_stay() -> None:
    layer = tnt.BatchNorm1d(2, momentum=0.5)
    x = normal(4, 2, 3)
    valid = torch.ones(4, 2, 3, dtype=torch.bool)
    valid[:, 1] = False
    layer(x, valid=valid)
    assert float(layer.running_mean[1]) == 0.0
    assert float(layer.running_var[1]) == 1.0
    torch.testing.assert_close(layer.running_mean[0], 0.5 * x[:, 0].mean())
    assert int(layer.num_batches_tracked) == 1


@pytest.mark.parametrize("momentum", [0.1, 0.9])
def test_53_momentum_is_the_weight_of_the_new_batch(momentum: float) -> None:
    layer, x = tnt.BatchNorm1d(1, momentum=momentum), torch.tensor([[1.0], [3.0], [8.0]])
    layer(x)
    layer(x)
    old = (1 - momentum) ** 2
    torch.testing.assert_close(layer.running_mean, torch.tensor([4.0 * (1 - old)]))
    torch.testing.assert_close(layer.running_var, torch.tensor([old + 13.0 * (1 - old)]))


def test_49_what_was_left_out_is_counted_where_it_can_be_seen() -> None:
    layer, x = tnt.BatchNorm1d(2), normal(8, 2)
    layer(x)
    layer(torch.where(torch.arange(8)[:, None] == 3, torch.inf, x))
    layer(x)
    assert (layer.skipped_batches, int(layer.num_batches_tracked)) == (1, 2)


def test_61_averaged_models_average_buffers_and_count_in_whole_numbers() -> None:
    model = nn.Sequential(tnt.BatchNorm1d(3))
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=True)
    means = []
    for seed in range(3):
        model(normal(6, 3, seed=seed))
        averaged.update_parameters(model)
        means.append(model[0].running_mean.clone())
    found = averaged.module[0]
    torch.testing.assert_close(found.running_mean, torch.stack(means).mean(0))
    assert found.num_batches_tracked.dtype == torch.int64


# ---- F, H, I: gradients, layouts, transforms ----


@pytest.mark.parametrize("rank", [2, 3, 4, 5, 6])
def test_69_gradients_at_every_rank(rank: int) -> None:
    shape = (3, 4, 2, 3, 2, 2)[:rank]
    layers: list[tuple[Any, Any]] = [
        *((tnt.LayerNorm(shape[i:]), nn.LayerNorm(shape[i:])) for i in range(1, rank)),
        *((tnt.RMSNorm(shape[i:]), nn.RMSNorm(shape[i:])) for i in range(1, rank)),
        *((tnt.GroupNorm(groups, 4), nn.GroupNorm(groups, 4)) for groups in ((1, 2, 4) if rank > 2 else (1, 2))),
    ]
    for ours, theirs in layers:
        ours, theirs = ours.double(), theirs.double()
        for parameter in (*ours.parameters(), *theirs.parameters()):
            nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.dim()))
        gradients = []
        for layer in (ours, theirs):
            x = normal(*shape, dtype=torch.float64).requires_grad_()
            dy = normal(*shape, seed=1, dtype=torch.float64)
            gradients.append(torch.autograd.grad(layer(x), (x, *layer.parameters()), dy))
        for one, other in zip(*gradients, strict=True):
            assert bool(one.isfinite().all()), ours
            torch.testing.assert_close(one, other)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_70_95_weight_and_bias_alone_together_and_neither(weighted: bool, biased: bool) -> None:
    def parts(of: Any, x: Any) -> Any:
        weight = normal(4, seed=2, dtype=x.dtype).requires_grad_() if weighted else None
        bias = normal(4, seed=3, dtype=x.dtype).requires_grad_() if biased else None
        leaf = x.clone(memory_format=torch.preserve_format).requires_grad_()
        wanted = [one for one in (leaf, weight, bias) if one is not None]
        y = of(leaf, weight, bias)
        return [y, *torch.autograd.grad(y, wanted, normal(*x.shape, seed=1, dtype=x.dtype))]

    theirs, ours, ones = torch.nn.functional, tnt.functional, torch.ones(4, dtype=torch.float64)
    last = normal(3, 4, 5, 6).to(memory_format=torch.channels_last)
    for x in (normal(6, 4), normal(3, 4, 5), normal(3, 5, 4).transpose(1, 2), last):
        x = x.double()
        for one, other in zip(
            parts(lambda x, w, b: ours.batch_norm(x, None, None, w, b, training=True), x),
            parts(lambda x, w, b: theirs.batch_norm(x, None, None, w, b, training=True), x),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
            assert bool((one != 0).any())
        for one, other in zip(
            parts(lambda x, w, b: ours.group_norm(x, 2, w, b), x),
            parts(lambda x, w, b: theirs.group_norm(x, 2, ones if w is None else w, b), x),  # with b alone it crashes
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("mean_dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("var_dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_21_buffers_of_different_dtypes_are_each_written_in_their_own(mean_dtype: Any, var_dtype: Any) -> None:
    layer, expected, x = tnt.BatchNorm1d(3), nn.BatchNorm1d(3), normal(7, 3)
    layer.running_mean, layer.running_var = layer.running_mean.to(mean_dtype), layer.running_var.to(var_dtype)
    layer(x)
    expected(x)
    assert (layer.running_mean.dtype, layer.running_var.dtype) == (mean_dtype, var_dtype)
    torch.testing.assert_close(layer.running_mean.float(), expected.running_mean, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(layer.running_var.float(), expected.running_var, rtol=1e-2, atol=1e-3)
    layer.eval()(x)


def test_29_91_sizes_of_0_and_1_and_arguments_of_wrong_sizes_never_crash() -> None:
    calls = 0
    for shape in itertools.product((0, 1, 3), repeat=3):
        for layer in (
            tnt.BatchNorm1d(3),
            tnt.GroupNorm(3, 3),
            tnt.InstanceNorm1d(3, affine=True),
            tnt.LayerNorm(3),
            tnt.RMSNorm(3),
        ):
            for told in ({}, {"lengths": torch.zeros(shape[0], dtype=torch.int64)}):
                calls += 1
                try:
                    y = layer(normal(*shape), **told)
                except (ValueError, RuntimeError):
                    continue
                assert y.shape == shape
    assert calls == 27 * 5 * 2
    x, wrong = normal(4, 3), (torch.ones(2), torch.ones(0), torch.ones(3, 3), torch.ones(()))
    for one in wrong:
        for arguments in ((one, one), (torch.zeros(3), one), (torch.zeros(3), torch.ones(3), one)):
            with pytest.raises((ValueError, RuntimeError)):
                tnt.functional.batch_norm(x, *arguments, training=True)
    with pytest.raises((ValueError, RuntimeError, IndexError)):
        tnt.functional.batch_norm(normal(3), None, None, training=True)


def test_97_an_ensemble_of_layers_under_vmap() -> None:
    layers = [tnt.BatchNorm1d(3).eval() for _ in range(2)]
    for i, layer in enumerate(layers):
        layer.running_mean.add_(i + 1.0)
        layer.running_var.mul_(i + 2.0)
    parameters, buffers = torch.func.stack_module_state(layers)
    x = normal(5, 3)

    def run(own: Any, kept: Any) -> Any:
        return torch.func.functional_call(layers[0], (own, kept), (x,))

    together = torch.func.vmap(run)(parameters, buffers)
    for i, layer in enumerate(layers):
        torch.testing.assert_close(together[i], layer(x))
    with pytest.raises(RuntimeError):  # statistics that change in place have no place for each of many
        torch.func.vmap(lambda part: tnt.BatchNorm1d(3)(part))(normal(2, 5, 3))


def test_99_the_value_beside_a_derivative_is_the_value() -> None:
    for layer in (tnt.LayerNorm(3), tnt.BatchNorm1d(3, track_running_stats=False), tnt.GroupNorm(1, 3)):
        x, tangent = normal(5, 3), normal(5, 3, seed=1)
        value, _ = torch.func.jvp(layer, (x,), (tangent,))
        torch.testing.assert_close(value, layer(x))


def test_36_a_sentence_in_a_padded_batch_is_the_sentence_alone() -> None:
    class Block(nn.Module):
        """A convolution that sees no padding, and a normalization that is told of it."""

        def __init__(self, library: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.norms = nn.ModuleList([library.BatchNorm1d(4), library.GroupNorm(2, 4)])
            self.convolution = nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, x: Any, real: Any, **told: Any) -> Any:
            for norm in self.norms:
                x = norm(self.convolution(x * real[:, None]), **told)
            return x

    x, lengths = normal(2, 4, 9), torch.tensor([9, 4])
    moved = {}
    for library in (nn, tnt):
        block = Block(library).eval()
        real = torch.arange(9) < lengths[:, None]
        alone = block(x[1:, :, :4], real[1:, :4])
        batched = block(x, real, **({"lengths": lengths} if library is tnt else {}))
        moved[library] = float((batched[1:, :, :4] - alone).abs().max().detach())
    assert moved[tnt] < 1e-6
    assert moved[nn] > 0.1
