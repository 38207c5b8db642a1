"""Golden vectors for the page's maths: what the NumPy reference computes, as data that JavaScript can read.

`python tests/page/golden.py` writes golden.json anew; `test_assembly.py` fails where it is not what this script makes.

The page's x is always a table of rows with `offsets` between samples; here it is padded to (b, t, c) with `valid`, so
that one call of the reference covers every case, and its results are taken back to the rows. Numbers are kept to 13
digits, ten times finer than the agreement that is asked for; those that JSON does not have are words.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterator
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

import truenorm as tn
from truenorm.core import reference
from truenorm.core.moments import Moments, measure, merge
from truenorm.explanation.steps import explain

FILE = Path(__file__).with_name("golden.json")
NAMES = ("batch", "layer", "instance", "group", "rms")
NAN, INF = math.nan, math.inf

Case = dict[str, Any]


def norm_of(case: Case) -> tn.Norm:
    """The normalization that a case names."""
    options = {key: case["norm"][key] for key in ("eps", "ddof", "eps_at") if key in case["norm"]}
    if case["norm"]["name"] == "group":
        return tn.group(case["norm"]["groups"], **options)
    recipe = {"batch": tn.batch, "layer": tn.layer, "instance": tn.instance, "rms": tn.rms}[case["norm"]["name"]]
    return recipe(**options)


class Padded:
    """The rows of a case as (b, t, c), and back."""

    def __init__(self, case: Case) -> None:
        self.x = np.array(case["x"], float)
        self.offsets = case.get("offsets", [0, len(self.x)])
        self.shape = (len(self.offsets) - 1, max(b - a for a, b in pairwise(self.offsets)), self.x.shape[1])
        valid = np.array(case.get("valid", np.ones(len(self.x))), bool)
        valid = np.broadcast_to(valid if valid.ndim == 2 else valid[:, None], self.x.shape)
        self.real = self.pad(np.ones(self.x.shape)) != 0
        self.valid = self.pad(valid) != 0

    def pad(self, table: Any) -> np.ndarray:
        padded = np.zeros(self.shape)
        for sample, (start, stop) in enumerate(pairwise(self.offsets)):
            padded[sample, : stop - start] = np.array(table, float)[start:stop]
        return padded

    def rows(self, padded: np.ndarray) -> np.ndarray:
        return padded[self.real].reshape(self.x.shape)

    def statistics(self, values: np.ndarray) -> np.ndarray:
        """In the page's order; those of rows that only fill up are left out."""
        per_row = values.shape == self.shape[:2] and self.name in ("layer", "rms")
        return values[self.real[..., 0]] if per_row else values.ravel()

    name = ""


def solve(case: Case) -> Case:
    """The case with what the reference computes."""
    norm, form = norm_of(case), Padded(case)
    form.name = case["norm"]["name"]
    given: dict[str, Any] = {key: case[key] for key in ("weight", "bias") if key in case}
    if "moments" in case:
        given["moments"] = Moments(*(np.array(case["moments"][key]) for key in ("count", "mean", "m2")))
    out = reference.forward(form.pad(case["x"]), norm, valid=form.valid, **given)
    want: dict[str, Any] = {
        "count": form.statistics(out.moments.count),
        "mean": form.statistics(out.moments.mean),
        "m2": form.statistics(out.moments.m2),
        "rstd": form.statistics(reference.rstd_of(out.moments, norm)),
        "y": form.rows(out.y),
    }
    if "dy" in case:
        dy = form.pad(case["dy"])
        sums = reference.backward_sums(dy, out)
        dx, dweight, dbias = reference.backward(dy, out, sums=None)
        want |= {"dx": form.rows(dx), "dweight": dweight, "dbias": dbias}
        want |= {"dxhat": form.statistics(sums.dxhat), "dxhat_xhat": form.statistics(sums.dxhat_xhat)}
    solved = case | {"want": {key: plain(value) for key, value in want.items() if value is not None}}
    if case.get("steps"):
        shown = explain(form.pad(case["x"]), norm, valid=form.valid, dy=form.pad(case["dy"]), **given)
        solved["steps"] = {step.name: plain(_step(form, step.values)) for step in shown.steps if _is_new(step.name)}
    return solved


