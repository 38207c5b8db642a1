"""New words from a trained character network."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from truenorm.core.running import Convention, Running
from truenorm.lab.data import BOUNDARY, Alphabet, Examples
from truenorm.lab.layers import ForwardContext, Normalize
from truenorm.lab.networks import Network

Array = NDArray[Any]
Statistics = Literal["running", "reestimated"]
MAX_CHARACTERS = 40  # of a word, if the network does not end it before


def generate(
    network: Network, alphabet: Alphabet, block: int, rng: np.random.Generator, *, count: int, temperature: float = 1.0
) -> list[str]:
    """Sample `count` words in parallel: each step draws the next character of every unfinished word.

    temperature   divides the logits; 0 takes the most likely character, inf draws all with the same probability
    """
    if not temperature >= 0:
        raise ValueError(f"--temperature: a number >= 0, got {temperature}.")
    context = np.full((count, block), BOUNDARY)
    words: list[list[int]] = [[] for _ in range(count)]
    unfinished = np.arange(count)
    for step in range(MAX_CHARACTERS):
        logits = network.forward(context[unfinished], ForwardContext()).astype(np.float64)
        if not np.isfinite(logits).all():
            raise ValueError("sample: the outputs of the network must be finite, got NaN or inf. Train it again.")
        if step == 0:
            logits[:, BOUNDARY] = -np.inf  # no empty words
        drawn = logits.argmax(1) if temperature == 0 else _draw(logits, temperature, rng)
        context[unfinished, :-1] = context[unfinished, 1:]
        context[unfinished, -1] = drawn
        for word, token in zip(unfinished, drawn, strict=True):
            if token != BOUNDARY:
                words[word].append(int(token))
        unfinished = unfinished[drawn != BOUNDARY]
        if not len(unfinished):
            break
    return [alphabet.decode(word) for word in words]


def _draw(logits: Array, temperature: float, rng: np.random.Generator) -> Array:
    """Draw from softmax(logits / temperature): add Gumbel noise and take the largest."""
    with np.errstate(over="ignore", invalid="ignore"):  # unlikely characters become -inf
        scaled = (logits - logits.max(1, keepdims=True)) / temperature
    scaled = np.where(np.isneginf(logits), -np.inf, scaled)  # -inf / inf is NaN
    return np.asarray((scaled + rng.gumbel(size=logits.shape)).argmax(1))


def reestimate(network: Network, examples: Examples, batch: int = 4096) -> None:
    """Replace the running statistics by those of these examples, measured batch by batch and merged."""
    norms = [layer for layer in network.layers.values() if isinstance(layer, Normalize) and layer.running is not None]
    for layer in norms:
        assert layer.running is not None
        layer.running = Running.start(layer.running.mean.shape, Convention("pooled", ddof=0))
    for start in range(0, len(examples), batch):
        part = examples.select(np.arange(start, min(start + batch, len(examples))))
        if len(part) > 1:  # a single example has no variance
            network.forward(part.x, ForwardContext(training=True, lengths=part.lengths))
