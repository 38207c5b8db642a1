"""`python -m tools.faults`: run attacks for some time, or so many of each, and show the counts."""

from __future__ import annotations

import os

# Before NumPy is imported: children are forks, which need no threads.
os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = "1"

import sys
import time
from pathlib import Path

import click

from tools.faults import fuzzers, report
from tools.faults.driver import attack_in_parallel

FULL = {"kills": 500, "signals": 200, "disks": 100, "outputs": 100, "tampering": 1000, "races": 100}


@click.command()
@click.option("--seconds", type=float, default=0.0, help="Run all attacks in turn for so long.")
@click.option("--kills", type=int, default=0, help="How many kills.")
@click.option("--signals", type=int, default=0, help="How many signals.")
@click.option("--disks", type=int, default=0, help="How many full disks.")
@click.option("--outputs", type=int, default=0, help="How many outputs that fail.")
@click.option("--tampering", type=int, default=0, help="How many tampered files.")
@click.option("--races", type=int, default=0, help="How many races.")
@click.option(
    "--fuzz",
    "fuzzed",
    type=click.Choice(list(fuzzers.FUZZERS)),
    multiple=True,
    help="Run this fuzzer. May be repeated.",
)
@click.option("--full", is_flag=True, help="The numbers of docs/reliability.md, and all fuzzers.")
@click.option("--jobs", type=int, default=1, show_default=True, help="Processes that attack, with seeds that follow.")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--case", type=int, default=0, show_default=True, help="Begin with the case of this number.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Write what was run into this page.")
def main(
    seconds: float,
    fuzzed: tuple[str, ...],
    full: bool,
    jobs: int,
    seed: int,
    case: int,
    write: Path | None,
    **wanted: int,
) -> None:
    """Attack the training command, and count what was lost."""
    findings = 0
    for name in fuzzers.FUZZERS if full else fuzzed:
        if (found := fuzzers.run(name, seed)) is not None:
            findings += found.findings
            row = report.fuzzer_row(fuzzers.FUZZERS[name].title, found, seed)
            click.echo(", ".join(row))
            if write is not None:
                report.write_fuzzer(write, row)
    start = time.monotonic()
    counts = attack_in_parallel(jobs, seconds, FULL if full else wanted, seed, case)
    if table := report.attacks_table(counts):
        caption = report.caption(counts, range(seed, seed + jobs), time.monotonic() - start)
        click.echo(f"{table}\n\n{caption}")
        if write is not None:
            report.write_attacks(write, table, caption)
    sys.exit(any(one.failed for one in counts.values()) or bool(findings))


if __name__ == "__main__":
    main()
