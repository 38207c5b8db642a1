"""`reestimate`: the statistics of a whole dataset, each value counted once, or nothing. Over ranks: test_sync.py."""

import random
from collections.abc import Iterator
from typing import Any

import pytest
from errors import assert_message
from fingerprint import fingerprint
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


def ragged_batches(count: int = 5) -> list[dict[str, Any]]:
    """Batches of different sizes, lengths and offsets; the last has one valid frame."""
    found = []
    for i in range(count):
        lengths = torch.randint(0, 6, (i + 1,), generator=torch.Generator().manual_seed(i))
        lengths[0] = 4
        x = normal(i + 1, 3, 7, seed=i, dtype=torch.float64) + 10 * i
        found.append({"input": x, "lengths": lengths})
    found.append({"input": normal(1, 3, 7, seed=99, dtype=torch.float64), "lengths": torch.tensor([1])})
    return found


def frames_of(batches: list[dict[str, Any]]) -> Any:
    """(frames, channels): the valid values alone."""
    parts = [x[:, :length].T for one in batches for x, length in zip(one["input"], one["lengths"], strict=True)]
    return torch.cat(parts)


@pytest.mark.parametrize("seed", range(3))
def test_56_the_statistics_are_those_of_all_values_in_any_order(seed: int) -> None:
    batches, layer = ragged_batches(), tnt.BatchNorm1d(3).double()
    random.Random(seed).shuffle(batches)
    tnt.reestimate(layer, batches)
    frames = frames_of(batches)
    torch.testing.assert_close(layer.running_mean, frames.mean(0))
    torch.testing.assert_close(layer.running_var, frames.var(0))
    assert int(layer.num_batches_tracked) == len(batches)


def test_56_update_bn_does_not_find_them() -> None:
    batches, layer = [normal(4, 3), normal(40, 3, seed=1) + 5], tnt.BatchNorm1d(3)
    torch.optim.swa_utils.update_bn(batches, layer)
    assert (layer.running_var - torch.cat(batches).var(0)).abs().max() > 1
    tnt.reestimate(layer, batches)
    torch.testing.assert_close(layer.running_var, torch.cat(batches).var(0))


def two_layers() -> Any:
    torch.manual_seed(2)
    return nn.Sequential(tnt.BatchNorm1d(3), nn.Linear(3, 4), nn.Dropout(), nn.ReLU(), tnt.BatchNorm1d(4)).double()


def test_exact_takes_inputs_as_in_evaluation() -> None:
    batches = [normal(4, 3, dtype=torch.float64), normal(9, 3, seed=1, dtype=torch.float64) * 3 + 5]
    model, whole = two_layers(), torch.cat(batches)
    tnt.reestimate(model, batches, exact=True)
    torch.testing.assert_close(model[0].running_var, whole.var(0))
    deeper = model.eval()[:4](whole)
    torch.testing.assert_close(model[4].running_mean, deeper.mean(0))
    torch.testing.assert_close(model[4].running_var, deeper.var(0))
    once = two_layers()
    tnt.reestimate(once, batches)
    assert (once[4].running_mean - deeper.mean(0)).abs().max() > 1e-3  # inputs as in training


def test_56_only_batch_norms_are_in_training_and_flags_come_back() -> None:
    model = two_layers()
    model[2].eval()
    model[0].on_single = "error"
    before = {name: layer.training for name, layer in model.named_modules()}
    attributes = [sorted(vars(layer)) for layer in model.modules()]
    seen = []
    for layer in model:
        layer.register_forward_pre_hook(lambda layer, _: seen.append((type(layer).__name__, layer.training)))
    tnt.reestimate(model, [normal(4, 3, dtype=torch.float64)])
    expected = [("BatchNorm1d", True), ("Linear", False), ("Dropout", False), ("ReLU", False), ("BatchNorm1d", True)]
    assert seen == expected
    assert {name: layer.training for name, layer in model.named_modules()} == before
    assert [sorted(vars(layer)) for layer in model.modules()] == attributes
    assert model[0].on_single == "error"


