"""Sampling: extreme temperatures, and networks whose outputs are not finite."""

from pathlib import Path

import numpy as np
import pytest
from runs import small_config, trained

from truenorm.lab.sampling import generate


@pytest.mark.parametrize("temperature", [0.0, 1e-320, 1e-3, 1.0, 1e3, 1e308, np.inf])
def test_no_temperature_gives_empty_words(words: Path, temperature: float) -> None:
    trainer = trained(small_config(words, steps=3))
    alphabet = trainer.data.alphabet
    assert alphabet is not None
    rng = np.random.default_rng(1)
    drawn = generate(trainer.network, alphabet, 3, rng, count=300, temperature=temperature)
    assert all(drawn)
    if temperature >= 1e3:  # all characters have about the same probability
        characters = "".join(drawn)
        shares = np.array([characters.count(one) for one in alphabet.characters]) / len(characters)
        np.testing.assert_allclose(shares, 1 / len(alphabet.characters), rtol=0.2)


def test_a_network_that_is_not_finite_generates_nothing(words: Path) -> None:
    trainer = trained(small_config(words, steps=3))
    assert trainer.data.alphabet is not None
    trainer.network.parameters["output.bias"][2] = np.nan
    with pytest.raises(ValueError, match=r"sample: the outputs of the network must be finite, got NaN or inf"):
        generate(trainer.network, trainer.data.alphabet, 3, np.random.default_rng(0), count=2)
