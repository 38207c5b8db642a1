"""What `convert` and `padded` cost on a whole model.

    python -m bench.retrofit [--seconds 30] [--write docs/retrofit.md]

A small Wav2Vec2 of transformers with random weights: a training step, forward and backward, of eight sequences of which
half is padding. Four ways in turns: the model as it is, converted, and converted inside `padded`, with other lengths in
each step or with the same ones, for which `padded` has kept some of its work. Other lengths are the same numbers in
another order, so the model's own work does not change.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import count, cycle
from pathlib import Path
from typing import Any

import click

from bench.process import THREADS, enter

BATCH, SAMPLES = 8, 16_000
WAYS = {
    "as it is": "plain",
    "converted": "converted",
    "converted, inside padded": "padded",
    "the same, with the lengths of the step before": "again",
}
SMALL: dict[str, Any] = {
    "hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256,
    "conv_dim": (64,) * 7, "num_conv_pos_embeddings": 16, "num_conv_pos_embedding_groups": 4,
    "layerdrop": 0.0, "apply_spec_augment": False,
}  # fmt: skip


@click.command()
@click.option("--seconds", type=float, default=30.0, show_default=True, help="How long to time.")
@click.option("--threads", type=int, default=THREADS, show_default=True, help="How many threads to use.")
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="Put the table between its markers there.")
def main(seconds: float, threads: int, write: Path | None) -> None:
    """Time a training step of Wav2Vec2 with and without truenorm."""
    enter("system", threads=threads)
    from bench.machine import facts
    from bench.table import duration, show_or_write
    from bench.timing import interleave, ratio, spread

    rounds = interleave(steps(), seconds=seconds, patience=seconds, rounds=(9, 400))
    lines = ["| Wav2Vec2, a training step | time | of the time as it is | of the processor time |", "|---|---|---|---|"]
    for name, key in WAYS.items():
        of_time = ratio(rounds.seconds(key), rounds.seconds("plain"))
        of_processor = ratio(rounds.processor(key), rounds.processor("plain"))
        shares = ["" if key == "plain" else _share(one) for one in (of_time, of_processor)]
        lines.append(f"| {name} | {duration(spread(rounds.seconds(key))['median'])} | {' | '.join(shares)} |")
    machine = facts()
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "truenorm", "torch"))
    table = "\n".join(lines) + (
        f"\n\n{BATCH} sequences of at most {SAMPLES:,} samples, about half padding. Medians of interleaved rounds, "
        f"quartiles in parentheses; float32, {threads} threads, on the CPU only. {machine['cpu']}; {versions}."
    )
    show_or_write(table, write, "retrofit-overhead", ["the steps"] if rounds.disturbed() else [])


def _share(found: dict[str, float]) -> str:
    return f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"


def steps() -> dict[str, Callable[[], None]]:
    """A training step each way; the models have the same weights."""
    import torch
    from transformers import Wav2Vec2Config, Wav2Vec2Model

    import truenorm.torch as tnt

    torch.manual_seed(0)
    plain = Wav2Vec2Model(Wav2Vec2Config(**SMALL)).train()
    converted = Wav2Vec2Model(Wav2Vec2Config(**SMALL)).train()
    converted.load_state_dict(plain.state_dict())
    tnt.convert(converted)
    x = torch.randn(BATCH, SAMPLES)
    lengths = torch.linspace(SAMPLES, SAMPLES // 20, BATCH).long()
    same, others = cycle([lengths]), (lengths[torch.randperm(BATCH)] for _ in count())
    return {
        "plain": partial(_step, plain, x, same, None),
        "converted": partial(_step, converted, x, same, None),
        "padded": partial(_step, converted, x, others, tnt.padded),
        "again": partial(_step, converted, x, same, tnt.padded),
    }


def _step(model: Any, x: Any, batches: Iterator[Any], context: Any) -> None:
    import torch

    lengths = next(batches)
    model.zero_grad(set_to_none=True)
    valid = torch.arange(x.shape[1]) < lengths[:, None]
    if context is None:
        y = model(x, attention_mask=valid.long()).last_hidden_state
    else:
        with context(lengths=lengths):
            y = model(x, attention_mask=valid.long()).last_hidden_state
    y.sum().backward()


if __name__ == "__main__":
    main()
