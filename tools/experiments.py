"""Run the experiments of docs/lab.md, and write their tables.

    python -m tools.experiments [words|tables|padding ...] [--write docs/lab.md]

The runs use the same functions as `truenorm train`, in a temporary directory. They take about ten minutes on two
processors. Two run at a time, except for the words, whose time is reported.
"""

from __future__ import annotations

import csv
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from bench.process import enter

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from truenorm.lab.data import Examples

    Array = NDArray[Any]

SEEDS = range(5)
MAX_LENGTHS = (11, 22, 44)
STEPS = 200_000


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(["words", "tables", "padding"]))
@click.option(
    "--write", type=click.Path(exists=True, path_type=Path), help="Write the tables between their markers in this file."
)
def main(names: tuple[str, ...], write: Path | None) -> None:
    """Run the experiments of docs/lab.md."""
    enter("system", threads=1, processors=2)
    from bench.table import replace

    experiments: dict[str, Callable[[Path], str]] = {"words": words, "tables": tables, "padding": padding}
    for name in names or experiments:
        with tempfile.TemporaryDirectory() as directory:
            found = experiments[name](Path(directory))
        if write is None:
            click.echo(found)
        else:
            write.write_text(replace(write.read_text("utf-8"), found, name), "utf-8")


def train(out: Path, **given: Any) -> dict[str, Any]:
    """The result of a run, and the seconds that it took."""
    from truenorm.lab import run
    from truenorm.lab.config import make_config

    start = time.monotonic()
    result = run.start(out, make_config(given), lambda report: None, lambda: False)
    click.echo(f"{given}: held out {result['held_out']}", err=True)
    return result | {"seconds": time.monotonic() - start}


# ---- words ----


def words(directory: Path) -> str:
    """200 hidden units, embeddings of size 10, a block of 3: losses, and generated words."""
    from truenorm.lab import run
    from truenorm.lab.sampling import generate

    rows, samples = [], []
    for name, norm in product(("surnames", "words"), ("batch", "none")):
        out = directory / f"{name}-{norm}"
        found = train(out, data=name, norm=norm, hidden=200, embedding=10, block=3, steps=STEPS)
        trainer = run.load(out)
        if norm == "batch":
            data = trainer.data
            n_gram = f"{n_gram_loss(data.train, data.held_out):.3f}"
            assert data.alphabet is not None
            drawn = generate(trainer.network, data.alphabet, 3, _rng(), count=20)
            samples.append(f"Generated, {name}, batch norm: {', '.join(drawn)}.")
        losses = (f"{found[part]['loss']:.3f}" for part in ("train", "held_out"))
        rows.append([name, f"{len(trainer.data.train):,}", norm, *losses, n_gram, f"{found['seconds']:.0f} s"])
    heads = ["list", "training examples", "norm", "training loss", "held-out loss", "4-gram, held out", "time"]
    return "\n\n".join([_table(heads, rows), *samples])


def n_gram_loss(train: Examples, held_out: Examples) -> float:
    """The held-out loss of an n-gram model: how often each character followed the previous three, smoothed by how often
    it followed the previous two, and so on. The smoothing weight is chosen on the held-out set itself."""
    import numpy as np

    def loss(weight: float) -> float:
        size = int(max(train.x.max(), train.targets.max())) + 1
        probabilities = np.full(len(held_out.x), 1 / size)
        for length in range(train.x.shape[1] + 1):
            keys, held_out_keys = (
                _context_number(part.x[:, part.x.shape[1] - length :], size) for part in (train, held_out)
            )
            pairs = np.bincount(keys * size + train.targets, minlength=size ** (length + 1))
            totals = np.bincount(keys, minlength=size**length)
            probabilities = (pairs[held_out_keys * size + held_out.targets] + weight * probabilities) / (
                totals[held_out_keys] + weight
            )
        return float(-np.log(probabilities).mean())

    return min(map(loss, (1.0, 2.0, 4.0, 8.0, 16.0)))


def _context_number(context: Array, size: int) -> Array:
    """A context as one integer."""
    import numpy as np

    if not context.shape[1]:
        return np.zeros(len(context), int)
    keys: Array = context @ size ** np.arange(context.shape[1])[::-1]
    return keys


# ---- tables ----


def tables(directory: Path) -> str:
    """Held-out accuracy with and without batch norm, for raw and standardized inputs."""
    files = {"weather": weather, "wine": _from_sklearn("load_wine"), "digits": _from_sklearn("load_digits")}
    for name, make in files.items():
        make(directory / f"{name}.csv")
    sources = {"students": {"data": "students"}} | {
        name: {"data": str(directory / f"{name}.csv"), "target": "class"} for name in files
    }
    jobs = [
        {"task": "table", "norm": norm, "standardize": standardize, "seed": seed} | sources[name]
        for name, standardize, norm, seed in product(sources, (False, True), ("none", "batch"), SEEDS)
    ]
    results = iter(_run_all(directory, jobs))
    rows = []
    for name in sources:
        row = [name]
        for _ in range(4):
            accuracies = [next(results)["held_out"]["accuracy"] for _ in SEEDS]
            row.append(f"{statistics.mean(accuracies):.1%} ({min(accuracies):.1%} to {max(accuracies):.1%})")
        rows.append(row)
    return _table(
        ["table", "raw, no norm", "raw, batch norm", "standardized, no norm", "standardized, batch norm"], rows
    )


