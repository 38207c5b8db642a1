"""The golden vectors of the page's network are what NumPy and the lab compute now."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


def numbers(value: Any, path: str = "") -> dict[str, Any]:
    """Every number and text of a JSON value, by where it is."""
    if isinstance(value, dict):
        return {key: one for name in value for key, one in numbers(value[name], f"{path}.{name}").items()}
    if isinstance(value, list):
        return {key: one for i, item in enumerate(value) for key, one in numbers(item, f"{path}[{i}]").items()}
    return {path: value}


def test_golden_networks_are_what_the_lab_computes_now() -> None:
    golden = runpy.run_path(str(HERE / "golden_network.py"))
    recorded = numbers(json.loads(golden["FILE"].read_text("utf-8")))
    computed = numbers(json.loads(golden["as_text"]()))
    assert recorded.keys() == computed.keys(), "run: python tests/page/golden_network.py"
    # Not by the letter: matrix products of other processors may differ in their last bit.
    for path, value in recorded.items():
        expected = pytest.approx(value, rel=1e-12, abs=1e-15) if isinstance(value, float) else value
        assert computed[path] == expected, f"{path}: run: python tests/page/golden_network.py"
