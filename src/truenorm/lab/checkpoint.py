"""A run on disk. Whatever happens, a file is either the old one or the new one, and whole.

    config.json             what was asked for
    metrics.jsonl           one line for each report
    checkpoint.safetensors  parameters, running statistics, optimizer, step: all that a run is
    result.json             written last: the run is complete
    lock                    held while a process works on the run

Nothing that is loaded can run code: safetensors and JSON only.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save as to_bytes

Array = NDArray[Any]
FORMAT = "truenorm-lab-1"


def write_atomically(path: Path, content: bytes) -> None:
    """Beside the file, to the disk, then in its place by one rename; a full disk leaves the old file."""
    beside = path.with_name(f".{path.name}.part")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n").encode())


def plain(content: Any) -> Any:
    """With null for numbers that are not finite, which JSON does not have."""
    match content:
        case dict():
            return {name: plain(value) for name, value in content.items()}
        case list() | tuple():
            return [plain(value) for value in content]
        case float():
            return content if math.isfinite(content) else None
        case _:
            return content


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text("utf-8"))
    except FileNotFoundError:
        found = f"one without {path.name}" if path.parent.is_dir() else "none of this name"
        raise ValueError(f"{path.parent}: a run's directory, got {found}.") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: JSON, got something else. The file is damaged.") from None


def append_line(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # a full disk is noticed without a name


def save(path: Path, arrays: Mapping[str, Array], facts: Mapping[str, Any]) -> None:
    """Arrays, and facts that JSON can hold."""
    # Not contiguous arrays would be written in another order.
    content = {name: value.copy(order="C") for name, value in arrays.items()}
    # One entry: safetensors writes several in no particular order, and equal runs have equal files.
    told = {"facts": facts, "digest": _digest(content)}
    write_atomically(path, to_bytes(content, {FORMAT: json.dumps(told)}))


def _digest(arrays: Mapping[str, Array]) -> str:
    """Of all arrays: a bit that has flipped on a disk would change a run without a word."""
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode())
        found.update(arrays[name].tobytes())
    return found.hexdigest()


def load(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """What `save` wrote."""
    if not path.is_file():
        raise ValueError(f"{path.parent}: a run with a checkpoint, got none. It was stopped before its first.")
    try:
        with safe_open(path, framework="numpy") as file:
            told = file.metadata() or {}
            if FORMAT not in told:
                raise ValueError(f"{path}: a checkpoint of truenorm's lab, got another one's.")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            said = json.loads(told[FORMAT])
            if not isinstance(said, dict) or said.get("digest") != _digest(arrays):
                raise ValueError(f"{path}: a checkpoint, got a damaged file. Start a new run.")
            return arrays, said.get("facts") or {}
    except (SafetensorError, json.JSONDecodeError, RecursionError):
        raise ValueError(f"{path}: a checkpoint, got a damaged file. Start a new run.") from None


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Nobody else works on this run meanwhile. The system releases the lock, however the process ends."""
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{directory}: a run that nobody works on, got one in use. Wait for it, or choose another --out."
            ) from None
        yield


def truncate_metrics(path: Path, step: int) -> None:
    """Leave out what was reported after the checkpoint: it will be reported again."""
    if not path.exists():
        return
    kept, lines = [], path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            if number < len(lines):  # only the last line of a killed process may be torn
                raise ValueError(f"{path}: a report in each line, got a damaged line {number}. Delete it.") from None
    write_atomically(path, b"".join(kept))
