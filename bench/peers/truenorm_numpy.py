"""truenorm, called as a user calls it on NumPy arrays."""

from __future__ import annotations

from typing import Any

import truenorm as tn
from bench.problem import Case, Problem
from bench.suite import Run


def norm_of(case: Case) -> tn.Norm:
    """The case as truenorm says it."""
    match case.kind:
        case "batch":
            return tn.batch(case.channels, eps=case.eps)
        case "layer":
            return tn.layer(eps=case.eps)
        case "rms":
            return tn.rms(eps=case.eps)
        case "instance":
            return tn.instance(case.channels, eps=case.eps)
        case "group":
            return tn.group(case.groups, case.channels, eps=case.eps)


def bind(problem: Problem) -> Run:
    """`tn.forward` and `tn.backward`; lengths as they are, no mask."""
    norm = norm_of(problem.case)
    x, dy, weight, bias, lengths = problem.x, problem.dy, problem.weight, problem.bias, problem.lengths

    def forward() -> Any:
        return tn.forward(x, norm, weight=weight, bias=bias, lengths=lengths).y

    def both() -> tuple[Any, Any, Any, Any]:
        out = tn.forward(x, norm, weight=weight, bias=bias, lengths=lengths)
        return (out.y, *tn.backward(dy, out))

    return Run(forward, both)
