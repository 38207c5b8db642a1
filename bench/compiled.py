"""What the PyTorch layers cost beside torch's own under torch.compile.

    python -m bench.compiled [--seconds 40] [--write docs/torch.md]

A training step, forward and backward, of three blocks in which a norm has neighbours that a compiler may fuse with it:
convolution, norm and SiLU; or norm, linear map and SiLU around a shortcut. torch's layers count the padding; ours are
measured without a mask, and with the lengths.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.process import THREADS, enter

DEPTH = 3
STACKS = {
    "convolution, batch norm, SiLU": (16, 64, 1000),
    "convolution, group norm, SiLU": (16, 64, 1000),
    "layer norm, linear, SiLU, shortcut": (16, 500, 256),
    "RMS norm, linear, SiLU, shortcut": (16, 500, 256),
}
WAYS = {"torch": "torch, compiled", "ours": "truenorm, compiled", "lengths": "truenorm, compiled, with lengths"}


@click.command()
@click.option("--seconds", type=float, default=40.0, show_default=True, help="How long to time, in all.")
@click.option("--threads", type=int, default=THREADS, show_default=True, help="How many threads to use.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(seconds: float, threads: int, write: Path | None) -> None:
    """Time compiled stacks with layers of torch and of truenorm."""
    enter("system", threads=threads)
    from bench.machine import facts
    from bench.table import duration, show_or_write
    from bench.timing import interleave, ratio, spread

    lines = ["| compiled, a training step | torch | truenorm | of torch's time |", "|---|---|---|---|"]
    busy: list[str] = []
    for name, shape in STACKS.items():
        rounds = interleave(steps(name, shape), seconds=seconds / 4, patience=seconds / 4, rounds=(9, 400))
        torchs = rounds.seconds("torch")
        for way, text in (("ours", name), ("lengths", "the same, with lengths")):
            times = rounds.seconds(way)
            found = ratio(times, torchs)
            lines.append(
                f"| {text} | {duration(spread(torchs)['median'])} | {duration(spread(times)['median'])} | "
                f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f}) |"
            )
        busy += [name] if rounds.disturbed() else []
    machine = facts()
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "truenorm", "torch"))
    table = "\n".join(lines) + (
        f"\n\n{DEPTH} of each after each other; 16 x 64 x 1000 and 16 x 500 x 256 values, lengths from all to a fifth "
        f"of the positions. Medians of interleaved rounds, quartiles in parentheses; float32, {threads} threads, on "
        f"the CPU only. {machine['cpu']}; {versions}."
    )
    show_or_write(table, write, "compiled", busy)


def steps(name: str, shape: tuple[int, ...]) -> dict[str, Callable[[], None]]:
    """A training step each way; the models have the same weights."""
    import torch

    import truenorm.torch as tnt

    torch._dynamo.reset()
    x, dy = torch.randn(shape), torch.randn(shape)
    extent = shape[1] if "linear" in name else shape[2]
    ragged = {"lengths": (torch.linspace(1, 0.2, shape[0]) * extent).long()}
    calls: dict[str, Callable[[], None]] = {}
    for way, library in (("torch", torch.nn), ("ours", tnt), ("lengths", tnt)):
        torch.manual_seed(0)
        model = torch.compile(stack(name, library, shape), fullgraph=True)
        calls[way] = partial(_step, model, x, dy, ragged if way == "lengths" else {})
        calls[way]()
    return calls


def stack(name: str, library: Any, shape: tuple[int, ...]) -> Any:
    """The layers of one line of the table, with the norms of this library."""
    import torch
    from torch import nn

    first = name.split(", ")[0]
    channels = shape[1] if first == "convolution" else shape[2]
    norms: dict[str, Callable[[], Any]] = {
        "batch norm": lambda: library.BatchNorm1d(channels),
        "group norm": lambda: library.GroupNorm(8, channels),
        "layer norm": lambda: library.LayerNorm(channels),
        "RMS norm": lambda: library.RMSNorm(channels, eps=1e-6),
    }
    make = next(make for key, make in norms.items() if key in name)

    class Stack(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norms = nn.ModuleList(make() for _ in range(DEPTH))
            self.maps = nn.ModuleList(
                nn.Conv1d(channels, channels, 3, padding=1) if first == "convolution" else nn.Linear(channels, channels)
                for _ in range(DEPTH)
            )

        def forward(self, x: Any, **ragged: Any) -> Any:
            for norm, layer in zip(self.norms, self.maps, strict=True):
                if first == "convolution":
                    x = nn.functional.silu(norm(layer(x), **ragged))
                else:
                    x = x + nn.functional.silu(layer(norm(x, **ragged)))
            return x

    made = Stack()
    assert isinstance(made, torch.nn.Module)
    return made


def _step(model: Any, x: Any, dy: Any, ragged: dict[str, Any]) -> None:
    model.zero_grad(set_to_none=True)
    model(x, **ragged).backward(dy)


if __name__ == "__main__":
    main()
