"""truenorm, called as a user calls it on NumPy arrays."""

from __future__ import annotations

from typing import Any

import truenorm as tn
from bench.problem import Problem
from bench.suite import Run


def bind(problem: Problem) -> Run:
    """`tn.forward` and `tn.backward`; lengths as they are, no mask."""
    case = problem.case
    norm = {
        "batch": lambda: tn.batch(case.channels, eps=case.eps),
        "layer": lambda: tn.layer(eps=case.eps),
        "rms": lambda: tn.rms(eps=case.eps),
        "instance": lambda: tn.instance(case.channels, eps=case.eps),
        "group": lambda: tn.group(case.groups, case.channels, eps=case.eps),
    }[case.kind]()
    x, dy, weight, bias, lengths = problem.x, problem.dy, problem.weight, problem.bias, problem.lengths

    def forward() -> Any:
        return tn.forward(x, norm, weight=weight, bias=bias, lengths=lengths).y

    def both() -> tuple[Any, Any, Any, Any]:
        out = tn.forward(x, norm, weight=weight, bias=bias, lengths=lengths)
        return (out.y, *tn.backward(dy, out))

    return Run(forward, both)
