"""What `fold` does not fold, and why; and models whose graphs are not plain chains."""

import copy
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from batch_norms import fill, norm
from torch import Tensor, nn
from torch.nn.utils import parametrizations

import truenorm.torch as tnt


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    count = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(count)


class Net(nn.Module):
    """conv, norm and last, called as a function says."""

    def __init__(self, call: Callable[..., Any], **modules: Any) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv1d(4, 4, 3), norm(1, 4, own=True), nn.Conv1d(4, 4, 1)
        for name, module in modules.items():
            setattr(self, name, module)
        self.call = call

    def forward(self, x: Tensor, *args: Any, **kwargs: Any) -> Any:
        return self.call(self, x, *args, **kwargs)


class OwnForward(nn.BatchNorm1d):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


class StandardizedConv(nn.Conv1d):
    def forward(self, input: Tensor) -> Tensor:
        return F.conv1d(input, self.weight - self.weight.mean(), self.bias)


class NamedConv(nn.Conv1d):
    def __init__(self) -> None:
        super().__init__(4, 4, 3)
        self.label = "mine"

    def doubled(self) -> int:
        return 2 * self.in_channels


def after_the_conv(net: Any, x: Tensor) -> Tensor:
    y: Tensor = net.norm(net.conv(x))
    return y


def changed(model: Any, change: Callable[[Any], Any]) -> Any:
    change(model)
    return model


def replaced(name: str) -> Callable[[Any], None]:
    def replace(net: Any) -> None:
        module = getattr(net, name)
        forward = module.forward
        module.forward = lambda *args: forward(*args)

    return replace


def tied(net: Any) -> None:
    net.other = nn.Conv1d(4, 4, 3)
    net.other.weight = net.conv.weight


def without_variance(net: Any) -> None:
    net.norm.eps = 0.0


def evaluates_with_eps_0() -> bool:
    try:
        nn.BatchNorm1d(4, eps=0.0).eval()(X)
    except ValueError:
        return False
    return True


def large(net: Any) -> None:
    net.conv.weight.data.fill_(1e30)
    net.norm.weight.data.fill_(1e30)


def hooked(name: str) -> Callable[[Any], None]:
    return lambda net: getattr(net, name).register_forward_hook(lambda *_: None)


