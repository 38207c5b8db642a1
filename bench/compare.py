"""What a comparison costs beside its trainings, and how it gets faster on a cluster.

    python -m bench.compare [--trials 10000] [--rounds 3] [--write docs/compare.md]

overhead   a grid of 10,000 trials whose trainings are faked: it is planned, interrupted half way by Ctrl-C, resumed and
           reported. Each is a command of its own; its time and its peak memory are measured.
cluster    100 real trials on one and on two workers of dask.distributed on this machine, in turns.

It takes about ten minutes, and needs two processors that nothing else uses. `--only` measures one of the two.
"""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from bench.machine import facts
from bench.process import enter
from bench.table import ROOT, duration, show_or_write
from bench.timing import DISTURBED, ratio, seconds_of_others, spread

FAKE, REAL = "bench.fake_trials", "truenorm"
SEEDS = 10
CLUSTER_TRIALS = 100
PATIENCE = 30  # seconds to wait for other processes before a measurement
CLUSTER = """
import sys
from distributed import LocalCluster
if __name__ == "__main__":
    cluster = LocalCluster(n_workers=int(sys.argv[1]), threads_per_worker=1, dashboard_address=":0")
    print(cluster.scheduler_address, flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class Command:
    """What a command took. `megabytes`: the peak of its largest process."""

    seconds: float
    megabytes: float
    output: str


@click.command()
@click.option("--trials", type=click.IntRange(200), default=10_000, show_default=True, help="Faked trials.")
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True, help="Rounds of real trials.")
@click.option("--steps", type=click.IntRange(1), default=1500, show_default=True, help="Steps of a real trial.")
@click.option("--only", type=click.Choice(["overhead", "cluster"]), help="Measure only this.")
@click.option(
    "--write", type=click.Path(exists=True, path_type=Path), help="Write the tables between their markers in this file."
)
def main(trials: int, rounds: int, steps: int, only: str | None, write: Path | None) -> None:
    """Measure the overhead of a trial, and the speed of a cluster of two workers."""
    enter("system", threads=1, processors=2)
    machine = machine_line()  # before the measurements: what they write is no change of what is measured
    with tempfile.TemporaryDirectory() as folder:
        if only != "cluster":
            show_or_write(f"{overhead(trials, Path(folder))} {machine}", write, "overhead", [])
        if only != "overhead":
            table, busy = cluster(rounds, steps, Path(folder))
            show_or_write(f"{table} {machine}", write, "cluster", ["the cluster"] if busy else [])


def machine_line() -> str:
    """The processor, the versions and the revision that were measured."""
    machine = facts()
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "truenorm", "numpy"))
    return f"{machine['cpu']}; {versions}; revision {machine['revision'] or 'unknown'}."


# ---- overhead ----


def overhead(trials: int, folder: Path) -> str:
    """A table: what planning, running, resuming and reporting a grid takes."""
    options, count = grid_options(trials)
    out = ["--out", str(folder / "results")]
    planned = run(FAKE, "compare", *options, "--dry-run")
    stopped = run(FAKE, "compare", *options, *out, stop_at=(folder / "results", count // 2))
    resumed = run(FAKE, "compare", *out)
    again = run(FAKE, "compare", *out)
    reported = run(FAKE, "report", str(folder / "results"), "--out", str(folder / "report.html"))
    sessions = json.loads((folder / "results/machine.json").read_text("utf-8"))["sessions"]
    done = sum(one["trials"] for one in sessions)
    if done != count or len(sessions) != 2 or "are there already" not in again.output:
        raise SystemExit(f"bench.compare: needs {count:,} trials in two parts, got {done:,} in {len(sessions)}.")
    each = sum(one["seconds"] for one in sessions) / count
    rows = (
        ("plan (`--dry-run`)", planned),
        (f"run, stopped by Ctrl-C after {sessions[0]['trials']:,}", stopped),
        (f"resume, {sessions[1]['trials']:,} more", resumed),
        ("resume, nothing left", again),
        (f"`truenorm report`, {(folder / 'report.html').stat().st_size / 1e6:.1f} MB", reported),
    )
    lines = [f"| {count:,} trials | time | peak memory |", "| --- | ---: | ---: |"]
    lines += [f"| {name} | {one.seconds:.0f} s | {one.megabytes:.0f} MB |" for name, one in rows]
    size = sum(file.stat().st_size for file in (folder / "results").iterdir())
    return "\n".join(lines) + (
        f"\n\nOverhead of a trial: {duration(each)} (2 processes; the trainings are faked). The files take "
        f"{size / 1e6:.0f} MB."
    )


def grid_options(trials: int) -> tuple[list[str], int]:
    """Options of a grid with about this many trials, and how many it has."""
    cells = max(1, trials // SEEDS // 2)  # of each norm
    lrs = next(many for many in range(math.isqrt(cells), 0, -1) if cells % many == 0)
    axes = [",".join(str((1 + number) / 100) for number in range(many)) for many in (lrs, cells // lrs)]
    options = ["--norm", "none,batch", "--lr", axes[0], "--init-scale", axes[1], "--seeds", str(SEEDS)]
    return options, 2 * cells * SEEDS


def run(module: str, *arguments: str, stop_at: tuple[Path, int] | None = None) -> Command:
    """Run a command. `stop_at`: press Ctrl-C when a directory holds so many trials."""
    begin = time.perf_counter()
    process = subprocess.Popen(
        [sys.executable, "-m", module, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    if stop_at is not None:
        directory, count = stop_at
        while sum(1 for _ in directory.glob("trial-*")) < count and _is_alive(process.pid):
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGINT)
    with process.stdout:
        output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)  # not by `wait`, which does not say how much memory it took
    process.returncode = os.waitstatus_to_exitcode(status)
    expected = 0 if stop_at is None else 130
    if process.returncode != expected:
        raise SystemExit(f"bench.compare: {' '.join(arguments)} must end with {expected}.\n{output}")
    return Command(time.perf_counter() - begin, usage.ru_maxrss / 1024, output)


def _is_alive(pid: int) -> bool:
    """Whether a child still runs. `Popen.poll` would collect what `wait4` says."""
    return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


# ---- cluster ----


def cluster(rounds: int, steps: int, folder: Path) -> tuple[str, bool]:
    """A table of the times on one and on two workers, and whether other processes were busy."""
    options = ["--norm", "none,batch", "--lr", "0.1,0.3,0.5,0.7,1", "--schedule", "constant"]
    warm_up = [*options, "--seeds", "1", "--steps", "1"]
    options += ["--seeds", str(CLUSTER_TRIALS // 10), "--steps", str(steps)]
    trials: dict[int, list[float]] = {1: [], 2: []}
    commands: dict[int, list[float]] = {1: [], 2: []}
    busy: list[bool] = []
    for number in range(rounds):
        for count in (1, 2) if number % 2 else (2, 1):
            out = folder / f"{number}-{count}"
            busy.append(not any(is_quiet() for _ in range(PATIENCE)))  # not during the trials: workers are no children
            with cluster_of(count) as address:
                run(REAL, "compare", *warm_up, "--dask", address, "--out", f"{out}-warm-up")  # workers import
                took = run(REAL, "compare", *options, "--dask", address, "--out", str(out))
            (session,) = json.loads((out / "machine.json").read_text("utf-8"))["sessions"]
            trials[count].append(session["seconds"])
            commands[count].append(took.seconds)
    lines = [
        f"| {CLUSTER_TRIALS} trials of {steps:,} steps | 1 worker | 2 workers | speed-up |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, times in (("trials", trials), ("whole command", commands)):
        found = ratio(times[1], times[2])
        one, two = (f"{spread(times[count])['median']:.1f} s" for count in (1, 2))
        lines.append(f"| {name} | {one} | {two} | {found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f}) |")
    text = "\n".join(lines) + (
        f"\n\nMedians of {rounds} rounds in turns, quartiles of the ratio in parentheses; workers of one thread each, "
        "on two processors, which they share with the scheduler and the command."
    )
    return text, any(busy)


@contextmanager
def cluster_of(workers: int) -> Iterator[str]:
    """A cluster on this machine; its address."""
    with subprocess.Popen(
        [sys.executable, "-c", CLUSTER, str(workers)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,  # workers complain when their scheduler ends first
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def is_quiet(seconds: float = 1.0) -> bool:
    """Whether other processes are idle now."""
    taken = seconds_of_others()
    time.sleep(seconds)
    return seconds_of_others() - taken <= DISTURBED * seconds


if __name__ == "__main__":
    main()
