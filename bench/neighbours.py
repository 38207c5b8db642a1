"""What a norm and its neighbours cost as one call, beside torch's separate operators, eager and compiled.

    python -m bench.neighbours [--seconds 40] [--write docs/speed.md]

A training step, forward and backward, of a norm with an activation behind it, or with a residual in front, whose sum
the next layer uses as well.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.process import THREADS, enter

SHAPES = ((32, 100), (8192, 1024), (64, 512, 256), (32, 256, 2000))
ACTIVATIONS = {"batch norm, ReLU": "relu", "group norm, SiLU": "silu", "layer norm, GELU": "gelu"}
RESIDUALS = ("residual, layer norm", "residual, RMS norm")
WAYS = {"eager": "torch, separate operators", "compiled": "torch.compile of them", "ours": "truenorm"}


@click.command()
@click.option("--seconds", type=float, default=40.0, show_default=True, help="How long to time, in all.")
@click.option("--threads", type=int, default=THREADS, show_default=True, help="How many threads to use.")
@click.option("--only", default="", help="Only cases whose name contains this.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(seconds: float, threads: int, only: str, write: Path | None) -> None:
    """Time norms with their neighbours."""
    enter("reuse", threads=threads)
    from bench.machine import facts
    from bench.table import duration, show_or_write
    from bench.timing import interleave, ratio, spread

    lines = [f"| forward + backward | {' | '.join(WAYS.values())} | speedup over eager | over compiled |"]
    lines.append("|---|---|---|---|---|---|")
    busy: list[str] = []
    cases = [(name, shape) for name in (*ACTIVATIONS, *RESIDUALS) for shape in SHAPES]
    chosen = [(name, shape) for name, shape in cases if only in text_of(name, shape)]
    for name, shape in chosen:
        each = seconds / len(chosen)
        rounds = interleave(steps(name, shape), seconds=each, patience=each, rounds=(9, 200))
        times = {way: rounds.seconds(way) for way in WAYS}
        ratios = [ratio(times[way], times["ours"]) for way in ("eager", "compiled")]
        cells = [
            *(duration(spread(times[way])["median"]) for way in WAYS),
            *(f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})" for found in ratios),
        ]
        lines.append(f"| {text_of(name, shape)} | {' | '.join(cells)} |")
        busy += [text_of(name, shape)] if rounds.disturbed() else []
    machine = facts()
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "truenorm", "torch"))
    table = "\n".join(lines) + (
        f"\n\nMedians of interleaved rounds, quartiles in parentheses; float32, {threads} threads, on the CPU only; "
        f"freed memory is reused. {machine['cpu']}; {versions}."
    )
    show_or_write(table, write, "neighbours", busy)


def text_of(name: str, shape: tuple[int, ...]) -> str:
    return f"{name}, {'x'.join(map(str, shape))}"


def steps(name: str, shape: tuple[int, ...]) -> dict[str, Callable[[], None]]:
    """A training step each way."""
    import torch

    import truenorm.torch as tnt

    torch._dynamo.reset()
    torch.manual_seed(0)
    x, residual = (torch.randn(shape, requires_grad=True) for _ in range(2))
    dy, dtotal = torch.randn(shape), torch.randn(shape)
    torchs, ours = layer(name, torch.nn, shape), layer(name, tnt, shape)
    calls: dict[str, Callable[..., Any]]
    if name in RESIDUALS:

        def separate(x: Any, residual: Any) -> Any:
            total = x + residual
            return torchs(total), total

        calls = {"eager": separate, "ours": lambda x, residual: ours(x, residual=residual)}
        inputs, gradients = [x, residual], [dy, dtotal]
    else:
        ours.activation = ACTIVATIONS[name]
        function = getattr(torch.nn.functional, ACTIVATIONS[name])
        calls = {"eager": lambda x: [function(torchs(x))], "ours": lambda x: [ours(x)]}
        inputs, gradients = [x], [dy]
    calls["compiled"] = torch.compile(calls["eager"])
    parameters = {"eager": torchs, "compiled": torchs, "ours": ours}
    return {
        way: partial(_step, call, inputs, [*parameters[way].parameters()], gradients) for way, call in calls.items()
    }


def layer(name: str, library: Any, shape: tuple[int, ...]) -> Any:
    """Of this library, for x of this shape: batch and group norm take channels second, the others last."""
    if "batch norm" in name:
        return library.BatchNorm1d(shape[1])
    if "group norm" in name:
        return library.GroupNorm(4, shape[1])
    return library.LayerNorm(shape[-1]) if "layer norm" in name else library.RMSNorm(shape[-1], eps=1e-6)


def _step(call: Callable[..., Any], inputs: list[Any], parameters: list[Any], gradients: list[Any]) -> None:
    import torch

    torch.autograd.grad(call(*inputs), [*inputs, *parameters], gradients)


if __name__ == "__main__":
    main()
