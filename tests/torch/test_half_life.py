"""`half_life`: running statistics that forget by valid values, whatever the batches are."""

import copy
import math
import pickle
from typing import Any

import pytest
from errors import assert_message
from fingerprint import fingerprint
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm.torch import _dispatch  # noqa: E402

nn = torch.nn
HALF_LIFE = 9.0
LENGTHS = [torch.tensor(one) for one in ([4, 1, 3], [5, 0, 2], [2, 2, 5])]


def batches(dtype: Any = None) -> list[Any]:
    return [(normal(3, 2, 5, seed=i) * (i + 1) + i).to(dtype or torch.float32) for i in range(3)]


def closed_form(parts: list[Any]) -> tuple[list[float], list[float]]:
    """Mean and variance of each channel, from the valid values of each batch (values, channels), in plain Python."""
    means, variances = [], []
    for channel in range(parts[0].shape[1]):
        weights, mean, var, age = [], [], [], 0
        for part in reversed(parts):
            values = part[:, channel].double().tolist()
            weights.append(2.0 ** (-age / HALF_LIFE) * (1 - 2.0 ** (-len(values) / HALF_LIFE)))
            center = math.fsum(values) / len(values)
            mean.append(weights[-1] * center)
            var.append(weights[-1] * math.fsum((one - center) ** 2 for one in values) / (len(values) - 1))
            age += len(values)
        means.append(math.fsum(mean) / math.fsum(weights))
        variances.append(math.fsum(var) / math.fsum(weights))
    return means, variances


def valid_values(x: Any, lengths: Any) -> Any:
    return torch.cat([one[:, :n].T for one, n in zip(x, lengths.tolist(), strict=True)])


