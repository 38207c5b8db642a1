"""The call overhead of the layers does not grow: instructions of a step, and of an evaluation, on 32 x 100 values."""

from __future__ import annotations

import json
from typing import Any

import pytest

pytest.importorskip("torch", reason="torch is not installed")

from bench.instructions import CASES, FILE, MARGIN, count, exceeded, versions, why_not


def stored() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(FILE.read_text("utf-8"))
    return found


@pytest.mark.slow
def test_layers_take_no_more_instructions_than_before() -> None:
    if reason := why_not():
        pytest.skip(reason)
    if stored()["versions"] != versions():
        pytest.skip(f"instructions were counted with {stored()['versions']}, these are {versions()}")
    assert exceeded(count(), stored()["instructions"]) == [], "python -m bench.instructions --write stores new counts"


def test_more_instructions_would_be_noticed() -> None:
    before = stored()["instructions"]
    assert set(before) == set(CASES)
    assert exceeded(before, before) == []
    within = {name: int(number * MARGIN) for name, number in before.items()}
    assert exceeded(within, before) == []
    beyond = within | {"LayerNorm": int(before["LayerNorm"] * MARGIN) + 1}
    assert exceeded(beyond, before) == [
        f"LayerNorm: at most 1.05 x {before['LayerNorm']:,} instructions, got {beyond['LayerNorm']:,}"
    ]
