"""Every way to mark valid elements of a pattern: arguments for the library, and split arrays for the oracle."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from patterns import LENGTHS, Array, Pattern

SAMPLE_WEIGHTS = [0.0, 0.5, 1.0, 1.25, 2.0]  # zero, below one, above one; their sums are exact
RAGGED = (
    "nothing",
    "valid by position",
    "valid by element",
    "valid by sample",
    "lengths",
    "lengths of each axis",
    "offsets",
    "segments",
)
PACKED = ("offsets", "segments")  # kinds for which x is packed


@dataclass(frozen=True)
class Ragged:
    """One way to mark valid elements: arguments for the library, and split arrays for the oracle."""

    arguments: dict[str, Any]
    valid: Array | None
    sample_weight: Array | None
    form: Callable[[Array], Array]  # a split array in the shape that the library takes and returns
    statistics: Callable[[Array], Array]  # the same for mean, m2 and count


def ragged(pattern: Pattern, kind: str, rng: np.random.Generator, *, weighted: bool = False) -> Ragged | None:
    """The arguments of this kind for a pattern; None if the pattern does not allow them."""
    arguments: dict[str, Any] = {}
    valid: Array | None = None

    if kind == "valid by position":
        arguments["valid"] = rng.random(pattern.positions) < 0.6
    elif kind == "valid by element":
        # Integers 0 and 1 are booleans. Some statistics have no element: the first index of the last axis.
        arguments["valid"] = (rng.random(pattern.shape) < 0.7).astype(int)
        arguments["valid"][..., 0] = 0
    elif kind == "valid by sample":
        arguments["valid"] = np.ones((pattern.shape[0], *[1] * (len(pattern.shape) - 1)), bool)
        arguments["valid"][1:2] = False
    elif kind == "lengths of each axis":
        sizes = pattern.position_sizes
        if not sizes or "b" not in (names := [name for name, *_ in pattern.pieces]):
            return None
        samples = pattern.split[names.index("b")]
        arguments["lengths"] = tuple(rng.integers(0, size + 1, samples) for size in sizes.values())
        places, valid = np.indices(pattern.split), np.ones(pattern.split, bool)
        for i, lengths in zip(sizes, arguments["lengths"], strict=True):
            valid &= places[i] < lengths[places[names.index("b")]]
    elif kind in ("lengths", *PACKED):
        if not (pattern.has_lengths if kind == "lengths" else pattern.has_offsets):
            return None
        arguments["lengths"], valid = LENGTHS, pattern.mask(LENGTHS)
    if "valid" in arguments:
        valid = pattern.fill(arguments["valid"] != 0)

    sample_weight: Array | None = None
    if weighted:
        if kind in PACKED:  # one number for each row, so for b and t
            sample_weight = pattern.spread(rng.choice(SAMPLE_WEIGHTS, (len(LENGTHS), int(LENGTHS.max()))))
            arguments["sample_weight"] = pattern.pack(sample_weight, LENGTHS)[:, 0]
        else:
            arguments["sample_weight"] = rng.choice(SAMPLE_WEIGHTS, pattern.positions)
            sample_weight = pattern.fill(arguments["sample_weight"])
    if kind == "offsets":
        del arguments["lengths"]
        arguments["offsets"] = np.concatenate([[0], np.cumsum(LENGTHS)])
        return Ragged(
            arguments,
            valid,
            sample_weight,
            form=lambda split: pattern.pack(split, LENGTHS),
            statistics=lambda kept: pattern.pack_statistics(kept, LENGTHS),
        )
    if kind == "segments":  # the same rows in any order; within a sequence they keep theirs
        del arguments["lengths"]
        ids = np.repeat([-5, 0, 4, 30], LENGTHS)
        mixed = np.argsort(rng.permutation(ids), kind="stable")
        order = np.argsort(mixed)
        arguments["segments"] = ids[order]
        if weighted:
            arguments["sample_weight"] = arguments["sample_weight"][order]
        return Ragged(
            arguments,
            valid,
            sample_weight,
            form=lambda split: pattern.pack(split, LENGTHS)[order],
            statistics=lambda kept: pattern.segment_statistics(kept, LENGTHS, order),
        )
    return Ragged(
        arguments,
        valid,
        sample_weight,
        form=lambda split: split.reshape(pattern.shape),
        statistics=lambda kept: kept,
    )


def ways(pattern: Pattern, rng: np.random.Generator) -> Iterator[tuple[str, Ragged]]:
    """Every way to mark valid elements that the pattern allows."""
    for kind, weighted in itertools.product(RAGGED, (False, True)):
        found = ragged(pattern, kind, rng, weighted=weighted)
        if found is not None:
            yield kind + " and sample_weight" * weighted, found


def unmasked(pattern: Pattern) -> Ragged:
    """All elements are valid."""
    found = ragged(pattern, "nothing", np.random.default_rng(0))
    assert found is not None
    return found
