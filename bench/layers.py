"""What the PyTorch layers cost beside torch's own, in eager mode.

    python -m bench.layers [--seconds 10] [--write docs/torch.md]

Two questions. What is the call overhead, which is most of the time of a layer on 32 x 100 values? And does a network
get slower if its statistics ignore padding: one step, forward and backward, of a Conformer-like block (feed forward,
self-attention, convolution) with torch's layers, which count the padding, and with ours, which are given the lengths.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.process import THREADS, enter

SMALL = (32, 100)
BLOCK = (16, 200, 144)  # sequences, frames, channels: a small Conformer's
PADDINGS = (0.0, 0.3, 0.5)


@click.command()
@click.option("--seconds", type=float, default=10.0, show_default=True, help="How long to time each comparison.")
@click.option("--threads", type=int, default=THREADS, show_default=True, help="How many threads each may use.")
@click.option(
    "--write", type=click.Path(exists=True, path_type=Path), help="Put the tables between their markers there."
)
def main(seconds: float, threads: int, write: Path | None) -> None:
    """Time the PyTorch layers beside torch's own."""
    enter("system", threads=threads)
    import torch

    from bench.machine import facts
    from bench.table import show_or_write

    machine = facts()
    busy: list[str] = []  # comparisons during which other processes were
    versions = ", ".join(f"{name} {found}" for name, found in machine["versions"].items() if found)
    text = "\n\n".join(
        [
            small_layers(seconds, busy),
            blocks(seconds, busy),
            f"Medians of interleaved rounds, quartiles in parentheses; float32, {torch.get_num_threads()} threads, on "
            f"the CPU only. {machine['cpu']}; {versions}; revision {machine['revision'] or 'unknown'}.",
        ]
    )
    show_or_write(text, write, "layers", busy)


def small_layers(seconds: float, busy: list[str]) -> str:
    """Forward and backward of one layer."""
    import torch

    import truenorm.torch as tnt

    rows, channels = SMALL
    x, dy = torch.randn(SMALL, requires_grad=True), torch.randn(SMALL)
    makers: dict[str, Callable[[Any], Any]] = {
        "BatchNorm1d": lambda library: library.BatchNorm1d(channels),
        "LayerNorm": lambda library: library.LayerNorm(channels),
        "GroupNorm": lambda library: library.GroupNorm(4, channels),
        "RMSNorm": lambda library: library.RMSNorm(channels),
    }
    lines = [f"| one layer, {rows} x {channels} | torch | truenorm | of torch's time |", "|---|---|---|---|"]
    for name, make in makers.items():
        calls: dict[str, Callable[[], None]] = {
            who: partial(_step, make(library), x, dy) for who, library in (("torch", torch.nn), ("ours", tnt))
        }
        found, disturbed = _compared(calls, seconds / 4, 1e6, "us")
        lines.append(f"| {name} | {found} |")
        busy += [name] if disturbed else []
    return "\n".join(lines)


def _step(layer: Any, x: Any, dy: Any) -> None:
    x.grad = None
    for parameter in layer.parameters():
        parameter.grad = None
    layer(x).backward(dy)


def blocks(seconds: float, busy: list[str]) -> str:
    """Forward and backward of a whole block."""
    import torch

    import truenorm.torch as tnt

    batch, frames, channels = BLOCK
    lines = [
        f"| a Conformer-like block, {batch} x {frames} x {channels} | torch | truenorm | of torch's time |",
        "|---|---|---|---|",
    ]
    for share in PADDINGS:
        lengths = padded_lengths(batch, frames, share)
        x = torch.randn(BLOCK)
        padding = torch.arange(frames) >= lengths[:, None]
        torch.manual_seed(0)
        torchs, ours = block(torch.nn, channels), block(tnt, channels)
        ours.load_state_dict(torchs.state_dict())
        calls: dict[str, Callable[[], None]] = {
            "torch": partial(_step_of_block, torchs, x, padding, None),
            "ours": partial(_step_of_block, ours, x, padding, lengths),
        }
        found, disturbed = _compared(calls, seconds / len(PADDINGS), 1e3, "ms")
        lines.append(f"| {share:.0%} padding | {found} |")
        busy += [f"{share:.0%} padding"] if disturbed else []
    return "\n".join(lines)


def padded_lengths(batch: int, frames: int, share: float) -> Any:
    """Lengths of which the longest is full, and that leave this share of all frames empty."""
    import torch

    return (torch.linspace(1, 1 - 2 * share, batch) * frames).round().clamp(min=1).long()


def block(library: Any, channels: int) -> Any:
    """Feed forward, self-attention and convolution, each around what came before; normalization from this library."""
    import torch
    from torch import nn

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_feed, self.before_attention = library.LayerNorm(channels), library.LayerNorm(channels)
            self.before_convolution, self.last = library.LayerNorm(channels), library.LayerNorm(channels)
            self.feed = nn.Sequential(nn.Linear(channels, 4 * channels), nn.SiLU(), nn.Linear(4 * channels, channels))
            self.attention = nn.MultiheadAttention(channels, 4, batch_first=True)
            self.enter = nn.Conv1d(channels, 2 * channels, 1)
            self.depthwise = nn.Conv1d(channels, channels, 15, padding=7, groups=channels)
            self.norm = library.BatchNorm1d(channels)
            self.leave = nn.Conv1d(channels, channels, 1)

        def forward(self, x: Any, padding: Any, **ragged: Any) -> Any:
            x = x + self.feed(self.before_feed(x, **ragged))
            normalized = self.before_attention(x, **ragged)
            x = x + self.attention(normalized, normalized, normalized, key_padding_mask=padding, need_weights=False)[0]
            gated = nn.functional.glu(self.enter(self.before_convolution(x, **ragged).transpose(1, 2)), dim=1)
            convolved = self.depthwise(gated.masked_fill(padding[:, None], 0.0))
            x = x + self.leave(nn.functional.silu(self.norm(convolved, **ragged))).transpose(1, 2)
            return self.last(x, **ragged)

    made = Block()
    assert isinstance(made, torch.nn.Module)
    return made


def _step_of_block(model: Any, x: Any, padding: Any, lengths: Any) -> None:
    model.zero_grad(set_to_none=True)
    y = model(x, padding) if lengths is None else model(x, padding, lengths=lengths)
    y.sum().backward()


def _compared(calls: dict[str, Callable[[], None]], seconds: float, unit: float, name: str) -> tuple[str, bool]:
    """Cells of a table, and whether other processes were busy."""
    from bench.timing import interleave

    rounds = interleave(calls, seconds=seconds, patience=seconds, rounds=(9, 400))
    torchs, ours = rounds.seconds("torch"), rounds.seconds("ours")
    ratios = [one / other for one, other in zip(ours, torchs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return (
        f"{statistics.median(torchs) * unit:.3g} {name} | {statistics.median(ours) * unit:.3g} {name} | "
        f"{statistics.median(ratios):.2f} ({low:.2f} to {high:.2f})"
    ), rounds.disturbed()


if __name__ == "__main__":
    main()
