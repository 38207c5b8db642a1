"""`truenorm` with trainings that are faked, to measure what a comparison costs beside them.

    python -m bench.fake_trials compare --norm none,batch --seeds 5000 --out results

Everything else is real: the plan, the workers, the files, their checks, and the progress.
"""

from __future__ import annotations

import sys

from truenorm.lab.measures import POINTS
from truenorm.lab.trial import Trial


def fake_work(trial: Trial) -> tuple[bytes, float]:
    """A file as large as that of a training."""
    loss = 2.0 + trial.config.seed / 1000 + trial.config.lr
    metrics = {"loss": loss, "accuracy": 0.3125, "rmse": None}
    losses = [loss + 1 / (1 + point) for point in range(POINTS)]
    result = {
        "diverged": None,
        "steps": trial.config.steps,
        "train": metrics,
        "held_out": metrics,
        "baseline": {"loss": 2.8, "beaten": True},
        "parameters": 4000,
        "curve": {"step": [200 * (1 + point) for point in range(POINTS)], "loss": losses, "held_out": losses},
    }
    return trial.encode(result), 0.0


if __name__ == "__main__":
    from bench import fake_trials  # by its own name: workers import it
    from truenorm.cli import main
    from truenorm.lab import dispatch

    dispatch.run_all.__defaults__ = (fake_trials.fake_work,)
    main(sys.argv[1:])
