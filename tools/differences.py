"""torch's layers and ours beside each other, where the numbers differ.

    python -m tools.differences [--write docs/torch.md]

Each row is run here and now, on the CPU, with both; "true" is float64 on the same, already rounded, input.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import torch
from torch import nn

import truenorm.torch as tnt
from truenorm.explanation.examples import SENTENCES

Row = tuple[str, str, str, str]


def rows() -> Iterator[Row]:
    """What was run, torch's number, ours, and the true one."""
    yield sentences()
    yield from large_mean()
    yield channels_last()
    yield constant()
    yield bfloat16()
    yield infinity()
    yield recomputation()
    yield low_buffers()
    yield third_derivative()
    yield jagged()


def _both(measure: Callable[[Any], Any], form: str = "{}") -> tuple[str, str]:
    torch.manual_seed(0)
    theirs = measure(nn)
    torch.manual_seed(0)
    return form.format(theirs), form.format(measure(tnt))


def _normal(*shape: int, dtype: Any = torch.float32) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


def sentences() -> Row:
    """The third number of the word "How", with two padding rows."""
    x = torch.tensor(SENTENCES, dtype=torch.float32).transpose(1, 2)
    theirs = nn.BatchNorm1d(3)(x)[1, 2, 0].item()
    ours = tnt.BatchNorm1d(3)(x, lengths=torch.tensor([2, 4]))[1, 2, 0].item()
    return 'the word "How" of two padded sentences, third number', f"{theirs:.3f}", f"{ours:.3f}", "-1.415"


def large_mean() -> Iterator[Row]:
    x = _normal(1_000_000, 1) + 1000

    def run(kit: Any) -> Any:
        layer = kit.BatchNorm1d(1, momentum=1.0)
        layer(x)
        return layer

    true = x.double()
    what = "BatchNorm1d of a million values N(1000, 1), float32"
    yield f"{what}: mean", *_both(lambda kit: run(kit).running_mean.item(), "{:.3f}"), f"{true.mean():.3f}"
    yield f"{what}: variance", *_both(lambda kit: run(kit).running_var.item(), "{:.3f}"), f"{true.var():.3f}"


def channels_last() -> Row:
    x = (_normal(2, 8, 9, 9) + 3000).to(memory_format=torch.channels_last)
    exact = nn.functional.group_norm(x.double().contiguous(), 4)

    def off(kit: Any) -> float:
        return float((kit.GroupNorm(4, 8)(x).detach().double() - exact).abs().max())

    return "GroupNorm, channels_last, offset 3000: outputs off by", *_both(off, "{:.2g}"), "0"


def constant() -> Row:
    def off(kit: Any) -> float:
        return float(kit.BatchNorm1d(1)(torch.full((64, 1), 1e8)).detach().abs().max())

    return "BatchNorm1d of a constant 1e8: off from the bias by", *_both(off, "{:.3g}"), "0"


def bfloat16() -> Row:
    def run(kit: Any) -> str:
        x = torch.tensor([[1.3047], [0.8789]], dtype=torch.bfloat16)
        return ", ".join(f"{v:.3f}" for v in kit.BatchNorm1d(1).to(torch.bfloat16)(x).detach().flatten().tolist())

    return "BatchNorm1d of 1.3047, 0.8789 in bfloat16", *_both(run), "1.000, -1.000"


def infinity() -> Row:
    def run(kit: Any) -> float:
        layer = kit.BatchNorm1d(1)
        layer(torch.tensor([[1.0], [float("inf")]]))
        for _ in range(100):
            layer(torch.tensor([[4.0], [6.0]]))
        return float(layer.running_mean)

    return "running mean of 100 batches around 5, after one with inf", *_both(run, "{:.4g}"), "5"


def recomputation() -> Row:
    def run(kit: Any) -> float:
        layer, x = kit.BatchNorm1d(1), torch.tensor([[9.0], [11.0]], requires_grad=True)
        for _ in range(5):
            torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False).pow(2).sum().backward()
        return float(layer.running_mean)

    return "running mean after 5 steps at 10 with activation checkpointing", *_both(run, "{:.3g}"), "4.1"


def low_buffers() -> Row:
    def run(kit: Any) -> float:
        layer = kit.BatchNorm1d(1, momentum=1e-3).to(torch.bfloat16)
        x = torch.tensor([[9.0], [11.0]], dtype=torch.bfloat16)
        for _ in range(5000):
            layer(x)
        return float(layer.running_mean)

    return "running mean after 5000 steps at 10, bfloat16, momentum 1e-3", *_both(run, "{:.3g}"), "9.93"


def third_derivative() -> Row:
    x, dy, direction = (_normal(6, 2, dtype=torch.float64) + i for i in range(3))

    def along(call: Callable[[Any], Any]) -> float:
        t = torch.zeros((), dtype=torch.float64, requires_grad=True)
        value = (call(x + t * direction.cos()) * dy.sin()).sum()
        for _ in range(3):
            (value,) = torch.autograd.grad(value, t, create_graph=True)
        return float(value.detach())

    def composed(z: Any) -> Any:
        return (z - z.mean(0)) / torch.sqrt(z.var(0, correction=0) + 1e-5)

    shown = _both(lambda kit: along(kit.BatchNorm1d(2).double()), "{:.4g}")
    return "third derivative of BatchNorm1d in training, along a line", *shown, f"{along(composed):.4g}"


def jagged() -> Row:
    parts = [_normal(2, 3), _normal(4, 3)]

    def run(kit: Any) -> str:
        try:
            y = kit.BatchNorm1d(3)(torch.nested.nested_tensor(parts, layout=torch.jagged))
        except Exception as error:
            return type(error).__name__
        return f"{float(y.values().detach().std(0, correction=0).mean()):.3f}"

    return "a jagged nested tensor: deviation of the output", *_both(run), "1.000"


@click.command()
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(write: Path | None) -> None:
    """Run torch's layers and ours, and print both."""
    from bench.table import replace

    lines = [("run on the CPU", f"torch {torch.__version__.split('+')[0]}", "truenorm", "true")]
    lines += [("---", "---:", "---:", "---:"), *rows()]  # type: ignore[list-item]
    text = "\n".join("| " + " | ".join(line) + " |" for line in lines)
    if write is None:
        click.echo(text)
    else:
        write.write_text(replace(write.read_text("utf-8"), text, "differences"), "utf-8")


if __name__ == "__main__":
    main()
