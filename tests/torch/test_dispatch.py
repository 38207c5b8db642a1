"""Who computes, and the reason that is logged for it."""

import logging
from collections.abc import Callable
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("truenorm._native", reason="the compiled part was not built")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.torch import _dispatch, _kernel  # noqa: E402

nn = torch.nn
LENGTHS = torch.tensor([5, 2, 3])


@pytest.fixture
def reasons(caplog: pytest.LogCaptureFixture) -> Callable[[Callable[[], Any]], list[str]]:
    """What a call logs."""
    caplog.set_level(logging.DEBUG, logger="truenorm.torch")

    def logged(call: Callable[[], Any]) -> list[str]:
        caplog.clear()
        call()
        return [record.getMessage() for record in caplog.records if record.name == "truenorm.torch"]

    return logged


def test_a_new_plan_is_logged_once(reasons: Any) -> None:
    _dispatch._plan_cache.cache_clear()
    layer, x = tnt.BatchNorm1d(4), normal(3, 4, 5)
    assert reasons(lambda: layer(x)) == ["kernel: new plan for (3, 4, 5), torch.float32, contiguous"]
    assert reasons(lambda: layer(x)) == []
    assert reasons(lambda: layer(x, lengths=LENGTHS)) == []
    assert reasons(lambda: layer(x, valid=torch.arange(5) < LENGTHS[:, None])) == []
    transposed = normal(3, 5, 4).transpose(1, 2)
    assert reasons(lambda: layer(transposed)) == ["kernel: new plan for (3, 4, 5), torch.float32, channels last"]
    assert reasons(lambda: layer(transposed, lengths=LENGTHS)) == []
    rows = tnt.LayerNorm(4)  # its plan is for a contiguous copy
    assert reasons(lambda: rows(normal(3, 4, 5).transpose(1, 2)))[-1].endswith("contiguous")
    assert reasons(lambda: rows(normal(3, 4, 5).transpose(1, 2))) == []


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "a mask": (
        lambda: tnt.BatchNorm1d(4)(normal(3, 4, 5), valid=(torch.arange(5) < LENGTHS[:, None]).int()),
        "kernel: (3, 4, 5) with a mask",
    ),
    "a mask of every element": (
        lambda: tnt.BatchNorm1d(4)(normal(3, 4, 5), valid=normal(3, 4, 5) > 0),
        "operations: no kernel for this pattern and mask",
    ),
    "packed rows": (
        lambda: tnt.GroupNorm(2, 4)(normal(10, 4), offsets=torch.tensor([0, 5, 7, 10])),
        "kernel: (10, 4) with a mask",
    ),
    "an order without a kernel": (
        lambda: tnt.Normalize("c [b] t", 3)(normal(3, 4, 5)),
        "operations: no kernel for this pattern",
    ),
    "a transform": (
        lambda: torch.func.vmap(tnt.LayerNorm(4))(normal(2, 3, 4)),
        "formula: a transform, tracer or mode is active",
    ),
    "forward mode": (
        lambda: torch.func.jvp(tnt.LayerNorm(4), (normal(3, 4),), (normal(3, 4),)),
        "formula: a transform, tracer or mode is active",
    ),
    "a negated view": (
        lambda: tnt.LayerNorm(4)(torch._neg_view(normal(3, 4))),
        "operations: x cannot be read in place",
    ),
    "a weight with gaps": (
        lambda: tnt.functional.layer_norm(normal(3, 4), (4,), torch.ones(8)[::2]),
        "operations: weight or bias do not fit x, or cannot be read in place",
    ),
    "a gradient for sample_weight": (
        lambda: tnt.BatchNorm1d(4)(normal(3, 4, 5), sample_weight=torch.ones(3, 5, requires_grad=True)),
        "formula: sample_weight needs a gradient",
    ),
    "a gradient for running statistics": (
        lambda: tnt.functional.batch_norm(normal(3, 4), torch.zeros(4, requires_grad=True), torch.ones(4)),
        "formula: the statistics need a gradient",
    ),
    "another device": (
        lambda: tnt.LayerNorm(4, device="meta")(torch.empty(3, 4, device="meta")),
        "torch operator: x is on meta",
    ),
    "another device, with lengths": (
        lambda: tnt.LayerNorm(4, device="meta")(
            torch.empty(3, 5, 4, device="meta"), lengths=torch.empty(3, dtype=torch.int64, device="meta")
        ),
        "torch operator: x is on meta, and a mask chooses positions",
    ),
    "another device, with lengths that change the statistics": (
        lambda: tnt.GroupNorm(2, 4, device="meta")(
            torch.empty(3, 4, 5, device="meta"), lengths=torch.empty(3, dtype=torch.int64, device="meta")
        ),
        "operations: x cannot be read in place",
    ),
    "another layout": (
        lambda: tnt.BatchNorm2d(4).eval()(normal(2, 4, 5, 6).to_mkldnn()),
        "torch operator: x has the layout torch._mkldnn",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_reason_is_logged(case: str, reasons: Any) -> None:
    call, expected = CASES[case]
    assert reasons(call) == [expected]


def test_arguments_that_torch_refuses(reasons: Any) -> None:
    def call() -> None:
        with pytest.raises(RuntimeError, match="normalized_shape"):
            tnt.LayerNorm(5)(normal(3, 4))

    assert reasons(call)[-1] == "torch operator: torch refuses these arguments"


def test_reasons_of_the_installation(reasons: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = tnt.LayerNorm(4), normal(3, 4)
    engine.use("reference")
    try:
        assert reasons(lambda: layer(x)) == ["operations: the reference engine is chosen"]
    finally:
        engine.use("native")
    with monkeypatch.context() as patch:
        patch.setattr(_kernel, "KERNELS_READ_TENSORS", False)
        assert reasons(lambda: layer(x)) == ["operations: the kernels cannot read this torch's tensors"]
        patch.setattr(_dispatch, "native", None)
        assert reasons(lambda: layer(x)) == ["operations: the kernels are not built"]


def test_nothing_is_logged_unless_asked_for(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="truenorm.torch")
    tnt.Normalize(tn.Norm("c [b] t"), 3)(normal(3, 4, 5))
    assert not caplog.records
