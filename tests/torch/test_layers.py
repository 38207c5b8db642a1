"""The layers as modules: checkpoints, copies, the lazy ones, and any pattern."""

import copy
import io
import pickle
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402

nn = torch.nn


KINDS = [
    ("BatchNorm1d", (4,), (3, 4, 5)),
    ("BatchNorm2d", (4,), (3, 4, 5, 2)),
    ("BatchNorm3d", (4,), (3, 4, 5, 2, 2)),
    ("InstanceNorm1d", (4, 1e-5, 0.1, True, True), (3, 4, 5)),
    ("GroupNorm", (2, 4), (3, 4, 5)),
    ("LayerNorm", ((4, 5),), (3, 4, 5)),
    ("RMSNorm", (5,), (3, 4, 5)),
]


@pytest.mark.parametrize(("name", "args", "shape"), KINDS, ids=[kind[0] for kind in KINDS])
def test_109_checkpoints_load_both_ways_and_layers_can_be_copied(name: str, args: Any, shape: Any) -> None:
    ours, theirs = getattr(tnt, name)(*args), getattr(nn, name)(*args)
    theirs(normal(*shape))
    ours.load_state_dict(theirs.state_dict(), strict=True)
    ours(normal(*shape, seed=1))
    theirs.load_state_dict(ours.state_dict(), strict=True)
    assert ours.state_dict()._metadata == theirs.state_dict()._metadata
    buffer = io.BytesIO()
    torch.save(ours.state_dict(), buffer)
    buffer.seek(0)
    again = getattr(tnt, name)(*args)
    again.load_state_dict(torch.load(buffer, weights_only=True))
    x = normal(*shape, seed=2)
    for copied in (copy.deepcopy(ours), pickle.loads(pickle.dumps(ours)), again):
        assert torch.equal(copied.eval()(x), copy.deepcopy(ours).eval()(x))
    with torch.device("meta"):
        empty = getattr(tnt, name)(*args)
    empty.load_state_dict(ours.state_dict(), assign=True)
    assert torch.equal(empty.eval()(x), copy.deepcopy(ours).eval()(x))


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("kind", ["BatchNorm", "InstanceNorm"])
def test_lazy_layers_become_ours(kind: str, dims: int) -> None:
    layer = getattr(tnt, f"Lazy{kind}{dims}d")(padding="keep")
    x = normal(3, 4, *[5] * dims)
    y = layer(x, valid=torch.ones(3, *[5] * dims, dtype=torch.bool))
    assert type(layer) is getattr(tnt, f"{kind}{dims}d")
    assert layer.padding == "keep"
    torch.testing.assert_close(y, getattr(nn, f"{kind}{dims}d")(4)(x))


# ---- any pattern ----


def test_normalize_is_every_layer() -> None:
    x = normal(3, 4, 5, 6)
    for norm, shape, theirs in (
        (tn.batch("second"), 4, nn.BatchNorm2d(4)),
        (tn.instance("second"), 4, nn.InstanceNorm2d(4, affine=True)),
        (tn.group(2, "second"), 4, nn.GroupNorm(2, 4)),
        (tn.layer(), 6, nn.LayerNorm(6)),
        (tn.Norm("... [h w]", affine="h w"), (5, 6), nn.LayerNorm((5, 6))),
    ):
        torch.testing.assert_close(tnt.Normalize(norm, shape)(x), theirs(x))
    mean, var = x.mean((1, 3), keepdim=True), x.var((1, 3), correction=0, keepdim=True)
    y = tnt.Normalize(tn.Norm("b [s] t [c]"), 6, affine=False)(x)
    torch.testing.assert_close(y, (x - mean) / torch.sqrt(var + 1e-5))


def test_normalize_keeps_running_statistics_like_a_batch_norm() -> None:
    ours, theirs = tnt.Normalize(tn.batch(), 4, track_running_stats=True), nn.BatchNorm1d(4)
    for step in range(3):
        x = normal(2, 5, 4, seed=step)
        torch.testing.assert_close(ours(x), theirs(x.transpose(1, 2)).transpose(1, 2))
    for key, value in theirs.state_dict().items():
        torch.testing.assert_close(ours.state_dict()[key], value)
    torch.testing.assert_close(ours.eval()(x), theirs.eval()(x.transpose(1, 2)).transpose(1, 2))
    with pytest.raises(ValueError, match="running statistics for a norm that keeps only the axes of its weight"):
        tnt.Normalize(tn.instance(), 4, track_running_stats=True)


def test_normalize_takes_a_pattern() -> None:
    x = normal(2, 5, 4)
    layer = tnt.Normalize("[b t] c", 4)
    assert layer.norm == tn.Norm("[b t] c")
    torch.testing.assert_close(layer(x), tnt.Normalize(tn.Norm("[b t] c"), 4)(x))
    layer.norm = "b [t] c"  # type: ignore[assignment]
    torch.testing.assert_close(layer(x), tnt.Normalize(tn.instance(), 4)(x))
    with pytest.raises(TypeError, match=r"^norm must be a Norm or a pattern, got 4\."):
        tnt.Normalize(4, 4)  # type: ignore[arg-type]


def test_normalize_takes_packed_and_jagged_rows() -> None:
    parts = [normal(n, 4, seed=n) for n in (5, 2, 3)]
    layer = tnt.Normalize(tn.instance(), 4)
    expected = torch.cat([layer(part[None])[0] for part in parts])
    packed = layer(torch.cat(parts), offsets=torch.tensor([0, 5, 7, 10]))
    jagged = layer(torch.nested.as_nested_tensor(parts, layout=torch.jagged))
    torch.testing.assert_close(packed, expected)
    torch.testing.assert_close(jagged.values(), expected)
