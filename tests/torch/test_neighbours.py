"""What the layers compute together with their neighbours: an activation behind them, and a residual in front."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from errors import assert_message

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.nn.utils.rnn import pack_sequence  # noqa: E402

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.core.activation import ACTIVATIONS  # noqa: E402

nn, functional = torch.nn, torch.nn.functional
ENGINES = list(engine.available())
KINDS: dict[str, Any] = {
    "relu": functional.relu,
    "gelu": functional.gelu,
    "silu": functional.silu,
    "tanh": torch.tanh,
}
LENGTHS = torch.tensor([7, 3, 0, 5])
SECOND, LAST = (4, 6, 7), (4, 7, 6)  # (b, c, t) and (b, t, c)
LAYERS: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "batch": (lambda **how: tnt.BatchNorm1d(6, **how), SECOND),
    "batch, evaluation": (lambda **how: tnt.BatchNorm1d(6, **how).eval(), SECOND),
    "instance": (lambda **how: tnt.InstanceNorm1d(6, affine=True, **how), SECOND),
    "group": (lambda **how: tnt.GroupNorm(3, 6, **how), SECOND),
    "layer": (lambda **how: tnt.LayerNorm(6, **how), LAST),
    "RMS": (lambda **how: tnt.RMSNorm(6, **how), LAST),
    "pattern": (lambda **how: tnt.Normalize(tn.Norm("b [t] c", **how), 6), LAST),
}
TOLERANCES = {torch.float64: 1e-12, torch.float32: 1e-5, torch.bfloat16: 3e-2, torch.float16: 4e-3}


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(7)


@pytest.fixture(params=ENGINES)
def each_engine(request: pytest.FixtureRequest) -> Any:
    before = engine.engine()
    engine.use(request.param)
    yield request.param
    engine.use(before)


def with_random_weights(layer: Any) -> Any:
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def spoil(values: Any, second: bool) -> Any:
    """NaN in the padding."""
    valid = torch.arange(7) < LENGTHS[:, None]
    return values.masked_fill(~(valid[:, None] if second else valid[:, :, None]), torch.nan)


def assert_close(found: Any, expected: Any, dtype: Any) -> None:
    for one, two in zip(found, expected, strict=True):
        scale = two.detach().abs().max().clamp(min=1)
        assert ((one.detach().double() - two.detach()).abs().max() / scale).item() < TOLERANCES[dtype]


# ---- activations ----


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("name", LAYERS)
def test_an_activation_is_that_of_the_normalized_values(
    name: str, activation: str, dtype: Any, each_engine: str
) -> None:
    make, shape = LAYERS[name]
    for lengths, transposed in ((None, False), (LENGTHS, False), (LENGTHS, True)):
        layer = with_random_weights(make(activation=activation)).to(dtype)
        plain = make().double()
        plain.load_state_dict(layer.state_dict())
        ragged = {} if lengths is None else {"lengths": lengths}
        x, dy = 2 * torch.randn(shape).to(dtype), torch.randn(shape).to(dtype)
        x = x.transpose(1, 2).contiguous().transpose(1, 2) if transposed else x
        given = [x, dy] if lengths is None else [spoil(one, shape == SECOND) for one in (x, dy)]
        y = layer(given[0].requires_grad_(), **ragged)
        found = [y, *torch.autograd.grad(y, [given[0], *layer.parameters()], given[1])]
        wide = x.detach().double().requires_grad_()
        expected_y = KINDS[activation](plain(wide, **ragged))
        expected = [expected_y, *torch.autograd.grad(expected_y, [wide, *plain.parameters()], dy.double())]
        assert_close(found, expected, dtype)
        if lengths is not None:
            assert not torch.where(torch.isnan(given[0]), y, 0.0).any()


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_numpy_and_torch_agree(activation: Any, each_engine: str) -> None:
    x, dy, weight, bias = (torch.randn(shape, dtype=torch.float64) for shape in (SECOND, SECOND, (6,), (6,)))
    y = tnt.functional.group_norm(x.requires_grad_(), 3, weight, bias, lengths=LENGTHS, activation=activation)
    (dx,) = torch.autograd.grad(y, x, dy)
    norm = tn.group(3, "second", activation=activation)
    out = tn.forward(x.detach().numpy(), norm, weight=weight.numpy(), bias=bias.numpy(), lengths=LENGTHS.numpy())
    torch.testing.assert_close(y.detach(), torch.from_numpy(out.y), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(dx, torch.from_numpy(tn.backward(dy.numpy(), out)[0]), rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("statistics", ["batch", "group", "layer", "fixed"])
def test_gradients_of_an_activation(activation: Any, statistics: str) -> None:
    def normalize(x: Any, weight: Any, bias: Any) -> Any:
        how = {"lengths": LENGTHS, "activation": activation}
        if statistics == "layer":
            return tnt.functional.layer_norm(x, (7,), weight[0], bias[0], activation=activation)
        if statistics == "group":
            return tnt.functional.group_norm(x, 3, weight[:, 0], bias[:, 0], **how)
        fixed = (torch.zeros(6).double(), torch.full((6,), 2.0).double()) if statistics == "fixed" else (None, None)
        return tnt.functional.batch_norm(x, *fixed, weight[:, 0], bias[:, 0], statistics == "batch", **how)

    given = [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in (SECOND, (6, 7), (6, 7))]
    assert torch.autograd.gradcheck(normalize, given, check_forward_ad=True)
    assert activation == "relu" or torch.autograd.gradgradcheck(normalize, given)


@pytest.mark.parametrize("shape", [(64, 40), (8, 24, 300), (600, 513)])
def test_bits_do_not_depend_on_threads(shape: tuple[int, ...]) -> None:
    x, dy = torch.randn(shape), torch.randn(shape)
    layers = [with_random_weights(make(shape[1], activation="gelu")) for make in (tnt.BatchNorm1d,)]
    layers += [with_random_weights(tnt.LayerNorm(shape[-1], activation="silu"))]
    before = engine.threads()
    found = []
    try:
        for threads in (1, 2, 3):
            engine.set_threads(threads)
            for layer in layers:
                given = x.clone().requires_grad_()
                y = copy.deepcopy(layer)(given)
                found.append([y, *torch.autograd.grad(y, given, dy)])
    finally:
        engine.set_threads(before)
    for one, two in zip(found, found[len(layers) :], strict=False):
        assert all(map(torch.equal, one, two))


def test_padding_is_kept_as_it_is() -> None:
    x = torch.randn(SECOND)
    y = tnt.BatchNorm1d(6, padding="keep", activation="relu")(x, lengths=LENGTHS)
    assert torch.equal(y[1, :, 3:], x[1, :, 3:])
    assert bool((y[0] >= 0).all())


def saved_bytes(call: Callable[[], Any]) -> int:
    """The memory that autograd keeps for backward, each storage counted once."""
    kept: dict[int, int] = {}

    def pack(tensor: Any) -> Any:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        y = call()  # noqa: F841, alive until it is counted
    return sum(kept.values())


def test_backward_keeps_x_alone() -> None:
    x, residual = (torch.randn(64, 100, requires_grad=True) for _ in range(2))
    size, parameters = 4 * x.numel(), 2 * 4 * 100
    fused, plain = tnt.BatchNorm1d(100, activation="silu"), tnt.BatchNorm1d(100)
    assert saved_bytes(lambda: fused(x)) <= size + parameters + 64
    assert saved_bytes(lambda: functional.silu(plain(x))) >= 2 * size
    norm = tnt.LayerNorm(100, activation="gelu")
    assert saved_bytes(lambda: norm(x, residual=residual)) <= size + parameters + 64


def test_a_compiled_graph_has_the_activation() -> None:
    layer = tnt.GroupNorm(3, 6, activation="gelu").double()
    x = torch.randn(SECOND, dtype=torch.float64, requires_grad=True)
    compiled = torch.compile(lambda x: layer(x, lengths=LENGTHS), fullgraph=True, backend="aot_eager")
    dy = torch.randn(SECOND, dtype=torch.float64)
    found, expected = (
        [y, *torch.autograd.grad(y, [x, *layer.parameters()], dy)] for y in (compiled(x), layer(x, lengths=LENGTHS))
    )
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two)


def test_an_exported_program_has_the_activation() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.group, self.layer = tnt.GroupNorm(3, 6, activation="silu"), tnt.LayerNorm(7, activation="tanh")

        def forward(self, x: Any, lengths: Any) -> Any:
            y, total = self.layer(self.group(x, lengths=lengths), residual=x)
            return y, total, self.group(x)

    model, x = Model(), torch.randn(SECOND)
    program = torch.export.export(model, (x, LENGTHS))
    for one, two in zip(program.module()(x, LENGTHS), model(x, LENGTHS), strict=True):
        torch.testing.assert_close(one, two)


def test_micro_batches_with_an_activation(each_engine: str) -> None:
    x = torch.randn(8, 6, dtype=torch.float64)
    model = nn.Sequential(with_random_weights(tnt.BatchNorm1d(6, activation="gelu"))).double()
    whole = copy.deepcopy(model)
    (whole(x) ** 2).sum().backward()
    outputs = tnt.together(model, [(x[:3],), (x[3:],)])
    sum((y**2).sum() for y in outputs).backward()
    torch.testing.assert_close(torch.cat(list(outputs)), whole(x))
    for one, two in zip(model.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one.grad, two.grad)


def test_an_activation_is_an_attribute() -> None:
    layer = tnt.LayerNorm(6, activation="relu")
    assert repr(layer) == "truenorm.LayerNorm((6,), eps=1e-05, elementwise_affine=True, bias=True, activation='relu')"
    layer.activation = None
    x = torch.randn(LAST)
    assert torch.equal(layer(x), tnt.LayerNorm(6)(x))
    pattern = tnt.Normalize(tn.Norm("b t [c]", activation="relu"), 6)
    assert pattern.activation == "relu"
    pattern.activation = "tanh"
    torch.testing.assert_close(pattern(x), layer(x).tanh())
    expected = "activation: 'relu', 'gelu', 'silu', 'tanh' or None, got 'elu'."
    wrong: Any = "elu"
    assert_message(lambda: setattr(layer, "activation", wrong), ValueError, expected)
    assert_message(lambda: tnt.BatchNorm1d(6, activation=wrong), ValueError, expected)
    assert_message(lambda: tnt.functional.layer_norm(x, (6,), activation=wrong), ValueError, expected)


def test_what_would_lose_an_activation_refuses_it() -> None:
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6)).eval()
    tnt.convert(model)
    layer: Any = model[1]
    layer.activation = "relu"
    assert "has an activation" in str(tnt.revert(model))
    assert "has an activation" in str(tnt.fold(model, (torch.randn(4, 6),)))
    layer.activation = None
    tnt.revert(model)
    assert type(model[1]) is nn.BatchNorm1d


# ---- residuals ----


@pytest.mark.parametrize("dtype", TOLERANCES)
@pytest.mark.parametrize("make", [tnt.LayerNorm, tnt.RMSNorm])
@pytest.mark.parametrize("how", [{}, {"activation": "gelu"}, {"padding": "keep"}])
def test_a_residual_is_added_before(make: Any, how: dict[str, Any], dtype: Any, each_engine: str) -> None:
    for channels, lengths in ((6, None), (2100, LENGTHS)):
        layer = with_random_weights(make(channels, **how)).to(dtype)
        ragged = {} if lengths is None else {"lengths": lengths}
        x, residual, dy, dtotal = (torch.randn(4, 7, channels).to(dtype) for _ in range(4))
        if lengths is not None and not how:
            x = spoil(x, second=False)
        given = [x.requires_grad_(), residual.requires_grad_(), *layer.parameters()]
        both = layer(x, residual=residual, **ragged)
        total = x + residual
        expected = layer(total, **ragged), total
        for one, two in zip(both, expected, strict=True):
            assert torch.equal(one.nan_to_num(9), two.nan_to_num(9))
        for used in ((0, 1), (0,), (1,)):  # the next layer may use either
            found, wanted = (
                torch.autograd.grad(
                    [outputs[i] for i in used], given, [(dy, dtotal)[i] for i in used], None, True, allow_unused=True
                )
                for outputs in (both, expected)
            )
            for first, second in zip(found, wanted, strict=True):
                assert (first is None) == (second is None)
                assert first is None or torch.equal(first, second)


def test_one_kernel_computes_a_residual() -> None:
    if "native" not in ENGINES:
        pytest.skip("the compiled part was not built")
    x = torch.randn(LAST, requires_grad=True)
    for layer in (tnt.LayerNorm(6), tnt.RMSNorm(6)):
        y, total = layer(x, residual=x.detach(), lengths=LENGTHS)
        assert y.grad_fn is total.grad_fn
        assert y.grad_fn.name() == "SumNormBackward"


def test_gradients_of_a_residual() -> None:
    layer = with_random_weights(tnt.LayerNorm(6, activation="tanh").double())
    given = [torch.randn(LAST, dtype=torch.float64, requires_grad=True) for _ in range(2)]

    def normalize(x: Any, residual: Any) -> Any:
        return layer(x, residual=residual, lengths=LENGTHS)

    assert torch.autograd.gradcheck(normalize, given)
    assert torch.autograd.gradgradcheck(normalize, given)


def test_a_residual_in_every_form() -> None:
    norm = with_random_weights(tnt.RMSNorm(6))
    rows = [torch.randn(4, 6), torch.randn(2, 6)]
    packed = pack_sequence(rows)
    y, total = norm(packed, residual=packed)
    assert torch.equal(total.data, 2 * packed.data)
    torch.testing.assert_close(y.data, norm(2 * packed.data))
    jagged = torch.nested.nested_tensor(rows, layout=torch.jagged)
    y, total = norm(jagged, residual=jagged)
    torch.testing.assert_close(y.values(), norm(2 * torch.cat(rows)))
    y, total = norm(torch.cat(rows), residual=torch.cat(rows), segments=[1, 0, 1, 0, 0, 1])
    torch.testing.assert_close(y, norm(2 * torch.cat(rows)))
    y, total = norm(rows[0].bfloat16(), residual=rows[1].new_zeros(4, 6))  # as under autocast
    assert total.dtype is torch.float32
    y, total = norm(rows[0].t().contiguous().t(), residual=rows[0])
    torch.testing.assert_close(y, norm(2 * rows[0]))


def test_a_residual_that_does_not_fit() -> None:
    norm, x = tnt.LayerNorm(6), torch.randn(5, 6)
    expected = "residual: the shape of the input, (5, 6), got (6,)."
    assert_message(lambda: norm(x, residual=x[0]), ValueError, expected)
    expected = "residual: a tensor in the shape of the input, got int."
    assert_message(lambda: norm(x, residual=3), TypeError, expected)
    expected = "residual: in the form of the input, PackedSequence, got Tensor."
    assert_message(lambda: norm(pack_sequence([x]), residual=x), TypeError, expected)


def test_a_traced_call_has_the_residual() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = tnt.LayerNorm(6)

        def forward(self, x: Any, residual: Any) -> Any:
            y, total = self.norm(x, residual=residual)
            return y + total

    model, x, residual = Model(), torch.randn(5, 6), torch.randn(5, 6)
    assert torch.equal(torch.fx.symbolic_trace(model)(x, residual), model(x, residual))
