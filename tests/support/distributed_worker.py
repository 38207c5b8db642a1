"""One process of several: trains a converted model in DistributedDataParallel, and writes what became of it.

    python distributed_worker.py RANK WORLD FOLDER

FOLDER has `recipe.py`, with the function `train` of docs/cookbook.md, and gets `RANK.pt`.
"""

import datetime
import sys
from pathlib import Path

import torch
from torch import Tensor, distributed, nn

LENGTHS = {0: ([19, 4, 11], [7, 15, 9]), 1: ([5, 8, 6], [13, 3, 10])}  # of each process, step by step
MORE = 3  # positions behind the longest


def model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv1d(2, 6, 3, padding=1), nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 6, 3, stride=2, padding=1),
        nn.BatchNorm1d(6), nn.ReLU(), nn.Conv1d(6, 3, 1),
    ).double()  # fmt: skip


def sequences(rank: int, step: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(10 * rank + step)
    return [1 + torch.randn(2, n, generator=generator, dtype=torch.float64) for n in LENGTHS[rank][step]]


def batches(rank: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """x with NaN in the padding, lengths, labels."""
    found = []
    for step, lengths in enumerate(LENGTHS[rank]):
        x = torch.full((len(lengths), 2, max(lengths) + MORE), torch.nan, dtype=torch.float64)
        for i, one in enumerate(sequences(rank, step)):
            x[i, :, : one.shape[1]] = one
        found.append((x, torch.tensor(lengths), torch.arange(len(lengths))))
    return found


if __name__ == "__main__":
    rank, world, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
    torch.set_num_threads(1)
    names: dict[str, object] = {}
    exec((folder / "recipe.py").read_text("utf-8"), names)
    distributed.init_process_group(
        "gloo", f"file://{folder / 'store'}", timeout=datetime.timedelta(seconds=90), rank=rank, world_size=world
    )
    trained = model()
    names["train"](trained, batches(rank))  # type: ignore[operator]
    torch.save(trained.state_dict(), folder / f"{rank}.pt")
    distributed.destroy_process_group()
