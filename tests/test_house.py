"""The rules of the house: files are short, types are checked, and names are plain words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MOST_LINES = 450
MOST_TYPE_IGNORES = 5
SUFFIXES = {".py", ".pyi", ".js", ".css", ".html", ".cpp", ".hpp", ".inc"}

# Words with a private meaning that the code once used, and what it says instead.
PRIVATE_WORDS = {
    "told": "ragged arguments, mask",
    "Usual": "PlanCache",
    "usual_call": "cached_plan",
    "_usual": "a name for the condition",
    "_theirs": "use_torch_operator",
    "_undisturbed": "in_plain_eager_mode",
    "_Kept": "a name for the content",
    "quietly": "ignore_floating_point_errors",
    "inverse_deviation": "rstd",
    "blended": "ema_update",
    "_weigh": "weighted_moments",
    "slopes": "gradients",
    "whoever": "code, callers, users",
    "join_openmp": "use_openmp",
    "understand_tensors": "register_torch",
}


def sources(*folders: str) -> list[Path]:
    """The source files in these folders."""
    return sorted(file for folder in folders for file in (ROOT / folder).rglob("*") if file.suffix in SUFFIXES)


def too_long(text: str) -> bool:
    """Whether a file is long and does not say why: a line at the top begins with "Long because"."""
    lines = text.splitlines()
    reason = any(re.match(r"\W*Long because \w", line) for line in lines[:30])
    return len(lines) > MOST_LINES and not reason


def private_words(text: str) -> list[str]:
    """The private words in a text, each with its line number."""
    pattern = re.compile(rf"\b({'|'.join(PRIVATE_WORDS)})\b")
    lines = enumerate(text.splitlines(), 1)
    return [
        f"line {number}: {word} (write: {PRIVATE_WORDS[word]})"
        for number, line in lines
        for word in pattern.findall(line)
    ]


@pytest.mark.parametrize("file", sources("src", "tests"), ids=lambda file: str(file.relative_to(ROOT)))
def test_files_are_short_or_say_why_not(file: Path) -> None:
    assert not too_long(file.read_text("utf-8")), (
        f"over {MOST_LINES} lines: split it, or write 'Long because ...' at the top"
    )


@pytest.mark.parametrize("file", sources("src"), ids=lambda file: str(file.relative_to(ROOT)))
def test_words_are_those_of_the_field(file: Path) -> None:
    assert private_words(file.read_text("utf-8")) == []


def test_few_types_are_ignored() -> None:
    ignored = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in sources("src")
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if "type: ignore" in line
    ]
    assert len(ignored) <= MOST_TYPE_IGNORES, ignored


def test_violations_are_detected() -> None:
    short, long = "x = 1\n" * MOST_LINES, "x = 1\n" * (MOST_LINES + 1)
    assert not too_long(short)
    assert too_long(long)
    assert too_long(long + '"""Long because the reason is at the end."""')
    assert not too_long(f'"""A table.\n\nLong because it is one table.\n"""\n{long}')
    assert not too_long(f"// Long because it is one table.\n{long}")
    assert private_words("def f():\n    return told, untold, usual\n") == [
        "line 2: told (write: ragged arguments, mask)"
    ]
    assert len(sources("src", "tests")) > 100
