"""Run the attacks, in this process or in several, and count."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path

import click

from tools.faults import disks, interruptions, races, report, tampering
from tools.faults.laboratory import Attempt, Laboratory

ATTACKS: dict[str, Callable[[Attempt], None]] = {
    "kills": interruptions.kill,
    "signals": interruptions.send_signals,
    "disks": disks.fill_disk,
    "outputs": disks.fail_outputs,
    "tampering": tampering.tamper,
    "races": races.race,
}
PROGRESS_SECONDS = 10.0

Counts = dict[str, report.Counts]


def attack_in_parallel(jobs: int, seconds: float, wanted: Mapping[str, int], seed: int, first: int) -> Counts:
    """The sum of the counts of several processes, which share the numbers that are wanted."""
    if jobs == 1:
        return attack(seconds, wanted, seed, first)
    shares = {name: -(-count // jobs) for name, count in wanted.items()}
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        futures = [pool.submit(attack, seconds, shares, seed + job, first) for job in range(jobs)]
        found = [future.result() for future in futures]
    return {name: report.total([one[name] for one in found]) for name in ATTACKS}


def attack(seconds: float, wanted: Mapping[str, int], seed: int, first: int) -> Counts:
    """Run the attacks. Problems are shown at once, with the options that repeat them."""
    counts = {name: report.Counts() for name in ATTACKS}
    with laboratory() as lab:
        for name, number in cases(seconds, wanted, counts, first):
            attempt = Attempt(lab, name, number, seed)
            ATTACKS[name](attempt)
            counts[name].add(attempt)
            for kind, text in attempt.problems:
                click.echo(f"{kind}: --{name} 1 --seed {seed} --case {number}: {text}", err=True)
            attempt.clean()
    return counts


def cases(seconds: float, wanted: Mapping[str, int], counts: Counts, first: int) -> Iterator[tuple[str, int]]:
    """The attacks in turn, each with the number of its case, until each has its count and the time is over."""
    start = shown = time.monotonic()
    number = first
    while names := [
        name for name in ATTACKS if time.monotonic() - start < seconds or counts[name].attempts < wanted.get(name, 0)
    ]:
        for name in names:
            yield name, number
            if time.monotonic() - shown > PROGRESS_SECONDS:
                shown = time.monotonic()
                text = ", ".join(f"{one.attempts} {name}" for name, one in counts.items() if one.attempts)
                click.echo(f"{shown - start:.0f} s: {text}", err=True)
        number += 1


@contextmanager
def laboratory() -> Iterator[Laboratory]:
    """In memory where that is permitted, as every save waits for the disk."""
    with tempfile.TemporaryDirectory(prefix="faults-") as root:
        disk = disks.SmallDisk(Path(root), 1 << 28, 100_000) if disks.can_mount() else None
        try:
            yield Laboratory(Path(root).resolve())
        finally:
            if disk:
                disk.unmount()