def _is_new(name: str) -> bool:
    """Whether a step is not in `want` already, and more than rounding."""
    return name.startswith(("dx (", "dvar", "dmean")) and name != "dmean (through var)"


def _step(form: Padded, values: np.ndarray) -> np.ndarray:
    if values.shape == form.shape:
        return np.where(form.rows(form.valid), form.rows(values), 0.0)
    return form.statistics(values)


def plain(value: Any) -> Any:
    """Numbers of 13 digits in lists; NaN and infinities as words that JavaScript's Number reads."""
    if isinstance(value, np.ndarray | list):
        return [plain(one) for one in value]
    number = float(value)
    if not math.isfinite(number):
        return {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}[str(number)]
    return int(number) if number.is_integer() and abs(number) < 1e15 else float(f"{number:.13g}")


def table(rng: random.Random, rows: int, columns: int, spread: float = 3.0) -> list[list[float]]:
    """Short numbers, from a generator whose stream never changes."""
    return [[round(rng.uniform(-spread, spread), 1) for _ in range(columns)] for _ in range(rows)]


def conventions() -> Iterator[Case]:
    """Every norm in every convention, whole and with cells and rows left out, with odd weights."""
    rng = random.Random(1)
    for name, ddof, eps_at, left_out in product(NAMES, (0, 1), ("var", "std"), ("nothing", "rows", "cells")):
        if name == "rms" and ddof:
            continue
        x, dy = table(rng, 5, 4), table(rng, 5, 4)
        case: Case = {
            "norm": {"name": name, "ddof": ddof, "eps_at": eps_at, "eps": rng.choice([1e-5, 1e-3, 0.1]), "groups": 2},
            "x": x,
            "offsets": [0, 3, 5],
            "dy": dy,
            "weight": table(rng, 1, 4)[0],
            "bias": table(rng, 1, 4)[0],
            "steps": left_out == "cells",
        }
        if left_out == "rows":
            case["valid"] = [True, True, False, True, True]
            x[2] = dy[2] = [NAN, INF, 1e38, -INF]
        elif left_out == "cells":
            case["valid"] = [[(i * 3 + j) % 4 != 1 for j in range(4)] for i in range(5)]
            x[0][1] = dy[0][1] = NAN
        yield case


def shapes() -> Iterator[Case]:
    """Every norm on other shapes: the table and the sentences of the examples, one row, one column, many samples."""
    rng = random.Random(2)
    notes = [[7, 5, 4], [2, 3, 4], [1, 2, 3], [7, 5, 6], [3, 3, 4]]
    sentences = [
        *([6.5, 2.41, 3.21], [2.21, 0.4, 3.6], [0, 0, 0], [0, 0, 0]),
        *([7.5, 9.2, 1.5], [2.2, 1.1, 6.7], [2.9, 6, 9], [9.9, 2.3, 6.5]),
    ]
    for name in NAMES:
        norm = {"name": name}
        yield {"norm": norm | {"groups": 3}, "x": notes, "dy": table(rng, 5, 3), "offsets": [0, 3, 5]}
        yield {"norm": norm | {"groups": 1}, "x": notes, "dy": table(rng, 5, 3), "weight": [2, 1, 0.5]}
        yield {"norm": norm | {"groups": 1}, "x": notes, "dy": table(rng, 5, 3), "bias": [0, 1, -3]}
        padded = {"norm": norm | {"groups": 3}, "x": sentences, "offsets": [0, 4, 8], "dy": table(rng, 8, 3)}
        yield padded
        yield padded | {"valid": [True, True, False, False, True, True, True, True]}
        yield {"norm": norm | {"groups": 2}, "x": table(rng, 1, 4), "dy": table(rng, 1, 4)}
        yield {"norm": norm | {"groups": 1}, "x": table(rng, 4, 1), "dy": table(rng, 4, 1), "offsets": [0, 2, 4]}
        yield {"norm": norm | {"groups": 2}, "x": table(rng, 6, 2), "dy": table(rng, 6, 2), "offsets": [0, 1, 3, 6]}


