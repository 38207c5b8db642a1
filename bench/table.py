"""Results as Markdown, always made from the JSON: `python -m bench.table results.json --write README.md`."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click


def render(results: dict[str, Any], *, every: bool = False) -> str:
    """The targets, forward against a copy, and what it was measured on; with `every`, all implementations too."""
    parts = [
        _table(("forward + backward", "against", "truenorm", "peer", "times faster", "to reach"), _speeds(results)),
        _table(("forward", "truenorm", "copy", "of a copy's bytes/s", "to reach"), _copies(results)),
    ]
    if every:
        heads = ("case", "implementation", "forward + backward", "forward", "baseline / it")
        parts.append(_table(heads, _implementations(results)))
    return "\n\n".join([*parts, caption(results)]) + "\n"


def caption(results: dict[str, Any]) -> str:
    """How and on what it was measured, in one paragraph."""
    machine, settings = results["machine"], results["settings"]
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items() if found)
    counts = [one["total"] if one["disturbed"] else one["quiet"] for one in (s["rounds"] for s in results["suites"])]
    rounds = " to ".join(str(count) for count in sorted({min(counts), max(counts)}))
    busy = ", ".join(disturbed(results))
    warning = f" **Other processes were busy during {busy}: do not trust.**" if busy else ""
    memory = {
        "reuse": "freed memory is reused, by all alike (first touches of fresh memory are not measured)",
        "system": "the allocator is left as it comes",
    }[settings["allocator"]]
    return (
        f"Medians of {rounds} interleaved rounds, quartiles in brackets; float32; {memory}. "
        f"{machine['cpu']}, {settings['threads']} threads, {machine['system']}; engine {machine['engine']}; "
        f"{versions}; revision {machine['revision'] or 'unknown'}.{warning}"
    )


def disturbed(results: dict[str, Any]) -> list[str]:
    """The suites whose times are worth little, as other processes were busy."""
    return [suite["name"] for suite in results["suites"] if suite["rounds"]["disturbed"]]


def replace(text: str, table: str, name: str = "bench") -> str:
    """`text` with `table` between the two markers of this name, and nothing else changed."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    if text.count(begin) != 1 or text.count(end) != 1 or text.index(begin) > text.index(end):
        raise ValueError(f"bench.table: the text needs {begin} and then {end}, once each.")
    before, rest = text.split(begin)
    return f"{before}{begin}\n{table.strip()}\n{end}{rest.split(end)[1]}"


def _speeds(results: dict[str, Any]) -> Iterable[Sequence[str]]:
    for suite in results["suites"]:
        times = {one["name"]: one for one in suite["implementations"]}
        title = suite["title"]
        for target in suite["targets"]:
            if target["part"] != "both":
                continue
            ours, peer = (_time(times[name], "both") for name in ("truenorm", target["against"]))
            yield title, target["against"], ours, peer, _ratio(target, "{:.2f}"), f"{target['required']:g}"
            title = ""


def _copies(results: dict[str, Any]) -> Iterable[Sequence[str]]:
    for suite in results["suites"]:
        ours = next(one for one in suite["implementations"] if one["name"] == "truenorm")
        for target in suite["targets"]:
            if target["part"] == "forward":
                copy = duration(suite["copy"]["seconds"]["median"])
                share = _ratio(target, "{:.0%}")
                yield suite["title"], _time(ours, "forward"), copy, share, f"{target['required']:.0%}"


def _implementations(results: dict[str, Any]) -> Iterable[Sequence[str]]:
    for suite in results["suites"]:
        title = suite["title"]
        for one in suite["implementations"]:
            speed = f"{one['both']['speed']['median']:.2f}" if "speed" in one.get("both", {}) else ""
            name = one["name"] + (" (baseline)" if one["name"] == suite["baseline"] else "")
            yield title, name, _time(one, "both"), _time(one, "forward"), speed
            title = ""


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
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


def _ratio(target: dict[str, Any], form: str) -> str:
    """The median and the quartiles; bold where it is reached."""
    if target["ratio"] is None:
        return "not measured"
    median, low, high = (form.format(target["ratio"][key]) for key in ("median", "low", "high"))
    return f"{f'**{median}**' if target['reached'] else median} ({low} to {high})"


@click.command()
@click.argument("results", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--every", is_flag=True, help="All implementations, not only those that a target names.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put it between its markers there.")
def main(results: Path, every: bool, write: Path | None) -> None:
    """Render RESULTS (JSON) as Markdown."""
    found = json.loads(results.read_text("utf-8"))
    table = render(found, every=every)
    if write is None:
        click.echo(table, nl=False)
    elif busy := disturbed(found):
        raise click.ClickException(f"other processes were busy during {', '.join(busy)}. Measure again, alone.")
    else:
        write.write_text(replace(write.read_text("utf-8"), table), "utf-8")


if __name__ == "__main__":
    main()
