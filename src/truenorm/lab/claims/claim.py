"""A claim: what it says, which trials it needs, what is measured, and the rule for its verdict.

A statement has one effect for each seed: a difference between trials that have the same seed, so the same data, initial
weights and batches. Its verdict depends on the 95% interval of the mean effect, by Student's t:

    supported   the whole interval is on the side of the threshold that the statement names
    refuted     the whole interval is on the other side
    undecided   the threshold is inside the interval, or there are fewer than MIN_SEEDS seeds

The threshold is the smallest effect that counts, chosen before the trials ran. An effect of nearly 0 that is measured
well is therefore refuted, not undecided. A claim is supported if all its statements are, and refuted if one is.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from truenorm.lab.grid import Grid
from truenorm.lab.intervals import t_interval
from truenorm.lab.trial import Result, Trial

MIN_SEEDS = 5
Verdict = Literal["supported", "refuted", "undecided"]


class Found:
    """The results of the trials of a claim."""

    def __init__(self, trials: Iterable[tuple[Trial, Result | None]]) -> None:
        self.trials = [(trial, result) for trial, result in trials if result is not None]

    def by_seed(self, measure: str = "train", **options: Any) -> dict[int, Result]:
        """seed -> result of the trial with these options. An option that is not given has one value in all trials."""
        found: dict[int, Result] = {}
        for trial, result in self.trials:
            if trial.measure == measure and all(getattr(trial.config, key) == one for key, one in options.items()):
                if trial.config.seed in found:
                    raise ValueError(f"claim: {options} must name one trial for each seed, got several.")
                found[trial.config.seed] = result
        return found

    def values(self, name: str, **options: Any) -> list[Any]:
        """The values of an option in the trials with these options, in order."""
        configs = [trial.config for trial, _ in self.trials]
        return sorted(
            {getattr(one, name) for one in configs if all(getattr(one, key) == it for key, it in options.items())}
        )


Values = Mapping[int, float]  # seed -> value


def difference(one: Values, other: Values) -> dict[int, float]:
    """one - other, for the seeds that both have."""
    return {seed: value - other[seed] for seed, value in one.items() if seed in other}


@dataclass(frozen=True)
class Statement:
    """One sentence that trials can refute.

    effect       the trials -> one number for each seed
    side         where the effect must be for the statement to hold, seen from the threshold
    unit         what the effect is, for people
    resolution   the interval is this much wider on both sides, if the effect is measured on a grid
    """

    text: str
    effect: Callable[[Found], Values]
    side: Literal["above", "below"]
    threshold: float
    unit: str
    resolution: float = 0.0


@dataclass(frozen=True)
class Finding:
    """What the trials say about a statement."""

    statement: Statement
    effects: tuple[float, ...]
    mean: float
    low: float
    high: float
    verdict: Verdict


@dataclass(frozen=True)
class Claim:
    """A claim about normalization.

    name         for --only
    text         the claim as people make it
    measured     what is measured, and how
    grids        (quick, seeds) -> the trials
    statements   what must hold
    remark       what to know about it: what others found
    """

    name: str
    text: str
    measured: str
    grids: Callable[[bool, int], Sequence[Grid]]
    statements: tuple[Statement, ...]
    remark: str = ""

    def judge(self, found: Found) -> list[Finding]:
        return [judge(statement, found) for statement in self.statements]


def judge(statement: Statement, found: Found) -> Finding:
    """The verdict of the trials about a statement."""
    effects = tuple(value for _, value in sorted(statement.effect(found).items()) if math.isfinite(value))
    if len(effects) < 2:
        mean = effects[0] if effects else math.nan
        return Finding(statement, effects, mean, -math.inf, math.inf, "undecided")
    low, high = t_interval(effects)
    low, high = low - statement.resolution, high + statement.resolution
    verdict: Verdict = "undecided"
    if len(effects) >= MIN_SEEDS:
        above, below = low > statement.threshold, high < statement.threshold
        holds, fails = (above, below) if statement.side == "above" else (below, above)
        verdict = "supported" if holds else "refuted" if fails else "undecided"
    return Finding(statement, effects, statistics.fmean(effects), low, high, verdict)


def combined(findings: Sequence[Finding]) -> Verdict:
    """The verdict about a claim."""
    verdicts = {finding.verdict for finding in findings}
    if "refuted" in verdicts:
        return "refuted"
    return "supported" if verdicts == {"supported"} else "undecided"
