"""Private names of torch: in one file, and not needed for right numbers."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

from torch.utils.checkpoint import checkpoint  # noqa: E402

import truenorm.torch as tnt  # noqa: E402
from truenorm.torch import _compat  # noqa: E402

SOURCE = Path(tnt.__file__).parents[1]
PRIVATE = re.compile(
    r"\btorch\._(?!_)|\bforward_ad\._|\b_ragged_idx\b|\b_is_zerotensor\b|__dlpack_c_exchange_api__|torch_functional\._"
)


def test_private_names_of_torch_are_in_one_file() -> None:
    found = {
        f"{file.relative_to(SOURCE)}: {line.strip()}"
        for file in SOURCE.rglob("*.py")
        if file.name != "_compat.py"
        for line in file.read_text("utf-8").splitlines()
        if PRIVATE.search(line)
    }
    # Modules of our own package, as `truenorm.torch._dispatch`, are not torch's.
    assert not {line for line in found if PRIVATE.search(line.replace("truenorm.torch._", ""))}


def test_a_private_name_would_be_found() -> None:
    for line in ("torch._C._get_tracing_state()", "forward_ad._current_level", "x._ragged_idx", "torch._dynamo"):
        assert PRIVATE.search(line)


CODE = """
import torch
import torch._dynamo  # which needs them while it is imported
from torch.autograd import forward_ad
private = {
    torch._C: ("_are_functorch_transforms_active", "_get_tracing_state", "_len_torch_dispatch_stack", "_functorch",
               "_current_graph_task_id", "_autograd"),
    torch.autograd.graph: ("increment_version",),
    forward_ad: ("_current_level",),
}
removed = [(module, name, module.__dict__.pop(name)) for module, names in private.items() for name in names]
import truenorm.torch as tnt
for module, name, value in removed:  # torch itself needs them
    setattr(module, name, value)
x, layer = torch.randn(3, 4, 5), tnt.BatchNorm1d(4)
torch.testing.assert_close(layer(x), torch.nn.BatchNorm1d(4)(x))
"""


@pytest.mark.slow
def test_a_torch_without_private_names_can_be_used() -> None:
    done = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


FALLBACKS: dict[str, Any] = {
    "transform_is_active": _compat._unknown,
    "_tracing_state": _compat._is_tracing,
    "_count_modes": _compat._unknown,
    "is_batched_gradient": lambda _: True,
    "backward_pass": lambda: -1,
    "mark_changed": _compat._bump_versions,
}


@pytest.mark.parametrize("name", FALLBACKS)
def test_fallbacks_give_the_same_numbers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    x, dy, lengths = normal(3, 4, 5), normal(3, 5, 4, seed=1).transpose(1, 2), torch.tensor([5, 2, 3])
    found = []
    for _ in range(2):
        for make in (lambda: tnt.BatchNorm1d(4), lambda: tnt.LayerNorm(5), lambda: tnt.GroupNorm(2, 4)):
            for ragged in ({}, {"valid": torch.arange(5) < lengths[:, None]}):
                layer, leaf = make(), x.clone().requires_grad_()
                if not ragged or not isinstance(layer, torch.nn.LayerNorm):
                    layer(leaf, **ragged).backward(dy)
                    found.append([leaf.grad, *(one.grad for one in layer.parameters()), *layer.buffers()])
        monkeypatch.setattr(_compat, name, FALLBACKS[name])
    half = len(found) // 2
    for one, other in zip(found[:half], found[half:], strict=True):
        for value, expected in zip(other, one, strict=True):
            torch.testing.assert_close(value, expected, rtol=1e-4, atol=1e-5)


def test_what_refuses_transforms_works_where_torch_does_not_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_compat, "transform_is_active", _compat._unknown)
    layer = tnt.BatchNorm1d(4)
    with tnt.accumulate(layer):
        layer(normal(3, 4, 5))
    assert int(layer.num_batches_tracked) == 1


def test_fallbacks_are_taken_if_a_name_is_missing() -> None:
    assert _compat._private("_nothing.of_this_name", "fallback") == "fallback"
    assert _compat._private("_get_tracing_state", "fallback") is torch._C._get_tracing_state
    before = torch.zeros(3)._version
    changed = torch.zeros(3)
    _compat._bump_versions([changed])
    assert changed._version > before


def test_the_ragged_axis_of_a_jagged_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    jagged = torch.nested.nested_tensor([normal(5, 4), normal(2, 4)], layout=torch.jagged)
    expected = [_compat.ragged_axis(one) for one in (jagged, jagged.transpose(1, 2))]
    assert expected == [1, 2]
    assert [[i for i, size in enumerate(one.shape) if type(size) is not int] for one in (jagged, jagged.mT)] == [
        [1],
        [2],
    ]


def test_without_torch_the_import_says_what_to_install() -> None:
    code = "import sys\nsys.modules['torch'] = None\nimport truenorm.torch"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = done.stderr.strip().splitlines()[-1]
    assert last == "ImportError: truenorm.torch: PyTorch is not installed. Install it: pip install 'truenorm[torch]'."


def test_what_is_read_from_frames_may_be_missing() -> None:
    assert _compat.keywords_of_call(torch.nn.Linear(1, 1)) == {}
    assert _compat.name_of_autograd_function() is None


@pytest.mark.parametrize("with_context", [True, False])
def test_the_autograd_function_that_is_running_is_named(with_context: bool) -> None:
    names = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(*args: Any) -> Any:
            names.append(_compat.name_of_autograd_function())
            return args[-1] * 2

    if not with_context:
        Doubled.setup_context = staticmethod(lambda ctx, inputs, output: None)
    Doubled.apply(torch.ones(2, requires_grad=True))
    assert names == ["Doubled"]
    assert _compat.name_of_autograd_function() is None


def test_an_error_leaves_its_checkpoints() -> None:
    def fail(x: Any) -> Any:
        raise ValueError("the forward failed")

    def nested(x: Any) -> Any:
        return checkpoint(fail, x, use_reentrant=False)

    try:
        checkpoint(nested, torch.ones(2, requires_grad=True), use_reentrant=False)
    except ValueError as error:
        _compat.leave_checkpoints(error)
        assert _compat.saved_tensor_hooks(True) is None
