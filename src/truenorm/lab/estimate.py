"""How long trials will take: a few steps of a few of them are timed on this machine."""

from __future__ import annotations

import time
from collections.abc import Iterable

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab.config import Config
from truenorm.lab.measures import POINTS
from truenorm.lab.run import REPORT_EXAMPLES
from truenorm.lab.training import Trainer, prepare
from truenorm.lab.trial import Trial

TIMED_CELLS, TIMED_STEPS = 5, 30


@ignore_floating_point_errors
def estimate_seconds(trials: Iterable[Trial], count: int) -> float:
    """How long these `count` trials take on one worker."""
    timed = min(TIMED_CELLS, count)
    chosen = {number * count // timed for number in range(timed)}
    seconds = [_seconds(trial.config) for number, trial in enumerate(trials) if number in chosen]
    return sum(seconds) / max(timed, 1) * count


def _seconds(config: Config) -> float:
    """An estimate of the seconds of a training: preparation, steps, and evaluations."""
    begin = time.perf_counter()
    trainer = Trainer(config, prepare(config))
    trainer.train_step()
    prepared = time.perf_counter()
    for _ in range(TIMED_STEPS):
        trainer.train_step()
    stepped = time.perf_counter()
    trainer.evaluate(trainer.data.held_out, REPORT_EXAMPLES)
    evaluated = time.perf_counter()
    examples = len(trainer.data.train) + len(trainer.data.held_out)
    evaluations = min(POINTS, config.steps) + examples / min(len(trainer.data.held_out), REPORT_EXAMPLES)
    step = (stepped - prepared) / TIMED_STEPS
    return prepared - begin + step * config.steps + (evaluated - stepped) * evaluations
