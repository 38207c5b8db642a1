"""Measure one cell: check our results, then time both layers in interleaved rounds until the ratio is precise."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import asdict

import torch

from bench.map.cells import Cell
from bench.map.pair import make_pair, mistakes
from bench.map.results import SMALL, Row
from bench.timing import Rounds, error_of_median, interleave, ratio, spread

ROUNDS = (9, 200)
PRECISE = 0.01  # the standard error of the median ratio at which a cell ends


def measure(cell: Cell, *, seconds: float, patience: float, precise: float = PRECISE) -> Row:
    """The result of a cell, ready for JSON; without times if our layer is wrong, or one of them fails."""
    row: Row = {"name": cell.name, "cell": asdict(cell), "bytes": cell.bytes}
    with torch.no_grad() if cell.mode == "evaluation" else nullcontext():
        try:
            pair = make_pair(cell)
            wrong = mistakes(pair)
            calls = {} if wrong else pair.calls()
        except Exception as error:  # it must not stop the other cells; its text may contain a path
            return row | {"status": f"failed: {type(error).__name__}"}
        if wrong:
            return row | {"status": f"wrong: {'; '.join(wrong)}"}
        rounds = interleave(
            calls,
            seconds=seconds,
            patience=patience,
            rounds=ROUNDS,
            enough=lambda found: error_of_median(_ratios(found)) <= precise,
        )
    torchs, ours = (rounds.seconds(name) for name in ("torch", "ours"))
    return row | {
        "status": "ok",
        "padding": round(pair.padding, 4),
        "torch": spread(torchs),
        "ours": spread(ours),
        "ratio": ratio(torchs, ours),
        "error": error_of_median(_ratios(rounds)),
        "small": spread(torchs)["median"] < SMALL,
        "rounds": {"total": len(rounds.others), "quiet": len(rounds.quiet()), "disturbed": rounds.disturbed()},
    }


def _ratios(rounds: Rounds[str]) -> list[float]:
    return [one / other for one, other in zip(rounds.seconds("torch"), rounds.seconds("ours"), strict=True)]
