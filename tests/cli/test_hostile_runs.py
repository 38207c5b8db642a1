"""Run directories of somebody else: `train --resume` and `sample` end in one line, whatever the files hold."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from truenorm.cli import main
from truenorm.lab.training import Trainer

HUGE = 10**400
Change = Callable[[dict[str, Any]], Any]


def line_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The last line of a command that must fail with exit code 2."""
    with pytest.raises(SystemExit) as stop:
        main(arguments)
    printed = capsys.readouterr()
    assert (stop.value.code, printed.out) == (2, ""), printed
    return printed.err.splitlines()[-1]


def train(words: Path, out: Path) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["train", "--data", str(words), "--hidden", "4", "--steps", "3", "--out", str(out)])
    assert not stop.value.code


@pytest.mark.parametrize(
    "change",
    [
        lambda result: result.update(steps=HUGE),
        lambda result: result.update(parameters=HUGE),
        lambda result: result["train"].update(loss=HUGE),
        lambda result: result["train"].update(accuracy=HUGE),
        lambda result: result["held_out"].update(accuracy="much"),
        lambda result: result["baseline"].update(loss=HUGE),
    ],
)
def test_numbers_in_a_result_that_no_run_writes(
    change: Change, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(words, tmp_path / "run")
    capsys.readouterr()
    path = tmp_path / "run/result.json"
    result = json.loads(path.read_bytes())
    change(result)
    path.write_text(json.dumps(result))
    line = line_of(capsys, "train", "--resume", "--out", str(tmp_path / "run"))
    assert line.startswith(f"truenorm: {tmp_path / 'run'}")
    assert "damaged" in line


@pytest.mark.parametrize(
    "change",
    [
        lambda metadata: metadata.update(step=HUGE),
        lambda metadata: metadata.update(first_inputs={"linear9": [0.0, 1.0]}),
        lambda metadata: metadata.update(first_inputs={}),
        lambda metadata: metadata.update(first_inputs={"linear1": [0, HUGE], "output": [0, 1]}),
        lambda metadata: metadata.update(running={"norm9": metadata["running"]["norm1"]}),
        lambda metadata: metadata["running"]["norm1"].update(batches=HUGE),
        lambda metadata: metadata.update(alphabet=["ab"]),
    ],
)
def test_metadata_that_no_run_writes(
    change: Change, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    state = Trainer.state

    def hostile(trainer: Trainer) -> tuple[dict[str, Any], dict[str, Any]]:
        arrays, metadata = state(trainer)
        change(metadata)
        return arrays, metadata

    monkeypatch.setattr(Trainer, "state", hostile)
    train(words, tmp_path / "run")
    monkeypatch.undo()
    (tmp_path / "run/result.json").unlink()
    capsys.readouterr()
    line = line_of(capsys, "train", "--resume", "--out", str(tmp_path / "run"))
    assert "checkpoint" in line or "alphabet" in line


@pytest.mark.parametrize("dtype", [b"F8_E4M3", b"F8_E5M2", b"BF16", b"F4", b"C64", b"U8", b"X"])
def test_a_checkpoint_with_other_dtypes(
    dtype: bytes, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    train(words, tmp_path / "run")
    (tmp_path / "run/result.json").unlink()
    capsys.readouterr()
    path = tmp_path / "run/checkpoint.safetensors"
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header, data = json.loads(content[8 : 8 + size]), content[8 + size :]
    name = dtype.decode()
    item = {"F8_E4M3": 1, "F8_E5M2": 1, "U8": 1, "BF16": 2, "C64": 8}.get(name, 1)
    header["parameter.extra"] = {"dtype": name, "shape": [8 // item], "data_offsets": [len(data), len(data) + 8]}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data + bytes(8))
    for arguments in (["train", "--resume", "--out", str(tmp_path / "run")], ["sample", str(tmp_path / "run")]):
        assert line_of(capsys, *arguments).endswith("the checkpoint is damaged. Start a new run.")
