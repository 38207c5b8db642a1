"""The rules: what happens to tags, and to padding, in each function of torch and each class of module.

A rule is called instead of the function. It calls the function itself, so that it can change the arguments first:

    @rule(torch.conv1d)
    def conv1d(tracker, func, args, kwargs):
        x = args[0]
        tag = tracker.positions(x, {2})          # None: x has no tag, nothing to do
        y = func(tracker.fill(x, tag), *args[1:], **kwargs)
        tracker.set(y, tag.with_lengths(...))
        return y

`func` is the function as torch passes it on: `torch.add`, `Tensor.add` and `Tensor.add_` are three. Functions without a
rule lose track: the result of one that reads a ragged tensor is `Lost`.

A rule is not called with inputs whose positions are not known (`inputs.py`): they are refused. `reads_inputs=True` is
for rules that handle them, because they tell where the positions are or because they need not know. `repeats=True` is
for rules that need not be called again for a call like an earlier one (`repeats.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from truenorm.torch.tracking.tracker import Tracker

Rule = Callable[["Tracker", Any, tuple[Any, ...], dict[str, Any]], Any]
RULES: dict[Any, Rule] = {}
READS_INPUTS: set[Any] = set()
REPEATS: set[Any] = set()
registrations = 0  # how often rules were registered: what was found by others does not count any more
LengthsRule = Callable[[Any, Tensor], Tensor]
MODULE_RULES: dict[type[nn.Module], LengthsRule] = {}


def rule(*functions: Any, reads_inputs: bool = False, repeats: bool = False) -> Callable[[Rule], Rule]:
    """Register a rule for these functions of torch."""

    def register(made: Rule) -> Rule:
        global registrations
        registrations += 1
        for function in functions:
            REPEATS.discard(function)
            RULES[function] = made
            if reads_inputs:
                READS_INPUTS.add(function)
            if repeats:
                REPEATS.add(function)
        return made

    return register


def named(names: str) -> list[Any]:
    """All functions of these names: in torch, torch.nn.functional, and as methods of tensors. Those that exist."""
    places: Iterable[Any] = (torch, functional, Tensor, torch.special)
    found = [getattr(place, name, None) for name in names.split() for place in places]
    return [one for one in found if callable(one)]


def attribute(name: str) -> Any:
    """The function that reads an attribute of tensors, such as `mT`."""
    return getattr(Tensor, name).__get__


def module_rule_of(module: nn.Module) -> LengthsRule | None:
    """The rule that `padded.rule` declared for the class of a module, or for one that it inherits from."""
    return next((MODULE_RULES[cls] for cls in type(module).__mro__ if cls in MODULE_RULES), None)
