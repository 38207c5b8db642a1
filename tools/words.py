"""Make the list of words that comes with the lab, `truenorm train --data words`.

    python -m tools.words               # writes lab/words.txt

They are the lower-case words of three letters or more in the docstrings of Python's standard library. Each version of
Python gives another list, so the list is kept: a run on it is the same everywhere. Python 3.11.7 made it.
"""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

FILE = Path(__file__).parents[1] / "src" / "truenorm" / "lab" / "words.txt"
WORD = re.compile(r"(?<![\w'`.-])[a-z]{3,}(?![\w'`.(=-])")


def words(pattern: str = "*.py") -> list[str]:
    """The words of this version of Python, sorted; `pattern`: the modules to read."""
    found: set[str] = set()
    for file in sorted(Path(os.__file__).parent.glob(pattern)):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                found |= set(WORD.findall(ast.get_docstring(node) or ""))
    return sorted(found)


if __name__ == "__main__":
    FILE.write_text("\n".join(words()) + "\n", "utf-8")
