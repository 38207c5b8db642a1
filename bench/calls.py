"""Where a call of a layer spends its time: in Python, in torch, in the binding, in the kernel.

    python -m bench.calls [--seconds 6] [--write docs/speed.md]

Each part is timed by itself, in interleaved rounds with the whole call:

torch's    torch's own layer, forward and backward
whole      truenorm's layer, forward and backward, as a model calls it
in Python  the same with autograd functions in Python, which are used where nodes in C++ are not built
plan       finding the plan of the kernels for these tensors, in the cache
binding    the kernels' calls, forward and backward, on 2 x 1 values: checks of tensors, almost no arithmetic
kernel     the same on x, without the binding

The rest of the whole is Python and torch: making tensors, the graph, the pass through it. The parts are medians of
separate measurements, and the nodes call the kernels without the binding, so a small remainder is not exact.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click

from bench.process import THREADS, enter

SHAPES = ((32, 100), (8192, 512))
LAYERS = ("BatchNorm1d", "LayerNorm", "GroupNorm", "RMSNorm")
WHOLE = ("torch's", "whole", "in Python")
PARTS = ("rest", "plan", "binding", "kernel")


@click.command()
@click.option("--seconds", type=float, default=6.0, show_default=True, help="How long to time each layer and shape.")
@click.option("--threads", type=int, default=THREADS, show_default=True, help="How many threads to use.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(seconds: float, threads: int, write: Path | None) -> None:
    """Time the parts of a call of each layer."""
    enter("reuse", threads=threads)
    from bench.machine import facts
    from bench.table import duration, markdown_table, show_or_write

    lines, busy = [], []
    for shape in SHAPES:
        for name in LAYERS:
            found, disturbed = split(name, shape, seconds)
            title = f"{name}, {shape[0]} x {shape[1]}"
            parts = [f"{duration(found[part])} ({found[part] / found['whole']:.0%})" for part in PARTS]
            lines.append([title, *(duration(found[one]) for one in WHOLE), *parts])
            busy += [title] if disturbed else []
    machine = facts()
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "truenorm", "torch"))
    head = ("forward + backward", "torch's layer", "truenorm's", "autograd in Python", *PARTS)
    text = markdown_table(head, lines) + (
        f"\n\nMedians of interleaved rounds; float32, {threads} threads, {autograd()}. {machine['cpu']}; {versions}."
    )
    show_or_write(text, write, "calls", busy)


def autograd() -> str:
    """Which autograd the layers use here."""
    from truenorm.torch import autograd_in_cpp

    return "autograd in C++" if autograd_in_cpp() else "autograd in Python, as the nodes in C++ are not built"


@dataclass(frozen=True)
class Parts:
    """What is timed of one layer; `small` is the kernels' call on almost nothing."""

    torchs: Callable[[], object]
    whole: Callable[[], object]
    in_python: Callable[[], object]
    plan: Callable[[], object]
    small: Callable[[], object]
    kernel: Callable[[], object]


def split(name: str, shape: tuple[int, int], seconds: float) -> tuple[dict[str, float], bool]:
    """The seconds of each part, and whether other processes were busy."""
    from bench.timing import interleave

    calls = vars(parts(name, shape))
    rounds = interleave(calls, seconds=seconds, patience=seconds)
    found = {key: statistics.median(rounds.seconds(key)) for key in calls}
    kernel = max(found["kernel"] - found["small"], 0.0)
    known = found["plan"] + found["small"] + kernel
    return {
        "torch's": found["torchs"],
        "whole": found["whole"],
        "in Python": found["in_python"],
        "rest": max(found["whole"] - known, 0.0),
        "plan": found["plan"],
        "binding": found["small"],
        "kernel": kernel,
    }, rounds.disturbed()


def parts(name: str, shape: tuple[int, int]) -> Parts:
    """The calls of a layer, and of what it calls, on the same tensors."""
    import torch

    import truenorm.torch as tnt
    from bench.map.pair import step
    from truenorm.torch import _kernel

    layer, tiny = (make_layer(tnt, name, width) for width in (shape[1], 1))
    x, dy = torch.randn(shape).requires_grad_(), torch.randn(shape)
    find, kernel = calls_behind(layer, x)
    _, small = calls_behind(tiny, torch.randn(2, 1).requires_grad_())

    def in_python() -> object:
        kept, _kernel.nodes = _kernel.nodes, None
        try:
            return step(layer, x, dy, {})
        finally:
            _kernel.nodes = kept

    torchs = partial(step, make_layer(torch.nn, name, shape[1]), x, dy, {})
    return Parts(torchs, partial(step, layer, x, dy, {}), in_python, find, small, kernel)


def make_layer(library: Any, name: str, width: int) -> Any:
    return library.GroupNorm(min(4, width), width) if name == "GroupNorm" else getattr(library, name)(width)


def calls_behind(layer: Any, x: Any) -> tuple[Callable[[], object], Callable[[], object]]:
    """What `layer(x)` calls of the compiled part: finding the plan; the kernels of forward and backward."""
    import torch

    from truenorm.torch import _dispatch

    seen: list[Any] = []

    def find_call(*args: Any) -> Any:
        found = original(*args)
        seen.append((args, found))
        return found

    original = _dispatch.find_call
    with patch.object(_dispatch, "find_call", find_call):
        layer(x)
    ((_, norms, weight, bias, *_), (x, call, _, _)) = seen[0]
    cache = _dispatch._plan_cache(norms)
    assert cache is not None
    y, dx, dweight, dbias = (None if one is None else torch.empty_like(one) for one in (x, x, weight, bias))
    buffers = [getattr(layer, name, None) for name in ("running_mean", "running_var", "num_batches_tracked")]
    x = x.detach()

    def kernels() -> None:
        done = call.forward(x, y, weight, bias)
        if buffers[0] is not None:
            call.update_running(*buffers[:2], 0.1, 1, buffers[2])
        if not (done and call.backward(x, y, weight, None, dx, dweight, dbias)):
            raise RuntimeError("bench.calls: tensors that the kernels can read, got others.")

    return partial(cache.find, x, weight, bias, None, None, False), kernels


if __name__ == "__main__":
    main()
