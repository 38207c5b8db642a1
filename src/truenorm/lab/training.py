"""A run: data, network and optimizer, advanced step by step.

Everything that the future of a run depends on is in `Trainer.state()`: a run that is stopped at any step and continued
from there takes the same steps, to the bit. Random numbers are made from the seed and the step, so they have no state.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from truenorm.core.running import Running
from truenorm.lab import data, table
from truenorm.lab.config import Config
from truenorm.lab.data import Alphabet, Batches, Examples
from truenorm.lab.instruments import observe
from truenorm.lab.layers import Normalize, Pass, cross_entropy, squared_error
from truenorm.lab.networks import Network, character_mlp, sequence_classifier, table_network
from truenorm.lab.optimizers import SGD, Adam, learning_rate

Array = NDArray[Any]
EVALUATED = 4096  # examples of one forward, when a whole set is evaluated


@dataclass(frozen=True)
class Material:
    """The data of a run, and the network that fits it."""

    train: Examples
    held_out: Examples
    network: Network
    classes: bool  # targets are classes, not numbers
    alphabet: Alphabet | None = None
    names: tuple[str, ...] = ()  # of the classes
    unit: float | None = None  # of targets that are numbers: what they were divided by

    def summary(self) -> str:
        """What was read, in one line."""
        kind = f"{len(self.names)} classes: {', '.join(self.names)}" if self.names else "targets are numbers"
        if not self.names and self.alphabet is not None:
            kind = f"{len(self.alphabet.characters)} characters and the end of a word"
        if len(kind) > 80:
            kind = f"{kind[:80]} ..."
        sizes = f"{len(self.train):,} examples to learn from, {len(self.held_out):,} held out"
        return f"{sizes}; {kind}; {self.network.values.size:,} parameters"

    @cached_property
    def fingerprint(self) -> str:
        """Of the examples: a run is continued with the data that it was started with, or not at all."""
        found = hashlib.sha256()
        for part in (self.train, self.held_out):
            for array in (part.x, part.targets):
                found.update(repr((array.dtype.str, array.shape)).encode())
                found.update(np.ascontiguousarray(array).data)
        return found.hexdigest()


def prepare(config: Config, alphabet: Alphabet | None = None) -> Material:
    """Read the data and make the network, from the seed alone. `alphabet`: of the run that is continued."""
    shuffle, start = (np.random.default_rng([config.seed, number]) for number in (1, 2))
    match config.task:
        case "words":
            words = _words(config.data)
            alphabet = alphabet or Alphabet.of(words)
            order = shuffle.permutation(len(words))
            held = min(max(1, len(words) // 10), len(words) - 1)
            train, held_out = (
                data.blocks([words[i] for i in rows], alphabet, config.block) for rows in (order[held:], order[:held])
            )
            return Material(train, held_out, network_for_words(config, alphabet, start), True, alphabet)
        case "gender":
            words, genders = data.first_names()
            alphabet = alphabet or Alphabet.of(words)
            extent = config.extent or max(map(len, words))
            train, held_out = data.split(data.padded(words, genders, alphabet, extent), shuffle)
            network = sequence_classifier(
                config.body(),
                start,
                alphabet=len(alphabet),
                classes=2,
                extent=extent,
                embedding=config.embedding,
                heads=config.heads,
            )
            return Material(train, held_out, network, True, alphabet, ("female", "male"))
        case "table":
            read = table.read_csv(Path(config.data), config.target or "")
            train, held_out = data.split(Examples(read.features, read.targets), shuffle, 0.2)
            if config.standardize:
                parts = table.standardized(train.x, held_out.x)
                train, held_out = Examples(parts[0], train.targets), Examples(parts[1], held_out.targets)
            with np.errstate(over="ignore"):
                train, held_out = (Examples(one.x.astype(config.dtype), one.targets) for one in (train, held_out))
            if not (np.isfinite(train.x).all() and np.isfinite(held_out.x).all()):
                raise ValueError(
                    f"{config.data}: numbers that {config.dtype} can hold, got larger. Use --dtype float64."
                )
            unit = None
            if read.classes is None:  # whatever they measure, a network starts at 0 and moves by steps of size 1
                (learned, other), unit = table.standardized_targets(train.targets, held_out.targets)
                train, held_out = Examples(train.x, learned), Examples(held_out.x, other)
            outputs = 1 if read.classes is None else len(read.classes)
            network = table_network(config.body(), start, features=train.x.shape[1], outputs=outputs)
            return Material(train, held_out, network, read.classes is not None, None, read.classes or (), unit)


def _words(source: str) -> list[str]:
    match source:
        case "names":
            return data.first_names()[0]
        case "surnames":
            return data.surnames()
        case _:
            if not Path(source).exists():
                raise ValueError(f"--data: a file, or names, or surnames, got {source}, which is not there.")
            return data.read_words(Path(source))


@dataclass(frozen=True)
class Score:
    """The loss; of classes, the share of examples whose most likely one is right; of numbers, the typical error.

    The loss of numbers is the mean squared error in units of their variance: always answering their mean gives 1. The
    error is its root, in the unit of the target.
    """

    loss: float
    accuracy: float | None
    error: float | None = None


class Trainer:
    """A run that can be advanced, judged, stored and continued."""

    def __init__(self, config: Config, material: Material) -> None:
        self.config, self.material, self.network = config, material, material.network
        like = self.network.values
        self.optimizer = Adam(like) if config.optimizer == "adam" else SGD(like, config.momentum)
        self.batches = Batches(material.train, config.batch, config.seed)
        self.usual = Pass(training=True)
        self.step = 0
        self.first: dict[str, Any] | None = None  # what the first report said of the layers' inputs
        self.loss = cross_entropy if material.classes else squared_error

    def advance(self) -> float:
        """One step; returns the loss before it."""
        config, network, chosen = self.config, self.network, self.batches[self.step]
        how = self.usual
        if config.dropout or chosen.lengths is not None:
            rng = np.random.default_rng([config.seed, 4, self.step]) if config.dropout else None
            how = Pass(training=True, lengths=chosen.lengths, rng=rng)
        loss, dy = self.loss(network.forward(chosen.x, how), chosen.targets)
        network.backward(dy)
        rate = learning_rate(config.rate, config.schedule, self.step, config.steps)
        self.optimizer.step(network.values, network.slopes, rate)
        self.step += 1
        return loss

    def score(self, examples: Examples, most: int | None = None) -> Score:
        """How well it does, without training; of `most` examples, evenly spread, or of all."""
        total, right, count = 0.0, 0, min(len(examples), most or len(examples))
        rows = np.arange(count) * len(examples) // count
        for begin in range(0, count, EVALUATED):
            part = examples.pick(rows[begin : begin + EVALUATED])
            found = self.network.forward(part.x, Pass(lengths=part.lengths))
            total += self.loss(found, part.targets)[0] * len(part)
            right += int((found.argmax(1) == part.targets).sum()) if self.material.classes else 0
        if self.material.classes:
            return Score(total / count, right / count)
        return Score(total / count, None, math.sqrt(total / count) * (self.material.unit or 1.0))

    def observe(self) -> dict[str, Any]:
        """What the instruments say after the last step."""
        rate = learning_rate(self.config.rate, self.config.schedule, max(self.step - 1, 0), self.config.steps)
        told = observe(self.network, self.material.held_out, rate, self.first)
        self.first = self.first or told["inputs"]
        return told

    # -- all that the future depends on --

    def state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        """Arrays and facts for `checkpoint.save`."""
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
        facts = {
            "step": self.step,
            "config": self.config.model_dump(),
            "alphabet": None if self.material.alphabet is None else list(self.material.alphabet.characters),
            "data": self.material.fingerprint,
            "running": counts,
            "first": self.first,
        }
        return arrays, facts

    def restore(self, arrays: dict[str, Array], facts: dict[str, Any]) -> None:
        """Back to what `state` returned."""
        if facts["data"] != self.material.fingerprint:
            raise ValueError(
                f"{self.config.data}: the data that the run was started with, got other data. Start a new run."
            )
        restore_network(self.network, arrays, facts)
        for name, value in self.optimizer.state.items():
            _put(value, arrays, f"optimizer.{name}")
        self.step, self.first = facts["step"], facts["first"]


def restore_network(network: Network, arrays: dict[str, Array], facts: dict[str, Any]) -> None:
    """Parameters and running statistics as `Trainer.state` has them."""
    for name, value in network.parameters.items():
        _put(value, arrays, f"parameter.{name}")
    for name, layer in network.layers.items():
        if isinstance(layer, Normalize) and (fresh := layer.running) is not None:
            parts = {part: np.empty_like(getattr(fresh, part)) for part in ("mean", "var", "count")}
            for part, value in parts.items():
                _put(value, arrays, f"running.{name}.{part}")
            if name not in facts["running"]:
                raise ValueError(f"checkpoint: the counts of {name}, got none. It is of another network.")
            layer.running = Running(**parts, convention=fresh.convention, **facts["running"][name])


def _put(value: Array, arrays: dict[str, Array], name: str) -> None:
    found = arrays.get(name)
    if found is None or found.shape != value.shape or found.dtype != value.dtype:
        raise ValueError(f"checkpoint: {name} of shape {value.shape}, got another. It is of another network.")
    value[...] = found


def network_for_words(config: Config, alphabet: Alphabet, rng: np.random.Generator) -> Network:
    """The network of --task words."""
    return character_mlp(config.body(), rng, alphabet=len(alphabet), block=config.block, embedding=config.embedding)
