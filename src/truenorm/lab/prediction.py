"""Predictions of a trained network for rows of a CSV file: the gender of names, or the target column of a table.

    predictor = load_predictor(Path("runs/students"))
    predictor.columns                                    # the columns that it reads: ("cgpa", "iq")
    predictor.predict(header, rows, "new.csv")           # a Prediction for each row

The network comes from the last checkpoint, which also holds the alphabet, or the scales of the columns. The training
data is not read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab import memory, run
from truenorm.lab.config import Config
from truenorm.lab.data import Alphabet, Examples, padded_sequences
from truenorm.lab.layers import ForwardContext
from truenorm.lab.networks import Network, sequence_classifier, sequence_size, table_network, table_size
from truenorm.lab.table import Columns, Row, numbers_of
from truenorm.lab.training import EVALUATION_BATCH, GENDERS, restore_network

Array = NDArray[Any]
NAME = "name"  # the column that --task gender reads


@dataclass(frozen=True)
class Prediction:
    """One value for each row; for a classification also the probability of each class, (rows, classes)."""

    values: list[str]
    classes: tuple[str, ...]
    probabilities: Array | None


@dataclass(frozen=True)
class Predictor(ABC):
    """A trained network, and what turns rows of text into its inputs."""

    network: Network
    columns: tuple[str, ...]

    @ignore_floating_point_errors
    def predict(self, header: Sequence[str], rows: Sequence[Row], name: str) -> Prediction:
        """A prediction for each row. `name` is that of the file, for messages."""
        for column in self.columns:
            if header.count(column) != 1:
                got = "it twice" if column in header else ", ".join(header[:20])
                raise ValueError(f"{name}: needs the column {column!r}, got {got}.")
        for line, cells in rows:
            if len(cells) != len(header):
                raise ValueError(f"{name}: each row needs {len(header)} cells, got {len(cells)} in line {line}.")
        if not rows:
            raise ValueError(f"{name}: needs at least one row below the header, got none.")
        examples = self.encode(header, rows, name)
        parts = [
            examples.select(np.arange(start, min(start + EVALUATION_BATCH, len(examples))))
            for start in range(0, len(examples), EVALUATION_BATCH)
        ]
        y = np.concatenate([self.network.forward(one.x, ForwardContext(lengths=one.lengths)) for one in parts])
        if not np.isfinite(y).all():
            line = rows[int(np.argmin(np.isfinite(y).all(1)))][0]
            raise ValueError(f"{name}: the outputs of the network must be finite, got NaN or inf for line {line}.")
        return self.decode(y.astype(np.float64))

    @abstractmethod
    def encode(self, header: Sequence[str], rows: Sequence[Row], name: str) -> Examples:
        """The inputs of the network, with targets that mean nothing."""

    @abstractmethod
    def decode(self, y: Array) -> Prediction:
        """What the outputs of the network mean."""


@dataclass(frozen=True)
class GenderPredictor(Predictor):
    alphabet: Alphabet
    max_length: int

    def encode(self, header: Sequence[str], rows: Sequence[Row], name: str) -> Examples:
        place = header.index(NAME)
        names = [cells[place].lower() for _, cells in rows]
        for (line, _), one in zip(rows, names, strict=True):
            unknown = next((character for character in one if character not in self.alphabet.tokens), None)
            if unknown is not None:
                raise ValueError(f"{name}: names of the letters that the run has seen, got {one!r} in line {line}.")
            if not 1 <= len(one) <= self.max_length:
                raise ValueError(f"{name}: names of 1 to {self.max_length} letters, got {one!r} in line {line}.")
        return padded_sequences(names, [0] * len(names), self.alphabet, self.max_length)

    def decode(self, y: Array) -> Prediction:
        return _classes(y, GENDERS)


@dataclass(frozen=True)
class TablePredictor(Predictor):
    scales: Columns
    dtype: str

    def encode(self, header: Sequence[str], rows: Sequence[Row], name: str) -> Examples:
        x = self.scales.inputs(numbers_of(header, rows, self.columns, name), self.dtype)
        return Examples(x, np.zeros(len(x)))

    def decode(self, y: Array) -> Prediction:
        if self.scales.classes is not None:
            return _classes(y, self.scales.classes)
        numbers = y[:, 0] * self.scales.target_std + self.scales.target_mean
        return Prediction([f"{number:.6g}" for number in numbers], (), None)


def _classes(logits: Array, classes: tuple[str, ...]) -> Prediction:
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    return Prediction([classes[i] for i in logits.argmax(1)], classes, shifted / shifted.sum(1, keepdims=True))


def load_predictor(directory: Path) -> Predictor:
    """The network of a run of --task gender or --task table, from its last checkpoint."""
    config, arrays, metadata = run.read_checkpoint(directory)
    match config.task:
        case "words":
            raise ValueError(
                f"{directory}: needs a run of --task gender or table, got one of --task words. Use truenorm sample."
            )
        case "gender":
            return _gender(config, arrays, metadata)
        case "table":
            if metadata["columns"] is None:
                raise ValueError(f"{directory}: the run is of an older version, which kept no scales. Train it again.")
            return _table(config, Columns(**metadata["columns"]), arrays, metadata)


def _gender(config: Config, arrays: dict[str, Any], metadata: dict[str, Any]) -> Predictor:
    alphabet = Alphabet(tuple(metadata["alphabet"] or ()))
    positions = np.atleast_1d(arrays.get("parameter.positions.table", np.zeros((1, 0))))
    sizes = {
        "vocab_size": len(alphabet),
        "classes": len(GENDERS),
        "max_length": len(positions),
        "embedding": config.embedding,
        "heads": config.heads,
    }
    memory.require("run", network=sequence_size(config.for_network(), **sizes).network_bytes)
    network = sequence_classifier(config.for_network(), np.random.default_rng(0), **sizes)
    restore_network(network, arrays, metadata)
    return GenderPredictor(network, (NAME,), alphabet, len(positions))


def _table(config: Config, columns: Columns, arrays: dict[str, Any], metadata: dict[str, Any]) -> Predictor:
    sizes = {"features": len(columns.names), "outputs": 1 if columns.classes is None else len(columns.classes)}
    memory.require("run", network=table_size(config.for_network(), **sizes).network_bytes)
    network = table_network(config.for_network(), np.random.default_rng(0), **sizes)
    restore_network(network, arrays, metadata)
    return TablePredictor(network, columns.names, columns, config.dtype)
