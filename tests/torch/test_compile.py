"""torch.compile, torch.export and the operators that they call: the numbers of eager mode, in one graph."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.core import recipes  # noqa: E402
from truenorm.core.norm import text_of  # noqa: E402
from truenorm.torch import _library as operators  # noqa: E402

LENGTHS = torch.tensor([5, 2, 3])
LAYERS: dict[str, Callable[[], Any]] = {
    "batch": lambda: tnt.BatchNorm1d(4),
    "batch, cumulative": lambda: tnt.BatchNorm1d(4, momentum=None),
    "batch, keep": lambda: tnt.BatchNorm1d(4, affine=False, padding="keep"),
    "group": lambda: tnt.GroupNorm(2, 4),
    "instance": lambda: tnt.InstanceNorm1d(4, affine=True, track_running_stats=True),
}
NAMES = [pytest.param(name, marks=[] if name in ("batch", "group") else pytest.mark.slow) for name in LAYERS]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


def draw(*shape: int, seed: int = 0) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def compare(plain: Any, compiled: Any, of: Any, x: Any, ragged: dict[str, Any]) -> None:
    """Outputs, gradients and buffers of one step. `of` holds the compiled one's parameters."""
    found = []
    for module, owner in ((plain, plain), (compiled, of)):
        leaf = x.clone().requires_grad_()
        y = module(leaf, **ragged)
        y.backward(torch.cos(x))
        found.append([y.detach(), leaf.grad, *(one.grad for one in owner.parameters()), *owner.state_dict().values()])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_55_one_graph_for_all_lengths(name: str) -> None:
    plain = LAYERS[name]()
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, fullgraph=True, backend="aot_eager")
    for lengths in ([5, 2, 3], [1, 5, 4], [3, 3, 3]):
        compare(plain, compiled, twin, draw(3, 4, 5), {"lengths": torch.tensor(lengths)})
    compare(plain, compiled, twin, draw(3, 4, 5), {"lengths": LENGTHS})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", NAMES)
def test_shapes_that_change(name: str) -> None:
    plain = LAYERS[name]()
    twin = copy.deepcopy(plain)
    compiled = torch.compile(twin, fullgraph=True, dynamic=True, backend="aot_eager")
    for batch, extent in ((3, 5), (4, 7), (6, 9), (2, 11)):
        lengths = torch.arange(batch) % extent + 1
        compare(plain, compiled, twin, draw(batch, 4, extent), {"lengths": lengths})
        compare(plain, compiled, twin, draw(batch, 4, extent), {"valid": torch.ones(batch, extent, dtype=torch.bool)})
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2  # with lengths, and with valid


@pytest.mark.parametrize("name", [pytest.param("batch", marks=pytest.mark.slow), "group"])
def test_inductor_gives_the_numbers_of_eager_mode(name: str) -> None:
    plain = LAYERS[name]()
    twin = copy.deepcopy(plain)
    compare(plain, torch.compile(twin, fullgraph=True), twin, draw(3, 4, 5), {"lengths": LENGTHS})


@pytest.mark.parametrize("case", ["a mask of every element", "the reference", "nothing", "a transposed pattern"])
def test_what_the_kernels_do_not_take_compiles_too(case: str) -> None:
    layer: Any = tnt.BatchNorm1d(4)
    x, ragged = draw(3, 4, 5), {}
    before = engine.engine()
    if case == "a mask of every element":
        ragged = {"valid": draw(3, 4, 5, seed=3) > -0.5}
    elif case == "the reference":
        engine.use("reference")
        ragged = {"lengths": LENGTHS}
    elif case == "nothing":
        x = draw(0, 4, 5)
    else:
        layer = tnt.Normalize(tn.Norm("c [b] t"), 3)
    twin = copy.deepcopy(layer)
    try:
        compare(layer, torch.compile(twin, fullgraph=True, backend="aot_eager"), twin, x, ragged)
    finally:
        engine.use(before)


def test_96_a_constant_gives_exactly_the_bias_when_compiled() -> None:
    model = torch.nn.Sequential(tnt.BatchNorm1d(10).eval(), tnt.GroupNorm(5, 10))
    y = torch.compile(model, fullgraph=True, backend="aot_eager")(torch.full((2, 10, 7), 3.7))
    assert not y.any()


@pytest.mark.parametrize("training", [True, False])
def test_export(training: bool) -> None:
    layer = tnt.BatchNorm1d(4).train(training)
    layer.running_mean.copy_(torch.tensor([0.1, 0.2, 0.3, 0.4]))
    x = draw(3, 4, 5)
    program = torch.export.export(copy.deepcopy(layer), (x,), {"lengths": LENGTHS})
    found = program.module()(x, lengths=torch.tensor([2, 5, 5]))
    torch.testing.assert_close(found, layer(x, lengths=torch.tensor([2, 5, 5])))


CALLS = {
    "batch": ((3, 4, 5), recipes.batch("second"), {"lengths": LENGTHS}),
    "whole": ((6, 4), recipes.batch(), {}),
    "group": ((3, 4, 5), recipes.group(2, "second"), {"valid": torch.arange(5) < LENGTHS[:, None]}),
    "packed": ((10, 4), recipes.instance(), {"offsets": torch.tensor([0, 5, 7, 10])}),
    "layer": ((3, 4, 5), recipes.layer(), {}),
}


@pytest.mark.parametrize("fixed", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_operators_pass_torchs_own_checks(name: str, fixed: bool) -> None:
    shape, norm, ragged = CALLS[name]
    if fixed and name not in ("batch", "whole"):
        return
    size = norm.view(shape).weight_shape if name != "packed" else (4,)
    weight, bias = (torch.linspace(0.5, 1.5, size[0]).requires_grad_() for _ in range(2))
    statistics = (torch.zeros(4), torch.ones(4)) if fixed else (None, None)
    pieces = tuple(ragged.get(key) for key in ("valid", "lengths", "offsets", "sample_weight"))
    x = draw(*shape).requires_grad_()
    torch.library.opcheck(operators.normalize, (x, weight, bias, *pieces, *statistics, text_of(norm), "zero", True))


def test_a_second_derivative_of_a_compiled_graph_is_refused() -> None:
    compiled = torch.compile(tnt.BatchNorm1d(4), fullgraph=True, backend="aot_eager")
    x = draw(6, 4).requires_grad_()
    (dx,) = torch.autograd.grad(compiled(x).pow(3).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError):
        dx.sum().backward()


def test_forward_mode_of_an_exported_program() -> None:
    layer, x, v = tnt.LayerNorm(4).requires_grad_(False), draw(3, 4), draw(3, 4, seed=1)
    program = torch.export.export(layer, (x,)).module()  # has torch's own operators, which know forward mode
    torch.testing.assert_close(torch.func.jvp(program, (x,), (v,))[1], torch.func.jvp(layer, (x,), (v,))[1])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast_keeps_statistics_in_float32(dtype: Any) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), tnt.BatchNorm1d(8))
    x = draw(64, 8) * 3 + 100
    with torch.autocast("cpu", dtype):
        hidden = model[0](x)
        y = model[1](hidden)
    assert model[1].running_mean.dtype == torch.float32
    torch.testing.assert_close(model[1].running_mean, 0.1 * hidden.detach().float().mean(0), rtol=1e-5, atol=1e-5)
    assert abs(float(y.detach().float().var(0, correction=0).mean()) - 1) < 0.02
