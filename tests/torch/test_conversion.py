"""`convert` and `revert`: truenorm layers in somebody else's model, and nothing else changed."""

import copy
import io
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fingerprint import fingerprint
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import truenorm.torch as tnt

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "BatchNorm1d": lambda: nn.BatchNorm1d(6, eps=1e-3, momentum=None),
    "BatchNorm2d": lambda: nn.BatchNorm2d(6, affine=False),
    "BatchNorm3d": lambda: nn.BatchNorm3d(6, track_running_stats=False),
    "InstanceNorm1d": lambda: nn.InstanceNorm1d(6, affine=True, track_running_stats=True),
    "InstanceNorm2d": lambda: nn.InstanceNorm2d(6),
    "InstanceNorm3d": lambda: nn.InstanceNorm3d(6),
    "GroupNorm": lambda: nn.GroupNorm(3, 6, eps=1e-4),
    "LayerNorm": lambda: nn.LayerNorm((4, 6), bias=False),
    "RMSNorm": lambda: nn.RMSNorm(6, eps=1e-4),
    "LazyBatchNorm1d": nn.LazyBatchNorm1d,
    "LazyInstanceNorm2d": nn.LazyInstanceNorm2d,
}
SHAPES = {
    "BatchNorm1d": (5, 6, 7), "BatchNorm2d": (5, 6, 3, 4), "BatchNorm3d": (5, 6, 2, 3, 4),
    "InstanceNorm1d": (5, 6, 7), "InstanceNorm2d": (5, 6, 3, 4), "InstanceNorm3d": (5, 6, 2, 3, 4),
    "GroupNorm": (5, 6, 7), "LayerNorm": (5, 4, 6), "RMSNorm": (5, 4, 6),
    "LazyBatchNorm1d": (5, 6, 7), "LazyInstanceNorm2d": (5, 6, 3, 4),
}  # fmt: skip


