"""Record the training runs that the page shows: with and without batch norm, at several learning rates.

    python -m tools.recordings          # writes src/truenorm/page/runs.json, in about half a minute

The network is the character network of the lab, trained on first names. Both runs of a pair start from the same weights
and see the same batches. For each run with seed 0 the file holds the training loss at POINTS and statistics of the
hidden layer at MOMENTS; for all SEEDS, the held-out loss at the end. All numbers of a step come from one forward pass
over the batch of that step: the loss, and the inputs and outputs of tanh.

The file has one run a line, so that a diff shows which run changed. The same seeds give the same numbers up to rounding
errors, which grow where training is unstable. Keys of the file are read by the page: "rate" is the learning rate.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from bench.process import enter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from truenorm.lab.config import Config

    Array = NDArray[np.floating[Any]]

FILE = Path(__file__).parents[1] / "src" / "truenorm" / "page" / "runs.json"
RATES = (0.01, 0.1, 1.0, 3.0, 10.0)
NORMS = ("none", "batch")
SEEDS = range(5)
STEPS = 4000
# Most changes happen early in a run: record more often there.
EARLY = (0, 1, 2, 3, 5, 10, 20, 50)
POINTS = (*EARLY, *range(100, STEPS + 1, 100))
MOMENTS = (*EARLY, 100, 200, 400, 600, 800, 1000, 1500, 2000, 2500, 3000, 4000)
REACH, BINS = 5.0, 20  # of the histogram of tanh's inputs, with one more bin at each end for values beyond
PARTS = 200  # a histogram counts in units of 1 / PARTS, about a pixel on the page
FLAT = 0.97  # a larger output is saturated, as in truenorm.lab.diagnostics
SILENT = 0.1  # a smaller output is nearly 0


@click.command()
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=FILE, help="The file to write.")
def main(out: Path) -> None:
    """Record the runs of the page."""
    enter("system", threads=1)
    runs = []
    for rate in RATES:
        for norm in NORMS:
            first, *others = (record(norm, rate, seed) for seed in SEEDS)
            first["held_out"] += [other["held_out"][0] for other in others]
            click.echo(f"lr {rate:g}, norm {norm}: held out {first['held_out']}", err=True)
            runs.append(first)
    out.write_text(as_text(runs), "utf-8")


def as_text(runs: list[dict[str, Any]]) -> str:
    """The content of the file: what all runs share, then one run a line."""
    shared = {
        "steps": STEPS,
        "batch": make_run_config("batch", 1.0).batch,
        "hidden": make_run_config("batch", 1.0).hidden,
        "guessing": rounded(math.log(27)),
        "seeds": len(SEEDS),
        "flat": FLAT,
        "silent": SILENT,
        "parts": PARTS,
        "reach": REACH,
        "points": POINTS,
        "moments": MOMENTS,
    }
    lines = ",\n".join(json.dumps(run, separators=(",", ":"), allow_nan=False) for run in runs)
    return f'{json.dumps(shared, separators=(",", ":"))[:-1]},"runs":[\n{lines}\n]}}\n'


def make_run_config(norm: str, lr: float, seed: int = 0) -> Config:
    """The defaults of `truenorm train`, with n - 1 in the variance and a constant learning rate."""
    from truenorm.lab.config import make_config

    options = {"ddof": 1} if norm == "batch" else {}
    return make_config({"norm": norm, "lr": lr, "seed": seed, "schedule": "constant", "steps": STEPS, **options})


def record(norm: str, rate: float, seed: int = 0, until: int = STEPS) -> dict[str, Any]:
    """One run, from its start to the step `until`."""
    import numpy as np

    from truenorm.lab.layers import ForwardContext, Tanh
    from truenorm.lab.training import Trainer, prepare

    class RecordingTanh(Tanh):
        """Tanh that keeps its input."""

        def forward(self, x: Array, ctx: ForwardContext) -> Array:
            self.x = x
            return super().forward(x, ctx)

    config = make_run_config(norm, rate, seed)
    trainer = Trainer(config, prepare(config))
    tanh = trainer.network.layers["act1"] = RecordingTanh()
    run: dict[str, Any] = {"norm": norm, "rate": rate, "loss": [], "held_out": []}
    statistics: list[dict[str, Any]] = []
    losses: list[float] = []
    with np.errstate(all="ignore"):  # overflow shows in the loss
        for step in range(until + 1):
            if step == until:
                run["held_out"].append(rounded(trainer.evaluate(trainer.data.held_out).loss))
            losses.append(trainer.train_step())  # the loss after `step` steps; then takes one more
            if step in POINTS:
                run["loss"].append(rounded(sum(losses) / len(losses)))  # the mean since the last point
                losses = []
            if step in MOMENTS:
                statistics.append(hidden_statistics(tanh.x, tanh.y))
    return run | {name: [one[name] for one in statistics] for name in statistics[0]}


def hidden_statistics(x: Array, y: Array) -> dict[str, Any]:
    """Statistics of the inputs and outputs of tanh, and the mean of its derivative, 1 - y²."""
    import numpy as np

    return {
        "std": rounded(float(x.std())),
        "saturated": rounded(float((np.abs(y) > FLAT).mean())),
        "silent": rounded(float((np.abs(y) < SILENT).mean())),
        "slope": rounded(float(1 - np.square(y, dtype=np.float64).mean())),
        "into": histogram(x, np.concatenate([[-np.inf], np.linspace(-REACH, REACH, BINS + 1), [np.inf]])),
        "out": histogram(y, np.linspace(-1, 1, BINS + 1)),
    }


def histogram(values: Array, edges: Array) -> list[int]:
    """The share of the values in each bin, in units of 1 / PARTS. A value on an edge belongs to the bin above it.

    The largest remainders are rounded up, so that the shares add up to PARTS.
    """
    import numpy as np

    places = np.searchsorted(edges, values.reshape(-1), side="right") - 1
    counts = np.bincount(places.clip(0, len(edges) - 2), minlength=len(edges) - 1)
    parts, remainders = np.divmod(counts * PARTS, values.size)
    parts[np.argsort(-remainders, kind="stable")[: PARTS - parts.sum()]] += 1
    return list(map(int, parts))


def rounded(value: float, digits: int = 4) -> float | None:
    """Round to significant digits; None if the value is not finite, as JSON has neither NaN nor infinity."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


if __name__ == "__main__":
    main()
