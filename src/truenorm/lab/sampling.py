"""New words from a trained character network."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from truenorm.core.running import Convention, Running
from truenorm.lab.data import EDGE, Alphabet, Examples
from truenorm.lab.layers import Normalize, Pass
from truenorm.lab.networks import Network

Array = NDArray[Any]
Statistics = Literal["running", "reestimated"]
LONGEST = 40  # characters of a word; a network that never ends one is stopped there


def generate(
    network: Network, alphabet: Alphabet, block: int, rng: np.random.Generator, *, count: int, temperature: float = 1.0
) -> list[str]:
    """So many words, all at once: each step draws the next character of every one that has not ended.

    temperature   below 1 the likely characters become likelier; 0 takes the likeliest
    """
    if not temperature >= 0:
        raise ValueError(f"--temperature: a number >= 0, got {temperature}.")
    context = np.full((count, block), EDGE)
    words: list[list[int]] = [[] for _ in range(count)]
    open_ = np.arange(count)
    for step in range(LONGEST):
        logits = network.forward(context[open_], Pass()).astype(np.float64)
        if step == 0:
            logits[:, EDGE] = -np.inf  # a word has a character
        drawn = logits.argmax(1) if temperature == 0 else _draw(logits, temperature, rng)
        context[open_, :-1] = context[open_, 1:]
        context[open_, -1] = drawn
        for word, number in zip(open_, drawn, strict=True):
            if number != EDGE:
                words[word].append(int(number))
        open_ = open_[drawn != EDGE]
        if not len(open_):
            break
    return [alphabet.decode(word) for word in words]


def _draw(logits: Array, temperature: float, rng: np.random.Generator) -> Array:
    """Adding Gumbel noise and taking the largest draws from the softmax."""
    logits = logits - logits.max(1, keepdims=True)
    with np.errstate(over="ignore"):  # far behind the likeliest is -inf
        return np.asarray((logits / temperature + rng.gumbel(size=logits.shape)).argmax(1))


def reestimate(network: Network, examples: Examples, part: int = 4096) -> None:
    """Running statistics that are those of these examples: measured part by part, pooled by `merge`."""
    norms = [layer for layer in network.layers.values() if isinstance(layer, Normalize) and layer.running is not None]
    for layer in norms:
        assert layer.running is not None
        layer.running = Running.start(layer.running.mean.shape, Convention("pooled", ddof=0))
    for begin in range(0, len(examples), part):
        some = examples.pick(np.arange(begin, min(begin + part, len(examples))))
        if len(some) > 1:  # one example alone has no variance
            network.forward(some.x, Pass(training=True, lengths=some.lengths))
