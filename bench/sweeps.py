"""The time of each pass over memory by itself, in bytes a second relative to a copy.

    python -m bench.sweeps [--suite NAME] [--write docs/speed.md]

A normalization does a few operations for each number that it reads, so it is bound by memory. Forward is `measure`,
then `write y`; backward is `sum`, then `write dx`. A pass that runs at a copy's bytes/s can only become faster by
moving less. Where the elements of a statistic stay in the cache (layer, RMS, group and instance norm), the second pass
reads from the cache, and forward takes less time than its two passes timed apart.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from bench.process import enter

if TYPE_CHECKING:
    from bench.inputs import Inputs


@dataclass(frozen=True)
class Sweep:
    """A call, and the bytes that it has to move."""

    name: str
    call: Callable[[], object]
    bytes: int


@click.command()
@click.option("--suite", "names", multiple=True, metavar="NAME", help="Only this one; * matches anything. Repeatable.")
@click.option("--seconds", type=float, default=6.0, show_default=True, help="How long to time each suite.")
@click.option(
    "--patience", type=float, default=60.0, show_default=True, help="How long to wait for other processes, each suite."
)
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(names: tuple[str, ...], seconds: float, patience: float, write: Path | None) -> None:
    """Time every pass of truenorm over memory beside a copy."""
    enter("reuse")
    from bench.cases import SUITES
    from bench.table import show_or_write

    chosen = [suite for suite in SUITES if not names or any(fnmatch.fnmatch(suite.name, name) for name in names)]
    lines = ["| case | pass | MB | time | share of a copy's bytes/s |", "| --- | --- | ---: | ---: | ---: |"]
    busy = []
    for suite in chosen:
        click.echo(f"{suite.name} ...", err=True)
        found, disturbed = rows(suite.title, sweeps(suite.case.make_inputs()), seconds, patience)
        lines += found
        busy += [suite.name] if disturbed else []
    table = "\n".join(lines)
    show_or_write(table, write, "sweeps", busy)


def sweeps(inputs: Inputs) -> list[Sweep]:
    """The copy, the four passes, and forward and backward whole."""
    import numpy as np

    import truenorm as tn
    from bench.peers.copy import copier
    from bench.peers.truenorm_numpy import norm_of

    x, dy, lengths, norm = inputs.x, inputs.dy, inputs.lengths, norm_of(inputs.case)

    def forward(**moments: Any) -> Any:
        return tn.forward(x, norm, weight=inputs.weight, bias=inputs.bias, lengths=lengths, **moments)

    out = forward()
    sums, valid, whole = tn.backward_sums(dy, out), inputs.valid_bytes, x.nbytes
    return [
        Sweep("copy", copier(x, np.empty_like(x))[1], 2 * whole),
        Sweep("measure", lambda: tn.measure(x, norm, lengths=lengths), valid),
        Sweep("write y", lambda: forward(moments=out.moments), valid + whole),
        Sweep("sum", lambda: tn.backward_sums(dy, out), 2 * valid),
        Sweep("write dx", lambda: tn.backward(dy, out, sums=sums), 2 * valid + whole),
        Sweep("forward", forward, inputs.needed_bytes),
        Sweep("backward", lambda: tn.backward(dy, out), 2 * (inputs.needed_bytes - whole) + whole),
    ]


def rows(title: str, found: list[Sweep], seconds: float, patience: float) -> tuple[list[str], bool]:
    """The rows of one case, and whether other processes were busy: medians, and bytes/s relative to the copy's."""
    from bench.table import duration
    from bench.timing import interleave, ratio, spread

    rounds = interleave({sweep.name: sweep.call for sweep in found}, seconds=seconds, patience=patience)
    lines = []
    for sweep in found:
        share = ratio(rounds.seconds("copy"), rounds.seconds(sweep.name))["median"] * sweep.bytes / found[0].bytes
        time = duration(spread(rounds.seconds(sweep.name))["median"])
        lines.append(f"| {title} | {sweep.name} | {sweep.bytes / 1e6:.3g} | {time} | {share:.0%} |")
        title = ""
    return lines, rounds.disturbed()


if __name__ == "__main__":
    main()
