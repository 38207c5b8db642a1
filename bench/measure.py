"""One suite, from inputs to results: bind, validate, time together, compare."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from bench.oracle import solve
from bench.peers.copy import copier
from bench.problem import Problem
from bench.suite import COPY_SHARE, OURS, Implementation, Run, Suite, validate
from bench.timing import Rounds, interleave, ratio, spread

# Who, and which part: "both" (forward and backward) or "forward".
Key = tuple[str, str]
COPY = ("copy", "forward")


def measure(suite: Suite, *, seconds: float, patience: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything about one suite, ready for JSON. Who is missing or wrong is named, and not timed."""
    problem = suite.case.problem()
    runs, status = _bind(suite, problem, say)
    copied_by, copy = copier(problem.x, np.empty_like(problem.x))
    calls: dict[Key, Callable[[], object]] = {
        (name, part): getattr(run, part) for name, run in runs.items() for part in ("both", "forward")
    }
    rounds = interleave(calls | {COPY: copy}, seconds=seconds, patience=patience)
    # A copy moves 2 arrays, a forward what it needs: bytes/s compare as times do, after this factor.
    moved = problem.needed_bytes / (2 * problem.x.nbytes)
    return {
        "name": suite.name,
        "title": suite.title,
        "shape": list(suite.case.shape),
        "dtype": str(problem.x.dtype),
        "seed": suite.case.seed,
        "lengths": None if problem.lengths is None else [int(length) for length in problem.lengths],
        "baseline": suite.baseline,
        "rounds": {
            "total": len(rounds.others),
            "quiet": len(rounds.quiet()),
            "disturbed": rounds.disturbed(),
            "processors_of_others": spread(rounds.others),
        },
        "bytes": {"array": problem.x.nbytes, "valid": problem.valid_bytes, "forward_needs": problem.needed_bytes},
        "implementations": [
            _implementation(one, status[one.name], suite.baseline, rounds) for one in suite.implementations
        ],
        "copy": {"by": copied_by} | _times(rounds, COPY),
        "targets": [
            *(_target(rounds, (peer, "both"), required) for peer, required in suite.targets.items()),
            _target(rounds, COPY, COPY_SHARE, moved),
        ],
    }


def _bind(suite: Suite, problem: Problem, say: Callable[[str], None]) -> tuple[dict[str, Run], dict[str, str]]:
    """Those that may be timed, and what became of each."""
    runs, status = {}, {}
    expected = {masked: solve(problem, masked=masked) for masked in {one.masked for one in suite.implementations}}
    for one in suite.implementations:
        try:
            run = one.bind(problem)
            wrong = validate(run, expected[one.masked])
        except ModuleNotFoundError as error:
            status[one.name] = f"missing: {error.name}"
        except Exception as error:  # a peer's trouble is its own row's
            status[one.name] = f"failed: {type(error).__name__}"  # its text may hold a path, so that is only said
            say(f"    {one.name}: {error}")
        else:
            status[one.name] = f"failed: {'; '.join(wrong)}" if wrong else "ok"
            if not wrong:
                runs[one.name] = run
        if status[one.name].startswith("failed"):
            say(f"    {one.name}: {status[one.name]}")
    return runs, status


def _implementation(one: Implementation, status: str, baseline: str, rounds: Rounds[Key]) -> dict[str, Any]:
    """Times of one implementation; `speed` is how many times faster than the baseline it is."""
    facts: dict[str, Any] = {"name": one.name, "masked": one.masked, "status": status}
    if status != "ok":
        return facts
    for part in ("both", "forward"):
        facts[part] = _times(rounds, (one.name, part))
        if (baseline, part) in rounds.samples:
            facts[part]["speed"] = ratio(rounds.seconds((baseline, part)), rounds.seconds((one.name, part)))
    return facts


def _times(rounds: Rounds[Key], key: Key) -> dict[str, Any]:
    return {
        "seconds": spread(rounds.seconds(key)),
        "calls_a_round": rounds.samples[key].calls,
        "page_faults": round(rounds.faults(key), 2),
    }


def _target(rounds: Rounds[Key], against: Key, required: float, factor: float = 1.0) -> dict[str, Any]:
    """How often truenorm's time fits into the other's, times `factor`; None where one of them was not timed.

    While others were busy nothing is reached: torch then loses 1000-fold to anyone whose threads do not spin.
    """
    name, part = against
    facts: dict[str, Any] = {"against": name, "part": part, "required": required, "ratio": None, "reached": False}
    if against in rounds.samples and (OURS, part) in rounds.samples:
        theirs = [second * factor for second in rounds.seconds(against)]
        facts["ratio"] = ratio(theirs, rounds.seconds((OURS, part)))
        facts["reached"] = not rounds.disturbed() and facts["ratio"]["median"] >= required
    return facts
