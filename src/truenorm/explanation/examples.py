"""Two small examples: a table of five rows, and two sentences, one of which is padded."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from truenorm.core.norm import Norm
from truenorm.core.recipes import batch, layer
from truenorm.engine import forward

Array = NDArray[np.float64]

# Pre-activations of a layer with three units, for five examples.
TABLE_COLUMNS = ("z₁", "z₂", "z₃")
TABLE: Array = np.array([[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]], float)

# Two sentences after self-attention, one row per word. The first is padded with zeros to the length of the second.
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
    """One way to normalize the sentences."""

    name: str
    norm: Norm
    uses_lengths: bool

    def normalize(self, padding: int = 2) -> Array:
        """The normalized sentences with this many padding rows."""
        x = padded_sentences(padding)
        return np.asarray(forward(x, self.norm, lengths=LENGTHS if self.uses_lengths else None).y)

    def change(self, padding: int) -> float:
        """The largest change of a value of the row "How", compared with no padding."""
        valid = np.concatenate([sentence[:length] for sentence, length in zip(SENTENCES, LENGTHS, strict=True)])
        without_padding = forward(valid, self.norm).y[LENGTHS[0]]
        return float(np.abs(self.normalize(padding)[HOW] - without_padding).max())


def padded_sentences(padding: int = 2) -> Array:
    """The sentences with this many padding rows in total, an even number >= 2."""
    x = np.zeros((2, (sum(LENGTHS) + padding) // 2, SENTENCES.shape[2]))
    x[:, : SENTENCES.shape[1]] = SENTENCES
    return x


def methods(eps: float = 1e-5) -> tuple[Method, ...]:
    """Batch norm over all rows, batch norm over the valid rows, layer norm."""
    return (
        Method("batch norm, all rows", batch(eps=eps), uses_lengths=False),
        Method("batch norm, valid rows", batch(eps=eps), uses_lengths=True),
        Method("layer norm", layer(eps=eps), uses_lengths=False),
    )
