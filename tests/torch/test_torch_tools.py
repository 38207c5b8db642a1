"""torch's own tools on truenorm's layers: fuse_conv_bn_eval, fuse_modules, fx, update_bn, AveragedModel."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from batch_norms import fill, norm
from torch import Tensor, fx, nn
from torch.ao.quantization import fuse_modules, fuse_modules_qat, fuser_method_mappings
from torch.fx.experimental.optimization import fuse
from torch.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval
from torch.optim.swa_utils import AveragedModel, update_bn

import truenorm.torch as tnt

X = torch.randn(3, 4, 9, generator=torch.Generator().manual_seed(3))


def close(found: Tensor, expected: Tensor) -> None:
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_fuse_conv_bn_eval(dims: int) -> None:
    layer = {1: nn.Conv1d, 2: nn.Conv2d, 3: nn.Conv3d}[dims](4, 6, 2, groups=2)
    model: Any = fill(nn.Sequential(layer, norm(dims, 6, own=True)))
    x = torch.randn(2, 4, *[4, 5, 3][:dims])
    close(fuse_conv_bn_eval(model[0], model[1])(x), model(x))


def test_100_fuse_conv_bn_eval_of_a_transposed_convolution_with_groups() -> None:
    """torch cannot do it, or does it wrong, with groups; `fold` can."""
    layer = nn.ConvTranspose1d(4, 6, 3, groups=2)
    model: Any = fill(nn.Sequential(layer, norm(1, 6, own=True)))
    expected = model(X)
    with pytest.raises(RuntimeError, match="must match the size"):
        fuse_conv_bn_eval(layer, model[1], transpose=True)
    tnt.fold(model, X)
    close(model(X), expected)


def test_fuse_linear_bn_eval() -> None:
    model: Any = fill(nn.Sequential(nn.Linear(4, 6), norm(1, 6, own=True)))
    x = X[:, :, 0]
    close(fuse_linear_bn_eval(model[0], model[1])(x), model(x))


# ---- torch.ao.quantization looks up the exact classes of layers ----


def fuser_methods() -> dict[str, Any]:
    """For fuse_custom_config_dict: torch's own functions for truenorm's layers, as docs/retrofit.md has it."""
    found: dict[tuple[Any, ...], Any] = {}
    for dims in (1, 2, 3):
        conv, own = getattr(nn, f"Conv{dims}d"), getattr(tnt, f"BatchNorm{dims}d")
        found[conv, own] = fuser_method_mappings.fuse_conv_bn
        found[conv, own, nn.ReLU] = fuser_method_mappings.fuse_conv_bn_relu
    found[nn.Linear, tnt.BatchNorm1d] = fuser_method_mappings.fuse_linear_bn
    return {"additional_fuser_method_mapping": found}


@pytest.mark.parametrize("names", [["0", "1"], ["0", "1", "2"]])
def test_fuse_modules_with_the_classes_named(names: list[str]) -> None:
    model = fill(nn.Sequential(nn.Conv1d(4, 6, 3), norm(1, 6, own=True), nn.ReLU()))
    with pytest.raises(AssertionError, match="did not find fuser method"):
        fuse_modules(model, names)
    fused: Any = fuse_modules(model, names, fuse_custom_config_dict=fuser_methods())
    close(fused(X), model(X))
    assert type(fused[1]) is nn.Identity


@pytest.mark.parametrize("training", [False, True])
def test_fuse_modules_of_a_reverted_model(training: bool) -> None:
    """Training aware of quantization makes layers of its own, which check for torch's classes."""
    model = fill(nn.Sequential(nn.Conv1d(4, 6, 3), norm(1, 6), nn.ReLU()))
    tnt.convert(model)
    expected = model(X)
    tool = fuse_modules_qat if training else fuse_modules
    if training:
        with pytest.raises(AssertionError):
            tool(model, ["0", "1", "2"], fuse_custom_config_dict=fuser_methods())
    tnt.revert(model)
    close(tool(model, ["0", "1", "2"])(X), expected)


def test_fuse_modules_after_fold() -> None:
    model = fill(nn.Sequential(nn.Conv1d(4, 6, 3), norm(1, 6, own=True), nn.ReLU()))
    expected = model(X)
    tnt.fold(model, X)
    close(fuse_modules(model, ["0", "2"])(X), expected)


# ---- torch.fx ----


