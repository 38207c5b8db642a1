"""What the kernels in Triton promise beyond being close: exact cases, equal bits, derivatives, parts of a batch."""

from typing import Any

import pytest
import torch
from triton_cases import EPS, NAN, SMALL, Size, computed, filled, formed, made, sequences

import truenorm.torch as tnt
from truenorm.torch import triton
from truenorm.torch.triton import plan

pytestmark = pytest.mark.filterwarnings("ignore:.*encountered in:RuntimeWarning")
ORDERS = ("lengths, channels second", "lengths, channels last")


def normal(*shape: int, dtype: torch.dtype = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64).to(dtype)


@pytest.mark.parametrize(("name", "form"), [("batch", ORDERS[0]), ("group", ORDERS[1]), ("instance", ORDERS[0])])
def test_padding_changes_no_bit(name: str, form: str, device: str) -> None:
    # Tiles begin where sequences begin: neither how much padding there is nor what it holds matters.
    found = []
    for more, junk in ((0, 0.0), (150, NAN)):
        layer = made(name, SMALL, torch.float32, device)
        given = formed(name, form, sequences(torch.float32, SMALL), device, more=more, junk=junk)
        found.append(computed(layer, given, torch.float32))
    for other in found[1:]:
        for key, value in found[0].items():
            assert torch.equal(value, other[key]), key


@pytest.mark.parametrize(("name", "form"), [("group", ORDERS[0]), ("instance", ORDERS[1]), ("group", "offsets")])
def test_other_samples_change_no_bit(name: str, form: str, device: str) -> None:
    parts = sequences(torch.float32, SMALL)
    results = []
    for some in (parts, parts[:1]):
        layer = made(name, SMALL, torch.float32, device)
        given = formed(name, form, some, device)
        results.append(layer(given.x, **given.arguments))
        results[-1] = given.rows(results[-1])
    assert torch.equal(results[0][: len(results[1])], results[1])


@pytest.mark.parametrize(
    ("name", "form"),
    [("batch", ORDERS[0]), ("group", ORDERS[1]), ("instance", "offsets"), ("layer", "valid, channels last")],
)
def test_constants_give_exactly_the_bias(name: str, form: str, device: str) -> None:
    for value in (-1.3e8, 3e38):
        parts = [(torch.full_like(x, value), dy) for x, dy in sequences(torch.float32, SMALL)]
        layer = made(name, SMALL, torch.float32, device)
        given = formed(name, form, parts, device)
        y = given.rows(layer(given.x, **given.arguments))
        assert torch.equal(y, layer.bias.detach().expand(y.shape)), value


def test_powers_of_two_change_no_bit(device: str) -> None:
    # Squares of these leave float32; eps is scaled along.
    x, lengths = normal(3, 5, 40).to(device), torch.tensor([40, 17, 3], device=device)
    results = []
    for power in (0, 100, -80):
        layer = tnt.InstanceNorm1d(5, eps=EPS * 4.0**power)
        results.append(layer(x * 2.0**power, lengths=lengths))
    assert torch.isfinite(results[0]).all()
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


def test_a_large_mean_costs_no_digits(device: str) -> None:
    x = (normal(2, 3, 200) + 1e6).to(device)
    lengths = torch.tensor([200, 128], device=device)
    y = tnt.BatchNorm1d(3, eps=EPS).to(device)(x, lengths=lengths)
    valid = torch.arange(200, device=device) < lengths[:, None]
    rows = x.double().transpose(1, 2)[valid]
    expected = (rows - rows.mean(0)) / (rows.var(0, unbiased=False) + EPS).sqrt()
    assert (y.transpose(1, 2)[valid] - expected).abs().max() < 1e-6


def test_a_single_position_has_no_gradient(device: str) -> None:
    x = normal(2, 6, 5).to(device).requires_grad_()
    layer = filled(tnt.InstanceNorm1d(6, affine=True), torch.float32, device)
    y = layer(x, lengths=torch.tensor([1, 5], device=device))
    y.backward(normal(2, 6, 5).cos().to(device))
    assert torch.equal(y[0, :, 0], layer.bias)
    assert not x.grad[0].any()
    assert x.grad[1].any()


