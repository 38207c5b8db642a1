"""Graphs of torch.compile: who computes in them, that they give what eager mode gives, and that one is enough."""

import copy
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.autograd import forward_ad  # noqa: E402

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm.torch import _formula, _library  # noqa: E402

func: Any = torch.func  # its types take no lambda
BATCH, CHANNELS, STEPS = 3, 4, 6
LENGTHS = torch.tensor([6, 2, 3])
LAYERS: dict[str, Callable[[], Any]] = {
    "batch": lambda: tnt.BatchNorm1d(CHANNELS),
    "group": lambda: tnt.GroupNorm(2, CHANNELS),
    "instance": lambda: tnt.InstanceNorm1d(CHANNELS, affine=True, track_running_stats=True),
    "layer": lambda: tnt.LayerNorm(CHANNELS),
    "rms": lambda: tnt.RMSNorm(CHANNELS, eps=1e-6),
    "pattern": lambda: tnt.Normalize(tn.Norm("b [t] c"), CHANNELS),
}
ROWS = ("layer", "rms", "pattern")  # channels are the last axis
FORMS: dict[str, dict[str, Any]] = {
    "nothing": {},
    "lengths": {"lengths": LENGTHS},
    "valid": {"valid": torch.arange(STEPS) % 4 < LENGTHS[:, None]},
    "offsets": {"offsets": torch.tensor([0, 6, 8, 11])},
}
QUICK = {("batch", "lengths", True), ("group", "nothing", True), ("layer", "lengths", False), ("batch", "valid", False)}
CASES = [
    pytest.param(*case, id=f"{case[0]}, {case[1]}, {'train' if case[2] else 'eval'}", marks=[] if quick else marks)
    for case in itertools.product(LAYERS, FORMS, (True, False))
    for quick, marks in [(case in QUICK, [pytest.mark.slow])]
]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.fixture
def inlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the CPU what other devices get: torch operations, in float32."""
    monkeypatch.setattr(_library, "is_inlined", lambda *_: True)
    wide = torch.float64
    monkeypatch.setattr(_formula, "working_dtype", lambda x: wide if x.dtype == wide else torch.float32)


def draw(*shape: int, seed: int = 0, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def shape_of(name: str, form: str) -> tuple[int, ...]:
    if form == "offsets":
        return (11, CHANNELS)
    return (BATCH, STEPS, CHANNELS) if name in ROWS else (BATCH, CHANNELS, STEPS)


def make(name: str, training: bool = True, **options: Any) -> Any:
    layer = LAYERS[name]().train(training)
    with torch.no_grad():
        for i, one in enumerate(itertools.chain(layer.parameters(), layer.buffers())):
            if one.is_floating_point():
                one.add_(draw(*one.shape, seed=i).abs() / 4)
    for key, value in options.items():
        setattr(layer, key, value)
    return layer


def step(call: Any, layer: Any, x: Any, ragged: dict[str, Any]) -> list[Any]:
    """The output, all gradients and the state of one step through a layer and its neighbours."""
    leaf = x.clone().requires_grad_()
    layer.zero_grad()
    y = call(leaf, **ragged)
    y.backward(torch.cos(x))
    grads = [one.grad for one in layer.parameters()]
    return [y.detach(), leaf.grad, *grads, *(one.clone() for one in layer.state_dict().values())]


class Block(torch.nn.Module):
    """A layer between operations that a compiler can fuse with it."""

    def __init__(self, norm: Any) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Any, **ragged: Any) -> Any:
        return torch.nn.functional.silu(self.norm(x * 1.5, **ragged))


def agree(block: Any, xs: list[Any], ragged: dict[str, Any], backend: str = "aot_eager", **options: Any) -> None:
    plain, twin = block, copy.deepcopy(block)
    compiled = torch.compile(twin, fullgraph=True, backend=backend, **options)
    for x in xs:
        # Eager mode computes in float64; statistics of two or three values magnify what float32 rounds.
        narrow = _formula.working_dtype(x) == torch.float32
        tolerance = {"rtol": 1e-5, "atol": 1e-5 if narrow else 2e-6}
        if x.dtype != torch.float32:
            tolerance = {"rtol": 2e-2, "atol": 2e-2}
        found = zip(step(plain, plain, x, ragged), step(compiled, twin, x, ragged), strict=True)
        for one, two in found:
            torch.testing.assert_close(two, one, **tolerance)


@pytest.mark.parametrize(("name", "form", "training"), CASES)
def test_compiled_graphs_agree_with_eager_mode(name: str, form: str, training: bool) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        block, shape = Block(make(name, training)), shape_of(name, form)
        agree(block, [draw(*shape, seed=i, dtype=dtype) for i in (1, 2)], FORMS[form])


@pytest.mark.parametrize(("name", "form", "training"), CASES)
def test_inlined_graphs_agree_with_eager_mode(name: str, form: str, training: bool, inlined: None) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        block, shape = Block(make(name, training)), shape_of(name, form)
        agree(block, [draw(*shape, seed=i, dtype=dtype) for i in (1, 2)], FORMS[form])


class Blocks(torch.nn.Module):
    """All layers in one graph, each with an input of its own: compiling them one by one takes minutes."""

    def __init__(self, form: str, training: bool) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleDict({name: Block(make(name, training)) for name in LAYERS})
        self.swapped = [form != "offsets" and name not in ROWS for name in LAYERS]

    def forward(self, x: Any, **ragged: Any) -> Any:
        found = []
        for one, block, swapped in zip(x.unbind(), self.blocks.values(), self.swapped, strict=True):
            found.append(block(one.mT, **ragged).mT if swapped else block(one, **ragged))
        return torch.stack(found)


@pytest.mark.slow
@pytest.mark.parametrize("path", ["chosen", "inlined"])
@pytest.mark.parametrize("form", FORMS)
def test_inductor_agrees_with_eager_mode(form: str, path: str, request: pytest.FixtureRequest) -> None:
    if path == "inlined":
        request.getfixturevalue("inlined")
    for training in (True, False):
        x = draw(len(LAYERS), *shape_of("layer", form), seed=1)
        agree(Blocks(form, training), [x], FORMS[form], backend="inductor")


# ---- who computes ----


def operators_in(layer: Any, x: Any, **ragged: Any) -> set[str]:
    """The names of the operators in the graphs of forward and backward."""
    from torch._dynamo.backends.common import aot_autograd

    found: set[str] = set()

    def watch(graph: Any, _: Any) -> Any:
        found.update(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph.forward

    compiled = torch.compile(layer, fullgraph=True, backend=aot_autograd(fw_compiler=watch, bw_compiler=watch))
    compiled(x.requires_grad_(), **ragged).sum().backward()
    return found


def uses_truenorm(found: set[str]) -> bool:
    return any(name.startswith("truenorm") for name in found)


@pytest.mark.parametrize("name", LAYERS)
def test_other_devices_get_torch_operations(name: str) -> None:
    x = torch.empty(shape_of(name, "lengths"), device="meta")
    found = operators_in(make(name).to("meta"), x, lengths=LENGTHS.to("meta"))
    assert not uses_truenorm(found)
    assert "aten.where.self" in found or "aten.where.ScalarOther" in found


def test_masks_on_the_cpu_get_the_operator() -> None:
    assert uses_truenorm(operators_in(make("batch"), draw(BATCH, CHANNELS, STEPS), lengths=LENGTHS))


def test_statistics_that_need_a_gradient_get_it() -> None:
    weight = torch.tensor([[1.0, 2.0, 0.5, 1.0, 0.0, 3.0]] * BATCH)

    def gradient(call: Any) -> Any:
        leaf = weight.clone().requires_grad_()
        call(draw(BATCH, CHANNELS, STEPS), sample_weight=leaf).pow(3).sum().backward()
        return leaf.grad

    layer = make("group")
    found = gradient(torch.compile(layer, fullgraph=True, backend="aot_eager"))
    torch.testing.assert_close(found, gradient(layer), rtol=1e-4, atol=1e-5)
    assert found.abs().max() > 0


# ---- one graph ----


@pytest.mark.parametrize("path", ["chosen", "inlined"])
@pytest.mark.parametrize("name", ["batch", pytest.param("group", marks=pytest.mark.slow), "layer"])
def test_one_graph_for_all_sizes_and_lengths(name: str, path: str, request: pytest.FixtureRequest) -> None:
    if path == "inlined":
        request.getfixturevalue("inlined")
    layer = make(name)
    plain, twin = Block(layer), Block(copy.deepcopy(layer))
    compiled = torch.compile(twin, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, steps in ((3, 5), (4, 7), (6, 9), (2, 11)):
        x = draw(batch, steps, CHANNELS) if name in ROWS else draw(batch, CHANNELS, steps)
        for shift in (1, 2):
            lengths = (torch.arange(batch) + shift) % steps + 1
            found = zip(
                step(plain, plain, x, {"lengths": lengths}), step(compiled, twin, x, {"lengths": lengths}), strict=True
            )
            for one, two in found:
                torch.testing.assert_close(two, one, rtol=1e-5, atol=1e-5)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("path", ["chosen", "inlined"])
def test_masks_that_change_do_not_recompile(path: str, request: pytest.FixtureRequest) -> None:
    if path == "inlined":
        request.getfixturevalue("inlined")
    layer, x = make("batch"), draw(BATCH, CHANNELS, STEPS)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for seed in range(4):
        compiled(x, valid=draw(BATCH, STEPS, seed=seed) > 0)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# ---- batches that are special ----


@pytest.mark.parametrize("path", ["chosen", "inlined"])
def test_on_single_uses_the_running_statistics_in_a_graph(path: str, request: pytest.FixtureRequest) -> None:
    layer = make("batch", on_single="running")
    twin, x = copy.deepcopy(layer), draw(BATCH, CHANNELS, STEPS)
    expected = [step(layer, layer, x, {"lengths": torch.tensor(lengths)}) for lengths in ([0, 1, 0], [3, 0, 4])]
    if path == "inlined":
        request.getfixturevalue("inlined")
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for lengths, one in zip(([0, 1, 0], [3, 0, 4]), expected, strict=True):
        torch.testing.assert_close(step(compiled, twin, x, {"lengths": torch.tensor(lengths)}), one)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


def test_on_single_uses_the_running_statistics_where_values_are_not_read() -> None:
    """In eager mode: a transform hides the values, as another device does."""
    layer, x, single = make("batch", on_single="running"), draw(BATCH, CHANNELS, STEPS), torch.tensor([0, 1, 0])
    twin = copy.deepcopy(layer)
    expected = step(layer, layer, x, {"lengths": single})
    dx = torch.func.grad(lambda one: (twin(one, lengths=single) * torch.cos(x)).sum())(x)
    torch.testing.assert_close(dx, expected[1])
    torch.testing.assert_close(twin.state_dict(), layer.state_dict())


@pytest.mark.parametrize("name", ["batch", "group", "instance"])
def test_one_value_is_an_error_of_a_graph_on_the_cpu(name: str) -> None:
    layer = tnt.GroupNorm(CHANNELS, CHANNELS) if name == "group" else make(name)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    x = draw(BATCH, CHANNELS, STEPS)
    compiled(x, lengths=LENGTHS)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel when training, got input size"):
        compiled(x, lengths=torch.tensor([0, 1, 0]))


def test_lengths_are_checked_by_a_graph_on_the_cpu() -> None:
    compiled = torch.compile(make("batch"), fullgraph=True, backend="aot_eager")
    with pytest.raises(ValueError, match="lengths must be from 0 to 6"):
        compiled(draw(BATCH, CHANNELS, STEPS), lengths=torch.tensor([7, 1, 1]))


@pytest.mark.parametrize("path", ["chosen", "inlined"])
@pytest.mark.parametrize("option", [{}, {"half_life": 30.0}, {"momentum": None}], ids=str)
def test_skipped_batches_and_running_statistics(option: Any, path: str, request: pytest.FixtureRequest) -> None:
    layer = tnt.BatchNorm1d(CHANNELS, **option)
    twin, x = copy.deepcopy(layer), draw(BATCH, CHANNELS, STEPS)
    infinite = x.clone()
    infinite[0, 1, 0] = torch.inf
    if path == "inlined":
        request.getfixturevalue("inlined")
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for one, lengths in ((x, [6, 2, 3]), (infinite, [6, 2, 3]), (infinite, [0, 6, 6]), (x, [0, 0, 0]), (-x, [1, 2, 2])):
        layer(one, lengths=torch.tensor(lengths))
        compiled(one, lengths=torch.tensor(lengths))
    assert layer.skipped_batches == twin.skipped_batches == 1
    assert int(twin.num_batches_tracked) == 3
    for key, value in layer.state_dict().items():
        torch.testing.assert_close(twin.state_dict()[key], value, rtol=1e-6, atol=1e-6)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


# ---- derivatives ----


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("name", ["batch", "group"])
def test_compiled_autograd(name: str, compiled: bool) -> None:
    from torch._dynamo import compiled_autograd

    layer = make(name)
    twin, x = copy.deepcopy(layer), draw(BATCH, CHANNELS, STEPS)
    expected = step(layer, layer, x, {"lengths": LENGTHS})
    call = torch.compile(twin, backend="aot_eager") if compiled else twin
    with compiled_autograd._enable(torch.compile(backend="aot_eager")):
        found = step(call, twin, x, {"lengths": LENGTHS})
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("path", ["chosen", "inlined"])
@pytest.mark.parametrize("form", ["nothing", "lengths"])
def test_second_derivatives_inside_a_graph(form: str, path: str, request: pytest.FixtureRequest) -> None:
    """With this option of torch; without it torch breaks the graph there, for its own layers too."""
    if not hasattr(torch._dynamo.config, "trace_autograd_ops"):
        pytest.skip("this torch cannot compile torch.autograd.grad")
    layer = make("group").double()

    def penalty(x: Any) -> Any:
        y = layer(x, **FORMS[form]).pow(3).sum()
        (dx,) = torch.autograd.grad(y, x, create_graph=True)
        return dx.square().sum()

    def gradients(function: Any) -> Any:
        x = draw(BATCH, CHANNELS, STEPS).double().requires_grad_()
        return torch.autograd.grad(function(x), [x, layer.weight])

    expected = gradients(penalty)
    if path == "inlined":
        request.getfixturevalue("inlined")
    with torch._dynamo.config.patch(trace_autograd_ops=True):
        torch.testing.assert_close(gradients(torch.compile(penalty, fullgraph=True, backend="aot_eager")), expected)


def power(layer: Any, ragged: dict[str, Any]) -> Callable[..., Any]:
    def call(x: Any) -> Any:
        return layer(x, **ragged).pow(3).sum((1, 2))

    return call


TRANSFORMS: dict[str, Callable[..., Any]] = {
    "jvp": lambda call, x, v: func.jvp(call, (x,), (v,)),
    "grad": lambda call, x, v: func.grad(lambda one: call(one) @ v[:, 0, 0])(x),
    "jvp of grad": lambda call, x, v: func.jvp(func.grad(lambda one: call(one).sum()), (x,), (v,)),
    "jacfwd": lambda call, x, v: func.jacfwd(call)(x),
    "hessian": lambda call, x, v: func.hessian(lambda one: call(one).sum())(x),
}


@pytest.mark.parametrize("form", ["nothing", "lengths"])
@pytest.mark.parametrize("name", TRANSFORMS)
def test_transforms_inside_a_graph(name: str, form: str) -> None:
    call = power(make("group").double().requires_grad_(False), FORMS[form])
    x, v = draw(BATCH, CHANNELS, STEPS).double(), draw(BATCH, CHANNELS, STEPS, seed=1).double()
    compiled = torch.compile(lambda x, v: TRANSFORMS[name](call, x, v), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, v), TRANSFORMS[name](call, x, v))


def test_vmap_inside_a_graph() -> None:
    layer, x = make("layer"), draw(BATCH, STEPS, CHANNELS)
    compiled = torch.compile(lambda x: func.vmap(lambda one: layer(one))(x), fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), layer(x))


def test_forward_mode_and_running_statistics() -> None:
    """Their update breaks the graph."""
    layer = make("batch").requires_grad_(False)
    twin, x, v = copy.deepcopy(layer), draw(BATCH, CHANNELS, STEPS), draw(BATCH, CHANNELS, STEPS, seed=1)

    def derivative(layer: Any, x: Any, v: Any) -> Any:
        return func.jvp(power(layer, FORMS["lengths"]), (x,), (v,))

    found = torch.compile(derivative, backend="aot_eager")(twin, x, v)
    torch.testing.assert_close(found, derivative(layer, x, v))
    torch.testing.assert_close(twin.state_dict(), layer.state_dict())


@pytest.mark.parametrize("form", ["nothing", "lengths"])
def test_a_tangent_from_outside_is_right_or_refused_and_never_lost(form: str) -> None:
    """torch 2.15 leaves the graph there; older versions call the operator with it."""
    layer = make("group").requires_grad_(False)
    call, x, v = power(layer, FORMS[form]), draw(BATCH, CHANNELS, STEPS), draw(BATCH, CHANNELS, STEPS, seed=1)
    expected = func.jvp(call, (x,), (v,))[1]
    with forward_ad.dual_level():
        dual = forward_ad.make_dual(x, v)
        try:
            found = forward_ad.unpack_dual(torch.compile(call, backend="aot_eager")(dual)).tangent
        except Exception as error:
            assert "got forward mode" in str(error)  # noqa: PT017 - torch wraps it in errors of its own
            return
    torch.testing.assert_close(found, expected)
