"""truenorm on NumPy arrays, called as users call it."""

from __future__ import annotations

from typing import Any

import truenorm as tn
from bench.inputs import Case, Inputs
from bench.suite import Run


def norm_of(case: Case) -> tn.Norm:
    """The normalization of a case."""
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


def bind(inputs: Inputs) -> Run:
    """`tn.forward` and `tn.backward`, with `lengths`."""
    norm = norm_of(inputs.case)
    x, dy, weight, bias, lengths = inputs.x, inputs.dy, inputs.weight, inputs.bias, inputs.lengths

    def forward() -> Any:
        return tn.forward(x, norm, weight=weight, bias=bias, lengths=lengths).y

    def both() -> tuple[Any, Any, Any, Any]:
        out = tn.forward(x, norm, weight=weight, bias=bias, lengths=lengths)
        return (out.y, *tn.backward(dy, out))

    return Run(forward, both)
