"""`freeze` and `thaw`: statistics are constants until they are thawed, whatever is called in between."""

import copy
import pickle
import random
from typing import Any

import pytest
from errors import assert_message
from fingerprint import fingerprint
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


def make_model() -> Any:
    """Three kinds of layers with running statistics, and some without, as they are after training."""
    torch.manual_seed(0)
    model: Any = nn.Sequential(
        nn.Conv1d(3, 4, 3, padding=1),
        tnt.BatchNorm1d(4),
        tnt.InstanceNorm1d(4, affine=True, track_running_stats=True),
        tnt.Normalize("[b] c [t]", 4, track_running_stats=True),
        tnt.GroupNorm(2, 4),
        nn.InstanceNorm1d(4),
    )
    for seed in range(2):
        model(normal(5, 3, 7, seed=seed))
    for seed, parameter in enumerate(model.parameters()):
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(seed))
    return model


def buffers(model: Any) -> dict[str, Any]:
    return {name: one.clone() for name, one in model.named_buffers()}


def assert_same(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for name, one in expected.items():
        assert torch.equal(found[name], one), name


AFTER = {
    "train": lambda model: model.train(),
    "eval": lambda model: model.eval(),
    "copy": copy.deepcopy,
    "pickle": lambda model: pickle.loads(pickle.dumps(model)),
    "load": lambda model: (model.load_state_dict(copy.deepcopy(model.state_dict())), model)[1],
    "double": lambda model: model.double().float(),
    "convert": lambda model: (tnt.convert(model), model)[1],
    "reset": lambda model: (model[1].reset_running_stats(), model)[1],
    "update_bn": lambda model: (torch.optim.swa_utils.update_bn([normal(5, 3, 7)], model), model)[1],
    "freeze again": lambda model: (tnt.freeze(model), model)[1],
}


def test_108_frozen_statistics_stay_whatever_is_called() -> None:
    model, x = make_model(), normal(4, 3, 6, seed=9)
    expected = model.eval()(x)
    tnt.freeze(model.train())
    before = buffers(model)
    torch.testing.assert_close(model(x), expected, rtol=0, atol=0)
    for order in [[name] for name in AFTER] + [random.Random(i).sample(list(AFTER), 6) for i in range(3)]:
        changed = copy.deepcopy(model)
        for name in order:
            changed = AFTER[name](changed)
        torch.testing.assert_close(changed.train()(x), expected, msg=str(order))
        assert all(layer.training for layer in changed.modules()), order
        assert_same(buffers(changed), before)


@pytest.mark.slow
def test_108_frozen_statistics_stay_in_graphs() -> None:
    model, x = make_model()[:2], normal(4, 3, 6, seed=9)
    tnt.freeze(model)
    before, expected = buffers(model), model(x)
    for graph in (torch.compile(model, backend="eager", fullgraph=True), torch.export.export(model, (x,)).module()):
        torch.testing.assert_close(graph(x), expected)
    assert_same(buffers(model), before)


def test_statistics_are_constants_to_gradients_and_the_weight_is_trained() -> None:
    layer = tnt.BatchNorm1d(6)
    layer.running_var.fill_(4.0)
    tnt.freeze(layer)
    x, dy = normal(4, 6).requires_grad_(), normal(4, 6, seed=1)
    layer(x).backward(dy)
    torch.testing.assert_close(x.grad, dy / (4.0 + layer.eps) ** 0.5)
    torch.testing.assert_close(layer.bias.grad, dy.sum(0))


def test_thaw_restores_everything() -> None:
    model = make_model()
    model[1].weight.requires_grad_(False)
    before = fingerprint(model)
    tnt.freeze(model, weight=True, bias=True)
    assert [one.requires_grad for one in model[1].parameters()] == [False, False]
    assert model[4].weight.requires_grad  # group norm has no statistics, and is not meant
    assert fingerprint(model) != before
    tnt.freeze(model, bias=True)  # what was frozen is frozen: thaw still knows how it was
    tnt.thaw(model)
    assert fingerprint(model) == before
    x, count = normal(4, 3, 6), int(model[1].num_batches_tracked)
    model(x)
    assert int(model[1].num_batches_tracked) == count + 1


def test_thaw_leaves_the_mode_that_the_model_is_in() -> None:
    model = make_model()
    tnt.freeze(model)
    tnt.thaw(model.eval())
    assert not any(layer.training for layer in model.modules())


def test_layers_that_share_a_parameter_are_thawed_as_they_were() -> None:
    model = nn.Sequential(tnt.BatchNorm1d(3), tnt.BatchNorm1d(3))
    model[1].weight = model[0].weight
    before = fingerprint(model)
    tnt.freeze(model, weight=True)
    tnt.thaw(model)
    assert fingerprint(model) == before


def test_a_frozen_weight_does_not_move_by_an_old_gradient() -> None:
    layer = tnt.BatchNorm1d(3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=1.0)
    layer(normal(4, 3)).backward(normal(4, 3, seed=1))
    tnt.freeze(layer, statistics=False, weight=True)
    optimizer.step()
    assert torch.equal(layer.weight, torch.ones(3))
    assert not torch.equal(layer.bias, torch.zeros(3))
    assert not layer.frozen


def test_a_parametrized_weight_is_frozen_at_its_source() -> None:
    layer: Any = tnt.BatchNorm1d(3)
    nn.utils.parametrizations.weight_norm(layer, "weight", dim=None)
    tnt.freeze(layer, weight=True)
    assert [one.requires_grad for one in layer.parametrizations.weight.parameters()] == [False, False]
    tnt.thaw(layer)
    assert all(one.requires_grad for one in layer.parameters())


def test_where_chooses_and_the_report_lists() -> None:
    model = make_model()
    report = tnt.freeze(model, bias=True, where=lambda name, _: name == "1")
    assert str(report) == "1 normalization layer frozen\n  1  truenorm.BatchNorm1d  statistics, bias"
    assert "frozen=True" in repr(model[1])
    assert "frozen" not in repr(model[3])
    assert str(tnt.thaw(model)) == "1 normalization layer thawed\n  1  truenorm.BatchNorm1d  statistics, bias"
    assert str(tnt.thaw(model)) == "0 normalization layers thawed"


def test_frozen_layers_keep_their_kind_until_they_are_thawed() -> None:
    model = nn.Sequential(nn.BatchNorm1d(4))
    before = fingerprint(model)
    tnt.convert(model)
    tnt.freeze(model)
    for report in (tnt.revert(model), tnt.convert(model, to="group")):
        assert [change.outcome for change in report.left] == ["frozen: call thaw(model) first"]
    tnt.thaw(model)
    tnt.revert(model)
    assert fingerprint(model) == before


def test_frozen_norms_are_folded_in_a_model_that_trains() -> None:
    model = nn.Sequential(nn.Linear(3, 4), tnt.BatchNorm1d(4))
    tnt.freeze(model)
    assert len(tnt.fold(model, normal(5, 3)).folded) == 1


@pytest.mark.parametrize(
    ("layer", "text"),
    [
        (
            lambda: nn.BatchNorm1d(3),
            "freeze: layers of truenorm, got torch.nn.BatchNorm1d at '1'. "
            "Call convert(model) first, or leave it out with where=.",
        ),
        (
            lambda: tnt.LazyBatchNorm1d(),
            "freeze: the channels of LazyBatchNorm1d at '1' are not known yet. Run the model once before.",
        ),
        (
            lambda: tnt.BatchNorm1d(3, track_running_stats=False),
            "freeze: batch norms with running statistics, got BatchNorm1d at '1' without. "
            "Leave it out with where=, or pass statistics=False.",
        ),
    ],
)
def test_what_cannot_be_frozen_is_refused_and_nothing_is_changed(layer: Any, text: str) -> None:
    model = nn.Sequential(tnt.BatchNorm1d(3), layer())
    before = fingerprint(model)
    assert_message(lambda: tnt.freeze(model), ValueError, text)
    assert fingerprint(model) == before


def test_only_models_are_frozen() -> None:
    wrong: Any = [tnt.BatchNorm1d(3)]
    assert_message(lambda: tnt.freeze(wrong), TypeError, "freeze: model must be a torch.nn.Module, got list.")
    assert_message(lambda: tnt.thaw(wrong), TypeError, "thaw: model must be a torch.nn.Module, got list.")


def test_a_parameter_that_layers_share_is_frozen_in_two_steps_and_thawed() -> None:
    model = nn.Sequential(tnt.BatchNorm1d(3), tnt.BatchNorm1d(3))
    model[1].weight = model[0].weight
    tnt.freeze(model, weight=True, where=lambda name, _: name == "0")
    tnt.freeze(model, weight=True, where=lambda name, _: name == "1")
    assert not model[0].weight.requires_grad
    tnt.thaw(model)
    assert model[0].weight.requires_grad
