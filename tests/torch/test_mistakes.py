"""What users, and those who try to break the layers, do: mistakes, unusual tensors and arguments, tracers."""

import warnings
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


# ---- users' mistakes ----


def test_mistakes_get_a_message_that_says_what_to_do() -> None:
    layer, x = tnt.BatchNorm1d(3), normal(2, 3, 4)
    ones = torch.ones(2, 4)
    for told, words in (
        ({"lengths": torch.tensor([4, 5])}, r"lengths must be from 0 to 4, the size of axis t, got 5 at index 1\."),
        (
            {"lengths": torch.tensor([4, 4, 4])},
            r"lengths must have the shape \(2,\), one for each sample, got \(3,\)\.",
        ),
        (
            {"lengths": torch.tensor([4.0, 2.0])},
            r"^lengths: whole numbers, got torch\.float32\. Pass lengths\.long\(\)\.$",
        ),
        (
            {"valid": ones},
            r"^valid: booleans, or the integers 0 and 1, got torch\.float32\. "
            r"Pass valid\.bool\(\) for a mask of 0 and 1; weights go into sample_weight=\.$",
        ),
        ({"valid": torch.ones(2, 1, 1, 4, dtype=torch.bool)}, r"valid must have the shape \(2, 4\)"),
        (
            {"valid": ones.bool(), "lengths": torch.tensor([4, 2])},
            r"pass only one of valid, lengths, offsets and segments",
        ),
        (
            {"segments": torch.tensor([0, 2]), "lengths": torch.tensor([4, 2])},
            r"^lengths: pass only one of valid, lengths, offsets and segments, got lengths and segments\.",
        ),
        ({"offsets": torch.tensor([0, 2])}, r"^x: as many channels as the layer has, 3, got 4\.$"),
        (
            {"segments": torch.tensor([0, 2, 1])},
            r"^segments must have the shape \(2,\), one id for each row of x of shape \(2, 3, 4\), got \(3,\)\.$",
        ),
        (
            {"segments": torch.ones(2)},
            r"^segments must hold integers, got dtype torch\.float32\. A mask belongs in valid=\.$",
        ),
        (
            {"lengths": torch.tensor([[4, 2], [1, 2]])},
            r"^lengths: the shape \(b,\), got \(2, 2\)\. For several axes pass a tuple of vectors\.$",
        ),
        (
            {"lengths": [[4, 2], [1, 2]]},
            r"^lengths must be one vector, or a tuple with one vector for each position axis, got a list of vectors, ",
        ),
        (
            {"lengths": (torch.tensor([4, 2]), torch.tensor([1]))},
            r"^lengths: vectors of the shape \(b,\), one for each position axis, got \(2,\), \(1,\)\.$",
        ),
        (
            {"lengths": (torch.tensor([4, 2]), torch.tensor([1, 1]))},
            r"^lengths must be one vector for each position axis of x of shape \(2, 3, 4\) \(t\), got 2\.",
        ),
        ({"along": 2}, r"^along says which axis lengths run along, got no lengths\. Pass lengths= with it\.$"),
        (
            {"lengths": torch.tensor([4, 2]), "along": 1},
            r"^along must be a position axis of x, by number \(2\) or by its name in the pattern \(it has none\), got",
        ),
        ({"sample_weight": -ones}, r"sample_weight must be finite and >= 0, got -1"),
        ({"lengths": torch.tensor([4, 2], device="meta")}, r"lengths: on the device of x, cpu, got meta\. Move it"),
    ):
        with pytest.raises((ValueError, TypeError), match=words):
            layer(x, **told)
    with pytest.raises(ValueError, match=r"\(p2, p3\), got one array\. Pass a tuple of vectors, or say with along="):
        tnt.BatchNorm2d(3)(normal(2, 3, 4, 5), lengths=torch.tensor([4, 2]))
    nested = torch.nested.nested_tensor([normal(2, 3), normal(4, 3)], layout=torch.jagged)
    with pytest.raises(ValueError, match="lengths: not beside a nested tensor, which has lengths of its own"):
        layer(nested, lengths=torch.tensor([2, 4]))
    with pytest.raises(ValueError, match="segments: not beside a nested tensor, which has lengths of its own"):
        layer(nested, segments=torch.tensor([2, 4]))
    with pytest.raises(TypeError, match="x: a tensor, a nested tensor or a PackedSequence, got list"):
        layer([1.0, 2.0])  # type: ignore[type-var]


