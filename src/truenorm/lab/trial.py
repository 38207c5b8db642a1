"""A trial: one measure of one configuration. The same trial gives the same bytes in any process, on any worker.

    Trial(measure, config)   what is computed; `name` is a hash of both, and the name of the trial's file
    run_trial(trial)         its result, as the bytes of that file

Nothing of the time, the machine or other trials is in the result. (Another processor or another version of NumPy may
round differently, as in every other program.) A result that diverges is a result. An error is raised.

`lab.measures` has what the claims measure. The measure `train` trains as `truenorm train` does, and ends with the
numbers of its result.json:

    diverged   the step at which the loss was no longer finite; null if it always was. Then the other numbers are null
    steps, train, held_out, baseline, parameters   as in result.json
    curve      step: every steps // POINTS steps, and the last
               loss: mean training loss since the previous of these steps
               held_out: loss of up to 1,024 held-out examples
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

from truenorm.core.moments import ignore_floating_point_errors
from truenorm.lab import checkpoint, measures
from truenorm.lab.config import Config
from truenorm.lab.run import REPORT_EXAMPLES
from truenorm.lab.training import Trainer, prepare

POINTS = 50  # of a curve

Result = dict[str, Any]


@dataclass(frozen=True)
class Trial:
    """One measure of one configuration."""

    measure: str
    config: Config

    @cached_property
    def name(self) -> str:
        """A hash of measure and configuration."""
        content = json.dumps([self.measure, self.config.saved()], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:24]

    def encode(self, result: Result) -> bytes:
        """The file of this trial: its configuration, its result, and a digest of both."""
        content = {"measure": self.measure, "config": self.config.saved(), "result": result}
        return checkpoint.seal(checkpoint.encode_line({"digest": checkpoint.NO_DIGEST, **content}))

    def decode(self, file: bytes) -> Result | None:
        """The result in a file that `encode` wrote; None if the file is damaged or of another trial."""
        try:
            found = json.loads(file)
        except (ValueError, RecursionError):
            return None
        if not (isinstance(found, dict) and checkpoint.is_intact(file, found.get("digest"))):
            return None
        same = found.get("measure") == self.measure and found.get("config") == self.config.saved()
        return found["result"] if same and isinstance(found.get("result"), dict) else None


@ignore_floating_point_errors
def run_trial(trial: Trial) -> bytes:
    """Compute a trial; return the content of its file."""
    return trial.encode(MEASURES[trial.measure](trial.config))


def train(config: Config) -> Result:
    """Train, and return the curve and the final metrics."""
    trainer = Trainer(config, prepare(config))
    every = max(1, config.steps // POINTS)
    curve: dict[str, list[float]] = {"step": [], "loss": [], "held_out": []}
    total, count = 0.0, 0
    while trainer.step < config.steps:
        loss = trainer.train_step()
        if not math.isfinite(loss):
            return _training_result(trainer, curve, diverged=trainer.step)
        total, count = total + loss, count + 1
        if trainer.step % every == 0 or trainer.step == config.steps:
            curve["step"].append(trainer.step)
            curve["loss"].append(total / count)
            curve["held_out"].append(trainer.evaluate(trainer.data.held_out, REPORT_EXAMPLES).loss)
            total, count = 0.0, 0
    return _training_result(trainer, curve)


def _training_result(trainer: Trainer, curve: dict[str, list[float]], diverged: int | None = None) -> Result:
    data = trainer.data
    train = held_out = None
    if diverged is None:
        train, held_out = asdict(trainer.evaluate(data.train)), asdict(trainer.evaluate(data.held_out))
        if not math.isfinite(train["loss"] + held_out["loss"]):
            diverged, train, held_out = trainer.step, None, None
    baseline = data.baseline_loss()
    return {
        "diverged": diverged,
        "steps": trainer.step,
        "train": train,
        "held_out": held_out,
        "baseline": {"loss": baseline, "beaten": held_out is not None and held_out["loss"] < baseline},
        "parameters": trainer.network.flat_parameters.size,
        "curve": curve,
    }


MEASURES: dict[str, Callable[[Config], Result]] = {"train": train, **measures.MEASURES}
