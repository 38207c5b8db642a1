"""`truenorm page`: write the interactive page and open it."""

from __future__ import annotations

import os
from errno import EEXIST, ENOENT
from pathlib import Path

import click

from truenorm.cli import Command
from truenorm.cli.browser import open_in_browser
from truenorm.explanation.terminal import printable
from truenorm.page import is_page, write

NAME = "truenorm.html"


@click.command(cls=Command, epilog="Example: truenorm page lecture.html --no-open")
@click.argument("path", default=NAME)
@click.option("--no-open", is_flag=True, help="Write the file, but do not open it.")
def command(path: str, no_open: bool) -> None:
    """Open an interactive page that shows every number of a normalization, forward and backward.

    Writes one HTML file to PATH, or truenorm.html if PATH is a directory, and opens it in a browser. The file needs no
    server and no network.
    """
    if not path:
        raise click.UsageError("PATH: must be the name of a file or a directory, got ''.")
    target = Path(path, NAME) if Path(path).is_dir() or path.endswith(("/", os.sep)) else Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(ENOENT, "there is no such directory", str(target.parent))
    if target.is_file() and not is_page(target):
        raise FileExistsError(
            EEXIST, "exists and is not a page of truenorm. Choose another name, or remove it", str(target)
        )
    written = write(target)
    click.echo(f"Written: {printable(str(written))} ({written.stat().st_size / 1000:.0f} kB, works offline)")
    if not no_open:
        open_in_browser(written)
