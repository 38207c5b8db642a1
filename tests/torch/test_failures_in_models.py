"""Failures of normalization layers that really happened: model surgery, checkpoints, and exported graphs."""

import copy
import io
import json
import pickle
import random
import warnings
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from errors import assert_message
from fingerprint import fingerprint
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn
CHECKPOINTS = json.loads((Path(__file__).parent / "checkpoints.json").read_text("utf-8"))


# ---- J: model surgery ----


class NamedNorm(nn.BatchNorm1d):
    """A subclass that inherits forward."""

    note = "mine"


def frozen() -> Any:
    layer = nn.BatchNorm1d(6).eval()
    for parameter in layer.parameters():
        parameter.requires_grad_(False)
    return layer


def counted() -> Any:
    layer = nn.BatchNorm1d(6, momentum=None)
    layer(normal(4, 6))
    return layer


def hooked() -> Any:
    layer: Any = nn.BatchNorm1d(6)
    layer.calls = []
    layer.register_forward_pre_hook(lambda *_: layer.calls.append("before"))
    layer.register_forward_hook(lambda *_: layer.calls.append("after"))
    layer.register_full_backward_hook(lambda *_: layer.calls.append("backward"))
    layer._register_state_dict_hook(lambda *_: layer.calls.append("saved"))
    return layer


def quantized() -> Any:
    layer: Any = nn.BatchNorm1d(6)
    layer.qconfig = object()
    return layer


SURGERY: dict[str, Callable[[], Any]] = {
    "requires_grad and training (pytorch#22569, #111998)": frozen,
    "num_batches_tracked (apex#380)": counted,
    "qconfig (pytorch#45317)": quantized,
    "device (vision#2280)": lambda: nn.BatchNorm1d(6, device="meta"),
    "dtype": lambda: nn.BatchNorm1d(6).double(),
    "hooks": hooked,
    "parametrization": lambda: nn.utils.parametrizations.weight_norm(nn.LayerNorm(6)),
    "subclass": lambda: NamedNorm(6),
    "no weights": lambda: nn.BatchNorm1d(6, affine=False, track_running_stats=False),
}


@pytest.mark.parametrize("case", SURGERY)
def test_104_nothing_is_lost_there_or_back(case: str) -> None:
    layer = SURGERY[case]()
    model = nn.ModuleDict({"one": layer, "shared": layer})
    optimizer = torch.optim.SGD([*model.parameters(), nn.Parameter(torch.ones(1))], lr=0.1)
    before, was, training = fingerprint(model), type(layer), layer.training
    tnt.convert(model)
    assert model["one"] is model["shared"] is layer  # pytorch#41081: converted once, and the same object
    assert issubclass(type(layer), was.__mro__[1] if case == "parametrization" else was)
    assert layer.training == training
    between = fingerprint(model)
    for part in ("_parameters", "_buffers", "modules", "hooks"):
        assert between[f"one: {part}"] == before[f"one: {part}"]
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert {id(one) for one in model.parameters()} <= held
    if case == "hooks":
        layer.calls.clear()
        copied = copy.deepcopy(layer.state_dict())
        layer(normal(4, 6).requires_grad_()).backward(normal(4, 6, seed=1))
        assert layer.calls == ["saved", "before", "after", "backward"]
        layer.load_state_dict(copied)
    assert getattr(layer, "note", "mine") == "mine"
    tnt.revert(model)
    assert type(layer) is was
    assert fingerprint(model) == before


