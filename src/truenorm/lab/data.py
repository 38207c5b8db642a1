"""Training data: words, and first names with a gender, read, checked and encoded as integers.

Words      one word a line, any alphabet; token 0 marks the start and the end of a word, and padding
Examples   x, targets and, for padded sequences, lengths; split into a training and a held-out set
"""

from __future__ import annotations

import io
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.lab.text_file import read_text

Array = NDArray[Any]
BOUNDARY = 0  # the token before and after a word, and in padding
PREFETCH = 4096  # examples that are drawn at once
WORDS_FILE = Path(__file__).with_name("words.txt")  # English words, made by tools/words.py


@dataclass(frozen=True)
class Alphabet:
    """The characters in order. Character i has the token i + 1; 0 is BOUNDARY."""

    characters: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> Alphabet:
        return cls(tuple(sorted(set("".join(words)))))

    def __post_init__(self) -> None:
        if not self.characters or any(len(one) != 1 for one in self.characters) or len(self.tokens) + 1 != len(self):
            shown = repr(self.characters[:20])
            raise ValueError(f"alphabet: one or more different characters, got {shown}. Start a new run.")

    @cached_property
    def tokens(self) -> dict[str, int]:
        """Character -> token."""
        return {character: i for i, character in enumerate(self.characters, 1)}

    def __len__(self) -> int:
        return len(self.characters) + 1

    def encode(self, word: str) -> list[int]:
        """The tokens of a word.

        >>> Alphabet(("a", "b")).encode("abba")
        [1, 2, 2, 1]
        """
        try:
            return [self.tokens[character] for character in word]
        except KeyError as error:
            unknown = error.args[0]
            raise ValueError(
                f"alphabet: the run was started without the character {unknown!r}, got {word!r}. "
                "Use the data that it was started with, or start a new run."
            ) from None

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.characters[token - 1] for token in tokens)


@dataclass(eq=False)  # not frozen: that costs a microsecond in every training step
class Examples:
    """Inputs and their targets; `lengths` if x holds padded sequences."""

    x: Array
    targets: Array
    lengths: Array | None = None

    def __len__(self) -> int:
        return len(self.x)

    def select(self, rows: Array) -> Examples:
        lengths = None if self.lengths is None else self.lengths[rows]
        return Examples(self.x[rows], self.targets[rows], lengths)


class Batches:
    """The batches of a run, drawn at random with replacement.

    A batch depends only on the seed and the step, so a checkpoint needs no random state. Many batches are drawn and
    copied at once, in a tenth of the time.
    """

    def __init__(self, examples: Examples, size: int, seed: int) -> None:
        self.examples, self.size, self.seed = examples, size, seed
        self.steps = max(1, PREFETCH // size)  # in a chunk
        self.chunk, self.drawn = -1, examples  # the chunk that is drawn, and its arrays (steps, size, ...)

    def __getitem__(self, step: int) -> Examples:
        chunk, i = divmod(step, self.steps)
        if self.chunk != chunk:
            rng = np.random.default_rng([self.seed, 3, chunk])
            self.drawn = self.examples.select(rng.integers(0, len(self.examples), (self.steps, self.size)))
            self.chunk = chunk
        x, targets, lengths = self.drawn.x, self.drawn.targets, self.drawn.lengths
        return Examples(x[i], targets[i], None if lengths is None else lengths[i])


def read_words(path: Path) -> list[str]:
    """The words of a file with one word a line, without duplicates, blank lines and surrounding spaces."""
    text = io.StringIO(read_text(path), newline=None)
    words = dict.fromkeys(unicodedata.normalize("NFC", word.strip()) for line in text for word in line.splitlines())
    words.pop("", None)
    if len(words) < 2:
        raise ValueError(f"{path}: needs at least two words, one a line, got {len(words)}.")
    return list(words)


def surnames() -> list[str]:
    """88,799 surnames of the US census, from the package `names`."""
    return list(_census("dist.all.last"))


def first_names() -> tuple[list[str], list[int]]:
    """5,163 first names and their gender (0 female, 1 male): the gender in which the name is more frequent."""
    shares = [_census("dist.female.first"), _census("dist.male.first")]
    names = sorted(shares[0] | shares[1])
    return names, [int(shares[1].get(name, 0.0) > shares[0].get(name, 0.0)) for name in names]


def _census(file: str) -> dict[str, float]:
    """Names, the most frequent first, and the percentage of people who have them."""
    try:
        import names
    except ModuleNotFoundError:
        raise ValueError(
            "data: the census lists need the package 'names'. Install it: pip install 'truenorm[lab]'."
        ) from None
    lines = (Path(names.__file__).parent / file).read_text("ascii").splitlines()
    return {cells[0].lower(): float(cells[1]) for cells in map(str.split, lines) if cells}


def next_character_examples(words: Sequence[str], alphabet: Alphabet, block: int) -> Examples:
    """Every character of every word, and its end, as the target of the `block` tokens before it.

    >>> examples = next_character_examples(["ab"], Alphabet(("a", "b")), 2)
    >>> examples.x.tolist(), examples.targets.tolist()
    ([[0, 0], [0, 1], [1, 2]], [1, 2, 0])
    """
    stream: list[int] = []
    for word in words:
        stream += [BOUNDARY] * block + alphabet.encode(word)
    tokens = np.array([*stream, *[BOUNDARY] * block], np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, block + 1)
    # The first target of a word follows boundaries only, and the last target is the boundary after the word. A
    # window whose target and previous token are both boundaries belongs to no word.
    inside = (windows[:, -2] != BOUNDARY) | (windows[:, -1] != BOUNDARY)
    return Examples(np.ascontiguousarray(windows[inside, :-1]), windows[inside, -1].copy())


def padded_sequences(words: Sequence[str], targets: Sequence[int], alphabet: Alphabet, max_length: int) -> Examples:
    """Words as rows of `max_length` tokens, padded with 0 at the end."""
    longest = max(map(len, words), default=0)
    if max_length < longest:
        raise ValueError(f"--max-length: at least {longest}, the length of the longest word, got {max_length}.")
    x = np.zeros((len(words), max_length), np.int64)
    for row, word in zip(x, words, strict=True):
        row[: len(word)] = alphabet.encode(word)
    return Examples(x, np.array(targets, np.int64), np.array([len(word) for word in words], np.int64))


def split(examples: Examples, rng: np.random.Generator, share: float = 0.1) -> tuple[Examples, Examples]:
    """A training and a held-out set of at least one example each."""
    order = rng.permutation(len(examples))
    held_out = min(max(1, round(share * len(examples))), len(examples) - 1)
    return examples.select(order[held_out:]), examples.select(order[:held_out])
