"""Kernels as nodes of torch's autograd graph in C++, and as autograd functions in Python: what holds for both."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("truenorm._native", reason="the compiled part was not built")

import truenorm.torch as tnt  # noqa: E402
from truenorm.torch import _compat, _kernel  # noqa: E402

nn = torch.nn
LENGTHS = torch.tensor([5, 2, 4])
LAYERS = {
    "batch": lambda **made: tnt.BatchNorm1d(6, **made),
    "group": lambda **made: tnt.GroupNorm(2, 6, **made),
    "group, silu": lambda **made: tnt.GroupNorm(2, 6, activation="silu", **made),
    "layer": lambda **made: tnt.LayerNorm(5, **made),
    "layer, gelu, no bias": lambda **made: tnt.LayerNorm(5, activation="gelu", bias=False, **made),
    "rms": lambda **made: tnt.RMSNorm(5, **made),
}
RAGGED = ("batch", "group", "group, silu")
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@pytest.fixture
def built(nodes: None) -> None:
    if _kernel.nodes is None:
        pytest.skip("the nodes were not built against this torch")


def draw(seed: int, dtype: Any = torch.float32, transposed: bool = False) -> Any:
    shape = (3, 5, 6) if transposed else (3, 6, 5)
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
    return x.transpose(1, 2) if transposed else x


def step(layer: Any, x: Any, dy: Any, **told: Any) -> list[Any]:
    """The outputs, and the gradients of x, of the residual and of the parameters."""
    inputs = [one.detach().requires_grad_() for one in (x, told.pop("residual", None)) if one is not None]
    outputs = layer(inputs[0], **told, **({"residual": inputs[1]} if len(inputs) > 1 else {}))
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    needed = [*inputs, *layer.parameters()]
    return [*outputs, *torch.autograd.grad(outputs, needed, [dy, *[dy] * (len(outputs) - 1)])]


@pytest.mark.usefixtures("built")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("name", LAYERS)
def test_the_same_bits_with_and_without_nodes(
    name: str, transposed: bool, dtype: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = LAYERS[name](dtype=dtype)
    x, dy = draw(0, dtype, transposed), draw(1, dtype, transposed)
    told = [{}, {"lengths": LENGTHS}] if name in RAGGED else [{}, {"residual": draw(2, dtype, transposed)}]
    for given in told:
        found = step(layer, x, dy, **given)
        with monkeypatch.context() as patch:
            patch.setattr(_kernel, "nodes", None)
            expected = step(layer, x, dy, **given)
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()


def test_the_node_is_what_it_says() -> None:
    y = tnt.LayerNorm(5)(draw(0).requires_grad_())
    assert y.grad_fn.name() == "KernelNormBackward"
    assert "grad_fn=<KernelNormBackward>" in repr(y)
    in_python = isinstance(y.grad_fn, torch.autograd.function.BackwardCFunction)
    assert in_python == (_kernel.nodes is None)


def test_without_gradients_there_is_no_node() -> None:
    layer = tnt.LayerNorm(5)
    with torch.no_grad():
        assert layer(draw(0).requires_grad_()).grad_fn is None
    with torch.inference_mode():
        assert layer(draw(0)).is_inference()
    assert layer.requires_grad_(False)(draw(0)).grad_fn is None


def test_backward_again_after_the_graph_is_gone() -> None:
    y = tnt.LayerNorm(5)(draw(0).requires_grad_()).sum()
    y.backward(retain_graph=True)
    y.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        y.backward()


def strided(tensor: Any) -> Any:
    return tensor.repeat_interleave(2, dim=-1)[..., ::2]


def negated(tensor: Any) -> Any:
    """The same values, of a view that stands for the negative of its memory."""
    return torch._neg_view(-tensor)  # in order in memory, which the imaginary part of a conjugate is not


@pytest.mark.parametrize("residual", [False, True])
def test_tensors_that_hooks_have_replaced(residual: bool) -> None:
    """What is unpacked lies elsewhere, in another memory order, or is the negative of its memory."""
    layer, x, dy = tnt.LayerNorm(5), draw(0), draw(1)
    given = {"residual": draw(2)} if residual else {}
    expected = step(layer, x, dy, **given)
    for unpack in (torch.clone, strided, negated):
        with torch.autograd.graph.saved_tensors_hooks(lambda one: one.clone(), unpack):
            found = step(layer, x, dy, **given)
        torch.testing.assert_close(found, expected)


class NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Any) -> Any:
        return y.clone()

    @staticmethod
    def backward(ctx: Any, dy: Any) -> None:
        return None


def test_no_gradient_comes_in() -> None:
    layer, x = tnt.LayerNorm(5), draw(0).requires_grad_()
    NoGradient.apply(layer(x)).sum().backward()
    y, total = layer(x, residual=draw(1))
    (NoGradient.apply(y).sum() + NoGradient.apply(total).sum()).backward()
    assert x.grad is None
    assert all(one.grad is None for one in layer.parameters())


def test_a_gradient_with_a_graph_of_its_own() -> None:
    layer, x, residual = tnt.LayerNorm(5).double(), draw(0, torch.float64), draw(1, torch.float64)

    def call(x: Any, residual: Any) -> Any:
        y, total = layer(x, residual=residual)
        return y * 2 + total

    inputs = x.requires_grad_(), residual.requires_grad_()
    assert torch.autograd.gradcheck(call, inputs)
    assert torch.autograd.gradgradcheck(call, inputs)


@pytest.mark.parametrize("asked", range(1, 16))
def test_only_the_gradients_that_are_asked_for(asked: int) -> None:
    layer = tnt.LayerNorm(5)
    tensors = [draw(0), draw(1), *layer.parameters()]
    needed = [bool(asked >> i & 1) for i in range(4)]

    def gradients() -> list[Any]:
        for one, asks in zip(tensors, needed, strict=True):
            one.requires_grad_(asks).grad = None
        y, total = layer(tensors[0], residual=tensors[1])
        (y * draw(2) + total * draw(3)).sum().backward()
        return [one.grad for one in tensors]

    found = gradients()
    expected = step(layer.requires_grad_(), tensors[0], draw(2), residual=tensors[1])
    assert [one is not None for one in found] == needed
    if needed[2]:
        torch.testing.assert_close(found[2], expected[4])


def test_many_threads_go_backward_through_one_graph() -> None:
    layer, x = tnt.BatchNorm1d(6), draw(0).requires_grad_()
    y = layer(x, lengths=LENGTHS)
    (expected,) = torch.autograd.grad(y, x, draw(1), retain_graph=True)
    different: list[int] = []

    def go(number: int) -> None:
        for _ in range(50):
            (dx,) = torch.autograd.grad(y, x, draw(1), retain_graph=True)
            if not torch.equal(dx, expected):
                different.append(number)

    threads = [threading.Thread(target=go, args=(i,)) for i in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not different


def test_nothing_is_kept_when_the_graph_is_gone() -> None:
    layer, x = tnt.LayerNorm(5), draw(0).requires_grad_()

    def references() -> list[int]:
        plans = [one for one in gc.get_objects() if type(one) is _kernel.KernelPlan]
        return [sys.getrefcount(one) for one in (x, layer.weight, layer.bias, *plans)]

    def steps(count: int) -> None:
        for _ in range(count):
            y, total = layer(x, residual=x)
            (layer(x) + y + total).sum().backward()

    steps(2)
    before = references()
    steps(20)
    assert references() == before


def test_torchs_profiler_shows_the_call() -> None:
    layer, x = tnt.LayerNorm(5), draw(0).requires_grad_()
    with torch.profiler.profile() as profile:
        layer(x).sum().backward()
        layer(x, residual=x)
    names = {one.key for one in profile.key_averages()}
    assert {"KernelNorm", "KernelNormBackward", "SumNorm"} <= names


def test_a_graph_that_outlives_the_interpreter() -> None:
    code = (
        "import torch, truenorm.torch as tnt\n"
        "x = torch.randn(3, 5, requires_grad=True)\n"
        "y = tnt.LayerNorm(5)(x)\n"
        "torch.kept = tnt.LayerNorm(5)(y, residual=x)\n"
    )
    done = subprocess.run([sys.executable, "-X", "faulthandler", "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_nodes_for_another_torch_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "__version__", "2.13.1+cpu")
    assert _compat.load_nodes() is None


@pytest.mark.usefixtures("built")
def test_a_node_refuses_what_is_no_call() -> None:
    for arguments in [(), (draw(0), None, None, (None,)), (draw(0), None, None, None), (1, None, None, (1,))]:
        with pytest.raises(TypeError):
            _kernel.nodes.apply(*arguments)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # torch's own
@pytest.mark.parametrize("residual", [False, True])
def test_compiled_autograd_takes_any_node_of_a_shape(residual: bool) -> None:
    from torch._dynamo import compiled_autograd

    layer = tnt.LayerNorm(5)
    given = {"residual": draw(2)} if residual else {}
    expected = [step(layer, draw(seed), draw(1), **given) for seed in range(4)]
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with compiled_autograd._enable(torch.compile(backend="eager")):
        found = [step(layer, draw(seed), draw(1), **given) for seed in range(4)]
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert torch._dynamo.utils.counters["compiled_autograd"]["captures"] == 1
