"""Derivatives of every order and kind: right, or refused; never silently wrong."""

import copy
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn, func = torch.nn, torch.func
LENGTHS = torch.tensor([4, 2, 3])
SHAPE = (3, 6, 4)
LAYERS = {
    "batch": lambda kit: kit.BatchNorm1d(6, eps=1e-2, track_running_stats=False),
    "instance": lambda kit: kit.InstanceNorm1d(6, eps=1e-2, affine=True),
    "group": lambda kit: kit.GroupNorm(2, 6, eps=1e-2),
    "layer": lambda kit: kit.LayerNorm((6, 4), eps=1e-2),
    "rms": lambda kit: kit.RMSNorm(4, eps=1e-2),
}
RAGGED = ("batch", "instance", "group")


def made(name: str, kit: Any = tnt) -> Any:
    layer = LAYERS[name](kit).double()
    with torch.no_grad():
        for i, one in enumerate(layer.parameters()):
            one.copy_(one + torch.linspace(0.1, 0.9 + 0.1 * i, one.numel()).reshape(one.shape))
    return layer


def draw(seed: int = 0, shape: tuple[int, ...] = SHAPE) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def ragged_arguments(name: str, ragged: bool) -> dict[str, Any]:
    return {"lengths": LENGTHS} if ragged else {}


CASES = [(name, False) for name in LAYERS] + [(name, True) for name in RAGGED]
cases = pytest.mark.parametrize(("name", "ragged"), CASES, ids=[f"{n}{', ragged' * r}" for n, r in CASES])


@cases
def test_gradcheck_and_gradgradcheck(name: str, ragged: bool) -> None:
    layer = made(name)
    parameters = {key: value.detach().requires_grad_() for key, value in layer.named_parameters()}

    def call(x: Any, *values: Any) -> Any:
        return func.functional_call(
            layer, dict(zip(parameters, values, strict=True)), (x,), ragged_arguments(name, ragged)
        )

    inputs = (draw().requires_grad_(), *parameters.values())
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


@cases
def test_forward_mode_agrees_with_reverse_mode(name: str, ragged: bool) -> None:
    layer, x, direction = made(name), draw(), draw(1)

    def call(value: Any) -> Any:
        return layer(value, **ragged_arguments(name, ragged))

    primal, tangent = func.jvp(call, (x,), (direction,))
    torch.testing.assert_close(primal, call(x), rtol=1e-12, atol=1e-12)
    jacobian = torch.autograd.functional.jacobian(call, x).reshape(x.numel(), x.numel())
    torch.testing.assert_close(tangent.reshape(-1), jacobian @ direction.reshape(-1), rtol=1e-9, atol=1e-10)
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, direction)
        again = torch.autograd.forward_ad.unpack_dual(call(dual)).tangent
    torch.testing.assert_close(again, tangent, rtol=1e-12, atol=1e-12)


