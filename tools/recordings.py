"""The runs that the page shows: a small network trained with and without batch norm, at several learning rates.

    python -m tools.recordings          # writes src/truenorm/page/runs.json, in about half a minute

The network is the character network of the lab, trained on first names. Both runs of a pair start from the same weights
and see the same batches. Of each run with seed 0 the file holds the training loss at POINTS and a look inside at
MOMENTS; of all SEEDS, the held-out loss at the end. Everything at a step is of one forward: the loss, and the numbers
that went into tanh and came out of it, of the 32 examples of that step's batch.

The file has one run a line, so that a change shows which run it was. The same seeds give the same numbers, up to
roundings, which grow where training is unstable.
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
# What happens, happens early: dense at the beginning.
EARLY = (0, 1, 2, 3, 5, 10, 20, 50)
POINTS = (*EARLY, *range(100, STEPS + 1, 100))
MOMENTS = (*EARLY, 100, 200, 400, 600, 800, 1000, 1500, 2000, 2500, 3000, 4000)
REACH, BINS = 5.0, 20  # of what goes into tanh; what lies beyond is counted in one more bin at each end
PARTS = 200  # of a histogram: shares in halves of a percent, as the page has room for about a pixel each
FLAT = 0.97  # an output beyond is saturated, as in truenorm.lab.instruments
SILENT = 0.1  # an output within is next to nothing


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
            click.echo(f"rate {rate:g}, norm {norm}: held out {first['held_out']}", err=True)
            runs.append(first)
    out.write_text(as_text(runs), "utf-8")


def as_text(runs: list[dict[str, Any]]) -> str:
    """The whole file: what all runs share, then one run a line."""
    shared = {
        "steps": STEPS,
        "batch": configured("batch", 1.0).batch,
        "hidden": configured("batch", 1.0).hidden,
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


def configured(norm: str, rate: float, seed: int = 0) -> Config:
    """The network of the notes: as `truenorm train` has it, with n-1 in the variance, at a constant rate."""
    from truenorm.lab.config import suited

    own = {"ddof": 1} if norm == "batch" else {}
    return suited({"norm": norm, "rate": rate, "seed": seed, "schedule": "constant", "steps": STEPS, **own})


def record(norm: str, rate: float, seed: int = 0, until: int = STEPS) -> dict[str, Any]:
    """One run, from its start to the step `until`."""
    import numpy as np

    from truenorm.lab.layers import Pass, Tanh
    from truenorm.lab.training import Trainer, prepare

    class Seen(Tanh):
        """Tanh that keeps what went in."""

        def forward(self, x: Array, how: Pass) -> Array:
            self.x = x
            return super().forward(x, how)

    config = configured(norm, rate, seed)
    trainer = Trainer(config, prepare(config))
    tanh = trainer.network.layers["act1"] = Seen()
    run: dict[str, Any] = {"norm": norm, "rate": rate, "loss": [], "held_out": []}
    looks: list[dict[str, Any]] = []
    losses: list[float] = []
    with np.errstate(all="ignore"):  # what overflows shows in the loss
        for step in range(until + 1):
            if step == until:
                run["held_out"].append(rounded(trainer.score(trainer.material.held_out).loss))
            losses.append(trainer.advance())  # the loss after `step` steps, and one step more
            if step in POINTS:
                run["loss"].append(rounded(sum(losses) / len(losses)))  # the mean since the point before
                losses = []
            if step in MOMENTS:
                looks.append(inside(tanh.x, tanh.y))
    return run | {name: [look[name] for look in looks] for name in looks[0]}


def inside(x: Array, y: Array) -> dict[str, Any]:
    """What goes into tanh, what comes out, and what tanh lets through of a gradient: its slope, 1 - y²."""
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
    """How many of PARTS equal parts of the values lie in each bin; one on an edge belongs to the bin above it.

    The largest remainders are rounded up, so that the parts add up.
    """
    import numpy as np

    places = np.searchsorted(edges, values.reshape(-1), side="right") - 1
    counts = np.bincount(places.clip(0, len(edges) - 2), minlength=len(edges) - 1)
    parts, remainders = np.divmod(counts * PARTS, values.size)
    parts[np.argsort(-remainders, kind="stable")[: PARTS - parts.sum()]] += 1
    return list(map(int, parts))


def rounded(value: float, digits: int = 4) -> float | None:
    """So many significant digits; None for what is not finite, which JSON has no word for."""
    return float(f"{value:.{digits}g}") if math.isfinite(value) else None


if __name__ == "__main__":
    main()
