"""What the lab finds: every run that docs/lab.md reports, from nothing but a seed.

    python -m tools.experiments [words|tables|padding ...] [--write docs/lab.md]

Runs go through the same functions as `truenorm train`, in a directory that is thrown away. About ten minutes on two
processors; all but the words, whose time is told, run two at a time.
"""

from __future__ import annotations

import ast
import csv
import os
import re
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import click
from bench.process import enter

SEEDS = range(5)
EXTENTS = (11, 22, 44)
STEPS = 200_000


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(["words", "tables", "padding"]))
@click.option(
    "--write", type=click.Path(exists=True, path_type=Path), help="Put the tables between their markers there."
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
    """A whole run: its result, and the seconds that it took."""
    from truenorm.lab import run
    from truenorm.lab.config import suited

    begin = time.monotonic()
    result = run.start(out, suited(given), lambda report: None, lambda: False)
    click.echo(f"{given}: held out {result['held_out']}", err=True)
    return result | {"seconds": time.monotonic() - begin}


# ---- words ----


def words(directory: Path) -> str:
    """200 hidden units, 10 numbers a character, a block of 3: what it reaches, and what it writes."""
    from truenorm.lab import run
    from truenorm.lab.sampling import generate

    lists = {"surnames": "surnames", "words": str(documentation_words(directory / "words.txt"))}
    rows, samples = [], []
    for (name, data), norm in product(lists.items(), ("batch", "none")):
        out = directory / f"{name}-{norm}"
        found = train(out, data=data, norm=norm, hidden=200, embedding=10, block=3, steps=STEPS)
        trainer = run.load(out)
        if norm == "batch":
            material = trainer.material
            counted = f"{counts_loss(material.train, material.held_out):.3f}"
            assert material.alphabet is not None
            drawn = generate(trainer.network, material.alphabet, 3, _rng(), count=20)
            samples.append(f"Generated, {name}, batch norm: {', '.join(drawn)}.")
        losses = (f"{found[part]['loss']:.3f}" for part in ("train", "held_out"))
        rows.append([name, f"{len(trainer.material.train):,}", norm, *losses, counted, f"{found['seconds']:.0f} s"])
    heads = ["list", "characters to learn from", "norm", "training", "held out", "counts, held out", "time"]
    return "\n\n".join([_table(heads, rows), *samples])


def counts_loss(train: Any, held_out: Any) -> float:
    """What counting reaches: how often each character followed these three, smoothed by what followed the last two,
    and so on down to nothing. The best weight of the shorter context is looked up on the held-out part itself."""
    import numpy as np

    def loss(weight: float) -> float:
        size = int(max(train.x.max(), train.targets.max())) + 1
        chances = np.full(len(held_out.x), 1 / size)
        for length in range(train.x.shape[1] + 1):
            keys, asked = (_number(part.x[:, part.x.shape[1] - length :], size) for part in (train, held_out))
            pairs = np.bincount(keys * size + train.targets, minlength=size ** (length + 1))
            totals = np.bincount(keys, minlength=size**length)
            chances = (pairs[asked * size + held_out.targets] + weight * chances) / (totals[asked] + weight)
        return float(-np.log(chances).mean())

    return min(map(loss, (1.0, 2.0, 4.0, 8.0, 16.0)))


def _number(context: Any, size: int) -> Any:
    """A context as one number."""
    import numpy as np

    return context @ size ** np.arange(context.shape[1])[::-1] if context.shape[1] else np.zeros(len(context), int)


def documentation_words(path: Path) -> Path:
    """The lower-case words of three letters or more in the docstrings of Python's standard library."""
    found: set[str] = set()
    for file in sorted(Path(os.__file__).parent.glob("*.py")):
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                text = ast.get_docstring(node) or ""
                found |= set(re.findall(r"(?<![\w'`.-])[a-z]{3,}(?![\w'`.(=-])", text))
    path.write_text("\n".join(sorted(found)) + "\n", "utf-8")
    return path


# ---- tables ----


def tables(directory: Path) -> str:
    """With and without batch norm, inputs raw and standardised: how many of the held-out rows are right."""
    files = {"weather": weather, "wine": _from_sklearn("load_wine"), "digits": _from_sklearn("load_digits")}
    for name, make in files.items():
        make(directory / f"{name}.csv")
    jobs = [
        {"task": "table", "data": str(directory / f"{name}.csv"), "target": "class"}
        | {"norm": norm, "standardize": standardize, "seed": seed}
        for name, standardize, norm, seed in product(files, (False, True), ("none", "batch"), SEEDS)
    ]
    results = iter(_all(directory, jobs))
    rows = []
    for name in files:
        row = [name]
        for _ in range(4):
            right = [next(results)["held_out"]["accuracy"] for _ in SEEDS]
            row.append(f"{statistics.mean(right):.1%} ({min(right):.1%} to {max(right):.1%})")
        rows.append(row)
    return _table(["table", "raw, none", "raw, batch", "standardised, none", "standardised, batch"], rows)


def weather(path: Path) -> None:
    """A small table of our own: it rains where temperature and pressure are far from usual, or nearly so."""
    rng = _rng()
    temperature, pressure = rng.normal(15, 8, 400), rng.normal(1013, 9, 400)
    far = ((temperature - 15) / 8) ** 2 + ((pressure - 1013) / 9) ** 2 + rng.normal(0, 0.2, 400)
    rows = zip(temperature, pressure, far > 1.4, strict=True)
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
    """Names padded to 11, 22 and 44 characters; padding left out of the statistics, or counted."""
    combinations = list(product(("valid", "counted"), EXTENTS))
    jobs = [
        {"task": "gender", "padding": kind, "extent": extent, "seed": seed}
        for (kind, extent), seed in product(combinations, SEEDS)
    ]
    results = iter(_all(directory, jobs))
    found = {one: [next(results)["held_out"] for _ in SEEDS] for one in combinations}
    rows = []
    for (kind, extent), scores in found.items():
        losses, right = ([score[part] for score in scores] for part in ("loss", "accuracy"))
        usual = [score["loss"] for score in found["valid", EXTENTS[0]]]
        worse = [one - two for one, two in zip(losses, usual, strict=True)]
        rows.append([kind, str(extent), _spread(losses), _spread(worse, "+.3f"), _spread(right, ".1%")])
    heads = ["padding", "padded to", "held-out loss", "more than valid at 11", "right"]
    runs = {job["padding"]: [] for job in jobs}
    for number, job in enumerate(jobs):
        if job["extent"] == EXTENTS[-1]:
            runs[job["padding"]].append(directory / f"run{number}")
    moved = [[kind, *_with_other_padding(of_kind)] for kind, of_kind in runs.items()]
    again = ["padding", *(f"statistics taken again at {extent}" for extent in reversed(EXTENTS))]
    return "\n\n".join([_table(heads, rows), OTHER_PADDING, _table(again, moved)])


OTHER_PADDING = (
    "In these runs padding was the same in training and in use. Now the networks that were trained on names padded "
    "to 44, with their statistics taken again over the same names, padded less: held-out loss, and how many are right."
)


def _with_other_padding(runs: Sequence[Path]) -> list[str]:
    """What is left of trained networks when their statistics are taken over less padding."""
    from truenorm.lab import run
    from truenorm.lab.data import Examples
    from truenorm.lab.sampling import reestimate

    cells = []
    for extent in reversed(EXTENTS):
        scores = []
        for directory in runs:
            trainer = run.load(directory)
            train, held_out = (
                Examples(part.x[:, :extent], part.targets, part.lengths)
                for part in (trainer.material.train, trainer.material.held_out)
            )
            reestimate(trainer.network, train)
            scores.append(trainer.score(held_out))
        losses, right = [score.loss for score in scores], [score.accuracy or 0.0 for score in scores]
        cells.append(f"{_spread(losses)}, {_spread(right, '.1%')}")
    return cells


def _spread(values: Sequence[float], form: str = ".3f") -> str:
    """The mean, and the standard deviation over the seeds."""
    return f"{statistics.mean(values):{form}} ± {statistics.stdev(values):{form.lstrip('+')}}"


# ---- shared ----


def _all(directory: Path, jobs: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    with ProcessPoolExecutor(2) as pool:
        futures = [pool.submit(train, directory / f"run{number}", **job) for number, job in enumerate(jobs)]
        return [future.result() for future in futures]


def _rng() -> Any:
    import numpy as np

    return np.random.default_rng(0)


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


if __name__ == "__main__":
    main()