def test_81_104_torch_s_conversion_to_sync_batch_norm_says_what_to_call() -> None:
    """mmengine#1624: a converter that loses `training=False`. torch's would also lose our layers and what they know."""
    text = (
        "convert_sync_batchnorm: layers of torch.nn, got truenorm.BatchNorm1d: torch's SyncBatchNorm counts padding. "
        "Call truenorm.torch.sync(model) instead, in Lightning too, without sync_batchnorm=True."
    )
    model = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6).eval(), nn.ReLU())
    tnt.convert(model)
    before = fingerprint(model)
    assert_message(lambda: nn.SyncBatchNorm.convert_sync_batchnorm(model), TypeError, text)
    assert_message(lambda: nn.SyncBatchNorm.convert_sync_batchnorm(model[1]), TypeError, text)
    assert fingerprint(model) == before
    tnt.sync(model)  # ours changes no flag
    assert [layer.training for layer in model] == [True, False, True]
    tnt.unsync(model)
    model[1].qconfig = "of quantization"
    assert_message(lambda: nn.SyncBatchNorm.convert_sync_batchnorm(model), TypeError, text)
    assert copy.deepcopy(model)[1].qconfig == "of quantization"
    del model[1].qconfig
    assert not hasattr(model[1], "qconfig")  # for all others it is an attribute as before
    with pytest.raises(AttributeError, match="'BatchNorm1d' object has no attribute 'qconfig'"):
        _ = model[1].qconfig
    with pytest.raises(AttributeError):
        del model[1].qconfig
    tnt.revert(model)
    assert type(nn.SyncBatchNorm.convert_sync_batchnorm(model)[1]) is nn.SyncBatchNorm


def reload(model: Any) -> Any:
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


AFTER_FREEZING: dict[str, Callable[[Any], Any]] = {
    "train": lambda model: model.train(),
    "eval": lambda model: model.eval(),
    "deepcopy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "save": reload,
    "load": lambda model: (model.load_state_dict(copy.deepcopy(model.state_dict())), model)[1],
    "requires_grad_": lambda model: model.requires_grad_(True),
    "double": lambda model: model.double().float(),
    "convert": lambda model: (tnt.convert(model), model)[1],
}


def frozen_model(subclass: bool) -> Any:
    torch.manual_seed(0)
    model: Any = nn.Sequential(nn.Conv1d(4, 6, 3), (NamedNorm if subclass else nn.BatchNorm1d)(6))
    model[1].running_mean.copy_(normal(6, seed=3))
    model[1].running_var.copy_(normal(6, seed=4).abs() + 0.5)
    tnt.convert(model, to="frozen")
    return model


@pytest.mark.parametrize("subclass", [False, True])
def test_108_a_frozen_layer_stays_frozen_whatever_is_called(subclass: bool) -> None:
    """maskrcnn-benchmark#675, tensorflow#10857, pytorch#49229."""
    model = frozen_model(subclass)
    expected = {name: one.clone() for name, one in model[1].named_buffers()}
    x, lengths = normal(3, 4, 9), torch.tensor([7, 2, 5])
    y = model(x)
    orders = [[name] for name in AFTER_FREEZING] + [random.Random(i).sample(list(AFTER_FREEZING), 9) for i in range(2)]
    for order in orders:
        changed = copy.deepcopy(model)
        for name in order:
            changed = AFTER_FREEZING[name](changed)
            torch.testing.assert_close(changed(x), y, msg=f"{name} of {order}")
        assert not changed.train()[1].training
        torch.testing.assert_close(changed(x), y, msg=f"{order}")
        changed[1](changed[0](x), lengths=lengths)
        for name, one in changed[1].named_buffers():
            assert torch.equal(one, expected[name]), (order, name)


@pytest.mark.slow
@pytest.mark.parametrize("subclass", [False, True])
def test_108_a_frozen_layer_stays_frozen_in_graphs(subclass: bool) -> None:
    model, x = frozen_model(subclass), normal(3, 4, 9)
    y = model(x)
    for make in (
        lambda one: torch.compile(one, backend="eager", fullgraph=True),
        lambda one: torch.export.export(one, (x,)).module(),
    ):
        graph = make(copy.deepcopy(model).train())
        torch.testing.assert_close(graph(x), y)
        buffers = {name.removeprefix("_orig_mod."): one for name, one in graph.named_buffers()}
        assert all(torch.equal(buffers[name], one) for name, one in model.named_buffers())


def test_108_weights_of_a_frozen_layer_are_trained_and_its_statistics_are_constants() -> None:
    model: Any = nn.Sequential(nn.BatchNorm1d(6))
    tnt.convert(model, to="frozen")
    x = normal(4, 6).requires_grad_()
    dy = normal(4, 6, seed=1)
    model.train()(x).backward(dy)
    torch.testing.assert_close(x.grad, dy / (1 + model[0].eps) ** 0.5)  # no gradient through statistics
    torch.testing.assert_close(model[0].bias.grad, dy.sum(0))
    tnt.revert(model)
    assert model[0].training
    model(x)
    assert int(model[0].num_batches_tracked) == 1