class Norms(nn.Module):
    """Every kind of layer, with and without ragged arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.batch, self.group, self.instance = tnt.BatchNorm1d(4), tnt.GroupNorm(2, 4), tnt.InstanceNorm1d(4)
        self.layer, self.rms, self.pattern = tnt.LayerNorm(9), tnt.RMSNorm(9), tnt.Normalize("b [c] t", 4)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        y = self.group(self.batch(x, lengths=lengths), None, lengths)
        return self.pattern(self.rms(self.layer(self.instance(y, valid=x[:, 0] > -9))))


def test_symbolic_trace_takes_the_layers_for_leaves() -> None:
    model, lengths = Norms(), torch.tensor([9, 2, 5])
    traced = fx.symbolic_trace(model)
    called = [node.target for node in traced.graph.nodes if node.op == "call_module"]
    assert called == ["batch", "group", "instance", "layer", "rms", "pattern"]
    assert torch.equal(traced(X, lengths), copy.deepcopy(model)(X, lengths))
    node = next(node for node in traced.graph.nodes if node.target == "group")
    assert list(node.kwargs) == ["lengths"]


def test_symbolic_trace_then_fold() -> None:
    model = fill(nn.Sequential(nn.Conv1d(4, 6, 3), norm(1, 6, own=True), nn.ReLU()))
    traced, expected = fx.symbolic_trace(model), model(X)
    assert torch.equal(traced(X), expected)
    report = tnt.fold(traced.eval(), X)  # a graph module is a model
    assert [one.into for one in report.folded] == ["0"]
    close(traced(X), expected)


def test_fx_fuse() -> None:
    """It looks for torch's exact classes: truenorm's are left, and right; reverted or folded models have none left."""
    model = fill(nn.Sequential(nn.Conv1d(4, 6, 3), norm(1, 6), nn.ReLU()))
    expected = model(X)
    tnt.convert(model)
    fused = fuse(model)
    close(fused(X), expected)
    assert sum(isinstance(one, nn.BatchNorm1d) for one in fused.modules()) == 1
    tnt.revert(model)
    fused = fuse(model)
    close(fused(X), expected)
    assert not any(isinstance(one, nn.BatchNorm1d) for one in fused.modules())
    tnt.convert(model)
    tnt.fold(model, X)
    close(fuse(model)(X), expected)


# ---- update_bn passes the first element of a tuple or list, or the batch itself ----


class Ragged(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(4, 6, 3, padding=1), tnt.BatchNorm1d(6)

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        valid = torch.arange(x.shape[2]) < lengths[:, None]
        return self.norm(self.conv(x * valid[:, None]), lengths=lengths)


class FromBatch(nn.Module):
    """A batch is one argument: what update_bn needs."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: dict[str, Tensor]) -> Any:
        return self.model(**batch)


def batches() -> Iterator[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    for lengths in ([9, 2, 5], [1, 4, 3], [8, 8, 1]):
        x = 2 + 3 * torch.randn(3, 4, max(lengths) + 2, generator=generator)
        yield {"x": x, "lengths": torch.tensor(lengths)}


@pytest.mark.parametrize("averaged", [False, True])
def test_update_bn_with_lengths(averaged: bool) -> None:
    model: Any = Ragged()
    own: Any = AveragedModel(model) if averaged else model
    update_bn(batches(), FromBatch(own))
    norm_of = own.module.norm if averaged else own.norm
    means, variances = [], []
    for batch in batches():  # the same sequences, one at a time, without padding
        parts = [
            model.conv(x[:, :length][None])[0] for x, length in zip(batch["x"], batch["lengths"].tolist(), strict=True)
        ]
        values = torch.cat(parts, 1).detach().double()
        means.append(values.mean(1))
        variances.append(values.var(1))
    close(norm_of.running_mean.double(), torch.stack(means).mean(0))
    close(norm_of.running_var.double(), torch.stack(variances).mean(0))
    assert norm_of.num_batches_tracked == 3
    assert norm_of.momentum == 0.1


def test_update_bn_drops_lengths_from_tuples() -> None:
    """Why the batches above are dictionaries: of a tuple, update_bn passes on the first element only."""
    with pytest.raises(TypeError, match="lengths"):
        update_bn(((batch["x"], batch["lengths"]) for batch in batches()), Ragged())


def test_108_update_bn_leaves_frozen_norms_as_they_are() -> None:
    model = fill(nn.Sequential(nn.Conv1d(4, 6, 3), norm(1, 6), norm(1, 6)))
    tnt.convert(model, to="frozen", where=lambda name, _: name == "1")
    before = copy.deepcopy(model.state_dict())
    update_bn([X, X + 1], model)
    after = model.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before if name.startswith("1."))
    assert not torch.equal(after["2.running_mean"], before["2.running_mean"])
