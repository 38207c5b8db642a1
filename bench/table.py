"""Results as Markdown, always made from the JSON.

python -m bench.table bench/results.json            # the whole table
python -m bench.table bench/results.json --write    # into README.md (a few rows) and docs/speed.md (all)
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click

ROOT = Path(__file__).resolve().parents[1]
SPEED_HEADS = ("forward + backward", "compared with", "truenorm", "other", "speedup")
# The rows of the README: suite, and the peer it is compared with.
SHORT = (
    ("batch-ragged", "torch gather + scatter"),
    ("batch-ragged", "torch eager, padding averaged in"),
    ("group-ragged", "torch where-and-sum"),
    ("rms-8192x768", "torch eager"),
    ("layer-8192x512", "torch eager"),
    ("batch-8192x512", "torch eager"),
)


def render(results: dict[str, Any], *, every: bool = False) -> str:
    """Speed beside the peers, forward beside a copy, and a caption; with `every`, all implementations too."""
    parts = [
        markdown_table(SPEED_HEADS, _speeds(results)),
        markdown_table(("forward", "truenorm", "copy", "share of a copy's bytes/s"), _copies(results)),
    ]
    if every:
        heads = ("case", "implementation", "forward + backward", "forward", "baseline / it")
        parts.append(markdown_table(heads, _implementations(results)))
    return "\n\n".join([*parts, caption(results)]) + "\n"


def render_short(results: dict[str, Any]) -> str:
    """The rows of the README, with the same caption."""
    return "\n\n".join([markdown_table(SPEED_HEADS, _speeds(results, SHORT)), caption(results)]) + "\n"


def caption(results: dict[str, Any]) -> str:
    """How it was measured, and on what machine."""
    machine, settings = results["machine"], results["settings"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items() if found)
    counts = [one["total"] if one["disturbed"] else one["quiet"] for one in (s["rounds"] for s in results["suites"])]
    rounds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    busy = ", ".join(disturbed(results))
    warning = f" **Other processes were busy during {busy}: these times are not reliable.**" if busy else ""
    memory = {
        "reuse": "the allocator reuses freed memory for all implementations, so page faults are not measured",
        "system": "default allocator",
    }[settings["allocator"]]
    return (
        f"Times are medians of {rounds} interleaved rounds. A ratio is the median of the ratios within each round, "
        f"with quartiles in parentheses; it is not the quotient of the two medians. float32; {memory}. "
        f"{machine['cpu']}, {settings['threads']} threads, {machine['system']}; engine {machine['engine']}; "
        f"{versions}; revision {machine['revision'] or 'unknown'}.{warning}"
    )


def disturbed(results: dict[str, Any]) -> list[str]:
    """The suites during which other processes were busy."""
    return [suite["name"] for suite in results["suites"] if suite["rounds"]["disturbed"]]


def replace(text: str, table: str, name: str = "bench") -> str:
    """`text` with `table` between the two markers of this name, and nothing else changed."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"bench.table: the text needs {begin} and then {end}, once each.")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table.strip()}\n{end}{rest.split(end)[1]}"


def _speeds(results: dict[str, Any], rows: Sequence[tuple[str, str]] | None = None) -> Iterable[Sequence[str]]:
    """One row for each comparison of forward and backward, or only for those in `rows`."""
    for suite in results["suites"]:
        times = {one["name"]: one for one in suite["implementations"]}
        title = suite["title"]
        for one in suite["comparisons"]:
            name = one["against"]
            if one["part"] != "both" or (rows is not None and (suite["name"], name) not in rows):
                continue
            yield title, name, _time(times["truenorm"], "both"), _time(times[name], "both"), _speedup(one)
            title = ""


def _copies(results: dict[str, Any]) -> Iterable[Sequence[str]]:
    for suite in results["suites"]:
        ours = next(one for one in suite["implementations"] if one["name"] == "truenorm")
        for one in suite["comparisons"]:
            if one["part"] == "forward":
                copy = duration(suite["copy"]["seconds"]["median"])
                yield suite["title"], _time(ours, "forward"), copy, _ratio(one, "{:.0%}")


def _implementations(results: dict[str, Any]) -> Iterable[Sequence[str]]:
    for suite in results["suites"]:
        title = suite["title"]
        for one in suite["implementations"]:
            speed = f"{one['both']['speed']['median']:.2f}" if "speed" in one.get("both", {}) else ""
            name = one["name"] + (" (baseline)" if one["name"] == suite["baseline"] else "")
            yield title, name, _time(one, "both"), _time(one, "forward"), speed
            title = ""


def markdown_table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [heads, ["---", "---", *["---:"] * (len(heads) - 2)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _time(implementation: dict[str, Any], part: str) -> str:
    if implementation["status"] != "ok":
        return str(implementation["status"]).split(":")[0]
    return duration(implementation[part]["seconds"]["median"])


def duration(seconds: float) -> str:
    """Three digits and a unit."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _ratio(comparison: dict[str, Any], form: str) -> str:
    """The median and the quartiles."""
    if comparison["ratio"] is None:
        return "not measured"
    median, low, high = (form.format(comparison["ratio"][key]) for key in ("median", "low", "high"))
    return f"{median} ({low} to {high})"


def _speedup(comparison: dict[str, Any]) -> str:
    ratio = comparison["ratio"]
    equal = ratio is not None and ratio["low"] <= 1 <= ratio["high"]
    return ("about equal: " if equal else "") + _ratio(comparison, "{:.2f}")


def publish(results: dict[str, Any], root: Path = ROOT) -> None:
    """Write the tables into README.md and docs/speed.md; raise ValueError if other processes were busy."""
    if busy := disturbed(results):
        raise ValueError(f"other processes were busy during {', '.join(busy)}. Measure again on a quiet machine.")
    for page, table in (("README.md", render_short(results)), ("docs/speed.md", render(results))):
        file = root / page
        file.write_text(replace(file.read_text("utf-8"), table), "utf-8")


def show_or_write(table: str, path: Path | None, name: str, busy: Sequence[str]) -> None:
    """Print the table, or put it between its markers in a file. If other processes were `busy` it is only printed."""
    if path is None or busy:
        click.echo(table)
    if busy:
        raise click.ClickException(
            f"other processes were busy during {', '.join(busy)}. Measure again on a quiet machine."
        )
    if path is not None:
        path.write_text(replace(path.read_text("utf-8"), table, name), "utf-8")


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--every", is_flag=True, help="Show all implementations, not only those of the published tables.")
@click.option("--write", is_flag=True, help="Write the tables into README.md and docs/speed.md.")
def main(results: Path, every: bool, write: bool) -> None:
    """Render RESULTS (JSON) as Markdown."""
    found = json.loads(results.read_text("utf-8"))
    if not write:
        click.echo(render(found, every=every), nl=False)
        return
    try:
        publish(found)
    except ValueError as error:
        raise click.ClickException(str(error)) from None


if __name__ == "__main__":
    main()