BEGINS = "its input comes from the input of the model; "
ENDS = "; its output goes to the output of the model"
X = torch.randn(3, 4, 9)
REFUSALS: dict[str, tuple[Any, Any, str]] = {
    "103 across an activation": (
        Net(lambda net, x: net.norm(net.conv(x).relu())), X, f"its input comes from relu{ENDS}"),
    "103 across an activation, as a layer": (
        Net(lambda net, x: net.norm(net.act(net.conv(x))), act=nn.ReLU()), X, f"its input comes from ReLU 'act'{ENDS}"),
    "102 the output of the layer is used twice": (
        Net(lambda net, x: (y := net.conv(x)) + net.norm(y)), X,
        "the output of Conv1d 'conv' also goes to add; its output goes to add"),
    "102 the layer is used twice": (
        Net(lambda net, x: (net.norm(net.conv(x)), net.conv(x + 1))), X,
        f"the output of Conv1d 'conv' also goes to the output of the model{ENDS}"),
    "the norm is used twice": (
        Net(lambda net, x: (net.norm(net.conv(x)), net.norm(net.last(x)))), X,
        f"its input also comes from Conv1d 'last'{ENDS}"),
    "the layer behind is used twice": (
        Net(lambda net, x: net.last(net.norm(x)) + net.last(x)), X,
        f"{BEGINS}the input of Conv1d 'last' also comes from the input of the model"),
    "its output is used twice": (
        Net(lambda net, x: net.last(z := net.norm(x)) * z.sum()), X,
        f"{BEGINS}its output is used 2 times"),
    "changed in place between": (
        Net(lambda net, x: (x := x.clone(), z := net.norm(x), x.add_(1), net.last(z))[-1]), X,
        "its input comes from clone; add_ comes between it and Conv1d 'last'"),
    "changed in place": (
        Net(lambda net, x: (y := net.conv(x), y.relu_(), net.norm(y))[-1]), X,
        f"the output of Conv1d 'conv' also goes to relu_{ENDS}"),
    "the weight is read": (
        Net(lambda net, x: net.norm(net.conv(x)) + net.conv.weight.sum()), X,
        "Conv1d 'conv' is used by other code, which reads its parameters; its output goes to add"),
    "in training mode": (
        changed(Net(after_the_conv), lambda net: net.norm.train()), X,
        "in training mode: its statistics are those of each batch. Call model.eval() first"),
    "without running statistics": (
        Net(after_the_conv, norm=norm(1, 4, track_running_stats=False)), X,
        "without running statistics: its statistics are those of each batch"),
    "a forward of its own": (Net(after_the_conv, norm=OwnForward(4)), X, "a batch norm with a forward of its own"),
    "a replaced forward": (
        changed(Net(after_the_conv), replaced("norm")), X, "its forward was replaced on the instance"),
    "a hook": (changed(Net(after_the_conv), hooked("norm")), X, "has hooks"),
    "a hook of the layer": (changed(Net(after_the_conv), hooked("conv")), X, f"Conv1d 'conv' has hooks{ENDS}"),
    "a parametrized norm": (
        Net(after_the_conv, norm=parametrizations.weight_norm(norm(1, 4))), X,
        "parametrized: remove_parametrizations first"),
    "a parametrized layer": (
        Net(after_the_conv, conv=parametrizations.weight_norm(nn.Conv1d(4, 4, 3))), X,
        f"ParametrizedConv1d 'conv' is parametrized: remove_parametrizations first{ENDS}"),
    "an unusual layer": (
        Net(after_the_conv, conv=StandardizedConv(4, 4, 3)), X,
        f"StandardizedConv 'conv' is not torch's own Conv1d{ENDS}"),
    "a replaced forward of the layer": (
        changed(Net(after_the_conv), replaced("conv")), X, f"Conv1d 'conv' is not torch's own Conv1d{ENDS}"),
    "tied weights": (
        changed(Net(after_the_conv), tied), X,
        f"Conv1d 'conv' shares a parameter: conv.weight, other.weight{ENDS}"),
    "no variance, in torch's layer": (
        changed(Net(after_the_conv, norm=norm(1, 4)), without_variance), X, "a variance plus eps is not above 0"),
    "too large": (
        changed(Net(after_the_conv), large), X,
        f"Conv1d 'conv' the folded parameters are not finite in float32{ENDS}"),
    "with lengths": (
        Net(lambda net, x, lengths: net.norm(net.conv(x), lengths=lengths)), (X, torch.tensor([7, 2, 3])),
        "called with lengths: a folded layer does not set padding to 0"),
    "with a mask": (
        Net(lambda net, x, valid: net.norm(net.conv(x), valid)), (X, torch.ones(3, 7, dtype=torch.bool)),
        "called with valid: a folded layer does not set padding to 0"),
    "not called": (Net(lambda net, x: net.conv(x)), X, "not called on the example"),
    "a Linear over the last of three axes": (
        Net(after_the_conv, conv=nn.Linear(9, 4)), X[:, :, :],
        f"Linear 'conv' has its channels on another axis: the norm reads (3, 4, 4){ENDS}"),
    "without an axis for the batch": (
        Net(after_the_conv), X[0, :, :6],
        f"Conv1d 'conv' has its channels on another axis: the norm reads (4, 4){ENDS}"),
    "before a layer that pads with zeros": (
        Net(lambda net, x: net.conv(net.norm(x)), conv=nn.Conv1d(4, 3, 3, padding=1)), X,
        f"{BEGINS}Conv1d 'conv' pads with zeros, which are not normalized: the borders would differ"),
    "before a transposed convolution": (
        Net(lambda net, x: net.conv(net.norm(x)), conv=nn.ConvTranspose1d(4, 3, 3)), X,
        f"{BEGINS}ConvTranspose1d 'conv' is transposed: its outputs have different numbers of inputs"),
    "a model that cannot be traced": (
        Net(lambda net, x: net.norm(net.conv(x)) if x.sum() < 1e9 else x), X,
        "Net.forward cannot be traced: TraceError: "
        "symbolically traced variables cannot be used as inputs to control flow"),
    "a graph that is not what happens": (
        Net(lambda net, x, mask=None: net.norm(net.last(x) if isinstance(x, Tensor) else net.conv(x))), X[:, :, 2:],
        "Net.forward cannot be traced: RuntimeError: its layers are called in another order on the example"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSALS)
def test_102_103_what_is_refused_and_why(case: str) -> None:
    model, example, reason = REFUSALS[case]
    if case == "no variance, in torch's layer" and not evaluates_with_eps_0():
        pytest.skip(f"batch norm of torch {torch.__version__} refuses eps=0 in evaluation too")
    training, eps = model.norm.training, model.norm.eps
    fixed = case not in ("too large", "a parametrized norm", "a parametrized layer")
    model = fill(model) if fixed else model.eval()
    model.norm.training = training if case == "in training mode" else False
    model.norm.eps = 0.0 if case.startswith("no variance") else eps
    original, args = copy.deepcopy(model), example if isinstance(example, tuple) else (example,)
    report = tnt.fold(model, example)
    assert [one.outcome for one in report.left] == [reason]
    assert report.folded == ()
    model.norm.eval(), original.norm.eval()
    torch.testing.assert_close(model(*args), original(*args), rtol=0, atol=0, equal_nan=True)


def folded_like(model: Any, *args: Any, names: list[tuple[str, str]], **kwargs: Any) -> tnt.FoldingReport:
    """fold, and compare with the original in float64 on the example and on another input."""
    model = fill(model).double()
    original = copy.deepcopy(model)
    args = tuple(one.double() if isinstance(one, Tensor) else one for one in args)
    report = tnt.fold(model, kwargs or args)
    assert [(one.name, one.into) for one in report.folded] == names, report
    for given in (args, tuple(3 * one + 1 if isinstance(one, Tensor) else one for one in args)):
        found, expected = (one(*given, **kwargs) for one in (model, original))
        for new, old in zip(
            *([one] if isinstance(one, Tensor) else list(one) for one in (found, expected)), strict=True
        ):
            assert old.isfinite().all()
            assert (new - old).abs().max() <= 1e-12 * (1 + old.abs().max())
    return report


def test_a_pair_that_is_called_twice_is_folded() -> None:
    folded_like(Net(lambda net, x: (net.norm(net.conv(x)), net.norm(net.conv(x.flip(2))))), X, names=[("norm", "conv")])
    conv, batch_norm = nn.Conv1d(4, 4, 3), norm(1, 4)
    folded_like(nn.Sequential(conv, batch_norm, nn.ReLU(), conv, batch_norm), X, names=[("1", "0")])


def test_a_subclass_that_only_adds_something_is_folded() -> None:
    folded_like(Net(after_the_conv, conv=NamedConv()), X, names=[("norm", "conv")])


def test_an_output_size_is_passed_on() -> None:
    model = Net(
        lambda net, x: net.norm(net.conv(x, output_size=(20,))), conv=nn.ConvTranspose1d(4, 4, 3, stride=2, padding=0)
    )
    folded_like(model, X, names=[("norm", "conv")])


def test_truenorms_layer_without_a_variance_gives_its_bias() -> None:
    model = fill(Net(after_the_conv)).double()
    model.norm.eps = 0.0
    model.norm.running_var.zero_()
    expected = model(X.double())
    assert len(tnt.fold(model, X.double()).folded) == 1
    assert torch.equal(model(X.double()), expected)


def test_a_hook_that_sees_what_is_between_is_respected() -> None:
    inner = nn.Sequential(nn.Conv1d(4, 4, 3))
    model = fill(nn.Sequential(inner, norm(1, 4)))
    inner.register_forward_hook(lambda *_: None)
    (left,) = tnt.fold(model, X).left
    assert left.outcome == f"hooks of Sequential '0' see what is between it and Conv1d '0.0'{ENDS}"
    model.register_forward_hook(lambda *_: None)  # sees only what stays the same
    inner._forward_hooks.clear()
    assert len(tnt.fold(model, X).folded) == 1


class Branching(nn.Module):
    """Cannot be traced: what it does depends on values, and what it returns is a dictionary."""

    def __init__(self, *blocks: nn.Module) -> None:
        super().__init__()
        self.blocks, self.conv, self.norm = nn.ModuleList(blocks), nn.Conv1d(4, 4, 1), norm(1, 4)

    def forward(self, x: Tensor, flag: bool = False, mask: Tensor | None = None) -> dict[str, Tensor]:
        if x.sum() > 1e9:
            raise OverflowError
        for block in self.blocks:
            x = block(x, mask=mask) if isinstance(block, Masked) else block(x)
        return {"y": self.norm(self.conv(x)), "shape": torch.tensor(x.shape)}


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 4, 3, padding=1), norm(1, 4, own=True)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        if mask is not None:
            x = x * mask
        y: Tensor = self.norm(self.conv(x)).relu()
        return y


