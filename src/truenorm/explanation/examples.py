"""Two small examples that fit on a page: a table of five rows, and two sentences of which one is padded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truenorm.core.norm import Norm, batch, layer
from truenorm.engine import forward

Array = NDArray[np.float64]

# Pre-activations of a layer with three nodes, for five examples.
TABLE_COLUMNS = ("z1", "z2", "z3")
TABLE: Array = np.array([[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]], float)

# Two sentences after self-attention, one row a word; the first is padded with zeros to the length of the second.
TOKENS = ("Hi", "Nitish", "<pad>", "<pad>", "How", "are", "you", "today")
LENGTHS = (2, 4)
SENTENCES: Array = np.array(
    [
        [[6.5, 2.41, 3.21], [2.21, 0.4, 3.6], [0, 0, 0], [0, 0, 0]],
        [[7.5, 9.2, 1.5], [2.2, 1.1, 6.7], [2.9, 6, 9], [9.9, 2.3, 6.5]],
    ]
)
HOW = (1, 0)  # the word "How": sentence 1, position 0


@dataclass(frozen=True)
class Method:
    """One way to normalise the sentences."""

    name: str
    norm: Norm
    knows_lengths: bool

    def normalize(self, padding: int = 2) -> Array:
        """The normalised sentences with this much padding."""
        x = padded_sentences(padding)
        return np.asarray(forward(x, self.norm, lengths=LENGTHS if self.knows_lengths else None).y)

    def moved(self, padding: int) -> float:
        """How far this much padding moves any value of the row "How" from where it is without padding."""
        real = np.concatenate([sentence[:length] for sentence, length in zip(SENTENCES, LENGTHS, strict=True)])
        alone = forward(real, self.norm).y[LENGTHS[0]]
        return float(np.abs(self.normalize(padding)[HOW] - alone).max())


def padded_sentences(padding: int = 2) -> Array:
    """The sentences with an even number of padding rows, at least 2, in all: each is made equally longer."""
    x = np.zeros((2, (sum(LENGTHS) + padding) // 2, SENTENCES.shape[2]))
    x[:, : SENTENCES.shape[1]] = SENTENCES
    return x


def methods(eps: float = 1e-5) -> tuple[Method, ...]:
    """Batch norm with padding averaged in, batch norm over the valid rows, layer norm."""
    return (
        Method("batch norm, padding counted", batch(eps=eps), knows_lengths=False),
        Method("batch norm, valid rows", batch(eps=eps), knows_lengths=True),
        Method("layer norm", layer(eps=eps), knows_lengths=False),
    )
