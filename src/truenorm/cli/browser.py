"""Open a file in a browser, if there is one."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click


def open_in_browser(path: Path) -> None:
    """Open the file; without a browser, say where it is."""
    if not (_has_display() and webbrowser.open(path.resolve().as_uri())):
        click.echo(f"No browser found. Open {path.resolve()} in one.")


def _has_display() -> bool:
    """Whether there is a display. Without one, Python may start a text browser in the terminal."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