class NamedNorm(nn.BatchNorm1d):
    """A subclass that adds something, and inherits forward."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.note = "mine"

    def doubled(self) -> int:
        return 2 * self.num_features


class OwnForward(nn.BatchNorm1d):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return 2 * super().forward(input)


class ForeignNorm(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x - x.mean()


def rich_model() -> nn.Sequential:
    """Layers with everything that conversions are known to lose."""
    torch.manual_seed(1)
    shared = nn.BatchNorm1d(6)
    frozen = nn.BatchNorm1d(6).eval()
    frozen.weight.requires_grad_(False)
    hooked = nn.GroupNorm(2, 6)
    hooked.register_forward_hook(lambda *_: None)
    hooked.register_full_backward_hook(lambda *_: None)
    hooked.register_state_dict_post_hook(lambda *_: None)
    noted: Any = nn.LayerNorm(7)
    noted.qconfig, noted.padding = object(), "of somebody else"
    counted: Any = nn.BatchNorm1d(6)
    counted.register_buffer("extra", torch.ones(2), persistent=False)
    counted.child = nn.Linear(2, 2)
    double = nn.BatchNorm1d(6).double()
    model = nn.Sequential(
        nn.Conv1d(6, 6, 3, padding=1), shared, shared, frozen, hooked, noted, counted, NamedNorm(6), double,
        parametrizations.weight_norm(nn.LayerNorm(7)), *(make() for make in LAYERS.values()),
    )  # fmt: skip
    with torch.no_grad():
        for one in model.parameters():
            if not isinstance(one, nn.UninitializedParameter):
                one.uniform_(0.5, 1.5)
    return model


@pytest.mark.parametrize("kind", LAYERS)
@pytest.mark.parametrize("training", [True, False])
def test_a_converted_layer_computes_what_it_did(kind: str, training: bool) -> None:
    torch.manual_seed(3)
    layer = LAYERS[kind]()
    x = 3 + 2 * torch.randn(SHAPES[kind])
    if kind.startswith("Lazy"):
        layer(x)
    twin = copy.deepcopy(layer)
    for one in (layer, twin):
        one.train(training)
    report = tnt.convert(layer)
    assert len(report.changed) == 1
    assert isinstance(layer, getattr(tnt, kind.removeprefix("Lazy")))
    torch.testing.assert_close(layer(x), twin(x), rtol=2e-5, atol=2e-5)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], value)


def test_a_converted_layer_takes_lengths() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6))
    tnt.convert(model)
    x, lengths = torch.randn(4, 6, 9), torch.tensor([9, 2, 5, 1])
    own = tnt.BatchNorm1d(6)
    assert torch.equal(model[0](x, lengths=lengths), own(x, lengths=lengths))


def test_revert_after_convert_is_the_identity() -> None:
    model = rich_model()
    before = fingerprint(model)
    tnt.convert(model, padding="keep", on_single="running")
    assert fingerprint(model) != before
    tnt.revert(model)
    assert fingerprint(model) == before


@pytest.mark.parametrize("to", ["group", "layer", "rms", "frozen"])
def test_revert_after_a_change_of_kind_is_the_identity(to: Any) -> None:
    model = rich_model()
    before = fingerprint(model)
    tnt.convert(model, to=to)
    tnt.convert(model, to="layer")  # once more: the first state is what comes back
    tnt.revert(model)
    assert fingerprint(model) == before


def test_nothing_but_classes_changes() -> None:
    model = rich_model()
    before = fingerprint(model)
    optimizer = torch.optim.SGD((one for one in model.parameters() if one.requires_grad), lr=0.1)
    tnt.convert(model)
    after = fingerprint(model)
    for key, value in before.items():
        if key.endswith(": layer"):
            assert value[0] == after[key][0], key
            assert value[2] == after[key][2], key
        elif not key.endswith(": attributes"):
            assert value == after[key], key
    held = {id(one) for group in optimizer.param_groups for one in group["params"]}
    assert held == {id(one) for one in model.parameters() if one.requires_grad}


def test_subclasses_keep_what_they_add() -> None:
    model = nn.Sequential(NamedNorm(6))
    tnt.convert(model)
    layer: Any = model[0]
    assert isinstance(layer, NamedNorm)
    assert isinstance(layer, tnt.BatchNorm1d)
    assert (layer.note, layer.doubled(), type(layer).__name__) == ("mine", 12, "NamedNorm")
    again = pickle.loads(pickle.dumps(model))
    assert isinstance(again[0], NamedNorm)
    assert isinstance(again[0], tnt.BatchNorm1d)
    other = copy.deepcopy(model)
    for one in (again, other):
        tnt.revert(one)
        assert type(one[0]) is NamedNorm


def test_parametrized_layers_stay_parametrized() -> None:
    layer = parametrizations.weight_norm(nn.LayerNorm(6))
    x = torch.randn(4, 6)
    expected = layer(x)
    tnt.convert(layer)
    torch.testing.assert_close(layer(x), expected)
    assert parametrize.is_parametrized(layer)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is tnt.LayerNorm
    torch.testing.assert_close(layer(x), expected)
    tnt.revert(layer)
    assert type(layer) is nn.LayerNorm
    torch.testing.assert_close(layer(x), expected)


def test_a_parametrization_that_came_later_must_go_first() -> None:
    model = nn.Sequential(nn.LayerNorm(6))
    tnt.convert(model)
    parametrizations.weight_norm(model[0])
    report = tnt.revert(model)
    assert str(report) == (
        "0 normalization layers reverted\n"
        "1 left as it is\n"
        "  0  truenorm.ParametrizedLayerNorm  parametrized after it was converted: remove_parametrizations first"
    )
    parametrize.remove_parametrizations(model[0], "weight")
    tnt.revert(model)
    assert type(model[0]) is nn.LayerNorm


def test_the_report_says_what_was_left_and_why() -> None:
    replaced: Any = nn.GroupNorm(2, 6)
    replaced.forward = lambda x: x
    model = nn.ModuleDict(
        {
            "a": nn.BatchNorm1d(6),
            "own": OwnForward(6),
            "sync": nn.SyncBatchNorm(6),
            "replaced": replaced,
            "foreign": ForeignNorm(),
            "compiled": torch.jit.script(nn.BatchNorm1d(6)),
            "already": tnt.BatchNorm1d(6),
            "linear": nn.Linear(2, 2),
        }
    )
    assert str(tnt.convert(model)) == (
        "1 normalization layer converted\n"
        "  a  BatchNorm1d  truenorm.BatchNorm1d\n"
        "5 left as they are\n"
        "  own       OwnForward     a subclass of BatchNorm1d with a forward of its own\n"
        "  sync      SyncBatchNorm  of torch, which counts padding: convert the model before, then call sync(model)\n"
        "  replaced  GroupNorm      its forward was replaced on the instance\n"
        "  foreign   ForeignNorm    not a torch.nn layer; if it averages over positions, padding counts\n"
        "  compiled  BatchNorm1d    compiled by torch.jit: convert the model before"
    )
    tnt.revert(model)
    assert type(model["already"]) is tnt.BatchNorm1d  # not converted, so not reverted


def test_the_model_itself_may_be_a_norm() -> None:
    layer = nn.BatchNorm1d(3)
    assert str(tnt.convert(layer)).endswith("  (the model)  BatchNorm1d  truenorm.BatchNorm1d")


def test_layers_can_be_chosen() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(6))
    report = tnt.convert(model, where=lambda name, layer: isinstance(layer, nn.BatchNorm1d))
    assert [change.name for change in report.changed] == ["0"]
    assert type(model[1]) is nn.LayerNorm


@pytest.mark.parametrize("options", [{}, {"to": "group", "groups": 5}])
def test_an_error_half_way_leaves_the_model_as_it_was(options: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.BatchNorm1d(5), NamedNorm(10), nn.GroupNorm(2, 6), nn.BatchNorm1d(6))
    if not options:

        def fail(self: Any) -> Any:
            raise MemoryError

        monkeypatch.setattr(tnt.GroupNorm, "_make_norms", fail)
    for converted in (False, True):
        if converted:
            monkeypatch.undo()
            tnt.convert(model)
            options = {"to": "group", "groups": 5}
        before = fingerprint(model)
        with pytest.raises((MemoryError, ValueError)):
            tnt.convert(model, **options)
        assert fingerprint(model) == before


def test_to_group_is_torch_s_group_norm_with_the_same_parameters() -> None:
    model = nn.Sequential(nn.BatchNorm2d(64, eps=1e-3), nn.BatchNorm2d(6))
    parameters = list(model.parameters())
    tnt.convert(model, to="group")
    assert [type(one) for one in model] == [tnt.GroupNorm, tnt.GroupNorm]
    assert [one.num_groups for one in model] == [32, 2]
    assert all(one is other for one, other in zip(model.parameters(), parameters, strict=True))
    assert list(model.state_dict()) == ["0.weight", "0.bias", "1.weight", "1.bias"]
    expected = nn.GroupNorm(32, 64, eps=1e-3)
    x = torch.randn(2, 64, 3, 3)
    torch.testing.assert_close(model[0](x), expected(x))
    tnt.convert(model, to="group", groups=2)  # it is one already
    assert [one.num_groups for one in model] == [32, 2]


@pytest.mark.parametrize("to", ["layer", "rms"])
@pytest.mark.parametrize("source", [nn.BatchNorm1d(6), nn.GroupNorm(3, 6), nn.InstanceNorm1d(6)])
def test_to_layer_normalizes_each_position_over_its_channels(source: nn.Module, to: Any) -> None:
    layer: Any = copy.deepcopy(source)
    tnt.convert(layer, to=to)
    x = 2 + torch.randn(4, 6, 9)
    peer: Any = nn.LayerNorm(6) if to == "layer" else nn.RMSNorm(6, eps=1e-5)
    expected = peer(x.mT).mT
    torch.testing.assert_close(layer(x), expected)
    y = layer(x, lengths=torch.tensor([9, 1, 4, 9]))
    torch.testing.assert_close(y[2, :, :4], expected[2, :, :4])
    assert not y[2, :, 4:].any()


def test_to_frozen_always_uses_the_running_statistics() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6), nn.LayerNorm(9), NamedNorm(6))
    model[0].get_buffer("running_mean").fill_(3.0)
    expected = copy.deepcopy(model).eval()
    tnt.convert(model, to="frozen")
    model.train()
    x = torch.randn(4, 6, 9)
    before = fingerprint(model)
    torch.testing.assert_close(model(x), expected(x))
    assert fingerprint(model) == before
    again = pickle.loads(pickle.dumps(model))
    for one in (model, again.train()):
        assert isinstance(one[2], NamedNorm)
        assert not one[0].training
        assert not one[2].training
    assert model[1].training
    assert [name for name, one in model.named_parameters() if one.requires_grad] == [
        "0.weight", "0.bias", "1.weight", "1.bias", "2.weight", "2.bias",
    ]  # fmt: skip


def test_running_statistics_follow_the_layer_while_they_are_set_aside() -> None:
    model = nn.Sequential(nn.BatchNorm1d(6))
    tnt.convert(model, to="group")
    tnt.revert(model.to("meta"))
    assert model[0].running_mean is not None
    assert model[0].running_mean.device.type == "meta"


def test_a_converted_model_can_be_saved_and_compiled() -> None:
    model = nn.Sequential(nn.Conv1d(6, 6, 3), nn.BatchNorm1d(6), nn.GroupNorm(3, 6))
    tnt.convert(model)
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    again = torch.load(file, weights_only=False)
    x = torch.randn(4, 6, 9)
    assert torch.equal(again.eval()(x), model.eval()(x))
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(x), model(x))


def test_a_training_step_after_conversion() -> None:
    model = nn.Sequential(nn.Conv1d(6, 6, 3), nn.BatchNorm1d(6))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tnt.convert(model)
    before = [one.detach().clone() for one in model.parameters()]
    (model(torch.randn(4, 6, 9)) * torch.randn(4, 6, 7)).sum().backward()
    optimizer.step()
    assert not any(torch.equal(one, old) for one, old in zip(list(model.parameters())[2:], before[2:], strict=True))


MISTAKES: list[tuple[Callable[[], Any], type[Exception], str]] = [
    (
        lambda: tnt.convert([nn.BatchNorm1d(3)]),  # type: ignore[arg-type]
        TypeError,
        "convert: model must be a torch.nn.Module, got list.",
    ),
    (lambda: tnt.revert(None), TypeError, "revert: model must be a torch.nn.Module, got NoneType."),  # type: ignore[arg-type]
    (
        lambda: tnt.convert(nn.BatchNorm1d(3), to="batch"),  # type: ignore[arg-type]
        ValueError,
        "convert: to is 'group', 'layer', 'rms', 'frozen' or None, got 'batch'.",
    ),
    (
        lambda: tnt.convert(nn.BatchNorm1d(3), groups=3),
        ValueError,
        "convert: groups goes with to='group', got to=None.",
    ),
    (
        lambda: tnt.convert(nn.BatchNorm1d(3), to="group", groups=0),
        ValueError,
        "convert: groups is a whole number >= 1, got 0.",
    ),
    (
        lambda: tnt.convert(nn.Sequential(nn.BatchNorm1d(3)), to="group", groups=2),
        ValueError,
        "convert: groups must divide the 3 channels of '0', got 2.",
    ),
]


@pytest.mark.parametrize("number", range(len(MISTAKES)))
def test_mistakes_are_named(number: int) -> None:
    call, error, text = MISTAKES[number]
    with pytest.raises(error, match=f"^{re.escape(text)}$"):
        call()


def test_lazy_layers_can_be_converted_but_not_yet_replaced() -> None:
    model = nn.Sequential(nn.LazyBatchNorm1d())
    report = tnt.convert(model, to="group")
    assert "the number of its channels is not known yet: run the model once before" in str(report)
    tnt.convert(model)
    model(torch.randn(4, 6, 9))
    assert type(model[0]) is tnt.BatchNorm1d
    tnt.revert(model)
    assert type(model[0]) is nn.BatchNorm1d
