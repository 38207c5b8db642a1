"""A claim: what it says, which trials it needs, what is measured, and the rule for its verdict.

A statement has one effect for each seed. Its verdict depends on the confidence interval of the mean effect:

    supported   the whole interval is on the side of the threshold that the statement names
    refuted     the whole interval is on the other side
    undecided   the threshold is inside the interval, there are fewer than MIN_SEEDS seeds, or all effects are equal:
                a measure that does not vary at all was limited by something else than what it measures

The threshold is the smallest effect that counts. An effect of nearly 0 that is measured well is therefore refuted,
not undecided.

An effect may be known only within bounds: of a training that never reached a loss, the steps that it would have
needed are only known to be more than it took. The interval goes from the lower end of Student's t interval of the lower
bounds to the upper end of that of the upper bounds. A seed without a result has no bounds: no seed is left out, so the
statement is undecided.

A claim with k statements has intervals of level 1 - 0.05 / k: all of them hold the true mean with at least 95%
(Bonferroni). It is supported if all its statements are, refuted if all are, mixed if some are supported and others
refuted, and otherwise undecided. What speaks for a claim and what speaks against it are treated alike.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from truenorm.lab.grid import Grid
from truenorm.lab.intervals import t_interval
from truenorm.lab.measures import Result
from truenorm.lab.trial import Trial

MIN_SEEDS = 5
LEVEL = 0.95  # of all intervals of a claim together
Verdict = Literal["supported", "refuted", "mixed", "undecided"]


class TrialResults:
    """The trials of a claim, and the results of those that have one."""

    def __init__(self, trials: Iterable[tuple[Trial, Result | None]]) -> None:
        self.trials = list(trials)
        self.seeds = {trial.config.seed for trial, _ in self.trials}

    def by_seed(self, measure: str = "train", **options: Any) -> dict[int, Result]:
        """seed -> result of the trial with these options. An option that is not given has one value in all trials."""
        found: dict[int, Result] = {}
        for trial, result in self.trials:
            if trial.measure == measure and all(getattr(trial.config, key) == one for key, one in options.items()):
                if trial.config.seed in found:
                    raise ValueError(f"claim: {options} must name one trial for each seed, got several.")
                if result is not None:
                    found[trial.config.seed] = result
        return found

    def values(self, name: str, **options: Any) -> list[Any]:
        """The values of an option in the trials with these options, in order."""
        configs = [trial.config for trial, _ in self.trials]
        return sorted(
            {getattr(one, name) for one in configs if all(getattr(one, key) == it for key, it in options.items())}
        )


# ---- effects ----


class Bounds(NamedTuple):
    """A number that lies between two bounds. If they are equal, it is known."""

    low: float
    high: float


Effects = Mapping[int, Bounds]  # seed -> effect
UNKNOWN = Bounds(-math.inf, math.inf)


def exact(values: Mapping[int, float | None]) -> Effects:
    """Numbers that are known; those that are not finite, or null in the file of a trial, are not.

    >>> exact({0: 0.5, 1: None})
    {0: Bounds(low=0.5, high=0.5), 1: Bounds(low=-inf, high=inf)}
    """
    return {
        seed: UNKNOWN if value is None or not math.isfinite(value) else Bounds(value, value)
        for seed, value in values.items()
    }


def difference(one: Effects, other: Effects) -> Effects:
    """one - other, for the seeds that both have.

    >>> difference({0: Bounds(5.0, math.inf)}, {0: Bounds(2.0, 3.0)})
    {0: Bounds(low=2.0, high=inf)}
    """
    return {
        seed: Bounds(value.low - other[seed].high, value.high - other[seed].low)
        for seed, value in one.items()
        if seed in other
    }


def log(value: float | None, base: float, floor: float) -> float:
    """The logarithm of a number that is at least `floor`; NaN for null, which is how a trial writes NaN."""
    return math.nan if value is None else math.log(max(value, floor), base)


# ---- statements ----


@dataclass(frozen=True)
class Statement:
    """One sentence that trials can refute.

    effect       the trials -> the effect of each seed
    side         where the effect must be for the statement to hold, seen from the threshold
    unit         what the effect is, for people
    """

    text: str
    effect: Callable[[TrialResults], Effects]
    side: Literal["above", "below"]
    threshold: float
    unit: str

    @property
    def holds_if(self) -> str:
        return f"{self.side} {self.threshold:.3g}"


@dataclass(frozen=True)
class Finding:
    """What the trials say about a statement. `mean` is NaN if the effect of a seed has no bounds."""

    statement: Statement
    effects: tuple[Bounds, ...]
    mean: float
    low: float
    high: float
    level: float
    verdict: Verdict

    @property
    def mean_text(self) -> str:
        return "unknown" if math.isnan(self.mean) else f"{self.mean:.3g}"

    @property
    def interval_text(self) -> str:
        match math.isfinite(self.low), math.isfinite(self.high):
            case True, True:
                return f"{self.low:.3g} to {self.high:.3g}"
            case True, False:
                return f"above {self.low:.3g}"
            case False, True:
                return f"below {self.high:.3g}"
            case _:
                return "unbounded"

    @property
    def known(self) -> int:
        """The number of seeds whose effect has both bounds."""
        return sum(math.isfinite(one.low) and math.isfinite(one.high) for one in self.effects)

    @property
    def seeds(self) -> str:
        """The number of seeds, and of those with bounds if they are fewer."""
        count = len(self.effects)
        return str(count) if self.known == count else f"{self.known} of {count}"


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

    def judge(self, found: TrialResults) -> list[Finding]:
        level = 1 - (1 - LEVEL) / len(self.statements)
        return [judge(statement, found, level) for statement in self.statements]


def judge(statement: Statement, found: TrialResults, level: float = LEVEL) -> Finding:
    """The verdict of the trials about a statement."""
    by_seed = statement.effect(found)
    effects = tuple(by_seed.get(seed, UNKNOWN) for seed in sorted(found.seeds | by_seed.keys()))
    low, high = _interval([one.low for one in effects], level)[0], _interval([one.high for one in effects], level)[1]
    verdict: Verdict = "undecided"
    if len(effects) >= MIN_SEEDS and not math.isclose(low, high):
        above, below = low > statement.threshold, high < statement.threshold
        holds, fails = (above, below) if statement.side == "above" else (below, above)
        verdict = "supported" if holds else "refuted" if fails else "undecided"
    middles = [(one.low + one.high) / 2 for one in effects]
    mean = statistics.fmean(middles) if middles and all(map(math.isfinite, middles)) else math.nan
    return Finding(statement, effects, mean, low, high, level, verdict)


def _interval(values: Sequence[float], level: float) -> tuple[float, float]:
    """The interval of their mean; without limits if there are fewer than two, or one is not finite."""
    if len(values) < 2 or not all(map(math.isfinite, values)):
        return -math.inf, math.inf
    return t_interval(values, level)


def combined(findings: Sequence[Finding]) -> Verdict:
    """The verdict about a claim."""
    verdicts = {finding.verdict for finding in findings}
    if len(verdicts) == 1:
        return verdicts.pop()
    return "mixed" if {"supported", "refuted"} <= verdicts else "undecided"


def headline(findings: Sequence[Finding]) -> str:
    """The verdict about a claim, and the count of verdicts about its statements if they differ."""
    counts = Counter(finding.verdict for finding in findings)
    order: tuple[Verdict, ...] = ("supported", "refuted", "undecided")
    parts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in order if counts[verdict])
    return combined(findings) + (f" ({parts})" if len(counts) > 1 else "")
