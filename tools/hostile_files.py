"""Contents of files that commands may be given: nearly right, or anything. For `fuzz_commands`."""

import json
import random
import string
from typing import Any

import numpy as np

NUMBERS = (
    *("0", "-0", "1", "2", "3", "-1", "0.5", "7", "1e-320", "1e308", "-1e308", "1e150", "1e30", "1e999", "1_0", "٣"),
    *("nan", "inf", "-inf", "", " ", "x", "0x1", "1000000", "9" * 30, "9" * 400, "1e", "+", "1,2", "\u2212" + "1"),
)
CONTROL = ("\x1b[31m", "\x1b]0;title\x07", "\x9b2J", "\u202e", "\r", "\x7f", "\b", "\u2028", "\x85", "\t")
CHARACTERS = (string.ascii_lowercase, "äöüß", "東京都", "👩‍👧", "می‌خواهم", "e\u0301", "".join(CONTROL))
VALUES: tuple[Any, ...] = (
    *(None, True, 0, -1, 1, 2**31, 2**63, 2**64, 10**400, 1e308, 1e-320, float("nan"), float("inf"), 0.5),
    *("", "x", "\x1b[2J", "\ud800", "a" * 10_000, [], [[]], {}, {"": None}, ["a", "a"], [0.0, -1], {"norm9": {}}),
)


def number(rng: random.Random) -> str:
    return rng.choice(NUMBERS) if rng.random() < 0.6 else f"{rng.gauss(0, 3):.3g}"


def text(rng: random.Random, most: int = 8) -> str:
    return "".join(rng.choices(rng.choice(CHARACTERS), k=rng.randint(0, most)))


def csv_file(rng: random.Random) -> bytes:
    """A table of numbers, sometimes with wrong cells, wrong lines, or damaged bytes."""
    rows, columns = rng.choice(((0, 0), (1, 1), (4, 2), (8, 3), (6, 3), (40, 4)))
    wrong = rng.choice((0, 0, 0.02, 0.3))
    separator, end = rng.choice((",", ",", ",", ";", "\t", " ", ", ")), rng.choice(("\n", "\n", "\r\n", "\r", "\n\n"))

    def cell() -> str:
        if rng.random() < wrong:
            return rng.choice((number(rng), text(rng), f'"{text(rng)}"', '"', '""', text(rng, 200)))
        return rng.choice((f"{rng.gauss(0, 3):.4g}", str(rng.randint(0, 3))))

    names = [*"aby", *(text(rng) for _ in range(columns))][:columns]
    lines = [names] if rng.random() < 0.7 else []
    lines += [[cell() for _ in range(columns + (rng.random() < wrong / 4))] for _ in range(rows)]
    content = end.join(separator.join(line) for line in lines).encode("utf-8", "surrogatepass")
    if rng.random() < 0.02:
        content += b",".join((b"1" * 140_000, b"2"))
    return finished(rng, content)


def word_file(rng: random.Random) -> bytes:
    lines = [text(rng, rng.choice((3, 10, 200))) for _ in range(rng.choice((0, 1, 2, 5, 30)))]
    return finished(rng, rng.choice(("\n", "\r", "\r\n")).join(lines).encode("utf-8", "surrogatepass"))


def words(rng: random.Random, count: int) -> bytes:
    """Words without faults, but with characters that control a terminal."""
    some = {"ab", "bc"} | {"".join(rng.choices("abcdeé東\x1b\x9b\u202e", k=rng.randint(1, 6))) for _ in range(count)}
    return "\n".join(sorted(some)).encode()


def finished(rng: random.Random, content: bytes) -> bytes:
    content = b"\xef\xbb\xbf" + content if rng.random() < 0.05 else content
    return damaged(rng, content) if rng.random() < 0.15 else content


def damaged(rng: random.Random, content: bytes) -> bytes:
    """The content with a few bytes changed, inserted, removed or cut off."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 3, 20))):
        at = rng.randint(0, len(data))
        match rng.randrange(6):
            case 0:
                data[at : at + 1] = bytes([rng.randrange(256)])
            case 1:
                data[at:at] = rng.choice(
                    (b"\0", b"\xff", b"\r", b'"', b",", b"\n", b"\x1b[2J", b"[" * 2000, b"9" * 400)
                )
            case 2:
                del data[at : at + rng.choice((1, 8, 1000))]
            case 3:
                del data[at:]
            case 4:
                data[at : at + 8] = data[max(0, at - 8) : at]
            case _:
                data = data.replace(
                    *rng.choice(((b"F32", b"F8_E4M3"), (b"F32", b"BF16"), (b"1", b"9" * 400), (b":", b"")))
                )
    return bytes(data)


def hostile_json(rng: random.Random, content: bytes) -> bytes:
    """The same document with one or two other values."""
    return json.dumps(changed(rng, json.loads(content))).encode()


def hostile_state(
    rng: random.Random, arrays: dict[str, Any], metadata: dict[str, Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The content of a checkpoint with other values in its metadata, or another array. JSON can hold it."""
    if rng.random() < 0.6:
        return arrays, dict(changed(rng, json.loads(json.dumps(metadata))))
    name = rng.choice(sorted(arrays))
    array = arrays[name]
    other = rng.choice(
        (
            np.zeros(0, array.dtype),
            np.full_like(array, 0),
            np.full(array.shape, np.nan if array.dtype.kind == "f" else -1).astype(array.dtype),
            np.full(array.shape, 2**62).astype(array.dtype),
            array.astype(rng.choice((np.float16, np.int8, bool, np.float64))),
            np.zeros((2, *array.shape), array.dtype),
        )
    )
    renamed = rng.choice((name, name, f"{name}.x"))
    return {one: value for one, value in arrays.items() if one != name} | {renamed: other}, metadata


def changed(rng: random.Random, document: Any) -> Any:
    """A document with one value replaced, or one name removed or renamed."""
    if not isinstance(document, (dict, list)) or not document or rng.random() < 0.1:
        return document if isinstance(document, dict) else rng.choice(VALUES)
    if isinstance(document, list):
        at = rng.randrange(len(document))
        return [changed(rng, one) if i == at else one for i, one in enumerate(document)]
    name = rng.choice(sorted(document))
    match rng.randrange(6):
        case 0:
            return {one: value for one, value in document.items() if one != name}
        case 1:
            return {f"{one}x" if one == name else one: value for one, value in document.items()}
        case 2:
            return document | {name: rng.choice(VALUES)}
        case _:
            return document | {name: changed(rng, document[name])}
