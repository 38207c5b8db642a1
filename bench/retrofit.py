"""What `convert` and `padded` cost on a whole model.

    python -m bench.retrofit [--seconds 30] [--write docs/retrofit.md]

A small Wav2Vec2 of transformers with random weights: a training step, forward and backward, of eight sequences of which
half is padding. Three ways in turns: the model as it is, converted, and converted inside `padded`.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import click

from bench.process import THREADS, enter

BATCH, SAMPLES = 8, 16_000
WAYS = {"as it is": "plain", "converted": "converted", "converted, inside padded": "padded"}
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
    lines = ["| Wav2Vec2, a training step | time | of the time as it is |", "|---|---|---|"]
    for name, key in WAYS.items():
        times = rounds.seconds(key)
        found = ratio(times, rounds.seconds("plain"))
        share = "" if key == "plain" else f"{found['median']:.2f} ({found['low']:.2f} to {found['high']:.2f})"
        lines.append(f"| {name} | {duration(spread(times)['median'])} | {share} |")
    machine = facts()
    versions = ", ".join(f"{name} {machine['versions'][name]}" for name in ("python", "truenorm", "torch"))
    table = "\n".join(lines) + (
        f"\n\n{BATCH} sequences of at most {SAMPLES:,} samples, about half padding. Medians of interleaved rounds, "
        f"quartiles in parentheses; float32, {threads} threads, on the CPU only. {machine['cpu']}; {versions}."
    )
    show_or_write(table, write, "retrofit-overhead", ["the steps"] if rounds.disturbed() else [])


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
    return {
        "plain": partial(_step, plain, x, lengths, None),
        "converted": partial(_step, converted, x, lengths, None),
        "padded": partial(_step, converted, x, lengths, tnt.padded),
    }


def _step(model: Any, x: Any, lengths: Any, context: Any) -> None:
    import torch

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
