"""torch's own functions on the whole array. They count padding as data."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from bench.inputs import Inputs
from bench.peers.torch_autograd import Function, differentiate
from bench.suite import Run


def bind(inputs: Inputs) -> Run:
    return differentiate(inputs, function_for(inputs))


def bind_compiled(inputs: Inputs) -> Run:
    return differentiate(inputs, torch.compile(function_for(inputs)))


def function_for(inputs: Inputs) -> Function:
    """The function that torch's layer calls in training, without running statistics."""
    case, size = inputs.case, inputs.weight.size
    if case.kind == "batch" and case.channels == "last":
        return lambda x, weight, bias: F.batch_norm(
            x.view(-1, size), None, None, weight, bias, training=True, eps=case.eps
        ).view_as(x)
    return {
        "batch": lambda x, weight, bias: F.batch_norm(x, None, None, weight, bias, training=True, eps=case.eps),
        "layer": lambda x, weight, bias: F.layer_norm(x, (size,), weight, bias, case.eps),
        "rms": lambda x, weight, _: F.rms_norm(x, (size,), weight, case.eps),
        "instance": lambda x, weight, bias: F.instance_norm(x, weight=weight, bias=bias, eps=case.eps),
        "group": lambda x, weight, bias: F.group_norm(x, case.groups, weight, bias, case.eps),
    }[case.kind]
