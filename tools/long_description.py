"""The README as the long description of the package, without links that only work in a checkout.

`pyproject.toml` names this module as the source of `project.readme`. Pictures are left out, and relative links become
their text, or absolute links once `pyproject.toml` sets `base-url` to the address of the files of a release.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

README = Path(__file__).resolve().parents[1] / "README.md"
PICTURE = re.compile(r"!\[[^\]]*\]\([^)]*\)\n*|<img [^>]*>\n*")
RELATIVE_LINK = re.compile(r"(?<!!)\[([^\]]+)\]\((?![a-z]+:|#)([^)]+)\)")
COMMENT = re.compile(r"<!--.*?-->\n?")


def dynamic_metadata(settings: Mapping[str, Any], project: Mapping[str, Any]) -> dict[str, Any]:
    """Called by the build backend."""
    text = long_description(README.read_text("utf-8"), settings.get("base-url"))
    return {"readme": {"content-type": "text/markdown", "text": text}}


def long_description(readme: str, base_url: str | None = None) -> str:
    """`readme` without pictures, comments and relative links.

    >>> long_description("See [speed](docs/speed.md) and [PyTorch](https://pytorch.org).")
    'See speed and [PyTorch](https://pytorch.org).'
    >>> long_description("See [speed](docs/speed.md).", "https://example.org/truenorm/")
    'See [speed](https://example.org/truenorm/docs/speed.md).'
    """
    text = COMMENT.sub("", PICTURE.sub("", readme))
    return RELATIVE_LINK.sub(r"\1" if base_url is None else rf"[\1]({base_url}\2)", text)
