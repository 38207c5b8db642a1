"""Without the new arguments: what torch's layers give, ours give, over torch's own databases of sample inputs.

`module_db` and `op_db` are in the wheel (`torch.testing._internal`): outputs, gradients for odd cotangents, buffers and
errors, contiguous or not, in every memory format, in training and in evaluation.
"""

import copy
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("expecttest", reason="expecttest is not installed, which torch's databases need")

import truenorm.torch as tnt  # noqa: E402

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal.common_methods_invocations import op_db
    from torch.testing._internal.common_modules import module_db

MODULES = {info.name: info for info in module_db if hasattr(tnt, info.name.removeprefix("nn."))}
OPERATORS = {
    f"{op.name} {op.variant_test_name}".strip(): op
    for op in op_db
    if op.name in {f"nn.functional.{kind}_norm" for kind in ("batch", "layer", "group", "instance", "rms")}
}
DTYPES = (torch.float64, torch.float32)


def cotangent(like: Any) -> Any:
    """Odd numbers: the sum of a normalised output is constant, so ones would prove nothing."""
    generator = torch.Generator().manual_seed(like.numel())
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)


def layouts(x: Any) -> Iterator[Any]:
    """The same numbers, laid out in every way that torch knows."""

    def again(laid: Any) -> Any:
        return laid.detach().requires_grad_(x.requires_grad)

    yield again(x.clone(memory_format=torch.contiguous_format))
    if x.dim() > 1:
        yield again(x.detach().transpose(0, 1).contiguous().transpose(0, 1))
        yield again(torch.stack([x.detach(), x.detach() + 1], -1)[..., 0])
    if x.dim() == 4:
        yield again(x.detach().to(memory_format=torch.channels_last))
    if x.dim() == 5:
        yield again(x.detach().to(memory_format=torch.channels_last_3d))


def outcome(call: Callable[[], Any], inputs: list[Any]) -> tuple[Any, list[Any]] | BaseException:
    """What a call gives, with its gradients; or the error that it raises."""
    try:
        y = call()
        wanted = [one for one in inputs if one is not None and one.requires_grad]
        if not wanted or not y.requires_grad:
            return y.detach(), []
        return y.detach(), list(torch.autograd.grad(y, wanted, cotangent(y), allow_unused=True))
    except Exception as error:
        return error


@pytest.fixture(autouse=True)
def seeded() -> None:
    """torch draws the inputs of its databases anew each time, and four rows that are nearly alike are ill-posed."""
    torch.manual_seed(0)


def compare(ours: Any, theirs: Any, what: str) -> None:
    if isinstance(theirs, BaseException):
        assert isinstance(ours, type(theirs)), f"{what}: {ours!r} instead of {theirs!r}"
        assert str(ours) == str(theirs), what
        return
    assert not isinstance(ours, BaseException), f"{what}: {ours!r}"
    y, gradients = ours
    assert y.dtype == theirs[0].dtype, what
    wide = y.dtype == torch.float64
    close = {"rtol": 1e-9, "atol": 1e-11} if wide else {"rtol": 2e-5, "atol": 2e-5}
    torch.testing.assert_close(y, theirs[0], msg=lambda text: f"{what}: {text}", equal_nan=True, **close)
    for one, two in zip(gradients, theirs[1], strict=True):
        assert (one is None) == (two is None), what
        if one is not None:
            torch.testing.assert_close(one, two, msg=lambda text: f"{what}, gradient: {text}", equal_nan=True, **close)


