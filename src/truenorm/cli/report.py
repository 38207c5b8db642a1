"""`truenorm report`: one HTML file about one training run, several side by side, or the results of a comparison."""

from __future__ import annotations

from errno import ENOENT
from pathlib import Path

import click

from truenorm.cli import Command
from truenorm.cli.browser import open_in_browser
from truenorm.cli.files import require_report
from truenorm.explanation.terminal import printable
from truenorm.page import write_whole
from truenorm.report.html import to_bytes
from truenorm.report.kinds import report_of

NAME = "truenorm-report.html"


@click.command(
    cls=Command,
    epilog="""\b
Examples:
  truenorm report runs/names --open
  truenorm report runs/batch runs/none --out comparison.html --png --csv
  truenorm report results                                   # of truenorm compare --out results

The report of runs shows losses, histograms of every layer over time, gradient norms and update ratios, drift, batch
against running statistics, samples, the options that differ, and the commands that repeat each run. A run may be
complete, stopped, diverged, or still training. Up to 8 runs of one task can be compared.

The report of a comparison shows its settings with intervals, mean losses over the steps, failed trials, and the command
that repeats it. Trials may be missing.
""",
)
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), default=NAME, show_default=True, help="The file."
)
@click.option("--png", is_flag=True, help="Also write each chart as a PNG file, into a folder beside the report.")
@click.option("--svg", is_flag=True, help="Also write each chart as an SVG file.")
@click.option("--csv", is_flag=True, help="Also write each table as a CSV file.")
@click.option("--open", "open_it", is_flag=True, help="Open the report in a browser.")
def command(runs: tuple[Path, ...], out: Path, png: bool, svg: bool, csv: bool, open_it: bool) -> None:
    """Write one HTML file about training runs. It needs no server, no network and no JavaScript.

    Each RUN is a directory that `truenorm train` wrote. Or it is one directory that `truenorm compare` wrote.
    """
    if not out.name:
        raise click.UsageError("--out: must be the name of a file, got ''.")
    report = report_of(runs)
    if not out.parent.is_dir():
        raise FileNotFoundError(ENOENT, "there is no such directory", str(out.parent))
    require_report(out)
    html = to_bytes(report.html())
    write_whole(out, html)
    click.echo(f"Written: {printable(str(out))} ({len(html) / 1000:.0f} kB, works offline)")
    folder = out.with_name(f"{out.stem}-files")
    contents = [
        *(report.image_files("png") if png else ()),
        *(report.image_files("svg") if svg else ()),
        *(report.csv_files() if csv else ()),
    ]
    if contents:
        folder.mkdir(exist_ok=True)
        for name, content in contents:
            write_whole(folder / name, content)
        click.echo(f"Written: {len(contents)} files in {printable(str(folder))}")
    if open_it:
        open_in_browser(out)
