"""Failures of normalization layers that really happened: running statistics, gradients, layouts and transforms."""

import itertools
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
LOW = (torch.float16, torch.bfloat16)


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


def test_61_averages_of_parameters_alone_need_statistics_of_their_own() -> None:
    """ignite#2590: an average of parameters has the statistics of the last model, until they are estimated."""
    model = nn.Sequential(nn.Linear(3, 4), tnt.BatchNorm1d(4))
    averaged = torch.optim.swa_utils.AveragedModel(model, use_buffers=False)
    batches = [normal(6, 3, seed=seed) for seed in range(3)]
    for batch in batches:
        model(batch)
        averaged.update_parameters(model)
    found = averaged.module[1]
    assert torch.equal(found.running_mean, model[1].running_mean)
    tnt.reestimate(averaged, batches)
    values = averaged.module[0](torch.cat(batches)).detach()
    torch.testing.assert_close(found.running_mean, values.mean(0))
    torch.testing.assert_close(found.running_var, values.var(0))
    assert int(found.num_batches_tracked) == 3


def test_62_training_normalizes_with_the_batch_not_with_the_running_statistics() -> None:
    """equinox#675: ten steps equal torch's, in parameters and buffers, and no step uses what was stored before."""
    nets = []
    for kind in (tnt.BatchNorm1d, nn.BatchNorm1d):
        torch.manual_seed(1)
        nets.append(nn.Sequential(nn.Linear(3, 4, bias=False), kind(4), nn.Tanh(), nn.Linear(4, 1)).double())
    for net in nets:
        optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        for seed in range(10):
            x = normal(6, 3, seed=seed, dtype=torch.float64)
            loss = (net(x) - x.square().sum(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for name, one in nets[1].state_dict().items():
        torch.testing.assert_close(nets[0].state_dict()[name], one, msg=name)
    x, layer = normal(6, 4, seed=7, dtype=torch.float64), nets[0][1]
    before = layer(x)
    layer.running_mean.fill_(1e6)
    assert torch.equal(layer(x), before)


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
            for ragged in ({}, {"lengths": torch.zeros(shape[0], dtype=torch.int64)}):
                calls += 1
                try:
                    y = layer(normal(*shape), **ragged)
                except (ValueError, RuntimeError):
                    continue
                assert y.shape == shape
    assert calls == 27 * 5 * 2
    x, wrong = normal(4, 3), (torch.ones(2), torch.ones(0), torch.ones(3, 3), torch.ones(()))
    for one in wrong:
        buffers: Any = ({"running_mean": one, "running_var": one}, {"running_mean": torch.zeros(3), "running_var": one})
        affine = {"running_mean": torch.zeros(3), "running_var": torch.ones(3), "weight": one}
        for arguments in (*buffers, affine):
            with pytest.raises((ValueError, RuntimeError)):
                tnt.functional.batch_norm(x, **arguments, training=True)
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
    class Block(torch.nn.Module):
        """A convolution that sees no padding, and a normalization that knows where it is."""

        def __init__(self, library: Any) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.norms = nn.ModuleList([library.BatchNorm1d(4), library.GroupNorm(2, 4)])
            self.convolution = nn.Conv1d(4, 4, 3, padding=1)

        def forward(self, x: Any, valid: Any, **ragged: Any) -> Any:
            for norm in self.norms:
                x = norm(self.convolution(x * valid[:, None]), **ragged)
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
