"""Files that commands write: whether they can be is said before the work, not after it."""

from __future__ import annotations

import os
from errno import EEXIST
from pathlib import Path

from truenorm.report import TITLE


def require_writable(file: Path, option: str) -> None:
    """Raise before the work, and not after it, if a file cannot be written."""
    if not file.parent.is_dir():
        raise ValueError(f"{option}: a file in a directory that exists, got {file}.")
    if file.exists() and not file.is_file():
        raise ValueError(f"{option}: an ordinary file or a new one, got {file}.")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise ValueError(f"{option}: a file that may be written, got {file}.")


def require_own(file: Path, what: str, mark: str) -> None:
    """Raise if a file exists without such a mark at its head: truenorm did not write it, and it may be precious."""
    if file.is_file():
        with file.open("rb") as opened:
            head = opened.read(1024)
        if head and mark.encode() not in head:
            raise FileExistsError(EEXIST, f"exists and is not {what}. Choose another name, or remove it", str(file))


def require_report(file: Path) -> None:
    require_own(file, "a report", TITLE)