@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", MODULES)
def test_modules(name: str, dtype: Any, training: bool) -> None:
    info = MODULES[name]
    inputs = info.module_inputs_func(info, device="cpu", dtype=dtype, requires_grad=True, training=training)
    ran = 0
    for sample in inputs:
        made, called = sample.constructor_input, sample.forward_input
        kwargs = {"device": "cpu", "dtype": dtype} | made.kwargs
        theirs = info.module_cls(*made.args, **kwargs).train(training)
        with torch.no_grad():
            for i, one in enumerate([*theirs.parameters(), *(b for b in theirs.buffers() if b.is_floating_point())]):
                one.copy_(one + torch.linspace(0.1, 0.9 + 0.1 * i, one.numel(), dtype=dtype).reshape(one.shape))
        ours = getattr(tnt, name.removeprefix("nn."))(*made.args, **kwargs).train(training)
        ours.load_state_dict(theirs.state_dict(), strict=True)
        assert repr(ours) == f"truenorm.{theirs!r}"
        assert isinstance(ours, type(theirs))
        for x in layouts(called.args[0]):
            pair = []
            for module in (copy.deepcopy(ours), copy.deepcopy(theirs)):
                leaf = x.detach().requires_grad_()
                found = outcome(lambda: module(leaf, *called.args[1:], **called.kwargs), [leaf, *module.parameters()])  # noqa: B023
                pair.append((found, module.state_dict()))
            what = f"{theirs}, {tuple(x.shape)}, strides {x.stride()}"
            compare(pair[0][0], pair[1][0], what)
            assert list(pair[0][1]) == list(pair[1][1])
            for key, value in pair[1][1].items():
                if key == "num_batches_tracked" and not x.numel():
                    continue  # docs/torch.md: a batch with nothing in it is not counted
                torch.testing.assert_close(pair[0][1][key], value, rtol=2e-6, atol=1e-6, msg=f"{what}: {key}")
            ran += 1
    assert ran > 3  # 888 in all modules


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", OPERATORS)
def test_operators(name: str, dtype: Any) -> None:
    op = OPERATORS[name]
    ours = getattr(tnt.functional, op.name.removeprefix("nn.functional."))
    ran = 0
    for sample in op.sample_inputs("cpu", dtype, requires_grad=True):
        for x in layouts(sample.input):
            pair = []
            for function in (ours, op.op):
                args, kwargs = copied(sample.args), copied(sample.kwargs)
                kwargs.pop("cudnn_enabled", None)
                leaf = x.detach().requires_grad_()
                inputs = [leaf, *(one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor))]
                found = outcome(lambda: function(leaf, *args, **kwargs), inputs)  # noqa: B023
                pair.append((found, [one.detach() for one in inputs[1:]]))
            what = f"{name}: {tuple(x.shape)}, {sample.args}, {sample.kwargs}"
            compare(pair[0][0], pair[1][0], what)
            for one, two in zip(pair[0][1], pair[1][1], strict=True):  # running statistics, changed in place
                torch.testing.assert_close(one, two, rtol=2e-6, atol=1e-6, msg=what)
            ran += 1
    assert ran > 3  # 388 in all functions


def copied(values: Any) -> Any:
    """Tensors of their own, as running statistics change in place."""
    if isinstance(values, dict):
        return {name: copied(value) for name, value in values.items()}
    if isinstance(values, tuple | list) and not isinstance(values, torch.Size):
        return type(values)(copied(value) for value in values)
    return values.detach().clone().requires_grad_(values.requires_grad) if isinstance(values, torch.Tensor) else values


@pytest.mark.parametrize("name", OPERATORS)
def test_errors_of_operators(name: str) -> None:
    op = OPERATORS[name]
    ours = getattr(tnt.functional, op.name.removeprefix("nn.functional."))
    for one in op.error_inputs("cpu") if op.error_inputs_func else ():
        sample = one.sample_input
        found = [outcome(lambda: f(sample.input, *sample.args, **sample.kwargs), []) for f in (ours, op.op)]  # noqa: B023
        assert isinstance(found[1], Exception)
        if not sample.input.numel():  # docs/torch.md: ours refuse no size of 0
            assert isinstance(found[0], tuple)
            assert found[0][0].shape == sample.input.shape
            continue
        compare(found[0], found[1], name)


@pytest.mark.parametrize("name", MODULES)
def test_errors_of_modules(name: str) -> None:
    info = MODULES[name]
    if info.module_error_inputs_func is None:
        return
    for one in info.module_error_inputs_func(
        info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
    ):
        made, called = one.module_error_input.constructor_input, one.module_error_input.forward_input
        found = []
        for kind in (getattr(tnt, name.removeprefix("nn.")), info.module_cls):
            found.append(outcome(lambda: kind(*made.args, **made.kwargs)(*called.args, **called.kwargs), []))  # noqa: B023
        compare(found[0], found[1], name)
