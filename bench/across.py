"""What statistics across micro-batches and processes cost.

    python -m bench.across [--part together|sync|ranks] [--seconds 20] [--write docs/across.md]

together   peak memory and time of a training step: one big batch, `together`, `save_on_cpu`, checkpoints
sync       two local processes, a batch norm of 64 x 512 x 256 on each: the time that `sync` adds to a step, beside the
           two collectives alone
ranks      bytes and time of the exchange on 2 to 8 local processes, beside a simulation of it, and on paper up to 1,000

Memory is measured in a process of its own for each way. Times are medians of interleaved rounds.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from bench.process import enter

BATCH, CHANNELS, STEPS, PARTS, BLOCKS = 32, 64, 1024, 8, 6
SYNCED = (64, 512, 256)
ROUNDS = 40


@click.command()
@click.option("--part", "parts", multiple=True, type=click.Choice(["together", "sync", "ranks"]), help="Only this one.")
@click.option("--seconds", type=float, default=20.0, show_default=True, help="How long to time micro-batches.")
@click.option(
    "--write", type=click.Path(exists=True, path_type=Path), help="Put the tables between their markers there."
)
@click.option("--peak", "way", hidden=True, help="Print the peak memory of one way.")
def main(parts: tuple[str, ...], seconds: float, write: Path | None, way: str | None) -> None:
    """Measure micro-batches, two processes, and the exchange between more."""
    if way is not None:
        click.echo(json.dumps(peak_of_this_process(way)))
        return
    enter("system", threads=1, processors=2)
    from bench.machine import facts
    from bench.ranks import exchange_table
    from bench.table import show_or_write

    machine = facts()
    source = f"{machine['cpu']}; torch {machine['versions']['torch']}, gloo; one thread a process, two processors."
    for name in parts or ("together", "sync", "ranks"):
        made, busy = {"together": lambda: together_table(seconds), "sync": sync_table, "ranks": exchange_table}[name]()
        show_or_write(f"{made} {source}", write, f"across-{name}", [name] if busy else [])


# ---- micro-batches ----


def step_of(way: str) -> Callable[[], None]:
    """A training step of a network of batch norms, each way on the same data."""
    import torch
    from torch.utils.checkpoint import checkpoint

    import truenorm.torch as tnt

    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(
            torch.nn.Conv1d(CHANNELS, CHANNELS, 3, padding=1), tnt.BatchNorm1d(CHANNELS), torch.nn.ReLU()
        )
        for _ in range(BLOCKS)
    ]
    model = torch.nn.Sequential(*blocks)
    x, dy = torch.randn(BATCH, CHANNELS, STEPS), torch.randn(BATCH, CHANNELS, STEPS)
    size = BATCH // PARTS

    def save_on_cpu(model: Any, part: Any) -> Any:
        with torch.autograd.graph.save_on_cpu():
            return model(part)

    def recompute(model: Any, part: Any) -> Any:
        for block in model:
            part = checkpoint(block, part, use_reentrant=False)
        return part

    forwards = {"together": None, "save_on_cpu": save_on_cpu, "checkpoint": recompute}

    def step() -> None:
        model.zero_grad(set_to_none=True)
        if way == "whole":
            model(x).backward(dy)
        elif way == "parts":
            for part, gradient in zip(x.split(size), dy.split(size), strict=True):
                model(part).backward(gradient)
        else:
            outputs = tnt.together(model, x.split(size), forwards[way])
            torch.autograd.backward(outputs, dy.split(size))

    return step


WAYS = {
    "one big batch": "whole",
    "`together`": "together",
    "`together`, `save_on_cpu` inside": "save_on_cpu",
    "`together`, each block a checkpoint": "checkpoint",
    "one by one, with statistics of each": "parts",
}


def together_table(seconds: float) -> tuple[str, bool]:
    from bench.table import duration
    from bench.timing import interleave, ratio, spread

    rounds = interleave(
        {way: step_of(way) for way in WAYS.values()}, seconds=seconds, patience=seconds, rounds=(7, 200)
    )
    lines = [f"| a step of {BATCH} samples in {PARTS} micro-batches | peak memory | time | of the big batch's |"]
    lines += ["|---|---:|---:|---:|"]
    for name, way in WAYS.items():
        times = rounds.seconds(way)
        share = ratio(times, rounds.seconds("whole"))["median"]
        lines.append(f"| {name} | {peak(way) / 2**20:.0f} MiB | {duration(spread(times)['median'])} | {share:.2f} |")
    shape = f"{BATCH} x {CHANNELS} x {STEPS}"
    text = (
        f"\n\n{BLOCKS} blocks of convolution, batch norm and ReLU on {shape}, float32; memory above that of the model "
        "and the data. On the CPU `save_on_cpu` only copies: it is for GPUs, where it frees their memory."
    )
    return "\n".join(lines) + text, rounds.disturbed()


def peak(way: str) -> int:
    """In a process of its own, which returns freed memory at once."""
    returns = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
    command = [sys.executable, "-m", "bench.across", "--peak", way]
    done = subprocess.run(command, env=os.environ | returns, capture_output=True, text=True, check=True)
    return int(json.loads(done.stdout))


def peak_of_this_process(way: str) -> int:
    """By how many bytes the resident set grows in a step, at most."""
    step = step_of(way)
    step()  # threads, buffers and gradients
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins again
    before = _status("VmRSS")
    step()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


# ---- two processes ----


def sync_table() -> tuple[str, bool]:
    from bench.ranks import on_ranks
    from bench.table import duration
    from bench.timing import spread

    found, busy = on_ranks(2, time_sync, SYNCED, ROUNDS)
    times = {name: [max(pair) for pair in zip(*(one[name] for one in found), strict=True)] for name in found[0]}
    added = [both - alone for both, alone in zip(times["synced"], times["alone"], strict=True)]
    ratios = [one / two for one, two in zip(added, times["collectives"], strict=True)]
    lines = ["| two processes, each 64 x 512 x 256, float32, forward and backward | time |", "|---|---:|"]
    names = {
        "alone": "without `sync`",
        "synced": "with `sync`",
        "beside": "without `sync`, and two collectives of the same size",
        "collectives": "two collectives alone, after a barrier",
    }
    for name, text in names.items():
        lines.append(f"| {text} | {duration(spread(times[name])['median'])} |")
    share, more = spread(ratios), spread(added)
    beside = [one / two for one, two in zip(times["synced"], times["beside"], strict=True)]
    lines.append(f"| added by `sync` | {duration(max(more['median'], 0.0))} |")
    lines.append(
        f"| the same, in times of two collectives | {share['median']:.1f} ({share['low']:.1f} to {share['high']:.1f}) |"
    )
    lines.append(f"| with `sync`, of the time with two collectives | {spread(beside)['median']:.2f} |")
    text = f"\n\nMedians of {ROUNDS} interleaved rounds, quartiles in parentheses; the slower of the two processes."
    return "\n".join(lines) + text, busy


def time_sync(rank: int, world: int, shape: tuple[int, int, int], rounds: int) -> dict[str, list[float]]:
    """Seconds of each way in each round; all begin together."""
    import torch
    from torch import distributed as dist

    import truenorm.torch as tnt
    from truenorm.torch._processes import HEADER

    x, dy = torch.randn(shape).requires_grad_(), torch.randn(shape)
    alone, synced = tnt.BatchNorm1d(shape[1]), tnt.BatchNorm1d(shape[1])
    tnt.sync(synced)
    message = torch.zeros(HEADER + 3 * shape[1], dtype=torch.float64)
    gathered = [torch.empty_like(message) for _ in range(world)]

    def exchange() -> None:
        dist.all_gather(gathered, message)

    def exchange_twice() -> None:
        exchange()
        exchange()

    def step(layer: Any, between: Callable[[], None] = lambda: None) -> None:
        x.grad = None
        y = layer(x)
        between()
        y.backward(dy)
        between()

    ways: dict[str, Callable[[], None]] = {
        "alone": lambda: step(alone),
        "synced": lambda: step(synced),
        "beside": lambda: step(alone, exchange),
        "collectives": exchange_twice,
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds + 2):
        for name, call in ways.items():
            dist.barrier()
            start = time.perf_counter()
            call()
            if number >= 2:
                found[name].append(time.perf_counter() - start)
    return found


if __name__ == "__main__":
    main()
