"""`truenorm page`: write the interactive page, and open it."""

from __future__ import annotations

import os
import sys
import webbrowser
from errno import EEXIST, ENOENT
from pathlib import Path

import click

from truenorm.cli import Command
from truenorm.page import is_page, write

NAME = "truenorm.html"


@click.command(cls=Command, epilog="Example: truenorm page lecture.html --no-open")
@click.argument("path", default=NAME)
@click.option("--no-open", is_flag=True, help="Only write the file.")
def command(path: str, no_open: bool) -> None:
    """See every number of a normalization, forward and backward, in a browser.

    Writes one HTML file to PATH (truenorm.html here, or in the directory PATH) and opens it. It needs no server and no
    network: send it, or put it on any web host.
    """
    target = Path(path, NAME) if Path(path).is_dir() or path.endswith(("/", os.sep)) else Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(ENOENT, "there is no such directory", str(target.parent))
    if target.is_file() and not is_page(target):
        raise FileExistsError(EEXIST, "something else is in this file. Choose another name, or remove it", str(target))
    written = write(target)
    click.echo(f"Written: {written} ({written.stat().st_size / 1000:.0f} kB, works offline)")
    if no_open:
        return
    if not (_has_screen() and webbrowser.open(written.resolve().as_uri())):
        click.echo(f"There is no browser to open it with here. Open {written.resolve()} in any.")


def _has_screen() -> bool:
    """Whether a browser would have a window: without, Python may start one in the terminal instead."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
