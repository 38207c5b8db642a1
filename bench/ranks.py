"""The exchange of statistics between processes: how many bytes, how long, on how many ranks.

`sync` gathers a message of 8 · (5 + 3 · channels) bytes of each rank, forward and backward. gloo and NCCL gather in a
ring: in each of W - 1 rounds every rank sends its neighbour what it received last. So a rank sends and receives W - 1
messages, and the time grows with W. `simulate` follows every message; on this machine all ranks share the processors,
and it is compared with real ones. With a processor for each rank it gives the time on a cluster.
"""

from __future__ import annotations

import heapq
import math
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.timing import DISTURBED, seconds_of_others

CHANNELS = 512
REAL = (2, 3, 4, 6, 8)
PAPER = (3, 8, 32, 128, 1000)
REPEATS = 300
ALPHA, BANDWIDTH = 25e-6, 10e9  # of a network on paper: seconds for a message, bytes a second


def message_bytes(channels: int) -> int:
    from truenorm.torch._processes import HEADER

    return 8 * (HEADER + 3 * channels)


def ring_bytes(world: int, size: int) -> int:
    """What each rank sends, and receives, when messages of this size are gathered."""
    return (world - 1) * size


def simulate(world: int, seconds: float, processors: int) -> float:
    """When the last rank has all messages. A message takes this long on one of the processors."""
    ready = [0.0] * world  # when each rank has what it sends next
    free = [0.0] * processors
    for _ in range(world - 1):
        arrives = [0.0] * world
        for rank in sorted(range(world), key=ready.__getitem__):
            end = max(ready[rank], heapq.heappop(free)) + seconds
            heapq.heappush(free, end)
            arrives[(rank + 1) % world] = end
        ready = arrives
    return max(ready)


def exchange_table() -> tuple[str, bool]:
    """The tables of real and of imagined ranks."""
    from bench.table import duration

    size, processors = message_bytes(CHANNELS), len(os.sched_getaffinity(0))
    real = {world: measure(world, size) for world in REAL}
    seconds_of_message = real[2][0]  # the two messages of two ranks are on their way at the same time
    lines = ["| ranks here | sent by all: computed | counted | time: simulated | measured |"]
    lines += ["|---:|---:|---:|---:|---:|"]
    for world, (seconds, counted, _) in real.items():
        computed, simulated = world * ring_bytes(world, size), simulate(world, seconds_of_message, processors)
        sent = f"{computed / 1e3:,.0f} kB | {counted / 1e3:,.0f} kB"
        lines.append(f"| {world} | {sent} | {duration(simulated)} | {duration(seconds)} |")
    text = (
        f"\n\nOne collective of {size / 1e3:.1f} kB from each rank ({CHANNELS} channels); the time of a message is "
        f"that of 2 ranks. All share {processors} processors. Bytes are counted by the loopback device, headers of TCP "
        "included.\n\n"
    )
    lines_paper = [
        "| ranks on paper | received by each, a layer and step | time in a ring | in a tree | to merge the tables |",
        "|---:|---:|---:|---:|---:|",
    ]
    for world in PAPER:
        each = ALPHA + size / BANDWIDTH
        ring, tree = 2 * simulate(world, each, world), 2 * 2 * math.ceil(math.log2(world)) * each
        lines_paper.append(
            f"| {world:,} | {2 * ring_bytes(world, size) / 1e3:,.0f} kB | {duration(ring)} | {duration(tree)} "
            f"| {duration(time_to_merge(world))} |"
        )
    more = (
        f"\n\nForward and backward of one layer of {CHANNELS} channels, with {ALPHA * 1e6:.0f} us for a message and "
        f"{BANDWIDTH / 1e9:.0f} GB/s; not measured. A tree is what a reduction would take. The last column is measured."
    )
    return "\n".join(lines) + text + "\n".join(lines_paper) + more, any(busy for _, _, busy in real.values())


def time_to_merge(world: int) -> float:
    import statistics

    import torch

    from truenorm.torch._formula import merge_tables

    tables = torch.rand(world, CHANNELS, 3, dtype=torch.float64) + 1
    times = []
    for _ in range(9):
        start = time.perf_counter()
        merge_tables(tables)
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def measure(world: int, size: int) -> tuple[float, float, bool]:
    """Seconds of one collective, the bytes that it sends, and whether others were busy, on so many local processes."""
    import statistics

    found, busy = on_ranks(world, time_collectives, size // 8, REPEATS)
    return statistics.median(found[0][0]), found[0][1], busy


def time_collectives(rank: int, world: int, numbers: int, repeats: int) -> tuple[list[float], float]:
    import torch
    from torch import distributed as dist

    message = torch.zeros(numbers, dtype=torch.float64)
    gathered = [torch.empty_like(message) for _ in range(world)]
    for _ in range(20):
        dist.all_gather(gathered, message)
    before, times = loopback_bytes(), []
    for _ in range(repeats):
        start = time.perf_counter()
        dist.all_gather(gathered, message)
        times.append(time.perf_counter() - start)
    return times, (loopback_bytes() - before) / repeats


def loopback_bytes(path: Path = Path("/proc/net/dev")) -> int:
    """The bytes that the loopback device has received."""
    (line,) = [one for one in path.read_text().splitlines() if one.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[0])


def on_ranks(world: int, function: Callable[..., Any], *args: Any) -> tuple[list[Any], bool]:
    """What `function(rank, world, *args)` returns on each of so many processes, in a group of gloo.

    Also whether other processes were busy meanwhile.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["truenorm.torch"])  # imported once for all
    queue = context.SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        ranks = [
            context.Process(target=_run, args=(queue, store, rank, world, function, args)) for rank in range(world)
        ]
        for one in ranks:
            one.start()
        found = dict(queue.get() for _ in ranks)
        for one in ranks:
            one.join()
    _, others, _, elapsed = found[0]
    lost = others - sum(found[rank][2] for rank in range(1, world))
    return [found[rank][0] for rank in range(world)], lost > DISTURBED * elapsed


def _run(queue: Any, store: str, rank: int, world: int, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    import torch
    from torch import distributed as dist

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    file_store: Any = torch.distributed.FileStore  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=file_store(store, world), rank=rank, world_size=world)
    start, others, own = time.perf_counter(), seconds_of_others(), time.process_time()
    found = function(rank, world, *args)
    dist.barrier()
    spent = seconds_of_others() - others, time.process_time() - own, time.perf_counter() - start
    dist.destroy_process_group()
    queue.put((rank, (found, *spent)))