# ---- K: checkpoints ----


def checkpoint(name: str) -> Any:
    """A state_dict as a version of torch wrote it: tensors, and the version of each layer's format."""
    found = CHECKPOINTS[name]
    state: Any = OrderedDict((key, torch.tensor(value)) for key, value in found["state"].items())
    if found["versions"] is not None:
        state._metadata = OrderedDict((layer, {"version": number}) for layer, number in found["versions"].items())
    return state


def checkpointed(library: Any) -> Any:
    return nn.Sequential(
        OrderedDict(
            batch=library.BatchNorm1d(3),
            instance=library.InstanceNorm1d(3, affine=True, track_running_stats=True),
            group=library.GroupNorm(3, 3),
            layer=library.LayerNorm(4),
        )
    )


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_109_checkpoints_of_every_version_load_strictly_and_go_back(name: str) -> None:
    """pytorch#8430, #8481, #5883: num_batches_tracked came with version 2 of the format."""
    ours, theirs = checkpointed(tnt), checkpointed(nn)
    for model in (ours, theirs):
        model.batch.num_batches_tracked.fill_(5)  # a key that is not there leaves it
        assert not any(model.load_state_dict(checkpoint(name), strict=True))
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key
    for key, value in CHECKPOINTS[name]["state"].items():
        assert torch.equal(ours.state_dict()[key], torch.tensor(value)), key
    assert ours.state_dict()._metadata == theirs.state_dict()._metadata
    back = checkpointed(nn)
    back.load_state_dict(ours.state_dict(), strict=True)
    x = normal(5, 3, 4)
    torch.testing.assert_close(ours.eval()(x), back.eval()(x))
    converted = checkpointed(nn)
    tnt.convert(converted)
    converted.load_state_dict(checkpoint(name), strict=True)
    assert torch.equal(converted.eval()(x), ours(x))


def test_109_a_key_too_many_or_too_few_is_an_error_in_the_current_version() -> None:
    for change in ("num_batches_tracked", "running_var"):
        state = tnt.BatchNorm1d(3).state_dict()
        del state[change]
        with pytest.raises(RuntimeError, match=f'Missing key\\(s\\) in state_dict: "{change}"'):
            tnt.BatchNorm1d(3).load_state_dict(state)
    state = tnt.BatchNorm1d(3).state_dict() | {"skipped_batches": torch.tensor(1)}
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "skipped_batches"'):
        tnt.BatchNorm1d(3).load_state_dict(state)


def resumable() -> tuple[Any, Any]:
    torch.manual_seed(2)
    model = nn.Sequential(
        nn.Conv1d(3, 6, 3, padding=1),
        tnt.BatchNorm1d(6, momentum=None),
        nn.Tanh(),
        tnt.GroupNorm(2, 6),
        nn.Conv1d(6, 4, 3),
        tnt.InstanceNorm1d(4, affine=True, track_running_stats=True),
        tnt.Normalize("[b] c [t]", 4, track_running_stats=True),
        tnt.LayerNorm(7),
        tnt.RMSNorm(7),
    )
    return model, torch.optim.Adam(model.parameters(), lr=1e-2)


