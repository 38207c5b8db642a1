"""Folded against original: each layer where rounding has a bound, and the outputs of the model where it has none.

Layers on borders      in float64, without rounding the parameters, on the smallest inputs that the layer takes
Layers on the example  in the model's own arithmetic, while it runs; the bound is that of `folded_layer.py`
Outputs                nothing bounds what the rest of a model makes of a small error. So it is tried: errors as large
                       as the bounds are added to the outputs of the original layers. Half of each has a random sign
                       for its channel, as the rounding of a parameter has, the other half a random sign of its own.
                       Folding may move the outputs ten times as far.
"""

from __future__ import annotations

import contextlib
import copy
from typing import Any

import torch
from torch import Tensor, nn

from truenorm.torch.folding.connections import list_tensors
from truenorm.torch.folding.folded_layer import FoldedLayer, border_inputs, roundoff_of_sums, wide

SLACK = 10  # trial errors can cancel by chance, where an output is a single number


class LayerCheck:
    def __init__(self, folded: FoldedLayer, name: str) -> None:
        self.folded, self.name = folded, name
        self.new = copy.deepcopy(folded.layer)
        self.new.weight, self.new.bias = folded.rounded()
        self.magnitude = folded.magnitude()
        self.difference = self.bound = 0.0
        self.generator = torch.Generator().manual_seed(0)

    def compare_on_borders(self) -> None:
        original, exact = self.folded.original(), self.folded.exact()
        relative = self.folded.relative_bound(torch.float64, roundoff_of_sums(torch.float64, torch.device("cpu")))
        with torch.no_grad():
            for x in border_inputs(self.folded.layer):
                bound = relative * self.magnitude(x.abs())
                self._require((exact(x) - original(x)).abs(), bound, f"an input of shape {tuple(x.shape)}")

    def compare_in_run(self, hooks: contextlib.ExitStack) -> None:
        """While the model runs: compare, and add trial errors to what the original gives."""
        modules = [*self.folded.before, self.folded.layer, *self.folded.after]
        inputs: list[Any] = []

        def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            # A copy: others may write into it before the last of the modules has run.
            inputs.append(([one.clone() if isinstance(one, Tensor) else one for one in args], kwargs))

        def leave(module: nn.Module, args: Any, output: Tensor) -> Tensor:
            given, named = inputs.pop()
            return self._compare(given, named, output)

        hooks.callback(modules[0].register_forward_pre_hook(enter, with_kwargs=True).remove)
        hooks.callback(modules[-1].register_forward_hook(leave).remove)

    def _compare(self, args: list[Any], kwargs: dict[str, Any], output: Tensor) -> Tensor:
        new, old = wide(self.new(*args, **kwargs)), wide(output)
        x, *rest = args or list_tensors(kwargs)
        rest_by_name = {name: value for name, value in kwargs.items() if name != "input"}
        dtype = max(output.dtype, self.new.weight.dtype, key=lambda one: torch.finfo(one).eps)
        relative = self.folded.relative_bound(dtype, roundoff_of_sums(self.new.weight.dtype, x.device))
        bound = relative * self.magnitude(wide(x).abs(), *rest, **rest_by_name)
        finite = old.isfinite() & bound.isfinite()
        bound = torch.where(finite, bound, 0.0)
        self._require(torch.where(finite, (new - old).abs(), 0.0), bound, "the example", shown=True)
        own, shared = (
            torch.randn(shape, generator=self.generator).sign() for shape in (old.shape, (1, *old.shape[1:2]))
        )
        error = bound * (own + shared.reshape(1, -1, *[1] * (old.dim() - 2))) / 2
        return output + error.to(output.device, output.dtype)

    def _require(self, difference: Tensor, bound: Tensor, where: str, *, shown: bool = False) -> None:
        if not difference.numel():
            return
        if not bool((difference <= bound).all()):
            raise RuntimeError(
                f"fold: {self.name!r} must give what it gave with its norms, up to {bound.max().item():.1e}, got a "
                f"difference of {difference.max().item():.1e} on {where}. The model was not changed."
            )
        if shown:
            self.difference = max(self.difference, difference.max().item())
            self.bound = max(self.bound, bound.max().item())


def compare_outputs(expected: list[Tensor], tried: list[Tensor], found: list[Tensor]) -> tuple[float, float]:
    """The largest difference, and what was allowed, over all outputs; each has an allowance of its own."""
    largest = most = 0.0
    for old, trial, new in zip(expected, tried, found, strict=True):
        difference, allowed = _distance(new, old), SLACK * _distance(trial, old)
        if not difference <= allowed:
            raise RuntimeError(
                f"fold: the outputs on the example must be what they were, up to {allowed:.1e}, got a difference of "
                f"{difference:.1e}. The model was not changed. Does something else use the layers or norms?"
            )
        largest, most = max(largest, difference), max(most, allowed)
    return largest, most


def _distance(one: Tensor, other: Tensor) -> float:
    """Where the second is finite."""
    if not other.numel():
        return 0.0
    return float(torch.where(other.isfinite(), (one - other).abs(), 0.0).max())
