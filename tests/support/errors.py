"""How the tests of messages compare them, and find messages without a test."""

import ast
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

Call = Callable[[], Any]


def assert_message(call: Call, kind: type[Exception], text: str) -> None:
    """The call raises exactly this type with exactly this text."""
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text
    assert type(caught.value) is kind


def untested_raises(modules: Iterable[ModuleType], calls: Iterable[Call]) -> list[str]:
    """The `raise` statements of the modules that none of the calls reaches."""
    reached = {_raised_at(call) for call in calls}
    missing = []
    for module in modules:
        path = Path(module.__file__ or "")
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Raise):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not any((path.name, line) in reached for line in lines):
                    missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    return missing


def _raised_at(call: Call) -> tuple[str, int]:
    """The file and line that the exception of the call comes from."""
    try:
        call()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Path(frame.filename).name, frame.lineno or 0
    raise AssertionError("raises nothing")
