"""`truenorm page`: write the interactive page, and open it."""

from __future__ import annotations

import os
import sys
import webbrowser
from pathlib import Path

import click

from truenorm.cli import Command
from truenorm.page import write

NAME = "truenorm.html"


@click.command(cls=Command, epilog="Example: truenorm page lecture.html --no-open")
@click.argument("path", type=click.Path(path_type=Path), default=NAME)
@click.option("--no-open", is_flag=True, help="Only write the file.")
def command(path: Path, no_open: bool) -> None:
    """See every number of a normalization, forward and backward, in a browser.

    Writes one HTML file to PATH (truenorm.html here, or in the directory PATH) and opens it. It needs no server and no
    network: send it, or put it on any web host.
    """
    written = write(path / NAME if path.is_dir() else path)
    click.echo(f"Written: {written} ({written.stat().st_size / 1000:.0f} kB, works offline)")
    if no_open:
        return
    if not (_has_screen() and webbrowser.open(written.resolve().as_uri())):
        click.echo("No browser to open it with was found here: open the file in any.")


def _has_screen() -> bool:
    """Whether a browser would have a window: without, Python may start one in the terminal instead."""
    if sys.platform in ("win32", "darwin"):
        return True
    return any(os.environ.get(name) for name in ("DISPLAY", "WAYLAND_DISPLAY", "BROWSER"))
