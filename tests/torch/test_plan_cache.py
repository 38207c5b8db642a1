"""The short way to a kernel: tensors as they usually are, found by a look; and everything else, which must not take it.

What the kernels then compute is the matter of the other files. Here: that a tensor which cannot be read where it is
goes the long way and comes out the same, that many shapes do not get into each other's way, and that a torch whose
tensors the kernels cannot read computes all the same.
"""

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("truenorm._native", reason="the compiled part was not built")

import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.torch import function  # noqa: E402

nn = torch.nn
LENGTHS = torch.tensor([5, 2, 0])


def normal(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each try of the short way, whether it was taken."""
    taken: list[bool] = []
    usual: Callable[..., Any] = function.usual_call

    def noted(*args: Any, **kwargs: Any) -> Any:
        found = usual(*args, **kwargs)
        taken.append(found is not None)
        return found

    for module in (function, tnt.functional):
        monkeypatch.setattr(module, "usual_call", noted)
    return taken


LAYERS = {
    "batch": (lambda: tnt.BatchNorm1d(4), (3, 4, 5)),
    "batch of rows": (lambda: tnt.BatchNorm1d(4), (3, 4)),
    "layer": (lambda: tnt.LayerNorm(4), (3, 5, 4)),
    "group": (lambda: tnt.GroupNorm(2, 4), (3, 4, 5)),
    "rms": (lambda: tnt.RMSNorm(4), (3, 5, 4)),
}


def step(layer: Any, x: Any, **told: Any) -> list[Any]:
    """y and all gradients, and the buffers behind it."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x, **told)
    dy = normal(*y.shape, seed=9).to(y.dtype)
    grads = torch.autograd.grad(y, [x, *layer.parameters()], dy)
    return [y.detach(), *grads, *(buffer.clone() for buffer in layer.buffers())]


def assert_close(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_usual_tensors_take_it_with_lengths_and_without(name: str, short: list[bool]) -> None:
    make, shape = LAYERS[name]
    step(make(), normal(*shape))
    if len(shape) == 3:
        step(make(), normal(*shape), lengths=LENGTHS)
        step(make(), normal(*shape, dtype=torch.float64), lengths=LENGTHS)
    assert short
    assert all(short)


UNUSUAL = {
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "unaligned": lambda x: torch.frombuffer(bytearray(b"0" + bytes(x.numpy())), dtype=x.dtype, offset=1).view(x.shape),
    "negative": lambda x: torch._neg_view(-x),
    "parameter": nn.Parameter,
    "subclass": lambda x: x.as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", UNUSUAL)
def test_unusual_tensors_come_out_the_same(name: str, kind: str) -> None:
    make, shape = LAYERS[name]
    for told in [{}, *([{"lengths": LENGTHS}] if len(shape) == 3 else [])]:
        x = UNUSUAL[kind](normal(*shape))
        expected = step(make(), normal(*shape), **told)
        layer = make()
        y = layer(x, **told)
        torch.testing.assert_close(y.as_subclass(torch.Tensor).detach(), expected[0], rtol=2e-5, atol=2e-6)
        if kind == "negative":  # of weights too
            layer.weight.data = torch._neg_view(-layer.weight.detach())
            torch.testing.assert_close(layer(x, **told).detach(), expected[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "lengths",
    [
        torch.tensor([5, 2, 0], dtype=torch.int32),
        torch.tensor([5, 9, 2, 9, 0, 9])[::2],
        [5, 2, 0],
    ],
    ids=["int32", "gaps", "list"],
)
def test_unusual_lengths_come_out_the_same(lengths: Any) -> None:
    for make, shape in LAYERS.values():
        if len(shape) == 3:
            x = normal(*shape)
            assert_close(step(make(), x, lengths=lengths), step(make(), x, lengths=LENGTHS))


@pytest.mark.parametrize("padding", ["zero", "keep"])
def test_padding_is_zero_or_kept(padding: Any, short: list[bool]) -> None:
    x = normal(3, 5, 4)
    y = tnt.LayerNorm(4, padding=padding)(x, lengths=LENGTHS)
    assert torch.equal(y[1, 2:], x[1, 2:] if padding == "keep" else torch.zeros(3, 4))
    assert short == [True]


def test_a_gradient_that_is_no_usual_tensor() -> None:
    x, layer = normal(3, 5, 4).requires_grad_(), tnt.LayerNorm(4)
    for dy in (torch.ones(()).expand(3, 5, 4), torch._neg_view(-torch.ones(3, 5, 4)), torch.ones(3, 4, 5).mT):
        found = torch.autograd.grad(layer(x * 2), x, dy)[0]
        torch.testing.assert_close(found, torch.autograd.grad(layer(x * 2), x, torch.ones(3, 5, 4))[0])


def test_more_shapes_than_are_remembered(short: list[bool]) -> None:
    layer = tnt.LayerNorm(6)
    for turn in range(2):
        for rows in range(1, 41):
            for dtype in (torch.float32, torch.float64):
                x = normal(rows, 6, dtype=dtype, seed=rows)
                expected = nn.functional.layer_norm(x.double(), (6,)).to(dtype)
                torch.testing.assert_close(layer(x).detach(), expected, msg=f"{turn}, {rows}, {dtype}")
    assert all(short)


def test_one_shape_means_another_thing_to_another_norm() -> None:
    x = normal(4, 4)
    rows, columns = tnt.LayerNorm(4)(x), tnt.BatchNorm1d(4)(x)
    torch.testing.assert_close(rows.mean(1), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(columns.mean(0), torch.zeros(4), atol=1e-6, rtol=0)


def test_weights_of_other_shapes_with_as_many_elements_are_refused() -> None:
    for shape in ((2, 2), (1, 4), (4, 1)):
        with pytest.raises(RuntimeError, match="weight"):
            tnt.functional.layer_norm(normal(3, 4), (4,), torch.ones(shape))


def test_lengths_that_change_later_change_no_gradient() -> None:
    x, lengths, layer = normal(3, 5, 4).requires_grad_(), LENGTHS.clone(), tnt.LayerNorm(4)
    expected = torch.autograd.grad(layer(x, lengths=LENGTHS).square().sum(), x, create_graph=True)[0]
    y = layer(x, lengths=lengths)
    lengths.fill_(1)
    for graph in (False, True):  # by the kernels, and by the formula
        found = torch.autograd.grad(y.square().sum(), x, create_graph=graph, retain_graph=True)[0]
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", LAYERS)
def test_a_torch_that_the_kernels_cannot_read(name: str, monkeypatch: pytest.MonkeyPatch, short: list[bool]) -> None:
    make, shape = LAYERS[name]
    ways: list[dict[str, Any]] = [{}, *([{"lengths": LENGTHS}] if len(shape) == 3 else [])]
    expected = [step(make(), normal(*shape), **told) for told in ways]
    assert all(short)
    short.clear()
    monkeypatch.setattr(function, "_READ", False)
    for told, one in zip(ways, expected, strict=True):
        assert_close(step(make(), normal(*shape), **told), one)
    assert not any(short)


def test_the_reference_engine_is_the_reference(short: list[bool]) -> None:
    engine.use("reference")
    try:
        step(tnt.LayerNorm(4), normal(3, 5, 4), lengths=LENGTHS)
    finally:
        engine.use("native")
    assert short
    assert not any(short)


def test_an_exchange_of_another_kind_is_refused() -> None:
    native = function.kernels.native
    with pytest.raises(ValueError, match="name"):
        native.understand_tensors(torch._C._to_dlpack(torch.ones(2)), torch.Tensor, nn.Parameter)
    assert native.understand_tensors(torch.Tensor.__dlpack_c_exchange_api__, torch.Tensor, nn.Parameter)


# ---- attributes, which layers read where torch keeps them ----


def test_a_subclass_may_make_a_weight_of_its_own() -> None:
    class Shifted(tnt.LayerNorm):
        @property
        def weight(self) -> Any:
            return 1 + self._parameters["weight"]

    x, layer = normal(3, 4), tnt.LayerNorm(4)
    expected = 2 * layer(x)
    layer.__class__ = Shifted
    torch.testing.assert_close(layer(x), expected)


def test_weights_that_torch_replaces_are_the_ones_in_use() -> None:
    class Doubled(nn.Module):
        def forward(self, weight: Any) -> Any:
            return 2 * weight

    x, plain = normal(3, 4), tnt.LayerNorm(4)
    layer = tnt.LayerNorm(4)
    nn.utils.parametrize.register_parametrization(layer, "weight", Doubled())
    torch.testing.assert_close(layer(x), 2 * plain(x))
    torch.testing.assert_close(
        torch.func.functional_call(tnt.LayerNorm(4), {"weight": torch.full((4,), 3.0)}, (x,)), 3 * plain(x)
    )
    replaced = tnt.LayerNorm(4)
    del replaced.weight
    replaced.weight = torch.full((4,), 5.0)  # a plain attribute, as torch's own tools leave it
    torch.testing.assert_close(replaced(x), 5 * plain(x))


def test_attributes_that_are_not_there_are_missing_as_in_torch() -> None:
    for layer, theirs in ((tnt.RMSNorm(4), nn.RMSNorm(4)), (tnt.LayerNorm(4), nn.LayerNorm(4))):
        for name in ("bias", "running_mean", "nothing"):
            assert hasattr(layer, name) == hasattr(theirs, name), name
            assert hasattr(type(layer), name) == hasattr(type(theirs), name), name
    with pytest.raises(AttributeError, match=r"^'RMSNorm' object has no attribute 'bias'$"):
        _ = tnt.RMSNorm(4).bias
    with pytest.raises(AttributeError, match="weight"):
        _ = tnt.LayerNorm.weight
    layer = tnt.BatchNorm1d(4)
    del layer.running_mean
    with pytest.raises(AttributeError, match=r"^'BatchNorm1d' object has no attribute 'running_mean'$"):
        _ = layer.running_mean
    layer.register_buffer("running_mean", torch.ones(4))
    assert torch.equal(layer.running_mean, torch.ones(4))