# ---- found by trying to break them ----


@pytest.mark.parametrize("kit", [nn, tnt], ids=["torch", "ours"])
def test_the_next_layer_may_work_in_place(kit: Any) -> None:
    for layer, x in (
        (kit.BatchNorm2d(4), normal(2, 4, 5, 5).to(memory_format=torch.channels_last)),
        (kit.GroupNorm(2, 4), normal(2, 4, 5, 5).to(memory_format=torch.channels_last)),
        (kit.BatchNorm1d(4), normal(2, 5, 4).transpose(1, 2)),
    ):
        y = nn.Sequential(layer, nn.ReLU(inplace=True))(x.requires_grad_())
        y.backward(torch.ones_like(y))
        assert torch.isfinite(layer.weight.grad).all()


@pytest.mark.parametrize("layer", [tnt.LayerNorm(4), tnt.BatchNorm1d(3), tnt.GroupNorm(3, 3)], ids=str)
def test_a_jacobian_of_many_rows_at_once(layer: Any) -> None:
    x = normal(2, 3, 4)
    slow = torch.autograd.functional.jacobian(layer, x)
    torch.testing.assert_close(torch.autograd.functional.jacobian(layer, x, vectorize=True), slow, rtol=1e-4, atol=1e-5)


def test_arguments_that_are_changed_after_the_forward_change_no_gradient() -> None:
    for name, value in (("sample_weight", torch.ones(2, 4, dtype=torch.float64)), ("lengths", torch.tensor([4, 2]))):
        found = []
        for change in (False, True):
            x, told = normal(2, 3, 4).requires_grad_(), value.clone()
            y = tnt.BatchNorm1d(3)(x, **{name: told})
            if change:
                told.zero_()
            found.append(torch.autograd.grad(y, x, normal(2, 3, 4, seed=1), create_graph=True)[0])
            found.append(torch.autograd.grad(y, x, normal(2, 3, 4, seed=1))[0])
        for one, two in zip(found[:2], found[2:], strict=True):
            assert torch.equal(one, two)


def test_whole_numbers_are_refused() -> None:
    for layer in (tnt.BatchNorm1d(1), tnt.GroupNorm(1, 1), tnt.Normalize(tn.batch("second"), 1)):
        with pytest.raises(TypeError, match=r"x: a float tensor, got torch\.int64\. Convert it: x\.float\(\)\."):
            layer(torch.ones(2, 1, 4, dtype=torch.int64), lengths=torch.tensor([3, 4]))


def test_forms_without_a_single_position() -> None:
    for layer in (tnt.GroupNorm(2, 4), tnt.InstanceNorm1d(4), tnt.BatchNorm1d(4)):
        assert layer(normal(0, 4), offsets=torch.tensor([0, 0])).shape == (0, 4)
        assert layer(normal(2, 4, 0), lengths=torch.tensor([0, 0])).shape == (2, 4, 0)


def test_eps_and_norm_may_change_after_construction() -> None:
    x = normal(6, 3)
    layer = tnt.Normalize(tn.batch(), 3)
    layer.eps = 1.0
    torch.testing.assert_close(layer(x), nn.functional.batch_norm(x, None, None, training=True, eps=1.0))
    with pytest.raises(ValueError, match="eps: a number, finite and >= 0, got -1"):
        tnt.GroupNorm(2, 4, eps=-1.0)(normal(2, 4, 3), lengths=torch.tensor([3, 1]))


def test_running_statistics_of_several_axes_in_every_way() -> None:
    norm = tn.Norm("[b] h c", affine="h c")
    pair: list[Any] = [tnt.Normalize(norm, (4, 3), track_running_stats=True) for _ in range(2)]
    one, two = pair
    two.running_mean, two.running_var = two.running_mean.double(), two.running_var.double().t().contiguous().t()
    x = normal(5, 4, 3)
    one(x)
    two(x)
    torch.testing.assert_close(one.running_var.double(), two.running_var)


# ---- unusual tensors ----


