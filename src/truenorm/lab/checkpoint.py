"""The files of a run. They are replaced atomically: after a crash a file is complete, either old or new.

    config.json             the options of the run
    metrics.jsonl           one line for each report
    checkpoint.safetensors  parameters, running statistics, optimizer state, step
    result.json             written last, when the run is complete
    lock                    held while a process works on the run

Loading a file cannot run code: the formats are safetensors and JSON.
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
    """Write a temporary file, sync it, and rename it. If the disk is full, the old file stays."""
    temporary = path.with_name(f".{path.name}.part")
    try:
        with temporary.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    write_atomically(path, (json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n").encode())


def plain(content: Any) -> Any:
    """Replace numbers that are not finite by None, as JSON has neither NaN nor infinity."""
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
        problem = f"it has no {path.name}" if path.parent.is_dir() else "it does not exist"
        raise ValueError(f"{path.parent}: not the directory of a run, {problem}.") from None
    except (ValueError, RecursionError):
        raise ValueError(f"{path}: damaged, not valid JSON.") from None


def append_line(path: Path, line: str) -> None:
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{line}\n")
    except OSError as error:
        raise OSError(error.errno, error.strerror, str(path)) from None  # add the file name


def save(path: Path, arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> None:
    """Save arrays, and metadata that JSON can hold."""
    # safetensors writes the buffer of an array as it is, so it must be contiguous.
    content = {name: value.copy(order="C") for name, value in arrays.items()}
    # A single entry, as safetensors writes entries in random order, and equal runs must have equal files.
    header = {"metadata": metadata, "digest": _digest(content)}
    write_atomically(path, to_bytes(content, {FORMAT: json.dumps(header)}))


def _digest(arrays: Mapping[str, Array]) -> str:
    """A hash of all arrays, to detect damaged files."""
    digest = hashlib.sha256()
    for name in sorted(arrays):
        digest.update(name.encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()


def load(path: Path) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the metadata that `save` wrote."""
    if not path.is_file():
        raise ValueError(f"{path.parent}: the run has no checkpoint yet.")
    try:
        with safe_open(path, framework="numpy") as file:
            entries = file.metadata() or {}
            if FORMAT not in entries:
                raise ValueError(f"{path}: not a checkpoint of truenorm's lab.")
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            header = json.loads(entries[FORMAT])
            if isinstance(header, dict) and header.get("digest") == _digest(arrays):
                return arrays, header.get("metadata") or {}
    except (SafetensorError, json.JSONDecodeError, RecursionError):
        pass
    raise ValueError(f"{path}: the checkpoint is damaged. Start a new run.")


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Hold the lock of a run. The operating system releases it, however the process ends."""
    with (directory / "lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ValueError(
                f"{directory}: another process works on this run. Wait for it, or choose another --out."
            ) from None
        yield


def truncate_metrics(path: Path, step: int) -> None:
    """Remove the reports after this step, which will be written again."""
    if not path.exists():
        return
    kept, lines = [], path.read_bytes().splitlines(keepends=True)
    for number, line in enumerate(lines, 1):
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError, RecursionError):
            if number < len(lines):  # a killed process may leave an incomplete last line
                raise ValueError(f"{path}: line {number} is damaged. Delete it.") from None
    write_atomically(path, b"".join(kept))
