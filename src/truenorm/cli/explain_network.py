"""`truenorm explain --example network`: one training step of the character network, line by line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from truenorm.lab.config import STUDENTS, Config, make_config
from truenorm.lab.data import Alphabet, Batches, Examples, next_character_examples
from truenorm.lab.explanation import NetworkExplanation, explain_network
from truenorm.lab.networks import Network
from truenorm.lab.training import make_character_network, prepare

WORDS = "anna,emma,ian,mia,nina"
# Small enough to read every number, in float64 for the finite differences, and with n - 1 in the variance.
DEFAULTS: dict[str, Any] = {"hidden": 4, "batch": 5, "ddof": 1, "dtype": "float64"}
BOUNDARY = "."  # before and after a word


def explain_training_step(options: Mapping[str, Any]) -> NetworkExplanation:
    """The first step of `truenorm train` with these options, `--ddof 1` and `--dtype float64`.

    options   those that were given, of words, data, hidden, batch, seed and lr
    """
    given = dict(options)
    words = given.pop("words", None)
    if words is not None and "data" in given:
        raise ValueError("--words: not beside --data, which has words of its own. Leave one of them out.")
    if given.get("data") == STUDENTS:
        raise ValueError(
            f"--data: needs words, but {STUDENTS} is a table. Give a file with one word per line, or names."
        )
    if given.get("batch") == 1:
        raise ValueError("--batch: at least 2, as batch norm needs more than one value, got 1.")
    config = make_config(DEFAULTS | given)
    if "data" in given:
        data = prepare(config)
        assert data.alphabet is not None
        network, alphabet, examples = data.network, data.alphabet, data.train
    else:
        network, alphabet, examples = _from_words(WORDS if words is None else words, config)
    batch = Batches(examples, config.batch, config.seed)[0]
    characters = [BOUNDARY, *alphabet.characters]
    return explain_network(network, batch.x, batch.targets, learning_rate=config.lr, characters=characters)


def _from_words(text: str, config: Config) -> tuple[Network, Alphabet, Examples]:
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if not words:
        raise ValueError(f"--words: words with commas between them, got {text!r}.")
    alphabet = Alphabet.of(words)
    network = make_character_network(config, alphabet, np.random.default_rng([config.seed, 2]))
    return network, alphabet, next_character_examples(words, alphabet, config.block)
