"""`python -m bench.map`: measure the cells of the speed map, one after the other, and say what was found.

    python -m bench.map                              all cells that are not in bench/map.jsonl yet; half an hour
    python -m bench.map --only layer=GroupNorm       only these; values separated by commas; repeatable
    python -m bench.map --cells 60 --seconds 480     the first 60 of them, for at most so long
    python -m bench.map --quick                      a few cells, which are only printed
    python -m bench.map --list                       the names of the cells
    python -m bench.map --summary                    of what was measured: limits, medians, the slowest cells
    python -m bench.map --draw                       pictures in docs/speed, and the section of docs/speed.md

Ctrl-C stops it; the next run continues. `bench.map.cells` says which cells there are and why.
"""

from __future__ import annotations

import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.process import THREADS, enter

if TYPE_CHECKING:
    from bench.map.cells import Cell
    from bench.map.results import Row

QUICK = 12
PAGE = Path(__file__).resolve().parents[2] / "docs" / "speed.md"


@click.command()
@click.option("--cells", "count", type=click.IntRange(1), help="Only the first so many.")
@click.option("--only", multiple=True, metavar="AXIS=VALUE", help="Only cells with this value, or one of several.")
@click.option("--seconds", type=float, help="Start no cell after so many seconds.")
@click.option("--cell-seconds", type=float, default=6.0, show_default=True, help="How long to time a cell at most.")
@click.option("--patience", type=float, default=10.0, show_default=True, help="How long to wait for others, a cell.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="The results. [bench/map.jsonl]")
@click.option("--quick", is_flag=True, help=f"The first {QUICK} cells, a second each; only printed.")
@click.option("--list", "listing", is_flag=True, help="Print the names of the cells, and whether they are measured.")
@click.option("--summary", is_flag=True, help="Print what the results say.")
@click.option("--worst", type=int, default=20, show_default=True, help="How many cells a summary lists.")
@click.option("--draw", is_flag=True, help="Write the pictures and the section of docs/speed.md.")
@click.option("--page", type=click.Path(exists=True, path_type=Path), default=PAGE, hidden=True)
def main(
    count: int | None,
    only: tuple[str, ...],
    seconds: float | None,
    cell_seconds: float,
    patience: float,
    out: Path | None,
    quick: bool,
    listing: bool,
    summary: bool,
    worst: int,
    draw: bool,
    page: Path,
) -> None:
    """Time truenorm's layers beside torch's own over a sampled grid of shapes and settings."""
    if not (listing or summary or draw):
        enter("reuse")
    from bench.map.cells import sample
    from bench.map.results import FILE, newest

    path = out or FILE
    cells = selected(sample(), only)[: QUICK if quick else count]
    if listing:
        known = newest(path).finished()
        for cell in cells:
            click.echo(f"{'x' if cell.name in known else ' '} {cell.name}")
    elif summary:
        summarize(rows_of(path, cells), worst)
    elif draw:
        publish(path, page)
    elif quick:
        summarize(run(cells, None, cell_seconds=1.0, patience=1.0, seconds=seconds), QUICK)
    else:
        run(cells, path, cell_seconds=cell_seconds, patience=patience, seconds=seconds)
        summarize(rows_of(path, cells), worst)


def selected(cells: tuple[Cell, ...], only: tuple[str, ...]) -> list[Cell]:
    """The cells that have the wanted values on all these axes."""
    from bench.map.cells import AXES

    wanted = {}
    for one in only:
        axis, _, values = one.partition("=")
        known = [str(value) for value in AXES.get(axis, ())]
        wanted[axis] = set(values.split(","))
        if not known:
            raise click.BadParameter(f"AXIS=VALUE with one of {', '.join(AXES)}, got {one!r}.", param_hint="--only")
        if not wanted[axis] <= set(known):
            raise click.BadParameter(f"{axis} is one of {', '.join(known)}; got {values!r}.", param_hint="--only")
    return [cell for cell in cells if cell.matches(wanted)]


def run(
    cells: list[Cell], path: Path | None, *, cell_seconds: float, patience: float, seconds: float | None
) -> list[Row]:
    """Measure the cells that the file does not have, and add each to it; the rows that were measured."""
    from bench.map.measure import measure
    from bench.map.results import append, start_session
    from truenorm.cli.trials_progress import trials_progress

    begin, rows, left = time.monotonic(), list[Any](), cells
    if path is not None:
        date = datetime.now(UTC).date().isoformat()
        done = start_session(path, {"threads": THREADS, "allocator": "reuse"}, date).finished()
        left = [cell for cell in cells if cell.name not in done]
        click.echo(f"{len(cells) - len(left)} of {len(cells)} cells were measured before.", err=True)
    with trials_progress(len(left), "cells") as progress:
        for cell in left:
            if seconds is not None and time.monotonic() - begin >= seconds:
                progress.say(f"{len(rows)} of {len(left)} cells in {seconds:.0f} s. Run it again to continue.")
                break
            row = measure(cell, seconds=cell_seconds, patience=patience)
            rows.append(row)
            if path is not None:
                append(path, row)
            if row["status"] != "ok":
                progress.say(f"{cell.name}: {row['status']}")
            progress.advance()
    return rows


def rows_of(path: Path, cells: list[Cell]) -> list[Row]:
    from bench.map.results import newest

    names = {cell.name for cell in cells}
    return [row for name, row in newest(path).rows.items() if name in names]


def summarize(rows: list[Row], worst: int) -> None:
    """Print limits and the slowest cells. Disturbed cells are left out, unless all are."""
    from bench.map.summary import render_limits, render_rows
    from bench.map.summary import worst as slowest

    timed = [row for row in rows if row["status"] == "ok"]
    quiet = [row for row in timed if not row["rounds"]["disturbed"]]
    click.echo(f"{len(rows)} cells: {len(rows) - len(timed)} failed, {len(timed) - len(quiet)} were disturbed.")
    if timed and not quiet:
        click.echo("WARNING: other processes were busy during all cells, these numbers are not reliable.")
    shown = quiet or timed
    click.echo(f"\ntorch's time / ours\n{render_limits(shown)}\n\nslowest\n{render_rows(slowest(shown, worst))}")


def publish(path: Path, page: Path) -> None:
    from bench.map.cells import COUNT
    from bench.map.pictures import draw, links
    from bench.map.results import newest
    from bench.map.summary import render
    from bench.table import replace

    results = newest(path)
    if not results.reliable():
        raise click.ClickException(f"{path.name} has no cell that was measured undisturbed. Run python -m bench.map.")
    for file in draw(results.reliable(), page.parent / "speed"):
        click.echo(f"wrote {file.name}", err=True)
    section = f"{render(results, COUNT)}\n\n{links()}"
    page.write_text(replace(page.read_text("utf-8"), section, "map"), "utf-8")


if __name__ == "__main__":
    main()
