"""Training: data, network and optimizer, one step at a time.

`Trainer.state()` holds everything that later steps depend on: a run that is stopped at any step and resumed from there
gives the same bits. Random numbers are drawn from the seed and the step, so they need no state.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.running import Running
from truenorm.explanation.terminal import printable
from truenorm.lab import memory, table
from truenorm.lab.config import STUDENTS, Config
from truenorm.lab.data import (
    PREFETCH,
    WORDS_FILE,
    Alphabet,
    Batches,
    Examples,
    first_names,
    next_character_examples,
    padded_sequences,
    read_words,
    split,
    surnames,
)
from truenorm.lab.diagnostics import Diagnostics, Inputs, compute_diagnostics
from truenorm.lab.layers import ForwardContext, Linear, Normalize, cross_entropy, squared_error
from truenorm.lab.memory import NetworkSize
from truenorm.lab.networks import (
    Network,
    character_mlp,
    character_size,
    sequence_classifier,
    sequence_size,
    table_network,
    table_size,
)
from truenorm.lab.optimizers import SGD, Adam, learning_rate

Array = NDArray[Any]
EVALUATION_BATCH = 4096
GENDERS = ("female", "male")


@dataclass(frozen=True)
class TaskData:
    """The examples of a task, and the untrained network for them."""

    train: Examples
    held_out: Examples
    network: Network
    classification: bool  # else regression
    alphabet: Alphabet | None = None
    class_names: tuple[str, ...] = ()
    columns: table.Columns | None = None  # of a table

    def summary(self) -> str:
        """Sizes and kind of the data, in one line that is safe to print."""
        kind = f"{len(self.class_names)} classes: {', '.join(self.class_names)}" if self.class_names else "regression"
        if not self.class_names and self.alphabet is not None:
            kind = f"{len(self.alphabet.characters)} characters and the end of a word"
        if len(kind) > 80:
            kind = f"{kind[:80]} ..."
        sizes = f"{len(self.train):,} training examples, {len(self.held_out):,} held out"
        return f"{sizes}; {printable(kind)}; {self.network.flat_parameters.size:,} parameters"

    def baseline_loss(self) -> float:
        """The held-out loss of a constant prediction: the training set's class frequencies, or its mean target.

        One is added to each class count, so that a class that is only in the held-out set has a finite loss.
        """
        targets = self.held_out.targets
        if not self.classification:
            return float(np.square(targets).mean())  # targets are standardized: the mean is 0
        counts = np.bincount(self.train.targets, minlength=self.network.parameters["output.bias"].size) + 1
        return float(-np.log(counts / counts.sum())[targets].mean())

    @cached_property
    def fingerprint(self) -> str:
        """A hash of the examples: a run can only be resumed with the data that it was started with."""
        digest = hashlib.sha256()
        for part in (self.train, self.held_out):
            for array in (part.x, part.targets):
                digest.update(repr((array.dtype.str, array.shape)).encode())
                digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()


def prepare(config: Config, alphabet: Alphabet | None = None) -> TaskData:
    """Read the data, split it and initialize the network. `alphabet`: that of the run to resume."""
    shuffle, init = (np.random.default_rng([config.seed, number]) for number in (1, 2))
    match config.task:
        case "words":
            words = read_source(config.data)
            alphabet = alphabet or Alphabet.of(words)
            _require_memory(
                config,
                character_size(config.for_network(), **_character_sizes(config, alphabet)),
                examples=len(words) + sum(map(len, words)),
                example_bytes=8 * (config.block + 1),
                more_bytes=16 * config.block * len(words),  # boundaries between the words
            )
            order = shuffle.permutation(len(words))
            held = min(max(1, len(words) // 10), len(words) - 1)
            train, held_out = (
                next_character_examples([words[i] for i in rows], alphabet, config.block)
                for rows in (order[held:], order[:held])
            )
            return TaskData(train, held_out, make_character_network(config, alphabet, init), True, alphabet)
        case "gender":
            words, genders = first_names()
            alphabet = alphabet or Alphabet.of(words)
            max_length = config.max_length or max(map(len, words))
            sizes = {
                "vocab_size": len(alphabet),
                "classes": len(GENDERS),
                "max_length": max_length,
                "embedding": config.embedding,
                "heads": config.heads,
            }
            size = sequence_size(config.for_network(), **sizes)
            _require_memory(config, size, examples=len(words), example_bytes=16 * max_length)
            train, held_out = split(padded_sequences(words, genders, alphabet, max_length), shuffle)
            network = sequence_classifier(config.for_network(), init, **sizes)
            return TaskData(train, held_out, network, True, alphabet, GENDERS)
        case "table":
            path = table.STUDENTS_FILE if config.data == STUDENTS else Path(config.data)
            if not path.exists():
                raise ValueError(f"--data: a CSV file or students, got {path}, which does not exist.")
            read = table.read_csv(path, config.target or "")
            outputs = 1 if read.classes is None else len(read.classes)
            rows, features = read.features.shape
            size = table_size(config.for_network(), features=features, outputs=outputs)
            _require_memory(config, size, examples=rows, example_bytes=32 * features)
            train, held_out = split(Examples(read.features, read.targets), shuffle, 0.2)
            scale = table.Scale.of(train.x) if config.standardize else None
            target = None if read.classes is not None else table.Scale.of(train.targets[:, None])
            columns = table.Columns(
                names=read.columns,
                mean=None if scale is None else tuple(scale.mean.tolist()),
                std=None if scale is None else tuple(scale.std.tolist()),
                classes=read.classes,
                # A network starts near 0 and learns slowly what is much larger than 1: targets are scaled, too.
                **({} if target is None else {"target_mean": target.mean.item(), "target_std": target.std.item()}),
            )
            train, held_out = (
                Examples(
                    columns.inputs(one.x, config.dtype),
                    one.targets if target is None else target.apply(one.targets[:, None])[:, 0],
                )
                for one in (train, held_out)
            )
            if not (np.isfinite(train.x).all() and np.isfinite(held_out.x).all()):
                change = "Use --dtype float64." if config.dtype == "float32" else "Rescale its columns."
                raise ValueError(f"{config.data}: some numbers are too large for {config.dtype}. {change}")
            network = table_network(config.for_network(), init, features=features, outputs=outputs)
            return TaskData(train, held_out, network, target is None, None, read.classes or (), columns)


def _require_memory(
    config: Config, size: NetworkSize, *, examples: int, example_bytes: int, more_bytes: int = 0
) -> None:
    """Raise an error if data, network and the values of a batch do not fit into memory together."""
    advice = {
        "words": "--block, --embedding, --hidden, --depth or --batch",
        "gender": "--max-length, --embedding, --hidden, --heads or --batch",
        "table": "--hidden, --depth or --batch",
    }
    memory.require(
        advice[config.task],
        data=examples * example_bytes + more_bytes,
        network=size.network_bytes,
        batches=size.batch_bytes(max(config.batch, min(examples, EVALUATION_BATCH)))
        + max(config.batch, PREFETCH) * example_bytes,
    )


def read_source(source: str) -> list[str]:
    """The words of a list that comes with the lab, or of a file."""
    match source:
        case "names":
            return first_names()[0]
        case "surnames":
            return surnames()
        case "words":
            return read_words(WORDS_FILE)
        case _:
            if not Path(source).exists():
                raise ValueError(f"--data: a file, names, surnames or words, got {source}, which does not exist.")
            return read_words(Path(source))


@dataclass(frozen=True)
class Metrics:
    """Loss, and accuracy of a classification or RMSE of a regression.

    The loss of a regression is the mean squared error of standardized targets: always predicting the mean gives about
    1. The RMSE is in the unit of the target.
    """

    loss: float
    accuracy: float | None
    rmse: float | None = None


class Trainer:
    """A training run: takes steps, evaluates, and can be saved and restored."""

    def __init__(self, config: Config, data: TaskData) -> None:
        self.config, self.data, self.network = config, data, data.network
        parameters = self.network.flat_parameters
        self.optimizer = Adam(parameters) if config.optimizer == "adam" else SGD(parameters, config.momentum)
        self.batches = Batches(data.train, config.batch, config.seed)
        self.default_context = ForwardContext(training=True)
        self.step = 0
        self.first_inputs: Inputs | None = None  # of the first diagnostics, for the drift
        self.loss = cross_entropy if data.classification else squared_error

    def train_step(self) -> float:
        """Take one step; return the loss of its batch."""
        config, network, batch = self.config, self.network, self.batches[self.step]
        ctx = self.default_context
        if config.dropout or batch.lengths is not None:
            rng = np.random.default_rng([config.seed, 4, self.step]) if config.dropout else None
            ctx = ForwardContext(training=True, lengths=batch.lengths, rng=rng)
        loss, dy = self.loss(network.forward(batch.x, ctx), batch.targets)
        network.backward(dy)
        lr = learning_rate(config.lr, config.schedule, self.step, config.steps)
        self.optimizer.step(network.flat_parameters, network.flat_gradients, lr)
        self.step += 1
        return loss

    def evaluate(
        self, examples: Examples, limit: int | None = None, on_batch: Callable[[], None] | None = None
    ) -> Metrics:
        """Metrics in evaluation mode, over all examples or over `limit` evenly spaced ones.

        `on_batch` is called before each batch. It may raise, to interrupt an evaluation that takes long.
        """
        total, correct, count = 0.0, 0, min(len(examples), limit or len(examples))
        rows = np.arange(count) * len(examples) // count
        for start in range(0, count, EVALUATION_BATCH):
            if on_batch is not None:
                on_batch()
            batch = examples.select(rows[start : start + EVALUATION_BATCH])
            y = self.network.forward(batch.x, ForwardContext(lengths=batch.lengths))
            total += self.loss(y, batch.targets)[0] * len(batch)
            correct += int((y.argmax(1) == batch.targets).sum()) if self.data.classification else 0
        if self.data.classification:
            return Metrics(total / count, correct / count)
        std = 1.0 if self.data.columns is None else self.data.columns.target_std
        return Metrics(total / count, None, math.sqrt(total / count) * std)

    def result(self, train: Metrics | None, held_out: Metrics | None) -> dict[str, Any]:
        """How a training ended, as result.json and the file of a trial have it. Without metrics it diverged."""
        baseline = self.data.baseline_loss()
        return {
            "steps": self.step,
            "train": None if train is None else asdict(train),
            "held_out": None if held_out is None else asdict(held_out),
            "baseline": {"loss": baseline, "beaten": held_out is not None and held_out.loss < baseline},
            "parameters": self.network.flat_parameters.size,
        }

    def diagnostics(self) -> Diagnostics:
        """The diagnostics after the last step."""
        lr = learning_rate(self.config.lr, self.config.schedule, max(self.step - 1, 0), self.config.steps)
        found = compute_diagnostics(self.network, self.data.held_out, lr, self.first_inputs)
        self.first_inputs = self.first_inputs or found["inputs"]
        return found

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and metadata for `checkpoint.encode`."""
        arrays = {f"parameter.{name}": value for name, value in self.network.parameters.items()}
        arrays |= {f"optimizer.{name}": value for name, value in self.optimizer.state.items()}
        counts = {}
        for name, layer in self.network.layers.items():
            if isinstance(layer, Normalize) and layer.running is not None:
                running = layer.running
                arrays |= {
                    f"running.{name}.{part}": getattr(running, part) for part in ("mean", "var", "count")
                }  # fmt: skip
                counts[name] = {"batches": running.batches, "skipped": running.skipped}
        metadata = {
            "step": self.step,
            "config": self.config.saved(),
            "alphabet": None if self.data.alphabet is None else list(self.data.alphabet.characters),
            "columns": None if self.data.columns is None else self.data.columns.model_dump(),
            "data": self.data.fingerprint,
            "running": counts,
            "first_inputs": self.first_inputs,
        }
        return arrays, metadata

    def restore(self, arrays: dict[str, Array], metadata: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        if metadata["data"] != self.data.fingerprint:
            raise ValueError(f"{self.config.data}: the data changed since the run was started. Start a new run.")
        restore_network(self.network, arrays, metadata)
        linear = {name for name, layer in self.network.layers.items() if isinstance(layer, Linear)}
        if metadata["first_inputs"] is not None and metadata["first_inputs"].keys() != linear:
            raise ValueError(
                f"checkpoint: first_inputs has the layers {sorted(linear)} in this network, "
                f"got {sorted(metadata['first_inputs'])}."
            )
        for name, value in self.optimizer.state.items():
            _copy_into(value, arrays, f"optimizer.{name}")
        self.step, self.first_inputs = metadata["step"], metadata["first_inputs"]


def restore_network(network: Network, arrays: dict[str, Array], metadata: dict[str, Any]) -> None:
    """Restore parameters and running statistics from what `Trainer.state` returned."""
    for name, value in network.parameters.items():
        _copy_into(value, arrays, f"parameter.{name}")
    for name, layer in network.layers.items():
        if isinstance(layer, Normalize) and (initial := layer.running) is not None:
            parts = {part: np.empty_like(getattr(initial, part)) for part in ("mean", "var", "count")}
            for part, value in parts.items():
                _copy_into(value, arrays, f"running.{name}.{part}")
            if name not in metadata["running"]:
                raise ValueError(f"checkpoint: no running statistics of {name}. It belongs to another network.")
            layer.running = Running(**parts, convention=initial.convention, **metadata["running"][name])


def _copy_into(target: Array, arrays: dict[str, Array], name: str) -> None:
    saved = arrays.get(name)
    if saved is None or saved.shape != target.shape or saved.dtype != target.dtype:
        got = "nothing" if saved is None else f"{saved.dtype} of shape {saved.shape}"
        raise ValueError(f"checkpoint: {name} is {target.dtype} of shape {target.shape} in this network, got {got}.")
    target[...] = saved


def make_character_network(config: Config, alphabet: Alphabet, rng: np.random.Generator) -> Network:
    """The network of --task words."""
    return character_mlp(config.for_network(), rng, **_character_sizes(config, alphabet))


def _character_sizes(config: Config, alphabet: Alphabet) -> dict[str, int]:
    return {"vocab_size": len(alphabet), "block": config.block, "embedding": config.embedding}
