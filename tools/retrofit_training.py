"""Does padding in the statistics matter? A classifier of signals, trained three times on the same padded batches.

    python -m tools.retrofit_training [--write docs/retrofit.md]

A signal is noise in which one of five short patterns occurs at random places, the more often the longer it is; which
pattern is its class. Lengths are spread 1 : 10, uniformly on a logarithmic scale, independently of the class. The
network is three times convolution, batch norm and ReLU, then the mean over positions and a linear layer.

    torch             torch.nn as it is: padding is averaged in everywhere
    masked by hand    torch.nn; the padding is set to 0 after each layer, and the last mean is over valid positions
    truenorm          the model of the first row, after `convert`, under `padded`

All start from the same weights and see the same batches. They are evaluated on each signal alone, without padding, in
evaluation mode: what a user of the trained model gets. Signals are around 0, as sound is, or around 2, as energies of a
spectrogram may be; padding is 0 in both.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path

import click
import torch
from torch import Tensor, nn

import truenorm.torch as tnt

CLASSES = 5
SHORTEST, LONGEST = 24, 240
PATTERN = 9
AROUND = (0.0, 2.0)
HEADER = ["signals around", "trained with", "error, each alone", "more than truenorm", "error, in padded batches"]


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    seeds: int = 6
    steps: int = 300
    batch: int = 16
    held_out: int = 300
    channels: int = 16


Batch = tuple[Tensor, Tensor, Tensor]  # x (b, 1, t) with zeros behind, lengths, classes


def signals(count: int, around: float, generator: torch.Generator) -> Iterator[tuple[Tensor, int]]:
    """Signals (t,) and their classes."""
    patterns = torch.randn((CLASSES, PATTERN), generator=torch.Generator().manual_seed(99))
    for _ in range(count):
        spread = float(torch.rand((), generator=generator))
        length = round(SHORTEST * (LONGEST / SHORTEST) ** spread)
        label = int(torch.randint(CLASSES, (), generator=generator))
        signal = torch.randn(length, generator=generator)
        for start in torch.randint(length - PATTERN, (max(1, length // 24),), generator=generator).tolist():
            signal[start : start + PATTERN] += patterns[label]
        yield around + signal, label


def padded_batch(parts: list[tuple[Tensor, int]]) -> Batch:
    x = nn.utils.rnn.pad_sequence([signal for signal, _ in parts], batch_first=True)[:, None]
    return x, torch.tensor([len(signal) for signal, _ in parts]), torch.tensor([label for _, label in parts])


def network(channels: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for before, after, stride in ((1, channels, 1), (channels, channels, 2), (channels, channels, 2)):
        layers += [nn.Conv1d(before, after, 7, stride=stride, padding=3), nn.BatchNorm1d(after), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(channels, CLASSES))


# ---- the three ways ----


def plain(model: nn.Sequential, x: Tensor, lengths: Tensor) -> Tensor:
    scores: Tensor = model(x)
    return scores


def masked_by_hand(model: nn.Sequential, x: Tensor, lengths: Tensor) -> Tensor:
    """What is usually written: the same network, with its padding set to 0 after each layer."""
    *body, _pool, _flatten, head = model
    valid = _valid(x, lengths)
    for layer in body:
        x = layer(x)
        if isinstance(layer, nn.Conv1d):
            lengths = (lengths - 1) // layer.stride[0] + 1
            valid = _valid(x, lengths)
        x = x * valid
    scores: Tensor = head(x.sum(2) / lengths[:, None])
    return scores


def _valid(x: Tensor, lengths: Tensor) -> Tensor:
    return (torch.arange(x.shape[2]) < lengths[:, None])[:, None].to(x.dtype)


def with_truenorm(model: nn.Sequential, x: Tensor, lengths: Tensor) -> Tensor:
    with tnt.padded(lengths=lengths):
        scores: Tensor = model(x)
    return scores


WAYS: dict[str, Callable[[nn.Sequential, Tensor, Tensor], Tensor]] = {
    "torch": plain,
    "masked by hand": masked_by_hand,
    "truenorm": with_truenorm,
}


def errors(job: tuple[float, str, int, Size]) -> tuple[float, float]:
    """Train once. The share of held-out signals that are classified wrongly: each alone, and in padded batches."""
    around, way, seed, size = job
    torch.set_num_threads(1)
    torch.manual_seed(seed)
    model, run = network(size.channels), WAYS[way]
    if way == "truenorm":
        tnt.convert(model)
    generator = torch.Generator().manual_seed(1000 + seed)
    optimizer = torch.optim.AdamW(model.parameters())
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, size.steps)
    for _ in range(size.steps):
        x, lengths, labels = padded_batch(list(signals(size.batch, around, generator)))
        nn.functional.cross_entropy(run(model, x, lengths), labels).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    model.eval()
    held_out = list(signals(size.held_out, around, torch.Generator().manual_seed(5000 + seed)))
    return _error(model, run, held_out, 1), _error(model, run, held_out, size.batch)


@torch.no_grad()
def _error(model: nn.Sequential, run: Callable[..., Tensor], parts: list[tuple[Tensor, int]], batch: int) -> float:
    wrong = 0
    for start in range(0, len(parts), batch):
        x, lengths, labels = padded_batch(parts[start : start + batch])
        wrong += int((run(model, x, lengths).argmax(1) != labels).sum())
    return wrong / len(parts)


# ---- the table ----

# 97.5 % quantiles of Student's distribution, for 95 % intervals.
STUDENT = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262}


def interval(values: list[float], form: str = ".1%") -> str:
    """The mean over the seeds and its 95 % interval."""
    half = STUDENT[len(values) - 1] * statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):{form}} ± {half:{form.lstrip('+')}}"


def table(size: Size, run_all: Callable[..., Iterable[tuple[float, float]]] = map) -> str:
    """`run_all` is `map`, or that of several processes."""
    combinations = list(product(AROUND, WAYS))
    jobs = [(around, way, seed, size) for around, way in combinations for seed in range(size.seeds)]
    results = iter(run_all(errors, jobs))
    found = {one: [next(results) for _ in range(size.seeds)] for one in combinations}
    lines = [f"| {' | '.join(HEADER)} |", "|---|---|---|---|---|"]
    for (around, way), pairs in found.items():
        alone, batched = ([pair[i] for pair in pairs] for i in (0, 1))
        more = [one - two for one, (two, _) in zip(alone, found[around, "truenorm"], strict=True)]
        difference = "" if way == "truenorm" else interval(more, "+.1%")
        lines.append(f"| {around:g} | {way} | {interval(alone)} | {difference} | {interval(batched)} |")
    lines += ["", f"Means over {size.seeds} seeds and their 95 % intervals (Student); differences are paired by seed."]
    return "\n".join(lines)


@click.command()
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(write: Path | None) -> None:
    """Train the classifier in three ways, and print the errors."""
    from bench.table import replace

    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as processes:
        found = table(Size(), processes.map)
    if write is None:
        click.echo(found)
    else:
        write.write_text(replace(write.read_text("utf-8"), found, "retrofit-training"), "utf-8")


if __name__ == "__main__":
    main()
