"""The page's network: its numbers are those of `truenorm explain --example network`, under node and in a browser."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browser import node
from numpy.testing import assert_allclose

from truenorm.cli.explain_network import explain_training_step

HERE = Path(__file__).parent
SMALL = "anna,emma,ian,mia,nina"
NOTES = "betty,daniel,emma,felix,grace,hugo,jack,louis,max,noah,pam,quinn,sophia,victor,wendy,zoe"
SIZES: dict[str, dict[str, Any]] = {"small": {}, "notes": {"hidden": 100, "batch": 32}}


def check_steps(found: dict[str, Any], words: str, size: str, seed: int, lr: float) -> None:
    """Names, formulas, axes, shapes and labels are Python's; numbers are too, to 1e-12 of the largest."""
    wanted = explain_training_step({"words": words, "seed": seed, "lr": lr, **SIZES[size]})
    assert [step["name"] for step in found["steps"]] == [step.name for step in wanted.steps]
    for got, want in zip(found["steps"], wanted.steps, strict=True):
        assert (got["part"], got["formula"], got["axes"]) == (want.part, want.formula, list(want.axes))
        values = np.array(got["values"], float).reshape(want.values.shape)
        # What cancels to 0 but for rounding is compared on the scale of what cancels.
        cancelled = {"db1": wanted["dH0"], "new b1": wanted["dH0"], "dμ (through σ²)": wanted["dμ"]}
        scale = cancelled.get(want.name, want.values)
        assert_allclose(values, want.values, rtol=0, atol=1e-12 * np.abs(scale).max(), err_msg=want.name)
    assert_allclose([found["loss"], found["loss_after"]], [wanted.loss, wanted.loss_after], rtol=1e-12)
    assert found["labels"] == {axis: list(names) for axis, names in wanted.labels.items()}
    assert len(found["checks"]) == 15
    assert max(found["checks"].values()) < 1e-9


CASES = [(SMALL, "small", 0, 0.1), ("ab,ba,ça", "small", 7, 3.0), (NOTES, "notes", 1, 0.1)]


@pytest.mark.parametrize(("words", "size", "seed", "lr"), CASES)
def test_every_step_is_that_of_python_under_node(words: str, size: str, seed: int, lr: float) -> None:
    options = [json.dumps(words.split(",")), size, str(seed), str(lr)]
    made = subprocess.run([node(), str(HERE / "network_steps.mjs"), *options], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    check_steps(json.loads(made.stdout), words, size, seed, lr)
