"""Torch operations without kernels: how often they pass over x, what they keep for backward, and their numbers.

A pass is an operator that reads or writes a tensor of the size of x. They are counted on the device "meta", which is
treated as any device that is not the CPU. There, with a mask, the definition under autograd needs 21 passes forward and
25 backward, and keeps three tensors of the size of x.
"""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.torch import _dispatch, _formula, _operations, _passes  # noqa: E402

nn = torch.nn
LENGTHS = torch.tensor([7, 2, 5])
# The layer, whether channels come second, and the passes forward and backward.
LAYERS: dict[str, tuple[Callable[..., Any], bool, int, int]] = {
    "batch": (lambda **how: tnt.BatchNorm1d(6, **how), True, 6, 9),
    "batch, evaluation": (lambda **how: tnt.BatchNorm1d(6, **how).eval(), True, 3, 3),
    "group": (lambda **how: tnt.GroupNorm(2, 6, **how), True, 6, 9),
    "instance": (lambda **how: tnt.InstanceNorm1d(6, affine=True, **how), True, 6, 9),
    "pattern": (lambda **how: tnt.Normalize("b [t] c", 6, **how), False, 6, 9),
    "layer": (lambda **how: tnt.LayerNorm(6, **how), False, 3, 3),
}


class Passes(TorchDispatchMode):
    """Counts them, for x of so many elements."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.size = size
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        view = any(one.alias_info is not None and not one.alias_info.is_write for one in func._schema.returns)
        makes = func._schema.name.startswith(("aten::new_", "aten::empty"))
        tensors = [one for one in torch.utils._pytree.tree_leaves((args, result)) if isinstance(one, torch.Tensor)]
        if not view and not makes and any(one.numel() >= self.size for one in tensors):
            self.names.append(func._schema.name)
        return result


@pytest.mark.parametrize("ragged", ["lengths", "valid"])
@pytest.mark.parametrize("name", LAYERS)
def test_passes_over_x_and_what_is_kept_for_backward(name: str, ragged: str) -> None:
    make, second, forward, backward = LAYERS[name]
    x = torch.empty((32, 6, 100) if second else (32, 100, 6), device="meta", requires_grad=True)
    shape, dtype = ((32,), torch.int64) if ragged == "lengths" else ((32, 100), torch.bool)
    layer, given = make(device="meta"), torch.empty(shape, dtype=dtype, device="meta")
    kept: list[Any] = []

    def keep(tensor: Any) -> Any:
        kept.append(tensor)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda one: one), Passes(x.numel()) as there:
        y = layer(x, **{ragged: given})
    dy = torch.empty_like(y)
    with Passes(x.numel()) as back:
        torch.autograd.grad(y, [x, *layer.parameters()], dy)
    assert (len(there.names), len(back.names)) == (forward, backward), (there.names, back.names)
    sizes = {id(one): one.numel() for one in kept}.values()
    moments = 2 * x.numel() // 6 if name == "layer" else 32 * 6 * 3
    assert [size for size in sizes if size >= x.numel()] == [x.numel()]
    assert sum(sizes) - x.numel() <= moments + 32 * 100 * 2 + 12  # masks are booleans


@pytest.fixture
def no_kernels() -> Iterator[None]:
    before = engine.engine()
    engine.use("reference")
    yield
    engine.use(before)


@pytest.fixture(params=["cpu", "as on a gpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, no_kernels: None) -> str:
    """As on a GPU: float32 sums, with a mean in two parts, and nothing in place."""
    if request.param != "cpu":
        for module in (_passes, _operations):
            monkeypatch.setattr(module, "is_in_place", lambda values: False)
        monkeypatch.setattr(
            _formula, "working_dtype", lambda x: torch.float64 if x.dtype == torch.float64 else torch.float32
        )
    return str(request.param)


# torch's own layer for one sequence, (1, c, t).
TORCH: dict[str, Callable[[], Any]] = {
    "batch": lambda: nn.BatchNorm1d(6),
    "group": lambda: nn.GroupNorm(2, 6),
    "instance": lambda: nn.InstanceNorm1d(6, affine=True),
    "pattern": lambda: nn.InstanceNorm1d(6, affine=True),
    "layer": lambda: nn.GroupNorm(1, 6),  # of one position at a time
}


def alone(name: str, layer: Any, x: Any, dy: Any, second: bool) -> tuple[list[Any], list[Any]]:
    """y and dx of each sequence by torch's layers in float64, without padding; and gradients of parameters, buffers."""
    other = TORCH[name]().double()
    with torch.no_grad():
        for one, two in zip(other.parameters(), layer.parameters(), strict=True):
            one.copy_(two)
    parts = [
        [(one if second else one.T)[:, :n].double() for one, n in zip(whole, LENGTHS.tolist(), strict=True)]
        for whole in (x, dy)
    ]
    pieces = LENGTHS.tolist() if name == "batch" else None
    if name == "batch":  # all sequences together
        parts = [[torch.cat(one, 1)] for one in parts]
    pairs: list[Any] = []
    gradients = [torch.zeros_like(one) for one in other.parameters()]
    for part, one in zip(*parts, strict=True):
        leaf, given = part[None].requires_grad_(), one[None]
        y = other(leaf[0].T[..., None])[..., 0].T[None] if name == "layer" else other(leaf)
        dx, *found = torch.autograd.grad(y, [leaf, *other.parameters()], given)
        gradients = [a + b for a, b in zip(gradients, found, strict=True)]
        pair = (y.detach()[0], dx[0])
        pairs += [pair] if pieces is None else zip(*(one.split(pieces, 1) for one in pair), strict=True)
    return pairs, [*gradients, *other.buffers()]