@cases
def test_func_grad_vmap_and_hessian(name: str, ragged: bool) -> None:
    layer, x, dy = made(name), draw(), draw(2)

    def loss(value: Any) -> Any:
        return (layer(value, **ragged_arguments(name, ragged)) * dy).sum()

    leaf = x.clone().requires_grad_()
    (expected,) = torch.autograd.grad(loss(leaf), leaf)
    torch.testing.assert_close(func.grad(loss)(x), expected, rtol=1e-10, atol=1e-12)
    stacked = torch.stack([draw(3), draw(4)])
    mapped = func.vmap(lambda value: layer(value, **ragged_arguments(name, ragged)))(stacked)
    for one, value in zip(mapped, stacked, strict=True):
        torch.testing.assert_close(one, layer(value, **ragged_arguments(name, ragged)), rtol=1e-12, atol=1e-12)
    hessian = func.hessian(loss)(x).reshape(x.numel(), x.numel())
    reference = torch.autograd.functional.hessian(loss, x).reshape(x.numel(), x.numel())
    torch.testing.assert_close(hessian, reference, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(hessian, hessian.T, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["batch", "layer"])
def test_66_third_derivatives_which_torch_gets_wrong(name: str) -> None:
    """A directional derivative of the third order against differences of the second, which are checked above."""
    layer, x, dy, direction = made(name), draw(), draw(2), draw(3)

    def along(t: Any, order: int) -> Any:
        value = (layer(x + t * direction) * dy).sum()
        for _ in range(order):
            (value,) = torch.autograd.grad(value, t, create_graph=True)
        return value

    third = along(torch.zeros((), dtype=torch.float64, requires_grad=True), 3)
    step = 1e-5
    ends = [along(torch.tensor(t, dtype=torch.float64, requires_grad=True), 2) for t in (step, -step)]
    torch.testing.assert_close(third, (ends[0] - ends[1]) / (2 * step), rtol=1e-5, atol=1e-6)


@cases
def test_68_backward_twice_gives_the_same_bits(name: str, ragged: bool) -> None:
    layer, x = made(name), draw().requires_grad_()
    y = layer(x, **ragged_arguments(name, ragged))
    inputs = [x, *layer.parameters()]
    first = torch.autograd.grad(y, inputs, draw(1), retain_graph=True)
    second = torch.autograd.grad(y, inputs, draw(1))
    assert all(torch.equal(one, two) for one, two in zip(first, second, strict=True))


def test_nothing_of_the_size_of_x_is_saved_beside_x() -> None:
    saved: list[Any] = []
    layer, x = tnt.BatchNorm1d(64), torch.randn(32, 64, 50, requires_grad=True)

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        saved.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one):
        y = layer(x, lengths=torch.full((32,), 40))
    assert sum(one.numel() for one in saved) <= x.numel() + 1000
    assert any(one.data_ptr() == x.data_ptr() for one in saved)
    assert y.numel() == x.numel()


def test_x_that_is_changed_in_place_is_noticed() -> None:
    x = torch.randn(8, 3, requires_grad=True)
    inner = x * 1
    y = tnt.BatchNorm1d(3)(inner)
    inner.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize("needed", range(8))
def test_73_only_the_gradients_that_are_asked_for(needed: int) -> None:
    x, layer = draw(), made("batch")
    x.requires_grad_(bool(needed & 1))
    layer.weight.requires_grad_(bool(needed & 2))
    layer.bias.requires_grad_(bool(needed & 4))
    y = layer(x, lengths=LENGTHS)
    assert y.requires_grad == bool(needed)
    if needed:
        y.backward(draw(1))
    for one in (x, layer.weight, layer.bias):
        assert (one.grad is not None) == one.requires_grad


@pytest.mark.parametrize("layout", ["expanded", "transposed", "sliced"])
def test_65_71_any_layout_of_the_incoming_gradient(layout: str) -> None:
    dy = {
        "expanded": torch.tensor(0.7, dtype=torch.float64).expand(SHAPE),
        "transposed": draw(1, SHAPE[::-1]).permute(2, 1, 0),
        "sliced": draw(1, (*SHAPE, 2))[..., 0],
    }[layout]
    x, layer = draw().requires_grad_(), made("group")
    found = torch.autograd.grad(layer(x), x, dy)
    assert torch.equal(found[0], torch.autograd.grad(layer(x), x, dy.contiguous())[0])


# ---- recomputation ----


@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("ragged", [False, True])
def test_50_checkpointing_counts_every_batch_once(reentrant: bool, ragged: bool) -> None:
    """Five steps at 0.1 go 41 % of the way to the mean; torch's layer counts every batch twice and goes 65 %."""
    layer = tnt.BatchNorm1d(2)
    twin = copy.deepcopy(layer)
    x = torch.full((8, 2, 3), 10.0) + torch.randn(8, 2, 3)
    how = {"lengths": torch.full((8,), 2)} if ragged else {}
    for _ in range(5):
        leaf = x.clone().requires_grad_()
        y = torch.utils.checkpoint.checkpoint(lambda value: layer(value, **how), leaf, use_reentrant=reentrant)
        y.backward(torch.randn(y.shape))
        twin(x, **how)
    assert torch.equal(layer.running_mean, twin.running_mean)
    mean = x[..., :2].mean((0, 2)) if ragged else x.mean((0, 2))
    torch.testing.assert_close(layer.running_mean, (1 - 0.9**5) * mean)
    assert int(layer.num_batches_tracked) == 5
