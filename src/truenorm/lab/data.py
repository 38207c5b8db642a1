"""What the networks learn from: words and names with a gender. Read, checked, and turned into numbers.

Words      one word a line, any alphabet; number 0 marks the edge of a word, and padding
Examples   x, targets and, for padded sequences, lengths: split into a training and a held-out part
"""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
EDGE = 0
AHEAD = 4096  # examples that are drawn at once


@dataclass(frozen=True)
class Alphabet:
    """The characters, in order; character i has the number i + 1, as 0 is the edge of a word."""

    characters: tuple[str, ...]

    @classmethod
    def of(cls, words: Sequence[str]) -> Alphabet:
        return cls(tuple(sorted(set("".join(words)))))

    def __len__(self) -> int:
        return len(self.characters) + 1

    def encode(self, word: str) -> list[int]:
        """The numbers of a word's characters.

        >>> Alphabet(("a", "b")).encode("abba")
        [1, 2, 2, 1]
        """
        try:
            return [self.characters.index(character) + 1 for character in word]
        except ValueError:
            strange = next(character for character in word if character not in self.characters)
            raise ValueError(
                f"alphabet: characters that the run was started with, got {strange!r} in {word!r}. "
                "Use the data that it was started with, or start a new run."
            ) from None

    def decode(self, numbers: Sequence[int]) -> str:
        return "".join(self.characters[number - 1] for number in numbers)


@dataclass(eq=False)  # frozen would cost a microsecond a step
class Examples:
    """x and what it should become; `lengths` where x is padded."""

    x: Array
    targets: Array
    lengths: Array | None = None

    def __len__(self) -> int:
        return len(self.x)

    def pick(self, rows: Array) -> Examples:
        lengths = None if self.lengths is None else self.lengths[rows]
        return Examples(self.x[rows], self.targets[rows], lengths)


class Batches:
    """The batches of a run: drawn at random, with repetition, from the seed and the number of the step alone.

    So nothing has to be remembered to continue a run; and they are drawn and copied many at a time, which costs a
    tenth of drawing each.
    """

    def __init__(self, examples: Examples, size: int, seed: int) -> None:
        self.examples, self.size, self.seed = examples, size, seed
        self.steps = max(1, AHEAD // size)
        self.part, self.drawn = -1, examples  # which part of the run was drawn: (steps, size, ...)

    def __getitem__(self, step: int) -> Examples:
        part, i = divmod(step, self.steps)
        if self.part != part:
            rng = np.random.default_rng([self.seed, 3, part])
            self.drawn = self.examples.pick(rng.integers(0, len(self.examples), (self.steps, self.size)))
            self.part = part
        x, targets, lengths = self.drawn.x, self.drawn.targets, self.drawn.lengths
        return Examples(x[i], targets[i], None if lengths is None else lengths[i])


def read_words(path: Path) -> list[str]:
    """One word a line, without blank lines and surrounding spaces; each word once, in the order of the file."""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: text in UTF-8, got a byte that is not, at {error.start}.") from None
    if "\0" in text:
        raise ValueError(f"{path}: text in UTF-8, got a zero byte.")
    words = dict.fromkeys(unicodedata.normalize("NFC", line.strip()) for line in text.splitlines())
    words.pop("", None)
    if len(words) < 2:
        raise ValueError(f"{path}: at least two words, one a line, got {len(words)}.")
    return list(words)


def surnames() -> list[str]:
    """88,799 surnames of the US census, from the package `names`."""
    return list(_census("dist.all.last"))


def first_names() -> tuple[list[str], list[int]]:
    """5,163 first names and their gender (0 female, 1 male): the one that has the name more often."""
    shares = [_census("dist.female.first"), _census("dist.male.first")]
    names = sorted(shares[0] | shares[1])
    return names, [int(shares[1].get(name, 0.0) > shares[0].get(name, 0.0)) for name in names]


def _census(file: str) -> dict[str, float]:
    """Names, the most frequent first, and how many in a hundred people have them."""
    try:
        import names
    except ModuleNotFoundError:
        raise ValueError(
            "data: the package 'names' has the census lists, and is missing. Install it: pip install 'truenorm[lab]'."
        ) from None
    lines = (Path(names.__file__).parent / file).read_text("ascii").splitlines()
    return {cells[0].lower(): float(cells[1]) for cells in map(str.split, lines) if cells}


def blocks(words: Sequence[str], alphabet: Alphabet, block: int) -> Examples:
    """Every character of every word, and its end, after the `block` characters before it.

    >>> found = blocks(["ab"], Alphabet(("a", "b")), 2)
    >>> found.x.tolist(), found.targets.tolist()
    ([[0, 0], [0, 1], [1, 2]], [1, 2, 0])
    """
    stream: list[int] = []
    for word in words:
        stream += [EDGE] * block + alphabet.encode(word)
    numbers = np.array([*stream, *[EDGE] * block], np.int64)
    windows = np.lib.stride_tricks.sliding_window_view(numbers, block + 1)
    # A window belongs to a word if what precedes its target is not an edge, or its target is not: the first
    # target of a word follows edges alone, the last one is the edge behind it.
    inside = (windows[:, -2] != EDGE) | (windows[:, -1] != EDGE)
    return Examples(np.ascontiguousarray(windows[inside, :-1]), windows[inside, -1].copy())


def padded(words: Sequence[str], targets: Sequence[int], alphabet: Alphabet, extent: int) -> Examples:
    """Words as rows of `extent` numbers, with 0 behind."""
    longest = max(map(len, words))
    if extent < longest:
        raise ValueError(f"--extent: at least the {longest} characters of the longest word, got {extent}.")
    x = np.zeros((len(words), extent), np.int64)
    for row, word in zip(x, words, strict=True):
        row[: len(word)] = alphabet.encode(word)
    return Examples(x, np.array(targets, np.int64), np.array([len(word) for word in words], np.int64))


def split(examples: Examples, rng: np.random.Generator, share: float = 0.1) -> tuple[Examples, Examples]:
    """A training and a held-out part, of at least one each."""
    order = rng.permutation(len(examples))
    held_out = min(max(1, round(share * len(examples))), len(examples) - 1)
    return examples.pick(order[held_out:]), examples.pick(order[:held_out])