def test_a_nested_tensor_of_rows_in_every_layout_that_torch_takes() -> None:
    parts = [normal(2, 3, 4), normal(5, 3, 4, seed=1)]
    jagged = torch.nested.nested_tensor(parts, layout=torch.jagged)
    for ours, theirs in ((tnt.LayerNorm(4), nn.LayerNorm(4)), (tnt.RMSNorm(4), nn.RMSNorm(4))):
        torch.testing.assert_close(ours(jagged).values(), theirs(jagged).values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # this layout is a prototype
        strided = torch.nested.nested_tensor([normal(2, 4), normal(5, 4)])
    for one, other in zip(tnt.LayerNorm(4)(strided).unbind(), nn.LayerNorm(4)(strided).unbind(), strict=True):
        torch.testing.assert_close(one, other)
    with pytest.raises(ValueError, match="x: a nested tensor of the jagged layout and three axes"):
        tnt.BatchNorm1d(4)(jagged)


def test_a_tensor_that_is_a_negative_view() -> None:
    x = torch._neg_view(normal(4, 5))
    for layer in (tnt.LayerNorm(5), tnt.BatchNorm1d(5)):
        torch.testing.assert_close(layer(x), layer(x.resolve_neg().clone()))


def test_the_layout_of_mkldnn_goes_to_torch() -> None:
    x = normal(2, 4, 5, 6)
    ours, theirs = tnt.BatchNorm2d(4).eval(), nn.BatchNorm2d(4).eval()
    torch.testing.assert_close(ours(x.to_mkldnn()).to_dense(), theirs(x.to_mkldnn()).to_dense())


def test_saved_tensors_that_come_back_in_another_layout() -> None:
    def another_layout(kept: Any) -> Any:
        return kept.contiguous(memory_format=torch.contiguous_format) if kept.dim() == 4 else kept

    x = normal(2, 4, 5, 6).to(memory_format=torch.channels_last).requires_grad_()
    dy, layer = normal(2, 4, 5, 6, seed=1), tnt.BatchNorm2d(4)
    expected = torch.autograd.grad(layer(x), x, dy)[0]
    with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, another_layout):
        y = layer(x)
    assert torch.equal(torch.autograd.grad(y, x, dy)[0], expected)


def test_a_bias_may_change_between_forward_and_backward() -> None:
    layer, x = tnt.BatchNorm1d(3), normal(5, 3).requires_grad_()
    y = layer(x)
    with torch.no_grad():
        layer.bias.add_(1.0)
    y.sum().backward()
    torch.testing.assert_close(layer.bias.grad, torch.full((3,), 5.0))


# ---- unusual arguments ----


def test_the_gradient_of_sample_weight_in_every_way() -> None:
    x, times = normal(2, 3, 4, dtype=torch.float64), normal(2, 4, seed=9, dtype=torch.float64).abs() + 0.5
    layer = tnt.BatchNorm1d(3, track_running_stats=False).double()

    def loss(values: Any, weights: Any) -> Any:
        return layer(values, sample_weight=weights).pow(3).sum()

    assert torch.autograd.gradcheck(loss, (x.requires_grad_(), times.requires_grad_()))
    eager = torch.autograd.grad(loss(x, times), times)[0]
    torch.testing.assert_close(torch.func.grad(loss, argnums=1)(x.detach(), times.detach()), eager)


@pytest.mark.parametrize("compiled", [True, False], ids=["kernels", "composed"])
def test_nan_where_the_sample_weight_is_0_stays_there(compiled: bool) -> None:
    x, times = normal(3, 5, 7), torch.ones(3, 7, requires_grad=not compiled)
    with torch.no_grad():
        times[0, 0] = 0.0
        x[0, :, 0] = torch.nan
    layer = tnt.BatchNorm1d(5)
    y = layer(x.requires_grad_(), sample_weight=times)
    assert int(y.isnan().sum()) == 5
    assert bool(y[0, :, 0].isnan().all())
    assert bool(layer.running_mean.isfinite().all())


@pytest.mark.parametrize("dtype", [torch.uint16, torch.uint32, torch.uint64, torch.int8], ids=str)
def test_lengths_of_every_whole_number(dtype: Any) -> None:
    x, lengths = normal(2, 3, 4, dtype=torch.float64).requires_grad_(), torch.tensor([4, 2])
    layer = tnt.BatchNorm1d(3).double()
    expected = layer(x, lengths=lengths)
    assert torch.equal(layer(x, lengths=lengths.to(dtype)), expected)
    dx = torch.autograd.grad(layer(x, lengths=lengths.to(dtype)).pow(2).sum(), x, create_graph=True)[0]
    assert bool(dx.isfinite().all())