def test_a_model_that_cannot_be_traced_is_folded_in_parts() -> None:
    first, second = Masked(), nn.Sequential(nn.Conv1d(4, 4, 3), norm(1, 4))
    model = fill(Branching(first, first, second))
    original = copy.deepcopy(model)
    report = tnt.fold(model, {"x": X, "mask": None})
    assert [(one.name, one.into) for one in report.folded] == [
        ("blocks.0.norm", "blocks.0.conv"),
        ("blocks.2.1", "blocks.2.0"),
    ]
    (left,) = report.left
    assert left.name == "norm"
    assert left.outcome.startswith("Branching.forward cannot be traced: TraceError: symbolically traced variables")
    assert (model(X)["y"] - original(X)["y"]).abs().max() <= report.output_bound


def test_a_part_that_is_called_in_different_ways_is_left() -> None:
    class Ways(Branching):
        def forward(self, x: Tensor, *args: Any) -> Any:
            assert bool(x.sum() < 1e9)
            return self.blocks[0](self.blocks[0](x), mask=x > 0)

    (left, other) = tnt.fold(fill(Ways(Masked())), X).left
    assert left.outcome == "Masked.forward cannot be traced: TypeError: it is called in different ways"
    assert other.outcome.startswith("Ways.forward cannot be traced")


def test_a_layer_of_a_part_that_is_used_from_outside_is_left() -> None:
    class Reaching(Branching):
        def forward(self, x: Tensor, *args: Any) -> Any:
            block: Any = self.blocks[0]
            return block(x) + (block.conv(x) if bool(x.sum() < 1e9) else x)

    report = tnt.fold(fill(Reaching(Masked())), X)
    assert report.folded == ()
    assert report.left[0].outcome == (
        "Conv1d 'blocks.0.conv' is also used outside of 'blocks.0', the largest part that can be traced; "
        "its output goes to relu"
    )


def test_arguments_with_defaults_keep_them() -> None:
    """torch.fx alone would take the branch of a mask."""
    folded_like(Masked(), X, names=[("norm", "conv")])
    folded_like(Masked(), X, X[:, :1] > 0, names=[("norm", "conv")])