@pytest.mark.parametrize("junk", [float("nan"), 1e38])
@pytest.mark.parametrize("name", [name for name in LAYERS if name != "batch, evaluation"])
def test_the_numbers_of_each_sequence_alone(name: str, junk: float, device: str) -> None:
    """A mean of 3000 deviations: float32 with a mean in one part would be off by up to 1e-4 of a deviation."""
    make, second = LAYERS[name][:2]
    layer = make()
    with torch.no_grad():
        for one in layer.parameters():
            one.copy_(torch.linspace(0.5, 1.5, one.numel()))
    shape = (3, 6, 7) if second else (3, 7, 6)
    x, dy = normal(*shape) + 3000, normal(*shape, seed=1)
    pairs, others = alone(name, layer, x, dy, second)
    outside = torch.arange(7) >= LENGTHS[:, None]
    x = x.masked_fill(outside[:, None] if second else outside[..., None], junk).requires_grad_()
    y = layer(x, lengths=LENGTHS)
    dx, *parameters = torch.autograd.grad(y, [x, *layer.parameters()], dy)
    for i, n in enumerate(LENGTHS.tolist()):
        for whole, expected in zip((y.detach()[i], dx[i]), pairs[i], strict=True):
            whole = whole if second else whole.T
            torch.testing.assert_close(whole[:, :n].double(), expected, rtol=2e-5, atol=2e-5)
            assert not whole[:, n:].any()
    found = [*parameters, *layer.buffers()] if name == "batch" else parameters
    for one, two in zip(found, others, strict=True):
        torch.testing.assert_close(one.double(), two.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("value", [3.7, 1e8, -0.1])
def test_a_constant_gives_exactly_the_bias(value: float, device: str) -> None:
    for make, second, _, _ in LAYERS.values():
        layer = make().train()
        torch.nn.init.constant_(layer.weight, 1e4)
        torch.nn.init.constant_(layer.bias, 0.3)
        shape = (3, 6, 7) if second else (3, 7, 6)
        y = layer(torch.full(shape, value), lengths=LENGTHS)
        assert set(y.unique().tolist()) == {0.0, layer.bias[0].item()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", LAYERS)
def test_in_place_changes_no_argument_and_no_number(name: str, dtype: Any, no_kernels: None) -> None:
    make, second, _, _ = LAYERS[name]
    layer, shape = make().to(dtype), (3, 6, 7) if second else (3, 7, 6)
    x, dy = normal(*shape).to(dtype), normal(*shape, seed=1).to(dtype)
    for ragged in ({}, {"lengths": LENGTHS}):
        found = []
        for in_place in (True, False):
            with pytest.MonkeyPatch.context() as patch:
                if not in_place:
                    for module in (_passes, _operations):
                        patch.setattr(module, "is_in_place", lambda values: False)
                given = [one.clone() for one in (x, dy)]
                y = layer(given[0].requires_grad_(), **ragged)
                found.append([y.detach(), *torch.autograd.grad(y, [given[0], *layer.parameters()], given[1])])
                torch.testing.assert_close([one.detach() for one in given], [x, dy], rtol=0, atol=0)
        close = {"rtol": 1e-12, "atol": 1e-12} if dtype is torch.float64 else {"rtol": 1e-6, "atol": 1e-6}
        torch.testing.assert_close(*found, **({} if dtype in (torch.float16, torch.bfloat16) else close))


def test_sums_in_blocks_are_those_of_all(monkeypatch: pytest.MonkeyPatch, no_kernels: None) -> None:
    x, dy = normal(3, 6, 7, dtype=torch.float64), normal(3, 6, 7, dtype=torch.float64, seed=1)
    for name in LAYERS:
        found, second = [], LAYERS[name][1]
        for block in (2**17, 50):
            monkeypatch.setattr(_passes, "_BLOCK", block)
            layer, leaf = LAYERS[name][0](), (x if second else x.mT).float().contiguous().requires_grad_()
            y = layer(leaf, lengths=LENGTHS)
            given = (dy if second else dy.mT).float()
            found.append([y.detach(), *torch.autograd.grad(y, [leaf, *layer.parameters()], given)])
        torch.testing.assert_close(*found, rtol=1e-6, atol=1e-6)


def test_the_gradient_of_the_bias_is_not_overwritten(no_kernels: None) -> None:
    """It has the values of dy if each element of a float64 x has a bias of its own, and dx takes the place of dy."""
    layer = tnt.Normalize("[c]", 5).double()
    x, dy = normal(5, dtype=torch.float64).requires_grad_(), normal(5, dtype=torch.float64, seed=1)
    dx, dbias = torch.autograd.grad(layer(x), [x, layer.bias], dy)
    assert torch.equal(dbias, dy)
    assert not torch.equal(dx, dy)


@pytest.mark.parametrize("name", LAYERS)
def test_many_gradients_at_once(name: str, no_kernels: None) -> None:
    """A batch of gradients is not overwritten, and overwrites nothing."""
    make, second, _, _ = LAYERS[name]
    layer, x = make(), normal(3, 6, 7) if second else normal(3, 7, 6)
    layer.track_running_stats = False

    def call(x: Any) -> Any:
        return layer(x, lengths=LENGTHS)[:, :2, :2]

    one_by_one = torch.autograd.functional.jacobian(call, x)
    together = torch.autograd.functional.jacobian(call, x, vectorize=True)
    torch.testing.assert_close(together, one_by_one, rtol=1e-5, atol=1e-6)


def test_norms_of_a_position_by_torchs_operators(monkeypatch: pytest.MonkeyPatch, no_kernels: None) -> None:
    x, dy = normal(3, 7, 6), normal(3, 7, 6, seed=1)
    x[torch.arange(7) >= LENGTHS[:, None]] = torch.nan
    for layer in (tnt.LayerNorm(6), tnt.RMSNorm(6), tnt.LayerNorm(6, padding="keep")):
        found = []
        for on_cpu in (True, False):
            with monkeypatch.context() as patch:
                if not on_cpu:
                    patch.setattr(_dispatch, "_is_by_position", lambda *_: True)
                leaf = x.clone().requires_grad_()
                y = layer(leaf, lengths=LENGTHS)
                found.append([y.detach(), *torch.autograd.grad(y, [leaf, *layer.parameters()], dy)])
        torch.testing.assert_close(found[1], found[0], rtol=1e-5, atol=1e-6, equal_nan=layer.padding == "keep")


def test_derivatives_of_higher_order_are_those_of_the_definition(no_kernels: None) -> None:
    x, lengths = normal(3, 6, 7, dtype=torch.float64).requires_grad_(), LENGTHS
    layer = tnt.BatchNorm1d(6, track_running_stats=False).double()
    assert torch.autograd.gradcheck(lambda one: layer(one, lengths=lengths), x, fast_mode=True)
    assert torch.autograd.gradgradcheck(lambda one: layer(one, lengths=lengths), x, fast_mode=True)


def test_what_the_caller_changes_before_backward_changes_nothing(no_kernels: None) -> None:
    layer = tnt.BatchNorm1d(6).eval()
    x, dy = normal(3, 6, 7).requires_grad_(), normal(3, 6, 7, seed=1)
    found = []
    for change in (False, True):
        valid = torch.arange(7) < LENGTHS[:, None]
        layer.running_var.fill_(1.0)
        y = layer(x, valid=valid)
        if change:
            valid.fill_(True)
            layer.running_var.fill_(4.0)
        found.append(torch.autograd.grad(y, x, dy)[0])
    assert torch.equal(*found)


# ---- skipped batches ----


@pytest.mark.parametrize("name", ["batch", "pattern"])
def test_skipped_batches_are_counted_without_kernels(name: str, no_kernels: None) -> None:
    layer: Any = tnt.BatchNorm1d(6)
    x = normal(3, 6, 7)
    if name == "pattern":
        layer, x = tnt.Normalize("[b t] c", 6, track_running_stats=True), normal(3, 7, 6)
    layer(x, lengths=LENGTHS)
    bad = x.clone()
    bad[0, 0, 0] = torch.inf
    state = copy.deepcopy(layer.state_dict())
    for expected in (1, 2):
        layer(bad, lengths=LENGTHS)
        assert layer.skipped_batches == expected
    torch.testing.assert_close(dict(layer.state_dict()), dict(state), rtol=0, atol=0)
    assert (copy.deepcopy(layer).skipped_batches, int(layer.num_batches_tracked)) == (2, 1)
    layer.skipped_batches = 0
    assert layer.skipped_batches == 0


def test_skipped_batches_are_counted_on_the_device_of_the_buffers() -> None:
    layer = tnt.BatchNorm1d(6, device="meta")
    layer(torch.empty(3, 6, 7, device="meta"), lengths=torch.empty(3, dtype=torch.int64, device="meta"))
    assert layer._skipped.is_meta
    layer.to_empty(device="cpu").reset_running_stats()
    assert (layer._skipped.device.type, layer.skipped_batches) == ("cpu", 0)
    assert "_skipped" not in {*layer.state_dict(), *dict(layer.named_buffers())}


def test_the_lean_path_is_what_runs(monkeypatch: pytest.MonkeyPatch, no_kernels: None) -> None:
    """The tests above compare the two: they must not be the same."""
    called, backward = [], _operations.backward

    def record(*args: Any) -> Any:
        called.append(args)
        return backward(*args)

    monkeypatch.setattr(_operations, "backward", record)
    x = normal(3, 6, 7).requires_grad_()
    tnt.GroupNorm(2, 6)(x, lengths=LENGTHS).backward(normal(3, 6, 7, seed=1))
    assert called
