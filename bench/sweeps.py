"""Where the time of a call goes: each sweep over memory by itself, in bytes a second beside a copy.

    python -m bench.sweeps [--suite NAME] [--write docs/speed.md]

A normalization is a few additions for each number that is read: what it costs is its sweeps. Forward is `measure`, then
`write y`; backward is `sum`, then `write dx`. A sweep that runs at a copy's bytes/s has nothing left to gain but by
moving less. Where a statistic's elements stay in the cache (layer, RMS, group and instance norm), both sweeps of a verb
are one, and the whole takes less than its parts.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from bench.process import enter


@dataclass(frozen=True)
class Sweep:
    """A call, and the bytes that it has to move."""

    name: str
    call: Callable[[], object]
    bytes: int


@click.command()
@click.option("--suite", "names", multiple=True, metavar="NAME", help="Only this one; * matches anything. Repeatable.")
@click.option("--seconds", type=float, default=6.0, show_default=True, help="How long to time each suite.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(names: tuple[str, ...], seconds: float, write: Path | None) -> None:
    """Time every sweep of truenorm beside a copy."""
    enter("reuse")
    from bench.cases import SUITES
    from bench.table import replace

    chosen = [suite for suite in SUITES if not names or any(fnmatch.fnmatch(suite.name, name) for name in names)]
    lines = ["| case | sweep | MB | time | of a copy's bytes/s |", "| --- | --- | ---: | ---: | ---: |"]
    for suite in chosen:
        click.echo(f"{suite.name} ...", err=True)
        lines += rows(suite.title, sweeps(suite.case.problem()), seconds)
    table = "\n".join(lines)
    if write is None:
        click.echo(table)
    else:
        write.write_text(replace(write.read_text("utf-8"), table), "utf-8")


def sweeps(problem: object) -> list[Sweep]:
    """The copy first, then the sweeps of each verb, then the verbs."""
    import truenorm as tn
    from bench.peers.copy import copier
    from bench.peers.truenorm_numpy import norm_of
    from bench.problem import Problem

    assert isinstance(problem, Problem)
    x, dy, told = problem.x, problem.dy, {"lengths": problem.lengths}
    norm, affine = norm_of(problem.case), {"weight": problem.weight, "bias": problem.bias}
    out = tn.forward(x, norm, **affine, **told)
    sums, moments, real, all_ = tn.backward_sums(dy, out), out.moments, problem.valid_bytes, x.nbytes
    return [
        Sweep("copy", copier(x, np.empty_like(x))[1], 2 * all_),
        Sweep("measure", lambda: tn.measure(x, norm, **told), real),
        Sweep("write y", lambda: tn.forward(x, norm, moments=moments, **affine, **told), real + all_),
        Sweep("sum", lambda: tn.backward_sums(dy, out), 2 * real),
        Sweep("write dx", lambda: tn.backward(dy, out, sums=sums), 2 * real + all_),
        Sweep("forward", lambda: tn.forward(x, norm, **affine, **told), problem.needed_bytes),
        Sweep("backward", lambda: tn.backward(dy, out), 2 * (problem.needed_bytes - all_) + all_),
    ]


def rows(title: str, found: list[Sweep], seconds: float) -> list[str]:
    """Medians of interleaved rounds, and bytes/s as a share of the copy's in the same round."""
    from bench.table import duration
    from bench.timing import interleave, ratio, spread

    rounds = interleave({sweep.name: sweep.call for sweep in found}, seconds=seconds)
    lines = []
    for sweep in found:
        share = ratio(rounds.seconds("copy"), rounds.seconds(sweep.name))["median"] * sweep.bytes / found[0].bytes
        time = duration(spread(rounds.seconds(sweep.name))["median"])
        lines.append(f"| {title} | {sweep.name} | {sweep.bytes / 1e6:.3g} | {time} | {share:.0%} |")
        title = ""
    return lines


if __name__ == "__main__":
    main()