def edges() -> Iterator[Case]:
    """Nothing valid, too few elements, no spread, a large mean, numbers that are none."""
    rng = random.Random(3)
    affine = {"weight": [2.0, -0.5], "bias": [0.25, 3.0]}
    for name, ddof, eps_at in product(NAMES, (0, 1), ("var", "std")):
        if name == "rms" and ddof:
            continue
        norm = {"name": name, "ddof": ddof, "eps_at": eps_at, "groups": 1}
        dy = table(rng, 3, 2)
        yield {"norm": norm, "x": table(rng, 3, 2), "dy": dy, "valid": [False, False, False], **affine}
        yield {"norm": norm, "x": table(rng, 3, 2), "dy": dy, "valid": [False, True, False], **affine}
        for eps in (0.0, 1e-5):
            yield {"norm": norm | {"eps": eps}, "x": [[0.1, 0.1]] * 3, "dy": dy, **affine}
        yield {"norm": norm | {"eps": 0.0}, "x": [[1, 2], [1, 5], [1, -1]], "dy": dy, **affine}
        large = [[1e8 + one for one in row] for row in table(rng, 3, 2)]
        yield {"norm": norm, "x": large, "dy": dy, **affine}
    for name in NAMES:
        norm = {"name": name, "groups": 1}
        yield {"norm": norm, "x": [[1, 2], [NAN, 3], [4, 4]], "dy": table(rng, 3, 2)}
        yield {"norm": norm, "x": [[1, 2], [INF, 3], [4, 4]], "dy": table(rng, 3, 2)}
        yield {"norm": norm, "x": [[1e200, 2], [3e200, 3], [4, 4]], "dy": table(rng, 3, 2), **affine}


def given_moments() -> Iterator[Case]:
    """Moments that do not depend on x, such as running statistics: constants to the gradient."""
    rng = random.Random(4)
    for ddof, eps_at in product((0, 1), ("var", "std")):
        yield {
            "norm": {"name": "batch", "ddof": ddof, "eps_at": eps_at},
            "x": table(rng, 3, 2),
            "dy": table(rng, 3, 2),
            "moments": {"count": [7, 1], "mean": [0.5, -1.25], "m2": [9.5, 3.0]},
            "weight": [2.0, -0.5],
        }


def merges() -> Iterator[Case]:
    """Parts of a table, empty ones among them, measured and merged; and the gradient of parts that share their sums."""
    rng = random.Random(5)
    for cuts in ([0, 2, 6], [0, 1, 1, 4, 6], [0, 0, 6], [0, 1, 2, 3, 4, 5, 6]):
        x, dy = table(rng, 6, 3), table(rng, 6, 3)
        case = _merged({"norm": {"name": "batch", "ddof": 1}, "x": x, "cuts": cuts})
        dx = reference.backward(dy, reference.forward(x, norm_of(case)))[0]
        yield case | {"dy": dy, "want": case["want"] | {"dx": plain(dx)}}
    large = [[1e8 + one for one in row] for row in table(rng, 6, 2)]
    yield _merged({"norm": {"name": "batch"}, "x": large, "cuts": [0, 1, 6]})
    yield _merged({"norm": {"name": "rms"}, "x": table(rng, 6, 3), "cuts": [0, 2, 4, 6]})


def _merged(case: Case) -> Case:
    x = np.array(case["x"])
    moments = merge(*(measure(x[a:b], norm_of(case)) for a, b in pairwise(case["cuts"])))
    return case | {"want": {key: plain(getattr(moments, key)) for key in ("count", "mean", "m2")}}


def vectors() -> dict[str, list[Case]]:
    """All of them, by what they show."""
    kinds = (conventions, shapes, edges, given_moments)
    solved = {kind.__name__: [_inputs_plain(solve(case)) for case in kind()] for kind in kinds}
    return solved | {"merges": list(merges())}


def _inputs_plain(case: Case) -> Case:
    return case | {key: plain(case[key]) for key in ("x", "dy") if key in case}


def as_text() -> str:
    """One case a line, so that a change is seen where it is."""
    kinds = []
    for kind, cases in vectors().items():
        lines = ",\n".join(json.dumps(case, separators=(",", ":"), allow_nan=False) for case in cases)
        kinds.append(f'"{kind}": [\n{lines}\n]')
    return "{\n" + ",\n".join(kinds) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(as_text(), "utf-8", newline="\n")