def assert_statistics(layer: Any, parts: list[Any], tolerance: float = 1e-6) -> None:
    mean, var = closed_form(parts)
    torch.testing.assert_close(layer.running_mean.tolist(), mean, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(layer.running_var.tolist(), var, rtol=tolerance, atol=tolerance)
    assert layer.num_values_tracked.tolist() == [sum(map(len, parts))] * len(mean)


@pytest.mark.parametrize("who", ["native", "reference", "torch operator"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_statistics_are_the_closed_form(who: Any, dtype: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = tnt.BatchNorm1d(2, half_life=HALF_LIFE).to(dtype)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    ragged = who != "torch operator"  # which is for x without a mask on other devices
    if ragged:
        tn.engine.use(who)
    else:
        monkeypatch.setattr(_dispatch, "find_call", lambda *_: "as on a GPU")
        monkeypatch.setattr(_dispatch, "use_torch_operator", lambda _: "as on a GPU")
    try:
        parts = []
        for x, lengths in zip(batches(dtype), LENGTHS, strict=True):
            expected = nn.BatchNorm1d(2).to(dtype)(valid_values(x, lengths))
            parts.append(valid_values(x, lengths))
            y = layer(x, lengths=lengths) if ragged else layer(parts[-1])
            found = valid_values(y, lengths) if ragged else y
            torch.testing.assert_close(found, expected, rtol=tolerance * 10, atol=tolerance * 10)
            assert_statistics(layer, parts, tolerance)
    finally:
        tn.engine.use("native" if "native" in tn.engine.available() else "reference")
    assert int(layer.num_batches_tracked) == 3


def test_what_was_seen_weighs_half_after_a_half_life_of_values_in_any_batches() -> None:
    for cuts in ([8], [3, 5], [2] * 4):
        layer = tnt.BatchNorm1d(1, half_life=8.0)
        layer.running_mean.fill_(1.0)
        layer.num_values_tracked.fill_(torch.inf)
        for count in cuts:
            layer(torch.zeros(count, 1))
        torch.testing.assert_close(layer.running_mean, torch.tensor([0.5]))


def test_a_channel_begins_with_the_first_batch_that_has_values_of_it() -> None:
    layer, x = tnt.BatchNorm1d(2, half_life=HALF_LIFE), normal(4, 2, 3) + 5
    valid = torch.ones(4, 2, 3, dtype=torch.bool)
    valid[:, 1] = False
    layer(x, valid=valid)
    assert layer.num_values_tracked.tolist() == [12.0, 0.0]
    layer(x)
    assert layer.num_values_tracked.tolist() == [24.0, 12.0]
    torch.testing.assert_close(layer.running_mean, x.mean((0, 2)))
    torch.testing.assert_close(layer.running_var, x.transpose(0, 1).flatten(1).var(1))


def test_22_a_batch_that_is_not_finite_changes_nothing() -> None:
    layer = tnt.BatchNorm1d(2, half_life=HALF_LIFE)
    layer(normal(4, 2))
    before = copy.deepcopy(layer.state_dict())
    layer(torch.full((4, 2), torch.inf))
    assert layer.skipped_batches == 1
    assert all(torch.equal(one, before[name]) for name, one in layer.state_dict().items())


def test_a_trained_layer_goes_on_as_with_the_momentum_of_its_batch_size() -> None:
    momentum, count = 0.2, 12
    theirs = nn.BatchNorm1d(2, momentum=momentum)
    theirs(normal(count, 2, seed=9))
    ours = tnt.BatchNorm1d(2, half_life=tn.running.half_life_from_momentum(momentum, count))
    ours.load_state_dict(theirs.state_dict())
    assert ours.num_values_tracked.tolist() == [math.inf] * 2
    for seed in range(3):
        theirs(normal(count, 2, seed=seed))
        ours(normal(count, 2, seed=seed))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    untrained = tnt.BatchNorm1d(2, half_life=5.0)
    untrained.load_state_dict(nn.BatchNorm1d(2).state_dict())
    assert untrained.num_values_tracked.tolist() == [0.0] * 2


def test_checkpoints_have_one_more_key_only_while_it_is_set() -> None:
    keys = list(nn.BatchNorm1d(2).state_dict())
    layer = tnt.BatchNorm1d(2)
    assert list(layer.state_dict()) == keys
    layer.half_life = 5
    layer(normal(7, 2))
    assert list(layer.state_dict()) == [*keys, "num_values_tracked"]
    again = tnt.BatchNorm1d(2, half_life=5.0)
    again.load_state_dict(layer.state_dict())
    assert again.num_values_tracked.tolist() == [7.0] * 2
    with pytest.raises(RuntimeError, match=r"Unexpected key.*num_values_tracked"):
        tnt.BatchNorm1d(2).load_state_dict(layer.state_dict())
    layer.half_life = None
    assert list(layer.state_dict()) == keys
    layer.half_life = 5
    assert layer.num_values_tracked.tolist() == [math.inf] * 2  # nobody has counted since


def test_it_is_shown_copied_cast_and_reset() -> None:
    layer = tnt.BatchNorm1d(2, half_life=500)
    shown = "truenorm.BatchNorm1d(2, eps=1e-05, half_life=500.0, affine=True, bias=True, track_running_stats=True)"
    assert repr(layer).replace("bias=True, ", "") == shown.replace("bias=True, ", "")
    layer(normal(7, 2))
    for one in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer).half().bfloat16()):
        assert (one.half_life, one.num_values_tracked.tolist()) == (500.0, [7.0] * 2)
        assert one.num_values_tracked.dtype == torch.float32
    tnt.freeze(layer)
    layer(normal(7, 2))
    layer.reset_running_stats()
    assert layer.num_values_tracked.tolist() == [7.0] * 2
    tnt.thaw(layer)
    layer.reset_running_stats()
    assert layer.num_values_tracked.tolist() == [0.0] * 2


def test_a_lazy_layer_has_one() -> None:
    layer: Any = tnt.LazyBatchNorm1d(half_life=HALF_LIFE)
    x = normal(4, 3) + 2
    layer(x)
    assert (type(layer), layer.half_life) == (tnt.BatchNorm1d, HALF_LIFE)
    assert layer.num_values_tracked.tolist() == [4.0] * 3
    torch.testing.assert_close(layer.running_mean, x.mean(0))
    assert torch.equal(layer.weight, torch.ones(3))


@pytest.mark.parametrize("kind", [None, "group", "frozen"])
def test_conversion_there_and_back(kind: Any) -> None:
    theirs = nn.Sequential(nn.BatchNorm1d(4, momentum=0.3))
    before = fingerprint(theirs)
    tnt.convert(theirs)
    theirs[0].half_life = 100.0
    tnt.convert(theirs, to=kind)
    tnt.revert(theirs)
    assert fingerprint(theirs) == before
    ours = nn.Sequential(tnt.BatchNorm1d(4, half_life=100.0))
    ours(normal(5, 4))
    before = fingerprint(ours)
    tnt.convert(ours, to=kind)
    tnt.revert(ours)
    found = fingerprint(ours)
    for one in (before, found):  # setting half_life puts it last
        one["0: attributes"] = sorted(one["0: attributes"], key=str)
    assert found == before


def test_parts_of_a_batch_count_as_the_whole() -> None:
    parts = [valid_values(x, lengths) for x, lengths in zip(batches(), LENGTHS, strict=True)]
    model: Any = nn.Sequential(tnt.BatchNorm1d(2, half_life=HALF_LIFE))
    with tnt.accumulate(model):
        model(parts[0][:3])
        model(parts[0][3:])
    assert_statistics(model[0], parts[:1])
    tnt.together(model, [parts[1][:3], parts[1][3:]])
    assert_statistics(model[0], parts[:2])


def test_reestimate_replaces_them_or_leaves_them() -> None:
    layer, values = tnt.BatchNorm1d(2, half_life=HALF_LIFE), normal(7, 2)
    layer(normal(5, 2, seed=1))
    before = copy.deepcopy(layer.state_dict())

    def fail(model: Any, batch: Any) -> None:
        model(batch)
        if len(batch) == 4:
            raise KeyError

    with pytest.raises(KeyError):
        tnt.reestimate(layer, [values[:3], values[3:]], forward=fail)
    assert all(torch.equal(one, before[name]) for name, one in layer.state_dict().items())
    tnt.reestimate(layer, [values[:3], values[3:]])
    torch.testing.assert_close(layer.running_mean, values.mean(0))
    torch.testing.assert_close(layer.running_var, values.var(0))
    assert layer.num_values_tracked.tolist() == [7.0] * 2


def test_50_a_checkpointed_forward_counts_once() -> None:
    from torch.utils.checkpoint import checkpoint

    for who in ("kernel", "torch operator"):
        layer, x = tnt.BatchNorm1d(2, half_life=HALF_LIFE), normal(6, 2).requires_grad_()
        with pytest.MonkeyPatch.context() as patch:
            if who == "torch operator":
                patch.setattr(_dispatch, "find_call", lambda *_: "as on a GPU")
                patch.setattr(_dispatch, "use_torch_operator", lambda _: "as on a GPU")
            checkpoint(layer, x, use_reentrant=False).backward(normal(6, 2, seed=1))
        assert layer.num_values_tracked.tolist() == [6.0] * 2
        assert int(layer.num_batches_tracked) == 1
        torch.testing.assert_close(layer.running_mean, x.detach().mean(0))


def test_a_folded_layer_uses_the_statistics() -> None:
    model = nn.Sequential(nn.Linear(3, 4), tnt.BatchNorm1d(4, half_life=HALF_LIFE))
    for seed in range(3):
        model(normal(6, 3, seed=seed))
    x = normal(5, 3)
    expected = model.eval()(x)
    tnt.fold(model, x)
    assert not any(isinstance(one, nn.BatchNorm1d) for one in model.modules())
    torch.testing.assert_close(model(x), expected)


@pytest.mark.slow
def test_in_a_compiled_graph() -> None:
    eager, layer = tnt.BatchNorm1d(2, half_life=HALF_LIFE), tnt.BatchNorm1d(2, half_life=HALF_LIFE)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    for x, lengths in zip(batches(), LENGTHS, strict=True):
        torch.testing.assert_close(compiled(x, lengths=lengths), eager(x, lengths=lengths))
    for name, one in eager.state_dict().items():
        torch.testing.assert_close(layer.state_dict()[name], one, msg=name)


def test_an_ensemble_under_vmap() -> None:
    layers = [tnt.BatchNorm1d(2, half_life=HALF_LIFE) for _ in range(2)]
    parameters, buffers = torch.func.stack_module_state(layers)
    x = torch.stack([normal(5, 2), normal(5, 2, seed=1)])
    base = copy.deepcopy(layers[0]).to("meta")
    torch.vmap(lambda p, b, one: torch.func.functional_call(base, (p, b), (one,)))(parameters, buffers, x)
    torch.testing.assert_close(buffers["running_mean"], x.mean(1))
    assert buffers["num_values_tracked"].tolist() == [[5.0, 5.0]] * 2


def test_other_libraries_have_a_momentum_for_a_batch_size() -> None:
    layer = tnt.BatchNorm1d(2, half_life=64.0)
    assert tnt.to_keras(layer, count=128).config["momentum"] == 0.25
    text = (
        "to_keras: a half-life is a momentum for batches of a known size, got half_life=64.0 and no count. "
        "Pass count, the values per channel in a batch, or set layer.half_life to None and layer.momentum."
    )
    assert_message(lambda: tnt.to_keras(layer), ValueError, text)
    tnt.from_keras(layer, tnt.to_keras(layer, count=128))
    assert (layer.half_life, layer.momentum) == (None, 0.75)
    assert "num_values_tracked" not in layer.state_dict()


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (
            lambda: tnt.BatchNorm2d(2, momentum=0.1, half_life=5.0),
            "BatchNorm2d: momentum or half_life, got momentum=0.1 and half_life=5.0. Pass one of them.",
        ),
        (
            lambda: tnt.BatchNorm2d(2, 1e-5, None, half_life=5.0),
            "BatchNorm2d: momentum or half_life, got momentum=None and half_life=5.0. Pass one of them.",
        ),
        (
            lambda: tnt.BatchNorm1d(2, half_life=0),
            "BatchNorm1d: half_life is a finite number > 0, got 0. It is a number of valid values per channel.",
        ),
        (
            lambda: tnt.BatchNorm1d(2, half_life=5.0, track_running_stats=False),
            "BatchNorm1d: half_life is for running statistics, got a layer without. Use track_running_stats=True.",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, text: str) -> None:
    assert_message(make, ValueError, text)
