"""`fold` makes fixed batch norms part of the Linear, Conv or ConvTranspose next to them, in place.

    connect   which layer reads from which                            connections.py
    plan      which norm goes into which layer, and why others stay   plan.py, other_traces.py
    compute   the folded parameters, and a bound for their error      folded_layer.py
    check     folded layers and outputs against the original          verification.py
    install   the parameters; the norms become nn.Identity            here

If a check fails, or anything raises an error, the model is as it was. A norm stays the same object, only its class
changes, as in `convert`: so all that refers to it, by whatever name, calls the identity. A layer gets new Parameters:
the old ones, which an optimizer or another model may hold, keep their values.
"""

from __future__ import annotations

import contextlib
import operator
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from truenorm.torch.folding.connections import connect, list_tensors, map_tensors
from truenorm.torch.folding.folded_layer import wide
from truenorm.torch.folding.plan import Fold, make_plan
from truenorm.torch.folding.verification import LayerCheck, compare_outputs
from truenorm.torch.reports import Change, check_model, lines_of, lines_of_left, plural
from truenorm.torch.tracking.activation import active

_LAZY = (nn.UninitializedParameter, nn.parameter.UninitializedBuffer)


@dataclass(frozen=True)
class FoldingReport:
    """What `fold` did. `print(report)` shows a line for each batch norm.

    Args:
        folded: the norms that were folded, each with the layer that it went into
        left: those that were left, each with the reason
        difference: the largest difference between a folded layer and the original, on the example
        bound: the largest that rounding can explain: proved, see folded_layer.py
        output_difference: the largest difference between the outputs of the model on the example
        output_bound: what was allowed: ten times what errors as large as the bounds, put in by way of trial, did

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8)).eval()
        >>> report = tnt.fold(model, torch.ones(1, 4, 9))
        >>> len(report.folded), report.difference <= report.bound
        (1, True)
    """

    folded: tuple[Fold, ...]
    left: tuple[Change, ...]
    difference: float = 0.0
    bound: float = 0.0
    output_difference: float = 0.0
    output_bound: float = 0.0

    def __str__(self) -> str:
        lines = [f"{len(self.folded)} batch {plural('norm', len(self.folded))} folded", *lines_of(self.folded)]
        lines += lines_of_left(self.left)
        if self.folded:
            lines += [
                "largest difference on the example",
                f"  folded layers  {self.difference:.1e}, at most {self.bound:.1e} by rounding",
                f"  outputs        {self.output_difference:.1e}, at most {self.output_bound:.1e} expected",
            ]
        return "\n".join(lines)


def fold(model: nn.Module, example: Any) -> FoldingReport:
    """Fold batch norms with fixed statistics into the layers next to them, in place, where that is exact.

    While it traces, other threads must not run models, as torch.fx replaces the calls of all modules for a moment.

    A norm goes into the layer before it, or else into the one after it. Inputs are taken to have as many axes as in
    the example. Either all checks hold or, if an error is raised, the model is as it was. The keys of the norms leave
    `state_dict`, and a layer without a bias gets one.

    Args:
        model: in evaluation mode, or with frozen statistics
        example: an input: a tensor, a tuple of arguments, or a dictionary of keyword arguments

    Returns:
        `FoldingReport`: which norms were folded, which were left, and why

    Examples:
        >>> import torch
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> model = nn.Sequential(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU(), nn.BatchNorm1d(8)).eval()
        >>> print(tnt.fold(model, torch.ones(1, 4, 9)))  # doctest: +ELLIPSIS
        1 batch norm folded
          1  BatchNorm1d  into Conv1d '0'
        1 left as it is
          3  BatchNorm1d  its input comes from ReLU '2'; its output goes to the output of the model
        largest difference on the example
          folded layers  ..., at most ... by rounding
          outputs        ..., at most ... expected
    """
    check_model("fold", model)
    if any(isinstance(one, _LAZY) for one in (*model.parameters(), *model.buffers())):
        raise ValueError("fold: all layers must know their sizes, got lazy ones. Run the model once before.")
    if active.trackers:
        raise RuntimeError(
            "fold: call it outside of padded, got an active context. A folded layer does not set padding to 0."
        )
    with _one_at_a_time:
        return _fold(model, _runner(model, example))


