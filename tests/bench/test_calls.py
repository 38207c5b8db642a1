"""`python -m bench.calls`: the parts of a call are those of the layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from bench import calls as module
from bench.calls import LAYERS, PARTS, calls_behind, make_layer, parts, split

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402
from truenorm.torch import _dispatch  # noqa: E402
from truenorm.torch._kernel import kernels_read_tensors  # noqa: E402

pytestmark = pytest.mark.skipif(not kernels_read_tensors(), reason="the kernels are not built")


@pytest.mark.parametrize("name", LAYERS)
def test_every_part_of_a_layer_runs(name: str) -> None:
    before = _dispatch.find_call
    found = parts(name, (6, 64))
    assert _dispatch.find_call is before
    for call in vars(found).values():
        call()
    whole: Any = found.whole()
    for same in (found.torchs, found.in_python):
        torch.testing.assert_close(same(), whole)
    assert type(found.plan()) is tuple  # a call and its plan, and not why there is none


def test_the_kernels_are_those_of_the_layer() -> None:
    layer, x = make_layer(tnt, "BatchNorm1d", 8), torch.randn(6, 8)
    _, kernels = calls_behind(layer, x.requires_grad_())
    mean = layer.running_mean.clone()
    kernels()
    assert int(layer.num_batches_tracked) == 2  # of the layer, and of the kernels alone
    torch.testing.assert_close(layer.running_mean, mean + 0.1 * (x.mean(0) - mean))


def test_parts_add_up_to_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"torchs": 11.0, "whole": 10.0, "in_python": 12.0, "plan": 1.0, "small": 2.0, "kernel": 2.5}

    def interleave(calls: dict[str, Any], **_: Any) -> Any:
        assert set(calls) == set(times)
        return SimpleNamespace(seconds=lambda key: [times[key]], disturbed=lambda: True)

    monkeypatch.setattr("bench.timing.interleave", interleave)
    found, disturbed = split("LayerNorm", (6, 8), 0.0)
    assert disturbed
    whole = {"torch's": 11.0, "whole": 10.0, "in Python": 12.0}
    assert found == whole | {"rest": 6.5, "plan": 1.0, "binding": 2.0, "kernel": 0.5}
    assert sum(found[part] for part in PARTS) == found["whole"]
    assert module.SHAPES[0] == (32, 100)
