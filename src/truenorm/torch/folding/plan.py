"""Which batch norm goes into which layer, and why the others stay as they are.

A norm can be folded if its statistics are fixed, and if all that it reads comes from one layer from which nothing else
reads, or all that it returns goes into one layer that reads nothing else. So both may be called several times, if it is
always one with the other, on the path of the example through the model and on all others that are found
(`other_traces.py`). A norm stays if folding it is not seen to be exact.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from torch import fx, nn
from torch.nn.utils import parametrize

from truenorm.torch.folding.connections import Connections, Part, Trace, input_of, is_inside, list_tensors
from truenorm.torch.folding.folded_layer import LAYERS, FoldedLayer, affine_is_defined
from truenorm.torch.folding.other_traces import called_by_methods, other_traces
from truenorm.torch.layers import BatchNorm1d
from truenorm.torch.reports import Change, name_of

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)
FORWARDS = (nn.BatchNorm1d.forward, nn.SyncBatchNorm.forward, BatchNorm1d.forward)
# What a subclass of a layer may define without a change of what the layer computes.
HARMLESS = {"__init__", "__module__", "__doc__", "__repr__", "extra_repr", "reset_parameters", "__annotations__"}
# What Python 3.13 and 3.14 give to every class.
HARMLESS |= {"__firstlineno__", "__static_attributes__", "__annotate_func__", "__annotations_cache__"}


@dataclass(frozen=True)
class Fold(Change):
    """A batch norm that was folded, and the layer that it went into."""

    into: str


@dataclass(frozen=True)
class Plan:
    layers: tuple[FoldedLayer, ...]
    folded: tuple[Fold, ...]
    left: tuple[Change, ...]


def make_plan(model: nn.Module, connections: Connections) -> Plan:
    return _Planner(model, connections).plan()


class _Planner:
    def __init__(self, model: nn.Module, connections: Connections) -> None:
        self.model, self.connections = model, connections
        self.names = {module: name for name, module in model.named_modules()}
        self.all_names: dict[nn.Module, list[str]] = {}  # all names of a module
        for name, module in model.named_modules(remove_duplicate=False):
            self.all_names.setdefault(module, []).append(name)
        self.owners: dict[int, list[str]] = {}  # all names of a parameter
        for module, name in self.names.items():
            for own, one in module.named_parameters(recurse=False, remove_duplicate=False):
                self.owners.setdefault(id(one), []).append(f"{name}.{own}".lstrip("."))
        self.layers: dict[nn.Module, FoldedLayer] = {}
        self.others: dict[Part, list[tuple[str, Trace | str]]] = {}  # of a part, and when they are taken

    @cached_property
    def methods(self) -> dict[nn.Module, str]:
        return called_by_methods(self.model)

    def plan(self) -> Plan:
        norms = [module for module in self.names if isinstance(module, NORMS)]
        folded: dict[nn.Module, Fold] = {}
        left: dict[nn.Module, Change] = {}
        while True:  # a norm may come next to a layer when the one between them is folded
            before = len(folded)
            for norm in [norm for norm in norms if norm not in folded]:
                name, kind, into = self.names[norm], name_of(norm), self._place(norm)
                if isinstance(into, str):
                    left[norm] = Change(name, kind, into)
                else:
                    folded[norm] = Fold(name, kind, f"into {self._called(into)}", self.names[into])
                    left.pop(norm, None)
            if len(folded) == before:
                break
        order = [norm for norm in norms if norm in folded]
        return Plan(tuple(self.layers.values()), tuple(folded[norm] for norm in order), tuple(left.values()))

    def _place(self, norm: Any) -> nn.Module | str:
        """Fold the norm into a neighbour and return that; or return why not."""
        reason = _reason_of_norm(norm)
        if reason is not None:
            return reason
        part = self.connections.part_of(self.names[norm])
        if part is None:
            return self.connections.reason_of(self.names[norm])
        reason = self._reason_of_calls(norm, part, "") or self._reason_of_arguments(norm, part)
        if reason is not None:
            return reason
        reasons = []
        for comes_after in (True, False):
            layer = self._layer_before(norm, part) if comes_after else self._layer_after(norm, part)
            if isinstance(layer, str):
                reasons.append(layer)
                continue
            reason = (
                self._reason_of_layer(layer, part, norm)
                or self._reason_of_hooks(part, layer, norm, part.nodes_of(layer if comes_after else norm))
                or self._reason_of_methods(layer, norm)
                or self._reason_of_other_traces(layer, norm, part, comes_after)
            )
            if reason is not None:
                reasons.append(reason)
                continue
            folded = self.layers.get(layer) or FoldedLayer(layer)
            reason = folded.fold_after(norm) if comes_after else folded.fold_before(norm)
            if reason is None:
                self.layers[layer] = folded
                for trace in (part, *(trace for _, trace in self.others[part] if isinstance(trace, Trace))):
                    for node in trace.nodes_of(norm):
                        trace.remove(node)
                found: nn.Module = layer
                return found
            reasons.append(f"{self._called(layer)} {reason}")
        return "; ".join(reasons)

    def _layer_before(self, norm: nn.Module, trace: Trace) -> Any:
        """The layer from which the norm reads, if nothing else does; or why there is none."""
        sources = [input_of(node) for node in trace.nodes_of(norm)]
        layer = trace.modules.get(sources[0])
        if not isinstance(layer, LAYERS):
            return f"its input comes from {self._source(sources[0], trace)}"
        other = next((source for source in sources if trace.modules.get(source) is not layer), None)
        if other is not None:
            return f"its input also comes from {self._source(other, trace)}"
        for node in trace.nodes_of(layer):
            users = list(node.users)
            other = next((user for user in users if trace.modules.get(user) is not norm), users[1:] and users[1])
            if other:
                return f"the output of {self._called(layer)} also goes to {self._user(other, trace)}"
        return layer

    def _layer_after(self, norm: nn.Module, trace: Trace) -> Any:
        """The layer that reads from the norm, if nothing else does; or why there is none."""
        layer: Any = None
        for node in trace.nodes_of(norm):
            users = list(node.users)
            if len(users) != 1:
                return f"its output is used {len(users)} times"
            layer = layer or trace.modules.get(users[0])
            if trace.modules.get(users[0]) is not layer or not isinstance(layer, LAYERS):
                return f"its output goes to {self._user(users[0], trace)}"
            if len(users[0].args) + len(users[0].kwargs) != 1:
                return f"{self._called(layer)} is called with more than one argument"
            between = node.next
            while between is not users[0] and between.op == "get_attr":
                between = between.next
            if between is not users[0]:  # it may change in place what the norm has read, and the layer would read
                return f"{self._user(between, trace)} comes between it and {self._called(layer)}"
        for node in trace.nodes_of(layer):
            if trace.modules.get(input_of(node)) is not norm:
                return f"the input of {self._called(layer)} also comes from {self._source(input_of(node), trace)}"
        return layer

    # ---- reasons ----

    def _reason_of_layer(self, layer: Any, part: Part, norm: nn.Module) -> str | None:
        called = self._called(layer)
        if parametrize.is_parametrized(layer):
            return f"{called} is parametrized: remove_parametrizations first"
        base = next(one for one in LAYERS if isinstance(layer, one))
        above = type(layer).__mro__[: type(layer).__mro__.index(base)]
        changed = {name for cls in above for name in vars(cls) if hasattr(base, name)} - HARMLESS
        if changed or "forward" in vars(layer):
            return f"{called} is not torch's own {base.__name__}"
        if _has_hooks(layer):
            return f"{called} has hooks"
        if type(layer.weight) is not nn.Parameter or layer.weight.is_meta or not layer.weight.is_floating_point():
            return f"{called} has a weight that is not a parameter of floating point numbers"
        for one in layer.parameters(recurse=False):
            if len(self.owners[id(one)]) > 1:
                return f"{called} shares a parameter: {', '.join(self.owners[id(one)])}"
        axes = 2 + len(getattr(layer, "kernel_size", ()))
        calls = [call for node in part.nodes_of(norm) for call in part.calls[node]]
        for call in calls:
            shape = tuple(list_tensors((call.args, call.kwargs))[0].shape)
            if len(shape) != axes:  # channels are axis 1 of a norm, and the last of a Linear
                return f"{called} has its channels on another axis: the norm reads {shape}"
        return self._reason_of_calls(layer, part, f"{called} is ")

    def _reason_of_calls(self, module: nn.Module, part: Part, called: str) -> str | None:
        """Why not all uses of a module are known."""
        nodes = part.nodes_of(module)
        if not nodes:
            return f"{called}not called on the example"
        around = self.all_names[part.module]
        known = all(any(is_inside(path, one) for one in around) for path in self.all_names[module])
        if not known or sum(len(part.calls[node]) for node in nodes) != self.connections.count(module):
            return f"{called}also used outside of {part.name!r}, the largest part that can be traced"
        return f"{called}used by other code, which reads its parameters" if module in part.read_from_outside else None

    def _reason_of_arguments(self, norm: nn.Module, trace: Trace) -> str | None:
        parameters = list(inspect.signature(type(norm).forward).parameters)[1:]  # without self
        for node in trace.nodes_of(norm):
            named = dict(zip(parameters, node.args, strict=False)) | node.kwargs
            given = [name for name in named if name != "input"]
            if given:
                return f"called with {', '.join(given)}: a folded layer does not set padding to 0"
        return None

    def _reason_of_hooks(self, part: Part, layer: Any, norm: nn.Module, nodes: list[fx.Node]) -> str | None:
        """Whether a module around layer or norm has hooks that see what is between them."""
        between = {id(call.output) for node in nodes for call in part.calls[node]}
        for call in self.connections.calls:
            if call.module in (layer, norm) or not _has_hooks(call.module):
                continue
            if any(id(one) in between for one in list_tensors((call.args, call.kwargs, call.output))):
                return f"hooks of {self._called(call.module)} see what is between it and {self._called(layer)}"
        return None

    def _reason_of_methods(self, layer: Any, norm: nn.Module) -> str | None:
        for module, called in ((layer, self._called(layer)), (norm, "it")):
            if module in self.methods:
                return f"{called} is also called by {self.methods[module]}, which the forward does not use"
        return None

    def _reason_of_other_traces(self, layer: Any, norm: nn.Module, part: Part, comes_after: bool) -> str | None:
        """Why layer and norm do not belong together on every path through the part."""
        if part not in self.others:
            self.others[part] = list(other_traces(part))
        for when, trace in self.others[part]:
            reason = trace if isinstance(trace, str) else self._reason_of_trace(layer, norm, trace, comes_after)
            if reason is not None:
                return f"{reason}, {when}"
        return None

    def _reason_of_trace(self, layer: Any, norm: nn.Module, trace: Trace, comes_after: bool) -> str | None:
        missing = [not trace.nodes_of(one) for one in (layer, norm)]
        if any(missing):
            called = self._called(layer)
            text = f"it is called without {called}" if missing[0] else f"{called} is called without it"
            return None if all(missing) else text
        found = self._layer_before(norm, trace) if comes_after else self._layer_after(norm, trace)
        if found is not layer:
            return found if isinstance(found, str) else f"it belongs to {self._called(found)}"
        if layer in trace.read_from_outside or norm in trace.read_from_outside:
            return "other code reads their parameters"
        return self._reason_of_arguments(norm, trace)

    # ---- words ----

    def _called(self, module: nn.Module) -> str:
        return f"{name_of(module)} {self.names[module]!r}"

    def _source(self, node: fx.Node | None, trace: Trace) -> str:
        from_outside = node is not None and node.op == "call_function" and _is_placeholder(input_of(node))
        if node is None or from_outside:
            return f"the input of {trace.name!r}" if trace.name else "the input of the model"
        return self._user(node, trace)

    def _user(self, node: fx.Node, trace: Trace) -> str:
        if node in trace.modules:
            return self._called(trace.modules[node])
        if node.op == "output":
            return f"the output of {trace.name!r}" if trace.name else "the output of the model"
        return str(getattr(node.target, "__name__", node.target))


def _is_placeholder(node: fx.Node | None) -> bool:
    return node is not None and node.op == "placeholder"


def _reason_of_norm(norm: Any) -> str | None:
    if type(norm).forward not in FORWARDS or type(norm).__call__ is not nn.Module.__call__:
        return "a batch norm with a forward of its own"
    if "forward" in vars(norm):
        return "its forward was replaced on the instance"
    if norm.training and not getattr(norm, "frozen", False):
        return "in training mode: its statistics are those of each batch. Call model.eval() first"
    if norm.running_mean is None or norm.running_var is None:
        return "without running statistics: its statistics are those of each batch"
    if parametrize.is_parametrized(norm):
        return "parametrized: remove_parametrizations first"
    if getattr(norm, "activation", None) is not None:
        return "has an activation: use a layer of its own for that"
    if _has_hooks(norm):
        return "has hooks"
    return None if affine_is_defined(norm) else "a variance plus eps is not above 0"


def _has_hooks(module: nn.Module) -> bool:
    return any(name.endswith("_hooks") and value for name, value in vars(module).items())