def weather(path: Path) -> None:
    """A synthetic table: it rains where temperature and pressure are far from their means, with some noise."""
    rng = _rng()
    temperature, pressure = rng.normal(15, 8, 400), rng.normal(1013, 9, 400)
    distance = ((temperature - 15) / 8) ** 2 + ((pressure - 1013) / 9) ** 2 + rng.normal(0, 0.2, 400)
    rows = zip(temperature, pressure, distance > 1.4, strict=True)
    _write(
        path,
        ["temperature", "pressure", "class"],
        [(f"{t:.1f}", f"{p:.1f}", "rain" if r else "dry") for t, p, r in rows],
    )


def _from_sklearn(name: str) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        from sklearn import datasets

        found = getattr(datasets, name)()
        rows = [[*row, found.target_names[target]] for row, target in zip(found.data, found.target, strict=True)]
        _write(path, [*found.feature_names, "class"], rows)

    return make


def _write(path: Path, header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([header, *rows])


# ---- padding ----


def padding(directory: Path) -> str:
    """Names padded to 11, 22 and 44 characters; statistics over the valid positions, or over all."""
    combinations = list(product(("valid", "all"), MAX_LENGTHS))
    jobs = [
        {"task": "gender", "statistics_over": statistics_over, "max_length": max_length, "seed": seed}
        for (statistics_over, max_length), seed in product(combinations, SEEDS)
    ]
    results = iter(_run_all(directory, jobs))
    found = {one: [next(results)["held_out"] for _ in SEEDS] for one in combinations}
    rows = []
    reference = [metrics["loss"] for metrics in found["valid", MAX_LENGTHS[0]]]
    for (statistics_over, max_length), results_of in found.items():
        losses, accuracies = ([metrics[name] for metrics in results_of] for name in ("loss", "accuracy"))
        difference = [one - two for one, two in zip(losses, reference, strict=True)]
        cells = [_mean_and_std(losses), _mean_and_std(difference, "+.3f"), _mean_and_std(accuracies, ".1%")]
        rows.append([statistics_over, str(max_length), *cells])
    heads = ["statistics over", "padded to", "held-out loss", "difference to valid, 11", "accuracy"]
    runs: dict[str, list[Path]] = {"valid": [], "all": []}
    for number, ((statistics_over, max_length), _) in enumerate(product(combinations, SEEDS)):
        if max_length == MAX_LENGTHS[-1]:
            runs[statistics_over].append(directory / f"run{number}")
    reestimated = [[name, *_with_other_padding(directories)] for name, directories in runs.items()]
    again = ["statistics over", *(f"re-estimated at {max_length}" for max_length in reversed(MAX_LENGTHS))]
    return "\n\n".join([_table(heads, rows), OTHER_PADDING, _table(again, reestimated)])


OTHER_PADDING = (
    "In these runs the padding was the same in training and in evaluation. The next table uses the networks that were "
    "trained on names padded to 44. Their batch statistics are re-estimated on the same names with less padding. It "
    "shows held-out loss and accuracy."
)


def _with_other_padding(runs: Sequence[Path]) -> list[str]:
    """Loss and accuracy of trained networks after their statistics are re-estimated with less padding."""
    from truenorm.lab import run
    from truenorm.lab.data import Examples
    from truenorm.lab.sampling import reestimate

    cells = []
    for max_length in reversed(MAX_LENGTHS):
        metrics = []
        for directory in runs:
            trainer = run.load(directory)
            train, held_out = (
                Examples(part.x[:, :max_length], part.targets, part.lengths)
                for part in (trainer.data.train, trainer.data.held_out)
            )
            reestimate(trainer.network, train)
            metrics.append(trainer.evaluate(held_out))
        losses, accuracies = [one.loss for one in metrics], [one.accuracy or 0.0 for one in metrics]
        cells.append(f"{_mean_and_std(losses)}, {_mean_and_std(accuracies, '.1%')}")
    return cells


def _mean_and_std(values: Sequence[float], form: str = ".3f") -> str:
    """The mean, and the standard deviation over the seeds."""
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form.lstrip('+')}}"


# ---- shared ----


def _run_all(directory: Path, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(2) as pool:
        futures = [pool.submit(train, directory / f"run{number}", **job) for number, job in enumerate(jobs)]
        return [future.result() for future in futures]


def _rng() -> np.random.Generator:
    import numpy as np

    return np.random.default_rng(0)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