def train(model: Any, optimizer: Any, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        model(2 * normal(5, 3, 9, seed=step) + 1).backward(normal(5, 4, 7, seed=100 + step))
        optimizer.step()


def test_112_a_resumed_training_continues_with_the_same_bits() -> None:
    """equinox#172: running state was not saved at all."""
    model, optimizer = resumable()
    train(model, optimizer, range(3))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    train(model, optimizer, range(3, 6))
    resumed, again = resumable()
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    assert any(not torch.equal(saved["model"][key], value) for key, value in resumed.state_dict().items())
    resumed.load_state_dict(saved["model"])
    again.load_state_dict(saved["optimizer"])
    train(resumed, again, range(3, 6))
    for key, value in model.state_dict().items():
        assert torch.equal(resumed.state_dict()[key], value), key
    x = normal(5, 3, 9, seed=50)
    assert torch.equal(resumed.eval()(x), model.eval()(x))


# ---- L: exported graphs ----


ZOO: dict[str, Callable[[], Any]] = {
    "BatchNorm1d": lambda: tnt.BatchNorm1d(4, eps=1e-3),
    "BatchNorm1d, momentum=None": lambda: tnt.BatchNorm1d(4, momentum=None),
    "BatchNorm1d, track_running_stats=False": lambda: tnt.BatchNorm1d(4, track_running_stats=False),
    "BatchNorm1d, affine=False": lambda: tnt.BatchNorm1d(4, affine=False),
    "GroupNorm": lambda: tnt.GroupNorm(2, 4, eps=1e-3),
    "InstanceNorm1d": lambda: tnt.InstanceNorm1d(4, affine=True),
    "InstanceNorm1d, track_running_stats=True": lambda: tnt.InstanceNorm1d(4, track_running_stats=True),
    "LayerNorm": lambda: tnt.LayerNorm(9, eps=1e-3),
    "LayerNorm, bias=False": lambda: tnt.LayerNorm((4, 9), bias=False),
    "RMSNorm": lambda: tnt.RMSNorm(9, eps=1e-3),
    "Normalize": lambda: tnt.Normalize("b [c] t", 4),
}


class Zoo(torch.nn.Module):
    """All layers after one convolution: with lengths, without, and two in a row. One graph takes one export."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(4)
        self.convolution, self.norms = nn.Conv1d(4, 4, 3, padding=1), nn.ModuleList(make() for make in ZOO.values())
        with torch.no_grad():
            for i, parameter in enumerate(self.norms.parameters()):
                parameter.copy_(normal(*parameter.shape, seed=i) + 0.5)
        for norm in self.norms:
            if getattr(norm, "running_mean", None) is not None:
                norm(2 * normal(6, 4, 9, seed=8) + 3)

    def forward(self, x: Any, lengths: Any) -> Any:
        x = self.convolution(x)
        found = []
        for norm in self.norms:
            plain = norm(x)
            rows = isinstance(norm, nn.LayerNorm | nn.RMSNorm)
            found += [plain, norm(torch.tanh(plain)) if rows else norm(x, lengths=lengths)]
        return tuple(found)


@pytest.fixture(scope="module")
def zoo() -> tuple[Any, list[np.ndarray], dict[str, np.ndarray]]:
    """A graph, and what the layers compute from inputs that are not those of the export."""
    pytest.importorskip("onnxscript", reason="onnxscript is not installed")
    model = Zoo().eval()
    inputs = 2 * normal(3, 4, 9, seed=1) + 3, torch.tensor([1, 9, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            model, (normal(3, 4, 9), torch.tensor([9, 2, 5])), dynamo=True, verbose=False, optimize=False
        )
    proto = program.model_proto
    feed = {one.name: value.numpy() for one, value in zip(proto.graph.input, inputs, strict=True)}
    return proto, [one.detach().numpy() for one in model(*inputs)], feed


def assert_equal_outputs(found: list[Any], expected: list[np.ndarray]) -> None:
    for name, one, other in zip((name for name in ZOO for _ in range(2)), found, expected, strict=True):
        assert one.shape == other.shape
        assert np.isfinite(one).all()
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=2e-6, err_msg=name)


@pytest.mark.slow
def test_114_graphs_of_all_layers_give_their_numbers(zoo: Any) -> None:
    """pytorch#75252, #45333, #40074: wrong graphs without running statistics, and with momentum=None."""
    reference = pytest.importorskip("onnx.reference", reason="onnx is not installed")
    proto, expected, feed = zoo
    assert_equal_outputs(reference.ReferenceEvaluator(proto).run(None, feed), expected)


@pytest.mark.slow
@pytest.mark.parametrize("level", ["ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED", "ORT_ENABLE_ALL"])
def test_115_optimizations_of_onnxruntime_change_nothing(zoo: Any, level: str) -> None:
    """onnxruntime#17689, #4293, #18959: fusions of layer norms changed values by 9.8, or the shape."""
    runtime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    proto, expected, feed = zoo
    options = runtime.SessionOptions()
    options.graph_optimization_level = getattr(runtime.GraphOptimizationLevel, level)
    session = runtime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    assert_equal_outputs(session.run(None, feed), expected)
