"""Predictions of a trained network for rows of a CSV file: the gender of names, or the target column of a table.

    predictor = load_predictor(Path("runs/students"))
    predictor.columns                                    # the columns that it reads: ("cgpa", "iq")
    predictor.predict(header, rows, "new.csv")           # a RowPrediction for each row

A row that cannot be predicted, such as a name with an unknown letter, has a problem instead of a value; the others are
predicted as if it were not there. A file without the columns, or with rows of other sizes, is refused.

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
from truenorm.lab.table import Columns, Row, expected_instead, to_number
from truenorm.lab.training import EVALUATION_BATCH, GENDERS, restore_network

Array = NDArray[Any]
Cells = Sequence[str]  # of one row, in the columns that a predictor reads
NAME = "name"  # the column that --task gender reads
MAX_SHOWN = 40  # characters of a cell in a problem
NOT_FINITE = "inputs and outputs of the network that are finite, got NaN or inf"


@dataclass(frozen=True)
class RowPrediction:
    """The prediction for a row, with the probability of each class of a classification; or the problem with the row."""

    value: str = ""
    probabilities: tuple[float, ...] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Predictor(ABC):
    """A trained network, and what turns rows of text into its inputs."""

    network: Network
    columns: tuple[str, ...]
    classes: tuple[str, ...]  # none for a regression

    @ignore_floating_point_errors
    def predict(self, header: Sequence[str], rows: Sequence[Row], name: str) -> list[RowPrediction]:
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
        places = [header.index(column) for column in self.columns]
        read = [[cells[place] for place in places] for _, cells in rows]
        problems = [self.problem(cells) for cells in read]
        found = iter(self._predict([cells for cells, problem in zip(read, problems, strict=True) if problem is None]))
        return [next(found) if problem is None else RowPrediction(problem=problem) for problem in problems]

    def _predict(self, rows: Sequence[Cells]) -> list[RowPrediction]:
        """Predictions for rows without a problem."""
        examples = self.encode(rows)
        parts = [np.empty((0, self.network.parameters["output.bias"].size))]
        for start in range(0, len(examples), EVALUATION_BATCH):
            part = examples.select(np.arange(start, min(start + EVALUATION_BATCH, len(examples))))
            parts.append(self.network.forward(part.x, ForwardContext(lengths=part.lengths)))
        y = np.concatenate(parts)
        finite = np.isfinite(np.hstack([examples.x, y])).all(axis=1, keepdims=True)[:, 0]
        return [
            one if usable else RowPrediction(problem=NOT_FINITE)
            for one, usable in zip(self.decode(y), finite, strict=True)
        ]

    @abstractmethod
    def problem(self, cells: Cells) -> str | None:
        """What was expected of a row that cannot be predicted, and what it has."""

    @abstractmethod
    def encode(self, rows: Sequence[Cells]) -> Examples:
        """The inputs of the network, with targets that mean nothing."""

    def decode(self, y: Array) -> list[RowPrediction]:
        """What the outputs of the network mean: logits of the classes."""
        shifted = np.exp(y - y.max(1, keepdims=True))
        probabilities = (shifted / shifted.sum(1, keepdims=True)).tolist()
        chosen = [self.classes[i] for i in y.argmax(1)]
        return [RowPrediction(value, tuple(shares)) for value, shares in zip(chosen, probabilities, strict=True)]


def _shown(cell: str) -> str:
    return repr(cell) if len(cell) <= MAX_SHOWN else f"{cell[:MAX_SHOWN]!r} ..."


@dataclass(frozen=True)
class GenderPredictor(Predictor):
    alphabet: Alphabet
    max_length: int

    def problem(self, cells: Cells) -> str | None:
        (name,) = cells
        if any(character not in self.alphabet.tokens for character in name.lower()):
            return f"names of the letters that the run has seen, got {_shown(name)}"
        if not 1 <= len(name.lower()) <= self.max_length:
            return f"names of 1 to {self.max_length} letters, got {_shown(name)}"
        return None

    def encode(self, rows: Sequence[Cells]) -> Examples:
        return padded_sequences([name.lower() for (name,) in rows], [0] * len(rows), self.alphabet, self.max_length)


@dataclass(frozen=True)
class TablePredictor(Predictor):
    scales: Columns
    dtype: str

    def problem(self, cells: Cells) -> str | None:
        for column, cell in zip(self.columns, cells, strict=True):
            if (expected := expected_instead(to_number(cell))) is not None:
                return f"column {column!r} needs {expected}, got {_shown(cell)}"
        return None

    def encode(self, rows: Sequence[Cells]) -> Examples:
        numbers = np.array([[to_number(cell) for cell in cells] for cells in rows]).reshape(-1, len(self.columns))
        return Examples(self.scales.inputs(numbers, self.dtype), np.zeros(len(rows)))

    def decode(self, y: Array) -> list[RowPrediction]:
        if self.classes:
            return super().decode(y)
        numbers = y[:, 0] * self.scales.target_std + self.scales.target_mean
        return [RowPrediction(f"{number:.6g}") for number in numbers]


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
    return GenderPredictor(network, (NAME,), GENDERS, alphabet, len(positions))


def _table(config: Config, columns: Columns, arrays: dict[str, Any], metadata: dict[str, Any]) -> Predictor:
    sizes = {"features": len(columns.names), "outputs": 1 if columns.classes is None else len(columns.classes)}
    memory.require("run", network=table_size(config.for_network(), **sizes).network_bytes)
    network = table_network(config.for_network(), np.random.default_rng(0), **sizes)
    restore_network(network, arrays, metadata)
    return TablePredictor(network, columns.names, columns.classes or (), columns, config.dtype)
