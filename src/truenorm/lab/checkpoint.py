"""The formats of a run's files, as bytes: JSON, JSON lines and safetensors. Decoding them cannot run code."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load as from_bytes
from safetensors.numpy import save as to_bytes

Array = NDArray[Any]
FORMAT = "truenorm-lab-2"
NO_DIGEST = "0" * 64  # stands in the place of the digest while it is computed


def encode_json(content: Any) -> bytes:
    return (json.dumps(plain(content), indent=1, ensure_ascii=False) + "\n").encode()


def encode_line(content: Any) -> bytes:
    return f"{json.dumps(plain(content))}\n".encode()


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


def decode_json(content: bytes, name: str) -> Any:
    """The value in a file. `name` is that of the file, for messages."""
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{name}: damaged, not valid JSON.") from None


def seal(file: bytes, belongs_to: bytes = b"") -> bytes:
    """Replace NO_DIGEST, which stands in this file, by a digest of the whole file and of what it belongs to."""
    place = file.index(NO_DIGEST.encode())
    return b"".join((file[:place], _digest(file, place, belongs_to).encode(), file[place + len(NO_DIGEST) :]))


def is_intact(file: bytes, digest: Any, belongs_to: bytes = b"") -> bool:
    """Whether `seal` wrote this file, with this digest in it."""
    place = file.find(digest.encode()) if isinstance(digest, str) else -1
    return place >= 0 and digest == _digest(file, place, belongs_to)


def _digest(file: bytes, place: int, belongs_to: bytes) -> str:
    """A hash of the whole file, with NO_DIGEST in the place of the digest, and of what it belongs to."""
    view = memoryview(file)
    digest = hashlib.sha256(view[:place])
    digest.update(NO_DIGEST.encode())
    digest.update(view[place + len(NO_DIGEST) :])
    digest.update(belongs_to)
    return digest.hexdigest()


def encode(arrays: Mapping[str, Array], metadata: Mapping[str, Any]) -> bytes:
    """A safetensors file with arrays, and metadata that JSON can hold. It holds a digest of everything in it."""
    # safetensors writes the buffer of an array as it is, so it must be contiguous.
    content = {name: value.copy(order="C") for name, value in arrays.items()}
    # A single entry, as safetensors writes entries in random order, and equal runs must have equal files.
    return seal(to_bytes(content, {FORMAT: json.dumps({"digest": NO_DIGEST, "metadata": metadata})}))


def decode(file: bytes, name: str) -> tuple[dict[str, Array], dict[str, Any]]:
    """The arrays and the metadata that `encode` was given. `name` is that of the file, for messages."""
    try:
        # A safetensors file begins with the length of its header, in 8 bytes, and the header, which is JSON.
        header = json.loads(file[8 : 8 + int.from_bytes(file[:8], "little")])
        entry = header.get("__metadata__", {}).get(FORMAT)
        if entry is not None:
            saved = json.loads(entry)
            if is_intact(file, saved["digest"]):
                return from_bytes(file), saved["metadata"]
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError, RecursionError, OverflowError):
        entry = ""
    if entry is None:
        raise ValueError(f"{name}: not a checkpoint of truenorm's lab, or one of another version. Start a new run.")
    raise ValueError(f"{name}: the checkpoint is damaged. Start a new run.")
