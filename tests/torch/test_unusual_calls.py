"""Unusual calls that once went wrong: shared graphs, freed memory, threads, given statistics, dispatch modes."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


# ---- derivatives of graphs that share parts ----


def test_a_layer_that_is_used_twice_has_the_same_gradient_with_and_without_a_graph() -> None:
    for layer in (tnt.LayerNorm(4), tnt.BatchNorm1d(4, track_running_stats=False)):
        x = normal(6, 4).requires_grad_()
        found = []
        for graph in (False, True):
            y = layer(layer(x).sin()).pow(3).sum()
            found.append(torch.autograd.grad(y, (x, *layer.parameters()), create_graph=graph))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other.detach(), rtol=1e-4, atol=1e-4)


def test_a_weight_that_is_made_of_x() -> None:
    x, c = normal(6, 5, dtype=torch.float64).requires_grad_(), normal(6, 5, seed=1, dtype=torch.float64)

    def loss(of: Any) -> Any:
        weight = x.pow(2).mean(0)
        return (of(x, (5,), weight, 2 * weight) * c).sum()

    expected = torch.autograd.grad(loss(nn.functional.layer_norm), x)[0]
    for graph in (False, True):
        found = torch.autograd.grad(loss(tnt.functional.layer_norm), x, create_graph=graph)[0]
        torch.testing.assert_close(found.detach(), expected)


def test_hooks_run_once() -> None:
    layer, x, calls = tnt.LayerNorm(5), normal(3, 5).requires_grad_(), []
    inner = x * 1.5

    def double(gradient: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return gradient * 2

    inner.register_hook(double)
    found = torch.autograd.grad(layer(inner).pow(3).sum(), x, create_graph=True)[0]
    expected = torch.autograd.grad(layer(x * 1.5).pow(3).sum(), x)[0]
    assert calls == [1]
    torch.testing.assert_close(found.detach(), 2 * expected, rtol=1e-4, atol=1e-5)


def test_buffers_that_move_between_forward_and_backward_change_no_gradient() -> None:
    layer, x = tnt.BatchNorm1d(3).double().eval(), normal(5, 3, dtype=torch.float64).requires_grad_()
    expected = torch.autograd.grad(layer(x).pow(2).sum(), x)[0]
    y = layer(x).pow(2).sum()
    layer.train()(10 * normal(7, 3, seed=1, dtype=torch.float64) + 3)
    for graph in (False, True):
        found = torch.autograd.grad(y, x, retain_graph=True, create_graph=graph)[0]
        torch.testing.assert_close(found.detach(), expected)


def test_many_gradients_at_once_where_weight_covers_all_of_x() -> None:
    inputs = (normal(5), normal(5, seed=1))
    for of in (tnt.functional.layer_norm, tnt.functional.rms_norm):

        def call(x: Any, weight: Any, of: Any = of) -> Any:
            return of(x, (5,), weight)

        for one, other in zip(
            torch.autograd.functional.jacobian(call, inputs, vectorize=True),
            torch.autograd.functional.jacobian(call, inputs),
            strict=True,
        ):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "change",
    [lambda kept: kept.half(), lambda kept: kept[:1], lambda kept: kept.double()],
    ids=["half", "cut", "double"],
)
def test_backward_takes_what_forward_saw_or_says_so(change: Any) -> None:
    for layer, shape in ((tnt.LayerNorm(5), (4, 5)), (tnt.BatchNorm1d(3), (4, 3, 6))):
        x = normal(*shape).requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(lambda kept: kept, change):
            y = layer(x)
        with pytest.raises(RuntimeError, match="backward: x and weight as and where they were in forward, got"):
            y.sum().backward()


@pytest.mark.parametrize("offset", [0, 1, 1 << 20])
@pytest.mark.parametrize("told", [{}, {"lengths": torch.tensor([2, 6, 1, 0])}], ids=["all", "lengths"])
def test_tensors_that_lost_their_memory(offset: int, told: dict[str, Any]) -> None:
    def lost(*shape: int, offset: int = offset) -> Any:
        whole = torch.ones(offset + 1, *shape)  # whose last part has an address still, where it was not the first
        part = whole[-1]
        whole.untyped_storage().resize_(0)
        return part

    for make in (lambda: tnt.BatchNorm1d(5), lambda: tnt.GroupNorm(1, 5), lambda: tnt.InstanceNorm1d(5, affine=True)):
        with pytest.raises(RuntimeError, match=r"^x: a tensor with memory of its own"):
            make()(lost(4, 5, 6, offset=min(offset, 100)), **told)
        layer = make()
        layer.weight.data = lost(5)
        with pytest.raises(RuntimeError, match=r"^weight: a tensor with memory of its own"):
            layer(normal(4, 5, 6), **told)
    layer = tnt.BatchNorm1d(5)
    layer.running_mean = lost(5)
    for training in (True, False):
        with pytest.raises(RuntimeError, match=r"^running_mean: a tensor with memory of its own"):
            layer.train(training)(normal(4, 5, 6), **told)


def test_buffers_that_are_read_with_their_sign_turned() -> None:
    x, layer = normal(4, 5), tnt.BatchNorm1d(5)
    layer.running_mean = torch._neg_view(torch.full((5,), 2.0))
    layer(x)
    torch.testing.assert_close(layer.running_mean, 0.9 * torch.full((5,), -2.0) + 0.1 * x.mean(0))


def test_backward_takes_a_weight_that_lies_elsewhere() -> None:
    x, layer = normal(4, 5).requires_grad_(), tnt.LayerNorm(5)
    expected = torch.autograd.grad(layer(x).square().sum(), x)[0]
    with torch.autograd.graph.saved_tensors_hooks(
        lambda kept: kept, lambda kept: torch.stack([kept, kept], -1)[..., 0]
    ):
        y = layer(x).square().sum()
    torch.testing.assert_close(torch.autograd.grad(y, x)[0], expected)


def test_many_threads_with_many_shapes_at_once() -> None:
    layer = tnt.BatchNorm1d(8, track_running_stats=False)
    shapes = [(b, 8, 720 // b) for b in range(1, 361) if 720 % b == 0]  # more than are remembered, of as many elements
    wrong = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for _ in range(400):
            shape = shapes[int(torch.randint(len(shapes), (), generator=generator))]
            x = torch.randn(shape, generator=generator) + torch.arange(8.0)[:, None]
            with torch.no_grad():
                y = layer(x)
            if not torch.allclose(y, nn.functional.batch_norm(x, None, None, training=True), atol=1e-4):
                wrong.append(shape)

    with ThreadPoolExecutor(4) as pool:
        for done in [pool.submit(work, seed) for seed in range(4)]:
            done.result()
    assert not wrong


def test_a_weight_that_lost_its_memory() -> None:
    layer, x = tnt.LayerNorm(5), normal(4, 5).requires_grad_()
    y = layer(x)
    layer.weight.untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match="backward: x and weight as and where they were in forward"):
        y.sum().backward()
    with pytest.raises(RuntimeError, match="weight: a tensor with memory of its own, got one that lost it"):
        layer(x)


# ---- statistics that are given ----


def test_fixed_statistics_of_every_layout_and_dtype() -> None:
    x, mean, var = normal(4, 3, 5), normal(3), normal(3, seed=9).abs() + 1
    side_by_side = torch.stack([mean, var], 1)
    expected = nn.functional.batch_norm(x, mean, var)
    for given in (
        (side_by_side[:, 0], var),
        (mean, side_by_side[:, 1]),
        (torch._neg_view(-mean), var),
        (mean.double(), var),
        (mean, var.double()),
    ):
        torch.testing.assert_close(tnt.functional.batch_norm(x, *given), expected)
    layer = tnt.BatchNorm1d(3).eval()
    layer.running_mean, layer.running_var = layer.running_mean.to("meta"), layer.running_var.to("meta")
    with pytest.raises(RuntimeError):
        layer(x)
    free = tnt.Normalize(tn.Norm("[b t] c"), 4, affine=False, track_running_stats=True).eval()
    with pytest.raises(ValueError, match="running_mean: 4000 elements for this x, got 4"):
        free(torch.ones(2, 3, 4000))


@pytest.mark.parametrize("compiled", [True, False], ids=["kernels", "torch"])
def test_a_variance_beyond_float32_is_not_stored(compiled: bool) -> None:
    layer, x = tnt.BatchNorm1d(3), torch.full((4, 3), 1e20)
    x[0] = -1e20
    if not compiled:
        layer.running_var = layer.running_var.t().view(1, 3).expand(2, 3)[0]
        layer.running_mean = torch.stack([layer.running_mean] * 2, 1)[:, 0]
    layer(x)
    assert torch.equal(layer.running_var, torch.ones(3))
    assert int(layer.num_batches_tracked) == 0
    layer(normal(8, 3))
    assert bool(layer.eval()(normal(2, 3)).isfinite().all())


def test_one_of_two_statistics_is_refused() -> None:
    for told in ({}, {"lengths": torch.tensor([4, 2])}):
        with pytest.raises((RuntimeError, ValueError), match=r"both|neither|running_var"):
            tnt.functional.batch_norm(normal(2, 3, 4), torch.zeros(3), None, training=True, **told)


# ---- modes that look at every operation ----


def test_modes_see_operations_and_not_only_memory() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    x = normal(2, 5)
    for mode in ("real", "fake", "symbolic"):
        graph = make_fx(lambda x: tnt.functional.layer_norm(x, (5,)), tracing_mode=mode)(x)
        torch.testing.assert_close(graph(x), tnt.LayerNorm(5)(x).detach())
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert tnt.functional.layer_norm(x, (5,)).shape == (2, 5)


def test_a_default_device_that_is_not_the_one_of_x() -> None:
    layer, x = tnt.BatchNorm2d(5), normal(6, 5, 3, 3).to(memory_format=torch.channels_last).requires_grad_()
    expected = layer(x)
    with torch.device("meta"):
        y = layer(x)
        y.backward(normal(6, 5, 3, 3) if y.device.type == "meta" else y.detach())
    torch.testing.assert_close(y, expected)


def test_a_tensor_that_left_a_transform_and_one_that_begins_anywhere() -> None:
    kept = []

    def keep(x: Any) -> Any:
        kept.append(x)
        return x.sum()

    torch.func.grad(keep)(normal(4, 5))
    torch.testing.assert_close(tnt.LayerNorm(5)(kept[0]), tnt.LayerNorm(5)(normal(4, 5)))
    zeros = torch._efficientzerotensor((4, 5))
    torch.testing.assert_close(tnt.LayerNorm(5)(zeros), torch.zeros(4, 5))
    odd = torch.frombuffer(bytearray(81), dtype=torch.uint8)[1:]
    x = torch.empty(0).set_(odd.untyped_storage()[1:], 0, (4, 5))
    torch.testing.assert_close(tnt.LayerNorm(5)(x), torch.zeros(4, 5))


@pytest.mark.parametrize("lost", ["dy", "x"])
def test_backward_beside_the_kernels_notices_tensors_that_lost_their_memory(lost: str) -> None:
    layer, x, dy = tnt.LayerNorm(16), normal(5, 16).requires_grad_(), normal(5, 16)
    y = layer(x)
    {"dy": dy, "x": x}[lost].untyped_storage().resize_(0)
    with pytest.raises(RuntimeError, match=f"{lost}: a tensor with memory of its own, got one that lost it."):
        torch.autograd.grad(y, x, dy, create_graph=lost == "x")