def test_many_rows_are_cut_and_merged(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Three pieces, of two tiles at most.
    monkeypatch.setattr(plan, "LONG", 2 * plan.POSITIONS)
    rows = 600
    x = (normal(rows, 2) * 1.5 + 7).to(device).requires_grad_()
    dy = normal(rows, 2).roll(1, 0).to(device)
    layer = filled(tnt.BatchNorm1d(2, eps=EPS), torch.float32, device)
    y = layer(x, offsets=torch.tensor([0, rows], device=device))
    y.backward(dy)
    wide = x.detach().double().requires_grad_()
    other = torch.nn.functional.batch_norm(
        wide, None, None, layer.weight.double(), layer.bias.double(), training=True, eps=EPS
    )
    other.backward(dy.double())
    torch.testing.assert_close(y.double(), other, rtol=0, atol=2e-6)
    torch.testing.assert_close(x.grad.double(), wide.grad, rtol=0, atol=2e-6)


def test_heads_of_packed_rows(device: str) -> None:
    x = normal(9, 3, 4).to(device)
    layer = tnt.Normalize("b [t h] c", 4).to(device)
    y = layer(x, offsets=torch.tensor([0, 2, 2, 9], device=device))
    for begin, end in ((0, 2), (2, 9)):
        part = x[begin:end].double()
        mean, var = part.mean((0, 1)), part.var((0, 1), unbiased=False)
        expected = (part - mean) / (var + layer.norm.eps).sqrt()
        torch.testing.assert_close(y[begin:end].double(), expected, rtol=0, atol=1e-6)


def test_wrong_offsets_lead_to_no_memory_outside_of_x() -> None:
    # On a device nobody has checked them.
    from truenorm.core.norm import Norm
    from truenorm.torch._inputs import Ragged

    for offsets in ([5, 3, 100], [-7, 2, 4], [0, 9, 1]):
        ragged, norm, x = Ragged(offsets=torch.tensor(offsets)), Norm("b [t] c"), torch.zeros(8, 3)
        found = plan.find_plan(norm, (8, 3), ragged)
        assert not isinstance(found, str)
        _, valid = plan.find_valid(found, norm, x, ragged)
        bounds = valid.ragged.tolist()
        assert bounds == sorted(bounds)
        assert (bounds[0], *bounds[-2:]) == (0, 8, 8)


def test_second_derivatives_are_those_of_the_formula(device: str) -> None:
    lengths = torch.tensor([3, 2], device=device)
    layer = filled(tnt.InstanceNorm1d(2, affine=True), torch.float64, device)
    x = normal(2, 2, 3, dtype=torch.float64).to(device).requires_grad_()

    def function(x: Any, weight: Any, bias: Any) -> Any:
        return tnt.functional.instance_norm(x, weight=weight, bias=bias, lengths=lengths, padding="keep", eps=EPS)

    inputs = (x, layer.weight, layer.bias)
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_gradients_in_batches(device: str) -> None:
    x = normal(2, 3, 5).to(device).requires_grad_()
    y = tnt.GroupNorm(1, 3).to(device)(x, lengths=torch.tensor([5, 2], device=device))
    dy = normal(4, 2, 3, 5).to(device)
    (found,) = torch.autograd.grad(y, x, dy, is_grads_batched=True, retain_graph=True)
    for one, two in zip(found, dy, strict=True):
        torch.testing.assert_close(one, torch.autograd.grad(y, x, two, retain_graph=True)[0], rtol=0, atol=1e-6)


@pytest.mark.parametrize("form", ORDERS)
def test_parts_of_a_batch(form: str, device: str) -> None:
    size = Size(12, (20, 131, 4))
    parts = sequences(torch.float32, size)
    layer, whole = (made("batch", size, torch.float32, device) for _ in range(2))
    given = [formed("batch", form, some, device) for some in (parts[:1], parts[1:])]
    outputs = tnt.together(layer, given, lambda model, one: model(one.x, **one.arguments))
    loss = sum((one.rows(y) * one.rows(one.dy)).sum() for one, y in zip(given, outputs, strict=True))
    loss.backward()
    expected = computed(whole, formed("batch", form, parts, device), torch.float32)
    found = torch.cat([one.rows(y) for one, y in zip(given, outputs, strict=True)])
    torch.testing.assert_close(found, expected["y"], rtol=0, atol=2e-6)
    for key in ("weight", "bias"):
        torch.testing.assert_close(getattr(layer, key).grad, expected[f"d{key}"], rtol=0, atol=2e-5)
    torch.testing.assert_close(layer.running_var, whole.running_var)


def test_not_finite_values_stay_visible(device: str) -> None:
    for value in (NAN, float("inf")):
        layer = tnt.BatchNorm1d(3).to(device)
        x = normal(2, 3, 5).to(device)
        x[0, 1, 2] = value
        y = layer(x, lengths=torch.tensor([5, 3], device=device))
        assert torch.isnan(y[:, 1, :3]).all()
        assert torch.isfinite(y[:, [0, 2]]).all()
        assert torch.equal(layer.running_mean.cpu(), torch.zeros(3))  # the batch is left out


def test_only_x_and_weight_are_saved(device: str) -> None:
    x = normal(2, 12, 50).to(device).requires_grad_()
    saved: list[int] = []

    def pack(tensor: Any) -> Any:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        made("batch", SMALL, torch.float32, device)(x, lengths=torch.tensor([50, 3], device=device))
    assert sorted(saved) == [12, x.numel()]


def test_arguments_may_change_before_backward(device: str) -> None:
    x = normal(2, 3, 5).to(device).requires_grad_()
    results = []
    for change in (False, True):
        lengths, valid = torch.tensor([5, 2], device=device), torch.ones(2, 5, dtype=torch.bool, device=device)
        valid[1, 2:] = False
        layer = tnt.InstanceNorm1d(3).to(device)
        outputs = [layer(x, lengths=lengths), layer(x, valid=valid)]
        if change:
            lengths.fill_(5)
            valid.fill_(True)
        results += torch.autograd.grad(outputs, x, [normal(2, 3, 5).to(device)] * 2)
    assert torch.equal(*results)


def test_the_cpu_is_left_to_the_compiled_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(triton, "INTERPRETED", False)
    assert not triton.applies(torch.ones(3, 4))