# While torch.fx traces, it replaces the calls of all modules of the process.
_one_at_a_time = threading.RLock()


def _fold(model: nn.Module, run: Callable[[], Any]) -> FoldingReport:
    with _state_kept(model):
        connections = connect(model, run)
        plan, expected = make_plan(model, connections), _numbers(connections.output)
    del connections  # it holds every activation
    if not plan.folded:
        return FoldingReport((), plan.left)
    if not any(bool(one.isfinite().any()) for one in expected):
        raise ValueError("fold: the model must return finite numbers on the example, got none.")
    names = {module: name for name, module in model.named_modules()}
    checks = [LayerCheck(folded, names[folded.layer]) for folded in plan.layers]
    with _state_kept(model), contextlib.ExitStack() as hooks:
        for check in checks:
            check.compare_on_borders()
            check.compare_in_run(hooks)
        tried = _numbers(run())
    with _undone_on_error() as undo:
        for check in checks:
            _install(check, undo)
        with _state_kept(model):
            found = _numbers(run())
        differences = compare_outputs(expected, tried, found)
    largest, bound = max(check.difference for check in checks), max(check.bound for check in checks)
    return FoldingReport(plan.folded, plan.left, largest, bound, *differences)


def _runner(model: nn.Module, example: Any) -> Callable[[], Any]:
    """Runs the model on the example: without gradients, and each time on the same values and random numbers."""
    devices = sorted({one.device.index or 0 for one in model.parameters() if one.device.type == "cuda"})

    def run() -> Any:
        given = map_tensors(dict(example) if isinstance(example, Mapping) else example, Tensor.clone)
        with torch.no_grad(), torch.random.fork_rng(devices):
            torch.default_generator.manual_seed(0)
            if devices:
                torch.cuda.manual_seed_all(0)
            if isinstance(given, dict):
                return model(**given)
            return model(*given) if type(given) in (list, tuple) else model(given)

    return run


def _numbers(output: Any) -> list[Tensor]:
    """The tensors of floating point numbers in what a model returned."""
    return [wide(one) for one in list_tensors(output) if one.is_floating_point() and not one.is_nested]


# ---- the model ----


@contextlib.contextmanager
def _undone_on_error() -> Iterator[list[Callable[[], None]]]:
    """What the caller adds to the list is done if an error is raised."""
    undo: list[Callable[[], None]] = []
    try:
        yield undo
    except BaseException:
        for one in reversed(undo):
            one()
        raise


def _install(check: LayerCheck, undo: list[Callable[[], None]]) -> None:
    """Folded parameters for the layer, and nn.Identity for the norms."""
    layer, old = check.folded.layer, dict(check.folded.layer._parameters)
    undo.append(lambda: layer._parameters.update(old))
    layer._parameters.update(weight=check.new.weight, bias=check.new.bias)
    for norm in (*check.folded.before, *check.folded.after):
        undo.append(_make_identity(norm))


def _make_identity(norm: nn.Module) -> Callable[[], None]:
    own, cls, before = vars(norm), type(norm), dict(vars(norm))

    def undo() -> None:
        own.clear()
        own.update(before)
        norm.__class__ = cls

    own.clear()
    own.update({**vars(nn.Identity()), "training": before["training"]})
    norm.__class__ = nn.Identity
    return undo


@contextlib.contextmanager
def _state_kept(model: nn.Module) -> Iterator[None]:
    """Running and tracing a model may set attributes, fill lists and change buffers: afterwards they are as before."""
    containers: list[Any] = [one for module in model.modules() for one in (vars(module), *vars(module).values())]
    before = [(one, one.copy()) for one in containers if type(one) in (dict, OrderedDict, list, set)]
    values = [(one, one.clone()) for one in model.buffers() if not one.is_meta]
    try:
        yield
    finally:
        for now, old in before:
            if not _same(now, old):
                now.clear()
                (now.extend if isinstance(now, list) else now.update)(old)
        with torch.no_grad():
            for one, value in values:
                if not torch.equal(one, value):
                    one.copy_(value)


def _same(now: Any, old: Any) -> bool:
    """Whether two lists, sets or dictionaries hold the same objects in the same order."""
    if isinstance(now, dict):
        return _same(list(now), list(old)) and _same(list(now.values()), list(old.values()))
    return len(now) == len(old) and all(map(operator.is_, now, old))
