"""How many Python functions of truenorm a warm call runs. For small tensors they are most of its time."""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")
pytest.importorskip("truenorm._native", reason="the compiled part was not built")

import truenorm.torch as tnt  # noqa: E402

SOURCE = str(Path(tnt.__file__).parents[1])
MOST = 11  # one fewer with nodes in C++
LAYERS: dict[str, Callable[[], Any]] = {
    "BatchNorm1d": lambda: tnt.BatchNorm1d(4),
    "LayerNorm": lambda: tnt.LayerNorm(4),
    "GroupNorm": lambda: tnt.GroupNorm(2, 4),
    "InstanceNorm1d": lambda: tnt.InstanceNorm1d(4),
    "RMSNorm": lambda: tnt.RMSNorm(4),
}


def frames_of(call: Callable[[], Any]) -> list[str]:
    """The functions of truenorm that it runs, in order."""
    found = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(SOURCE):
            found.append(f"{Path(frame.f_code.co_filename).stem}.{frame.f_code.co_name}")

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("requires_grad", [True, False])
@pytest.mark.parametrize("lengths", [None, torch.tensor([5, 2, 3])], ids=["everything", "lengths"])
@pytest.mark.parametrize("transposed", [False, True], ids=["contiguous", "transposed"])
@pytest.mark.parametrize("name", LAYERS)
def test_a_warm_call_runs_few_functions(name: str, transposed: bool, lengths: Any, requires_grad: bool) -> None:
    layer = LAYERS[name]()
    last = name in ("LayerNorm", "RMSNorm")
    x = normal(3, 5, 4) if last != transposed else normal(3, 4, 5)
    x = (x.transpose(1, 2) if transposed else x).requires_grad_(requires_grad)
    layer(x, lengths=lengths)
    frames = frames_of(lambda: layer(x, lengths=lengths))
    assert len(frames) <= MOST, frames
    assert len(set(frames)) == len(frames), f"something ran twice: {frames}"
    assert "_kernel.run" in frames


def test_evaluation_runs_few_functions_too() -> None:
    layer, x = tnt.BatchNorm1d(4).eval(), normal(3, 4, 5)
    layer(x)
    assert len(frames_of(lambda: layer(x))) <= MOST


def test_a_function_that_runs_is_counted() -> None:
    assert frames_of(tnt.kernels_read_tensors) == ["_kernel.kernels_read_tensors"]