@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("kind", [KeyError, KeyboardInterrupt])
def test_56_an_exception_at_any_batch_leaves_the_model_as_it_was(kind: Any, exact: bool) -> None:
    good = [normal(4, 3, seed=i, dtype=torch.float64) for i in range(3)]

    class Failing:
        def __init__(self, after: int) -> None:
            self.after = after

        def __iter__(self) -> Iterator[Any]:
            for batch in good:
                if self.after == 0:
                    raise kind
                self.after -= 1
                yield batch

    model = two_layers()
    for seed in range(2):
        model(normal(6, 3, seed=seed, dtype=torch.float64))
    before = fingerprint(model)
    for after in range(7 if exact else 3):
        with pytest.raises(kind):
            tnt.reestimate(model, Failing(after), exact=exact)
        assert fingerprint(model) == before, after


@pytest.mark.parametrize(
    ("make", "batches", "options", "text"),
    [
        (
            lambda: tnt.BatchNorm1d(3),
            list,
            {},
            "reestimate: at least one batch, got none. A loader that was used up has to be made again.",
        ),
        (
            lambda: nn.Sequential(tnt.BatchNorm1d(3)),
            lambda: [normal(4, 3), normal(4, 3) * torch.inf],
            {},
            "reestimate: finite values in all batches, got others at '0'.",
        ),
        (
            lambda: nn.Sequential(tnt.BatchNorm1d(3), tnt.BatchNorm1d(3)),
            lambda: [normal(4, 3, dtype=torch.float64) * 1e30],
            {},
            "reestimate: statistics that float32 can hold, got larger ones at '0'. Call model.double() before.",
        ),
        (
            lambda: nn.BatchNorm1d(3),
            lambda: [normal(4, 3)],
            {},
            "reestimate: layers of truenorm, got torch.nn.BatchNorm1d at ''. Call convert(model) first.",
        ),
        (
            lambda: nn.Linear(3, 3),
            lambda: [normal(4, 3)],
            {},
            "reestimate: a model with batch norms whose running statistics are not frozen, got none.",
        ),
        (
            lambda: tnt.BatchNorm1d(3),
            lambda: iter([normal(4, 3)]),
            {"exact": True},
            "reestimate: exact=True needs batches several times, got an iterator. Pass a list or a loader.",
        ),
    ],
)
def test_what_cannot_be_estimated_is_refused(make: Any, batches: Any, options: Any, text: str) -> None:
    model = make()
    before = fingerprint(model)
    assert_message(lambda: tnt.reestimate(model, batches(), **options), ValueError, text)
    assert fingerprint(model) == before


def test_frozen_layers_stay() -> None:
    model = nn.Sequential(tnt.BatchNorm1d(3), tnt.BatchNorm1d(3), nn.BatchNorm1d(3))
    tnt.freeze(model, where=lambda name, _: name == "0")
    tnt.convert(model, to="frozen", where=lambda name, _: name == "2")
    tnt.reestimate(model, [normal(4, 3)])
    assert [int(layer.num_batches_tracked) for layer in model] == [0, 1, 0]


def test_a_layer_that_no_batch_comes_to_stays() -> None:
    model = nn.Sequential(tnt.BatchNorm1d(3), tnt.BatchNorm1d(3))
    tnt.reestimate(model, [normal(4, 3)] * 2, lambda model, batch: model[0](batch))
    assert [int(layer.num_batches_tracked) for layer in model] == [2, 0]
    assert torch.equal(model[1].running_var, torch.ones(3))


def test_inside_of_accumulate_nothing_is_staged() -> None:
    layer, batches = tnt.BatchNorm1d(3), [normal(4, 3), normal(9, 3, seed=1)]
    with tnt.accumulate(layer):
        tnt.reestimate(layer, batches)
    torch.testing.assert_close(layer.running_mean, torch.cat(batches).mean(0))
    assert int(layer.num_batches_tracked) == 2


def test_forward_and_progress(capsys: pytest.CaptureFixture[str]) -> None:
    layer, batches = tnt.BatchNorm1d(3).double(), ragged_batches()
    pairs = [(one["lengths"], one["input"]) for one in batches]
    tnt.reestimate(layer, pairs, lambda model, pair: model(pair[1], lengths=pair[0]), progress=True)
    torch.testing.assert_close(layer.running_mean, frames_of(batches).mean(0))
    assert capsys.readouterr().out == ""
