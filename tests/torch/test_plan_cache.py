"""Plans in the cache: which tensors the kernels read, and that everything else comes out the same.

Here: that a tensor that cannot be read in place is computed otherwise with the same result, that many shapes do not
disturb each other, that a miss says why, and that a torch whose tensors the kernels cannot read computes too.
"""

from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("truenorm._native", reason="the compiled part was not built")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.core import recipes  # noqa: E402
from truenorm.torch import _dispatch, _kernel  # noqa: E402

nn = torch.nn
LENGTHS = torch.tensor([5, 2, 0])
VALID = torch.arange(5) < LENGTHS[:, None]


@pytest.fixture
def by_kernel(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """For each call, whether a kernel computed it."""
    taken: list[bool] = []
    find = _dispatch.find_call

    def noted(*args: Any) -> Any:
        found = find(*args)
        taken.append(not isinstance(found, str))
        return found

    monkeypatch.setattr(_dispatch, "find_call", noted)
    return taken


LAYERS = {
    "batch": (lambda: tnt.BatchNorm1d(4), (3, 4, 5)),
    "batch of rows": (lambda: tnt.BatchNorm1d(4), (3, 4)),
    "layer": (lambda: tnt.LayerNorm(4), (3, 5, 4)),
    "group": (lambda: tnt.GroupNorm(2, 4), (3, 4, 5)),
    "rms": (lambda: tnt.RMSNorm(4), (3, 5, 4)),
}


def step(layer: Any, x: Any, **ragged: Any) -> list[Any]:
    """y and all gradients, and the buffers after it."""
    x = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = layer(x, **ragged)
    dy = normal(*y.shape, seed=9).to(y.dtype)
    grads = torch.autograd.grad(y, [x, *layer.parameters()], dy)
    return [y.detach(), *grads, *(buffer.clone() for buffer in layer.buffers())]


def assert_close(found: list[Any], expected: list[Any]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", LAYERS)
def test_ordinary_tensors_are_read_with_lengths_and_without(name: str, by_kernel: list[bool]) -> None:
    make, shape = LAYERS[name]
    step(make(), normal(*shape))
    if len(shape) == 3:
        step(make(), normal(*shape), lengths=LENGTHS)
        step(make(), normal(*shape, dtype=torch.float64), lengths=LENGTHS)
    assert by_kernel
    assert all(by_kernel)


OTHER = {
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "gaps": lambda x: torch.stack([x, x], -1)[..., 0],
    "unaligned": lambda x: torch.frombuffer(bytearray(b"0" + bytes(x.numpy())), dtype=x.dtype, offset=1).view(x.shape),
    "negative": lambda x: torch._neg_view(-x),
    "parameter": nn.Parameter,
    "subclass": lambda x: x.as_subclass(type("Own", (torch.Tensor,), {})),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("kind", OTHER)
def test_other_tensors_come_out_the_same(name: str, kind: str) -> None:
    make, shape = LAYERS[name]
    for ragged in [{}, *([{"lengths": LENGTHS}] if len(shape) == 3 else [])]:
        x = OTHER[kind](normal(*shape))
        expected = step(make(), normal(*shape), **ragged)
        layer: Any = make()
        y = layer(x, **ragged)
        torch.testing.assert_close(y.as_subclass(torch.Tensor).detach(), expected[0], rtol=2e-5, atol=2e-6)
        if kind == "negative":  # of weights too
            layer.weight.data = torch._neg_view(-layer.weight.detach())
            torch.testing.assert_close(layer(x, **ragged).detach(), expected[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize(
    "lengths",
    [
        torch.tensor([5, 2, 0], dtype=torch.int32),
        torch.tensor([5, 9, 2, 9, 0, 9])[::2],
        [5, 2, 0],
    ],
    ids=["int32", "gaps", "list"],
)
def test_other_lengths_come_out_the_same(lengths: Any) -> None:
    for make, shape in LAYERS.values():
        if len(shape) == 3:
            x = normal(*shape)
            assert_close(step(make(), x, lengths=lengths), step(make(), x, lengths=LENGTHS))


# Padding that needs no mask in Python: the cache reads it.
DIRECT: dict[str, tuple[Any, tuple[int, ...], dict[str, Any]]] = {
    "rows": (lambda: tnt.BatchNorm1d(4), (6, 4), {"valid": torch.tensor([1, 0, 0, 1, 1, 0]) > 0}),
    "positions": (lambda: tnt.BatchNorm1d(4), (3, 4, 5), {"valid": normal(3, 5) > 0}),
    "full rank": (lambda: tnt.GroupNorm(2, 4), (3, 4, 5), {"valid": normal(3, 1, 5) > 0}),
    "layer norm": (lambda: tnt.LayerNorm(4), (3, 5, 4), {"valid": normal(3, 5) > 0}),
    "two axes": (lambda: tnt.LayerNorm((2, 4)), (3, 5, 2, 4), {"valid": normal(3, 5, 1, 1) > 0}),
    "first of two": (lambda: tnt.BatchNorm2d(4), (3, 4, 5, 2), {"lengths": LENGTHS, "along": 2}),
    "first of three": (lambda: tnt.InstanceNorm3d(4, affine=True), (3, 4, 5, 2, 3), {"lengths": LENGTHS, "along": 2}),
    "middle of rows": (lambda: tnt.RMSNorm(4), (3, 2, 5, 3, 4), {"lengths": LENGTHS, "along": 2}),
}


@pytest.mark.parametrize("order", ["contiguous", "channels last"])
@pytest.mark.parametrize("name", DIRECT)
def test_padding_is_read_without_a_mask_in_python(name: str, order: str, monkeypatch: pytest.MonkeyPatch) -> None:
    make, shape, ragged = DIRECT[name]
    x = normal(*shape) * 2 + 1
    x = last_in_memory(x) if order == "channels last" else x
    monkeypatch.setattr(_kernel, "KERNELS_READ_TENSORS", False)
    expected = step(make(), x, **ragged)
    monkeypatch.undo()
    monkeypatch.setattr(_dispatch, "_masked_call", lambda *_: pytest.fail("a mask was made"))
    assert_close(step(make(), x, **ragged), expected)
    with torch.no_grad():
        torch.testing.assert_close(make()(x, **ragged), expected[0], rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("name", DIRECT)
def test_a_mask_that_changes_later_changes_no_gradient(name: str) -> None:
    make, shape, ragged = DIRECT[name]
    x, layer = normal(*shape).requires_grad_(), make()
    changing = {key: one.clone() if isinstance(one, torch.Tensor) else one for key, one in ragged.items()}
    expected = torch.autograd.grad(layer(x, **ragged).square().sum(), x, create_graph=True)[0]
    y = layer(x, **changing)
    next(iter(changing.values())).fill_(1)
    for graph in (False, True):  # by the kernels, and by the formula
        found = torch.autograd.grad(y.square().sum(), x, create_graph=graph, retain_graph=True)[0]
        torch.testing.assert_close(found, expected)


def test_a_mask_with_as_many_elements_as_another_is_not_taken_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    norm, x = tn.Norm("b t [c]", affine="t"), normal(3, 5, 5)
    valid = normal(3, 5, seed=1) > 0  # of b and t; a kernel could read one of b and c
    found = step(tnt.Normalize(norm, 5), x, valid=valid)
    monkeypatch.setattr(_kernel, "KERNELS_READ_TENSORS", False)
    assert_close(found, step(tnt.Normalize(norm, 5), x, valid=valid))


@pytest.mark.parametrize("padding", ["zero", "keep"])
def test_padding_is_zero_or_kept(padding: Any, by_kernel: list[bool]) -> None:
    x = normal(3, 5, 4)
    y = tnt.LayerNorm(4, padding=padding)(x, lengths=LENGTHS)
    assert torch.equal(y[1, 2:], x[1, 2:] if padding == "keep" else torch.zeros(3, 4))
    assert by_kernel == [True]


def test_a_gradient_that_is_no_ordinary_tensor() -> None:
    x, layer = normal(3, 5, 4).requires_grad_(), tnt.LayerNorm(4)
    for dy in (torch.ones(()).expand(3, 5, 4), torch._neg_view(-torch.ones(3, 5, 4)), torch.ones(3, 4, 5).mT):
        found = torch.autograd.grad(layer(x * 2), x, dy)[0]
        torch.testing.assert_close(found, torch.autograd.grad(layer(x * 2), x, torch.ones(3, 5, 4))[0])


def test_more_shapes_than_are_remembered(by_kernel: list[bool]) -> None:
    layer = tnt.LayerNorm(6)
    for turn in range(2):
        for rows in range(1, 41):
            for dtype in (torch.float32, torch.float64):
                x = normal(rows, 6, dtype=dtype, seed=rows)
                expected = nn.functional.layer_norm(x.double(), (6,)).to(dtype)
                torch.testing.assert_close(layer(x).detach(), expected, msg=f"{turn}, {rows}, {dtype}")
    assert all(by_kernel)


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
def test_a_torch_that_the_kernels_cannot_read(
    name: str, monkeypatch: pytest.MonkeyPatch, by_kernel: list[bool]
) -> None:
    make, shape = LAYERS[name]
    ways: list[dict[str, Any]] = [{}, *([{"lengths": LENGTHS}] if len(shape) == 3 else [])]
    expected = [step(make(), normal(*shape), **ragged) for ragged in ways]
    assert all(by_kernel)
    by_kernel.clear()
    monkeypatch.setattr(_kernel, "KERNELS_READ_TENSORS", False)
    for ragged, one in zip(ways, expected, strict=True):
        assert_close(step(make(), normal(*shape), **ragged), one)
    assert not any(by_kernel)


def test_the_reference_engine_is_the_reference(by_kernel: list[bool]) -> None:
    engine.use("reference")
    try:
        step(tnt.LayerNorm(4), normal(3, 5, 4), lengths=LENGTHS)
    finally:
        engine.use("native")
    assert by_kernel
    assert not any(by_kernel)


def test_an_exchange_of_another_kind_is_refused() -> None:
    native = _kernel.native
    with pytest.raises(ValueError, match="name"):
        native.register_torch(torch._C._to_dlpack(torch.ones(2)), torch.Tensor, nn.Parameter)
    assert native.register_torch(torch.Tensor.__dlpack_c_exchange_api__, torch.Tensor, nn.Parameter)


def test_a_miss_says_why() -> None:
    native, kernels = _kernel.native, engine.kernels
    assert kernels is not None
    kernel = kernels.whole_kernel(recipes.batch("second"), (3, 4, 5), "f")
    cache = native.PlanCache(False)
    x, weight = normal(3, 4, 5), torch.ones(4)
    assert cache.find(x, None, None, None, None, False) is native.Miss.unknown_shape
    cache.add(kernel.plan, False, (3, 4, 5), (4,), 1, 1, [(3, 1, 5), (3, 5)], "owner")
    assert cache.find(x, weight, weight, LENGTHS, None, False)[1] == "owner"
    assert cache.find(x, weight, weight, None, VALID, False)[1] == "owner"
    assert cache.find(x, weight, weight, None, VALID[:, None], False)[1] == "owner"
    assert cache.find(x.double(), None, None, None, None, False) is native.Miss.unknown_shape
    for strided in (x.mT.contiguous().mT, torch.stack([x, x], -1)[..., 0]):
        assert cache.find(strided, None, None, None, None, False) is native.Miss.x_strided
    for unreadable in (
        torch._neg_view(x),
        x.int(),
        x.to("meta"),
        x[:0],
        x.as_subclass(type("Own", (torch.Tensor,), {})),
    ):
        assert cache.find(unreadable, None, None, None, None, False) is native.Miss.x_unreadable
    for wrong in (torch.ones(5), torch.ones(4, 1), torch.ones(8)[::2], torch._neg_view(weight)):
        assert cache.find(x, wrong, None, None, None, False) is native.Miss.parameters
        assert cache.find(x, weight, wrong, None, None, False) is native.Miss.parameters
    for lengths in (LENGTHS.int(), LENGTHS[:2], LENGTHS + 1, LENGTHS - 1, LENGTHS[:, None]):
        assert cache.find(x, weight, None, lengths, None, False) is native.Miss.ragged
    for valid in (VALID.int(), VALID[:1], VALID[..., None], VALID.T.contiguous().T, VALID.expand(2, 3, 5)):
        assert cache.find(x, weight, None, None, valid, False) is native.Miss.ragged
    assert cache.find(x, weight, None, LENGTHS, VALID, False) is native.Miss.ragged


# ---- x whose channels come last in memory ----


def last_in_memory(x: Any) -> Any:
    """The same numbers: (b, c, ...) with axis 1 moving fastest."""
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


CHANNELS_LAST = {
    "batch": (lambda kit: kit.BatchNorm1d(4), (3, 4, 5)),
    "batch, evaluation": (lambda kit: kit.BatchNorm1d(4).eval(), (3, 4, 5)),
    "batch, two positions": (lambda kit: kit.BatchNorm2d(4), (3, 4, 5, 6)),
    "batch, three positions": (lambda kit: kit.BatchNorm3d(4), (3, 4, 5, 2, 3)),
    "group": (lambda kit: kit.GroupNorm(2, 4), (3, 4, 5)),
    "group, two positions": (lambda kit: kit.GroupNorm(2, 4), (3, 4, 5, 6)),
    "instance": (lambda kit: kit.InstanceNorm1d(4, affine=True, track_running_stats=True), (3, 4, 5)),
    "instance, two positions": (lambda kit: kit.InstanceNorm2d(4, affine=True), (3, 4, 5, 6)),
}


@pytest.mark.parametrize("argument", ["nothing", "lengths", "valid", "valid of full rank", "sample_weight"])
@pytest.mark.parametrize("name", CHANNELS_LAST)
def test_channels_last_in_memory(name: str, argument: str, by_kernel: list[bool]) -> None:
    make, shape = CHANNELS_LAST[name]
    x = normal(*shape) * 2 + 1
    positions = (shape[0], *shape[2:])
    valid = normal(*positions, seed=3) > -0.5
    ragged: dict[str, Any] = {
        "nothing": {},
        "lengths": {"lengths": LENGTHS},
        "valid": {"valid": valid},
        "valid of full rank": {"valid": valid[:, None]},
        "sample_weight": {"sample_weight": normal(*positions, seed=4).abs()},
    }[argument]
    if argument == "lengths" and len(shape) > 3:
        return
    expected = step(make(tnt), x, **ragged)
    by_kernel.clear()
    laid = last_in_memory(x)
    found = step(make(tnt), laid, **ragged)
    assert_close(found, expected)
    assert found[0].stride() == found[1].stride() == laid.stride()
    assert by_kernel == [True]
    second = [
        torch.autograd.grad(make(tnt)(one, **ragged).square().sum(), one, create_graph=True)[0]
        for one in (x.clone().requires_grad_(), last_in_memory(x).requires_grad_())
    ]
    torch.testing.assert_close(second[1], second[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("order", ["contiguous", "channels last"])
def test_gradients_in_the_other_memory_order(order: str) -> None:
    x, dy, layer = normal(3, 4, 5), normal(3, 4, 5, seed=1), tnt.BatchNorm1d(4)
    expected = torch.autograd.grad(layer(leaf := x.clone().requires_grad_()), leaf, dy)[0]
    leaf = (last_in_memory(x) if order == "channels last" else x.clone()).requires_grad_()
    other = dy if order == "channels last" else last_in_memory(dy)
    torch.testing.assert_close(torch.autograd.grad(layer(leaf), leaf, other)[0], expected)


def test_one_channel_or_one_position_has_both_orders() -> None:
    for shape in ((3, 1, 5), (3, 4, 1), (1, 4, 5), (3, 1, 1)):
        x = normal(*shape)
        for made in (lambda: tnt.BatchNorm1d(shape[1]), lambda: tnt.GroupNorm(1, shape[1])):  # noqa: B023
            assert_close(step(made(), last_in_memory(x)), step(made(), x))


# ---- attributes, which layers read from torch's dictionaries ----


def test_a_subclass_may_make_a_weight_of_its_own() -> None:
    class Shifted(tnt.LayerNorm):
        @property
        def weight(self) -> Any:  # type: ignore[override]
            return 1 + self._parameters["weight"]

    x, layer = normal(3, 4), tnt.LayerNorm(4)
    expected = 2 * layer(x)
    layer.__class__ = Shifted
    torch.testing.assert_close(layer(x), expected)


def test_weights_that_torch_replaces_are_the_ones_in_use() -> None:
    class Doubled(torch.nn.Module):
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
        _ = tnt.LayerNorm.weight  # type: ignore[misc]
    batch_norm = tnt.BatchNorm1d(4)
    del batch_norm.running_mean
    with pytest.raises(AttributeError, match=r"^'BatchNorm1d' object has no attribute 'running_mean'$"):
        _ = batch_norm.running_mean
    layer.register_buffer("running_mean", torch.ones(4))
    assert torch.equal(layer.running_mean, torch.ones(4))
