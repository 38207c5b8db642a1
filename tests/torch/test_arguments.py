"""Ragged arguments that are easily confused: the message names the right one, and what to write instead."""

import re
import subprocess
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytest
from torch_data import normal

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm.torch as tnt  # noqa: E402

LAYERS = [tnt.BatchNorm1d(3), tnt.GroupNorm(1, 3), tnt.InstanceNorm1d(3), tnt.LayerNorm(4)]


@pytest.mark.parametrize("memory", ["contiguous", "transposed"])
@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: type(layer).__name__)
def test_lengths_in_the_place_of_valid(layer: Any, memory: str) -> None:
    x = normal(2, 3, 4) if memory == "contiguous" else normal(2, 4, 3).transpose(1, 2)
    with pytest.raises(ValueError, match=r"^valid: a mask, got whole numbers of shape \(2,\)") as caught:
        layer(x, torch.tensor([4, 2]))
    assert str(caught.value).endswith("Lengths go into lengths=: layer(x, lengths=lengths).")


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        (
            torch.tensor([1.0, 0.5]),
            "lengths: whole numbers, got torch.float32. For relative lengths pass (lengths * 4).round().long().",
        ),
        (torch.tensor([4.0, 2.0]), "lengths: whole numbers, got torch.float32. Pass lengths.long()."),
        (torch.tensor([[4], [2]]), "lengths: the shape (b,), got (2, 1). Pass lengths.squeeze(1)."),
    ],
    ids=["relative", "floats", "a column"],
)
def test_lengths_of_other_kinds(lengths: Any, message: str) -> None:
    for layer in LAYERS[:3]:
        with pytest.raises((ValueError, TypeError), match=f"^{re.escape(message)}$"):
            layer(normal(2, 3, 4), lengths=lengths)


def test_the_fixes_work() -> None:
    x, layer = normal(2, 3, 4), tnt.GroupNorm(1, 3)
    expected = layer(x, lengths=torch.tensor([4, 2]))
    relative = torch.tensor([1.0, 0.5])
    for lengths in ((relative * 4).round().long(), torch.tensor([[4], [2]]).squeeze(1), [4, 2]):
        assert torch.equal(layer(x, lengths=lengths), expected)
    mask = (torch.arange(4) < torch.tensor([4, 2])[:, None]).float()
    for valid in (mask.bool(), mask.long(), mask.int(), mask.numpy().astype(bool)):
        torch.testing.assert_close(layer(x, valid=valid), expected)


def test_segment_ids_are_no_mask() -> None:
    ids = torch.tensor([[1, 1, 2, 2], [1, 2, 0, 0]])
    message = (
        "valid: booleans, or the integers 0 and 1, got 2. "
        "Segment ids are no mask: pass valid=ids > 0 if 0 stands for padding, or segments=ids for packed rows."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        tnt.BatchNorm1d(3)(normal(2, 3, 4), valid=ids)
    tnt.BatchNorm1d(3)(normal(2, 3, 4), valid=ids > 0)


@pytest.fixture
def not_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("truenorm.torch._batch_checks._warned", False)


@pytest.mark.usefixtures("not_warned")
@pytest.mark.parametrize("way", ["kernel", "formula"])
def test_a_mask_that_is_true_nowhere_warns_once(way: str) -> None:
    layer, x = tnt.BatchNorm1d(3), normal(2, 3, 4)
    shape = (2, 4) if way == "kernel" else (2, 3, 4)
    with pytest.warns(UserWarning, match=r"^valid: True somewhere in a training batch, got True nowhere\."):
        y = layer(x, valid=torch.zeros(shape, dtype=torch.bool))
    assert not y.any()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        layer(x, valid=torch.zeros(shape, dtype=torch.bool))


@pytest.mark.usefixtures("not_warned")
def test_other_empty_masks_do_not_warn() -> None:
    none, x = torch.zeros(2, 4, dtype=torch.bool), normal(2, 3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tnt.BatchNorm1d(3).eval()(x, valid=none)
        tnt.BatchNorm1d(3)(x, lengths=torch.zeros(2, dtype=torch.int64))
        tnt.BatchNorm1d(3)(x[:0], valid=none[:0])
        tnt.LayerNorm(4)(x, valid=torch.zeros(2, 3, dtype=torch.bool))


def test_a_model_shows_that_its_layers_are_ours() -> None:
    model = torch.nn.Sequential(tnt.BatchNorm1d(3), tnt.LayerNorm(4), tnt.Normalize("[b t] c", 3))
    lines = repr(model).splitlines()[1:-1]
    assert lines[0] == f"  (0): truenorm.{torch.nn.BatchNorm1d(3)}"
    assert lines[1] == f"  (1): truenorm.{torch.nn.LayerNorm(4)}"
    assert lines[2] == "  (2): truenorm.Normalize(Norm('[b t] c'), (3,), affine=True, track_running_stats=False)"
    assert repr(tnt.LazyBatchNorm1d()).startswith("truenorm.LazyBatchNorm1d(")


SNIPPET = """
import torch
from torch.nn.utils.rnn import PackedSequence
import truenorm.torch as tnt

def use(x: torch.Tensor, packed: PackedSequence, lengths: torch.Tensor) -> None:
    layer = tnt.BatchNorm1d(3)
    a: torch.Tensor = layer(x, lengths=lengths)
    b: PackedSequence = layer(packed)
    c: torch.Tensor = layer.forward(x, lengths=[4, 2])
    d: torch.Tensor = tnt.functional.group_norm(x, 2, lengths=lengths, valid=[[True, False]])
    tnt.Normalize("[b t] c", 3)(x, sample_weight=lengths)
    layer(x, lengths="nonsense")  # wrong
    layer.forward(x, lengths="nonsense")  # wrong
    tnt.LayerNorm(3)(x, valid=4)  # wrong
    e: PackedSequence = layer(x)  # wrong
    tnt.functional.layer_norm(x, (3,), offsets="nonsense")  # wrong
    layer("nonsense")  # wrong
"""


@pytest.mark.slow
def test_mypy_rejects_arguments_of_wrong_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    file = tmp_path / "snippet.py"
    file.write_text(textwrap.dedent(SNIPPET), "utf-8")
    root = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--follow-imports=silent", str(file)],
        capture_output=True,
        text=True,
        check=False,
        cwd=root,
        env={"MYPYPATH": str(root / "src"), "PATH": "/usr/bin:/bin"},
    )
    wrong = {i for i, line in enumerate(SNIPPET.splitlines(), 1) if line.endswith("# wrong")}
    found = {int(line.split(":")[1]) for line in done.stdout.splitlines() if ": error:" in line}
    assert found == wrong, done.stdout + done.stderr
