"""How long trials will take: a few steps of a few of them are timed on this machine.

Trials that differ only in options such as the seed or the learning rate take the same time for a step: they are a
group, and one of them is timed. Of many groups some are drawn, by a hash: trials at equal distances would often have
the same value of an option, as the trials of a grid repeat in a fixed rhythm.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab.config import Config
from truenorm.lab.measures import POINTS
from truenorm.lab.run import REPORT_EXAMPLES
from truenorm.lab.training import Trainer, prepare
from truenorm.lab.trial import Trial

MOST_GROUPS = 16  # that are timed
MOST_STEPS, ENOUGH_SECONDS = 30, 1.0  # of each: the steps that are timed, and fewer of a large network
SAME_TIME = {"seed", "lr", "schedule", "init_scale", "steps"}  # options that do not change the time of a step


@dataclass
class _Group:
    """Trials with the same time for a step: one of their configurations, and how many have how many steps."""

    config: Config
    steps: Counter[int] = field(default_factory=Counter)


@ignore_floating_point_errors
def estimate_seconds(trials: Iterable[Trial], count: int) -> float:
    """How long these `count` trials take on one worker."""
    groups = _draw_groups(trials)
    timed = sum(group.steps.total() for group in groups)
    return sum(map(_seconds, groups)) / max(timed, 1) * count


def _draw_groups(trials: Iterable[Trial]) -> list[_Group]:
    """Up to MOST_GROUPS groups, those with the smallest hashes.

    A group that is dropped for one with a smaller hash does not come back, so those that stay have all their trials.
    """
    groups: dict[str, _Group] = {}
    for trial in trials:
        options = repr(trial.config.model_dump(exclude=SAME_TIME))
        key = hashlib.sha256(options.encode()).hexdigest()
        if key not in groups:
            if len(groups) == MOST_GROUPS:
                if key > (largest := max(groups)):
                    continue
                del groups[largest]
            groups[key] = _Group(trial.config)
        groups[key].steps[trial.config.steps] += 1
    return list(groups.values())


def _seconds(group: _Group) -> float:
    """An estimate of the seconds of all trainings of a group: preparation, steps, and evaluations."""
    begin = time.perf_counter()
    trainer = Trainer(group.config, prepare(group.config))
    trainer.train_step()
    prepared = stepped = time.perf_counter()
    count = 0
    while count < MOST_STEPS and stepped - prepared < ENOUGH_SECONDS:
        trainer.train_step()
        count, stepped = count + 1, time.perf_counter()
    trainer.evaluate(trainer.data.held_out, REPORT_EXAMPLES)
    evaluated = time.perf_counter()
    examples = len(trainer.data.train) + len(trainer.data.held_out)
    at_the_end = examples / min(len(trainer.data.held_out), REPORT_EXAMPLES)  # in evaluations of a report
    step, evaluation = (stepped - prepared) / count, evaluated - stepped
    return sum(
        trials * (prepared - begin + step * steps + evaluation * (min(POINTS, steps) + at_the_end))
        for steps, trials in group.steps.items()
    )