def test_an_unbatched_instance_norm_takes_one_sequence() -> None:
    x = normal(3, 6)
    layer = tnt.InstanceNorm1d(3)
    expected = nn.InstanceNorm1d(3)(x[:, :4])
    valid = torch.arange(6) < 4
    torch.testing.assert_close(layer(x, valid=valid)[:, :4], expected)
    torch.testing.assert_close(layer(x, lengths=torch.tensor(4))[:, :4], expected)
    torch.testing.assert_close(layer(x, lengths=torch.tensor([4]))[:, :4], expected)
    assert bool((layer(x, valid=valid)[:, 4:] == 0).all())


def test_wrong_numbers_of_channels_and_weights_are_named() -> None:
    lengths = torch.tensor([4, 2])
    for layer in (tnt.BatchNorm1d(5), tnt.BatchNorm1d(5, affine=False), tnt.GroupNorm(1, 5)):
        with pytest.raises(ValueError, match=r"x: as many channels as the layer has, 5, got 3\."):
            layer(normal(2, 3, 4), lengths=lengths)
    packed = nn.utils.rnn.pack_sequence([normal(4, 3), normal(2, 3)])
    with pytest.raises(ValueError, match="sample_weight: one for each of the 6 packed rows"):
        tnt.GroupNorm(1, 3)(packed, sample_weight=torch.ones(5))
    with pytest.raises(ValueError, match="Normalize: affine=False for a norm without a channel axis"):
        tnt.Normalize(tn.Norm("[b t]"), 4)


def test_options_are_checked_when_they_are_set() -> None:
    layer = tnt.BatchNorm1d(3)
    with pytest.raises(ValueError, match=r"padding: 'zero' or 'keep', got 'nonsense'\."):
        layer.padding = "nonsense"  # type: ignore[assignment]
    with pytest.raises(ValueError, match=r"on_single: 'error' or 'running', got 'nonsense'\."):
        layer.on_single = "nonsense"  # type: ignore[assignment]
    assert (layer.padding, layer.on_single) == ("zero", "error")
    free = tnt.Normalize(tn.batch(), 3)
    free.norm = tn.batch(eps=1.0)
    x = normal(6, 3)
    torch.testing.assert_close(free(x), nn.functional.batch_norm(x, None, None, training=True, eps=1.0))


# ---- tracers ----


def test_torch_jit_trace_records_operators_of_torch() -> None:
    x = normal(3, 5, 7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the tracer is old, and torch.nn.functional warns of itself
        for layer in (tnt.BatchNorm1d(5).eval(), tnt.LayerNorm(7), tnt.GroupNorm(1, 5)):
            traced = torch.jit.trace(layer, x)
            torch.testing.assert_close(traced(2 * x), layer(2 * x))


def test_padded_x_with_offsets_is_refused_by_every_layer() -> None:
    # (2, 8, 5) has 2 packed rows, 8 heads and 5 channels.
    for layer, offsets, words in (
        (tnt.GroupNorm(2, 8), [0, 2], r"num_groups: divides the channels of x, got 2 for 5\."),
        (tnt.InstanceNorm1d(8), [0, 2], r"expected input's size at dim=1 to match num_features \(8\), but got: 5\."),
        (tnt.BatchNorm1d(8), [0, 2], r"x: as many channels as the layer has, 8, got 5\."),
        (tnt.LayerNorm(5), [7, 1], r"offsets must rise from 0 to 2, the number of rows of x, got \[7, 1\]\."),
        (tnt.Normalize("b [t] c", 5), [0, 2], r"offsets needs packed x of shape \(rows, c\) or \(1, rows, c\), got"),
    ):
        with pytest.raises(ValueError, match=words):
            layer(normal(2, 8, 5), offsets=torch.tensor(offsets))
    with pytest.raises(ValueError, match=r"num_groups: divides the channels of x, got 2 for 3\."):
        tnt.functional.group_norm(normal(2, 3, 4), 2, lengths=torch.tensor([4, 1]))


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # in torch.export.load of torch 2.10
@pytest.mark.parametrize("training", [True, False])
def test_an_exported_layer_can_be_saved_and_loaded(training: bool, tmp_path: Any) -> None:
    layer, x, lengths = tnt.BatchNorm1d(3).train(training), normal(2, 3, 4), torch.tensor([2, 4])
    exported = torch.export.export(layer, (x,), {"lengths": lengths})
    torch.export.save(exported, tmp_path / "layer.pt2")
    loaded = torch.export.load(tmp_path / "layer.pt2").module()
    torch.testing.assert_close(loaded(x, lengths=lengths), layer(x, lengths=lengths))
    torch.testing.assert_close(loaded.running_var, layer.running_var)
