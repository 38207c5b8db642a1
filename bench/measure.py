"""Measure one suite: bind, validate, time in interleaved rounds, compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.inputs import Inputs
from bench.oracle import expected_results
from bench.peers.copy import copier
from bench.suite import OURS, Implementation, Run, Suite, validate
from bench.timing import Rounds, interleave, ratio, spread

# The implementation and the part: "both" (forward and backward) or "forward".
Key = tuple[str, str]
COPY = ("copy", "forward")


def measure(suite: Suite, *, seconds: float, patience: float, say: Callable[[str], None]) -> dict[str, Any]:
    """The results of one suite, ready for JSON. Implementations that are missing or wrong are listed, but not timed."""
    inputs = suite.case.make_inputs()
    runs, status = _bind(suite, inputs, say)
    copied_by, copy = copier(inputs.x, np.empty_like(inputs.x))
    calls: dict[Key, Callable[[], object]] = {
        (name, part): getattr(run, part) for name, run in runs.items() for part in ("both", "forward")
    }
    rounds = interleave(calls | {COPY: copy}, seconds=seconds, patience=patience)
    # A copy moves two arrays, a forward pass `needed_bytes`. This factor turns a ratio of times into one of bytes/s.
    bytes_factor = inputs.needed_bytes / (2 * inputs.x.nbytes)
    return {
        "name": suite.name,
        "title": suite.title,
        "shape": list(suite.case.shape),
        "dtype": str(inputs.x.dtype),
        "seed": suite.case.seed,
        "lengths": None if inputs.lengths is None else [int(length) for length in inputs.lengths],
        "baseline": suite.baseline,
        "rounds": {
            "total": len(rounds.others),
            "quiet": len(rounds.quiet()),
            "disturbed": rounds.disturbed(),
            "processors_of_others": spread(rounds.others),
        },
        "bytes": {"array": inputs.x.nbytes, "valid": inputs.valid_bytes, "forward_needs": inputs.needed_bytes},
        "implementations": [
            _implementation(one, status[one.name], suite.baseline, rounds) for one in suite.implementations
        ],
        "copy": {"by": copied_by} | _times(rounds, COPY),
        "comparisons": [
            *(_comparison(rounds, (peer, "both")) for peer in suite.compared_with),
            _comparison(rounds, COPY, bytes_factor),
        ],
    }


def _bind(suite: Suite, inputs: Inputs, say: Callable[[str], None]) -> tuple[dict[str, Run], dict[str, str]]:
    """The implementations that may be timed, and the status of all."""
    runs, status = {}, {}
    expected = {
        ignored: expected_results(inputs, ignore_padding=ignored)
        for ignored in {one.ignores_padding for one in suite.implementations}
    }
    for one in suite.implementations:
        try:
            run = one.bind(inputs)
            wrong = validate(run, expected[one.ignores_padding])
        except ModuleNotFoundError as error:
            status[one.name] = f"missing: {error.name}"
        except Exception as error:  # a peer that fails must not stop the others
            status[one.name] = f"failed: {type(error).__name__}"  # the text may contain a path: print it only
            say(f"    {one.name}: {error}")
        else:
            status[one.name] = f"failed: {'; '.join(wrong)}" if wrong else "ok"
            if not wrong:
                runs[one.name] = run
        if status[one.name].startswith("failed"):
            say(f"    {one.name}: {status[one.name]}")
    return runs, status


def _implementation(one: Implementation, status: str, baseline: str, rounds: Rounds[Key]) -> dict[str, Any]:
    """The times of one implementation. `speed` is the baseline's time divided by its own."""
    found: dict[str, Any] = {"name": one.name, "ignores_padding": one.ignores_padding, "status": status}
    if status != "ok":
        return found
    for part in ("both", "forward"):
        found[part] = _times(rounds, (one.name, part))
        if (baseline, part) in rounds.samples:
            found[part]["speed"] = ratio(rounds.seconds((baseline, part)), rounds.seconds((one.name, part)))
    return found


def _times(rounds: Rounds[Key], key: Key) -> dict[str, Any]:
    return {
        "seconds": spread(rounds.seconds(key)),
        "calls_a_round": rounds.samples[key].calls,
        "page_faults": round(rounds.faults(key), 2),
    }


def _comparison(rounds: Rounds[Key], against: Key, factor: float = 1.0) -> dict[str, Any]:
    """The other's time divided by truenorm's, times `factor`; None if one of them was not timed."""
    name, part = against
    if against not in rounds.samples or (OURS, part) not in rounds.samples:
        return {"against": name, "part": part, "ratio": None}
    other = [second * factor for second in rounds.seconds(against)]
    return {"against": name, "part": part, "ratio": ratio(other, rounds.seconds((OURS, part)))}
