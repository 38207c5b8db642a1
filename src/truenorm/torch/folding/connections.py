"""How the layers of a model are connected: a graph made by torch.fx, and a run on an example that must agree with it.

The graph holds for every input, but torch.fx can be misled (`if mask is not None` is true for what it traces with).
The run is what really happens, but on one input only. So both are made, and have to agree: the same layers, in the
same order, and each layer that reads from another gets the very tensor that the other returned.

A model that torch.fx cannot trace is traced in parts: the largest of its modules that can be. Whether a layer of a part
is also called from outside of it is then known from the run.

What a forward stores in its module, as in `self.features = x`, is read by code that no graph shows: it is a node too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from truenorm.torch._layer_bases import _RaggedLayer

LEAVES = (
    nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d,
    nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm, _RaggedLayer,
)  # fmt: skip


@dataclass(eq=False)
class Call:
    """A call of a module in the run."""

    module: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Any = None
    inner: list[Call] = field(default_factory=list)  # the calls that it made


@dataclass(eq=False)
class Trace:
    """A graph of a module: of the calls that it makes on one path through its code."""

    name: str  # of the module
    graph: fx.Graph
    modules: dict[fx.Node, nn.Module]  # that a node calls
    read_from_outside: set[nn.Module]  # modules whose parameters are read from outside of them

    def nodes_of(self, module: nn.Module) -> list[fx.Node]:
        return [node for node in self.graph.nodes if self.modules.get(node) is module]

    def remove(self, node: fx.Node) -> None:
        """The node is the identity from now on."""
        node.replace_all_uses_with(input_of(node))
        self.graph.erase_node(node)


@dataclass(eq=False)
class Part(Trace):
    """A module that could be traced: the model, or one inside of it. The path is that of the example."""

    module: nn.Module
    calls: dict[fx.Node, list[Call]]  # in the run, one for each call of the part

    call: Call  # of the part itself, the first


@dataclass(eq=False)
class Connections:
    parts: list[Part] = field(default_factory=list)
    untraceable: dict[str, str] = field(default_factory=dict)  # name of a module: why it could not be traced
    calls: list[Call] = field(default_factory=list)
    output: Any = None

    def part_of(self, name: str) -> Part | None:
        """The part in which a module is."""
        return next((part for part in self.parts if is_inside(name, part.name)), None)

    def count(self, module: nn.Module) -> int:
        """How often the module was called in the run."""
        return sum(call.module is module for call in self.calls)

    def reason_of(self, name: str) -> str:
        """Why there is no part for this module: that of the innermost module around it."""
        around = [one for one in self.untraceable if is_inside(name, one)]
        return self.untraceable[max(around, key=len)] if around else "not called on the example"


def connect(model: nn.Module, run: Callable[[], Any]) -> Connections:
    """Run the model, trace it, and compare."""
    found = Connections()
    with _recording(model) as found.calls:
        found.output = run()
    by_module: dict[nn.Module, list[Call]] = {}
    for call in found.calls:
        by_module.setdefault(call.module, []).append(call)
    _connect_module(model, "", by_module, found)
    return found


def _connect_module(module: nn.Module, name: str, by_module: dict[nn.Module, list[Call]], found: Connections) -> None:
    calls = by_module.get(module)
    if calls is not None and name and Tracer().is_leaf_module(module, name):
        return  # a graph of one layer says nothing
    if calls is not None:
        try:
            found.parts.append(_trace(module, name, calls))
            return
        except Exception as error:  # anything that the code of the model may raise
            what = type(module).__name__
            text = next(iter(str(error).strip().splitlines()), "")
            found.untraceable[name] = f"{what}.forward cannot be traced: {type(error).__name__}: {text}"
    for child_name, child in module.named_children():
        _connect_module(child, f"{name}.{child_name}" if name else child_name, by_module, found)


# ---- the run ----


@contextlib.contextmanager
def _recording(model: nn.Module) -> Iterator[list[Call]]:
    """The calls of all modules, in the order in which they begin."""
    calls: list[Call] = []
    running: list[Call] = []

    def enter(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call = Call(module, args, kwargs)
        calls.append(call)
        if running:
            running[-1].inner.append(call)
        running.append(call)

    def leave(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        while (call := running.pop()).module is not module:  # calls that ended with an error
            pass
        call.output = output

    handles = []
    try:
        for module in model.modules():
            if not isinstance(module, torch.jit.ScriptModule):
                handles.append(module.register_forward_pre_hook(enter, prepend=True, with_kwargs=True))
                handles.append(module.register_forward_hook(leave, with_kwargs=True))
        yield calls
    finally:
        for handle in handles:
            handle.remove()


# ---- the graph ----


class Tracer(fx.Tracer):
    trace_asserts = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return super().is_leaf_module(m, module_qualified_name) or isinstance(m, LEAVES)


class _Caller(nn.Module):
    """Calls a module as the run did: other tensors, but the same flags, and the same arguments left out."""

    def __init__(self, module: nn.Module, call: Call) -> None:
        super().__init__()
        self.module, self.call = module, call

    def forward(self, *tensors: Tensor) -> Any:
        count = iter(range(1_000_000))
        args, kwargs = map_tensors((self.call.args, self.call.kwargs), lambda _: tensors[next(count)])
        return self.module(*args, **kwargs)


def _trace(module: nn.Module, name: str, calls: list[Call]) -> Part:
    forms = [map_tensors((call.args, call.kwargs), lambda _: Tensor) for call in calls]
    if any(form != forms[0] for form in forms[1:]):
        raise TypeError("it is called in different ways")
    tracer = Tracer()
    trace = trace_call(name, calls[0], tracer)
    part = Part(**vars(trace), module=module, calls={node: [] for node in trace.modules}, call=calls[0])
    for call in calls:
        _compare(part, list(_leaf_calls(call, tracer)))
    remove_identities(part)
    return part


def trace_call(name: str, call: Call, tracer: fx.Tracer) -> Trace:
    """The graph of a module with this name, called like this."""
    caller = _Caller(call.module, call)
    graph = tracer.trace(caller)
    modules = {node: caller.get_submodule(str(node.target)) for node in graph.nodes if node.op == "call_module"}
    reads = [str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"]
    _add_stored(graph, tracer, call.module)
    return Trace(name, graph, modules, {*map(caller.get_submodule, reads)})


def remove_identities(trace: Trace) -> None:
    for node in [node for node, one in trace.modules.items() if type(one) is nn.Identity]:
        trace.remove(node)


def _add_stored(graph: fx.Graph, tracer: fx.Tracer, module: nn.Module) -> None:
    """A node for each value that the forward has stored in an attribute."""
    with graph.inserting_before(next(node for node in graph.nodes if node.op == "output")):
        for one in module.modules():
            for name, value in vars(one).items():
                for proxy in _proxies_in(value):
                    if proxy.tracer is tracer:
                        graph.call_function(_Attribute(name), (proxy.node,))


class _Attribute:
    """Stands for code that reads an attribute of a module, in a graph."""

    def __init__(self, name: str) -> None:
        self.__name__ = f"the attribute {name!r}"

    def __call__(self, value: Any) -> None: ...


def _proxies_in(value: Any) -> Iterator[fx.Proxy]:
    if isinstance(value, fx.Proxy):
        yield value
    elif isinstance(value, dict | list | tuple | set):
        for one in value.values() if isinstance(value, dict) else value:
            yield from _proxies_in(one)


def _compare(part: Part, calls: list[Call]) -> None:
    """The graph against the calls of the run."""
    if [call.module for call in calls] != list(part.modules.values()):
        raise RuntimeError("its layers are called in another order on the example")
    latest = dict(zip(part.modules, calls, strict=True))
    for node, call in latest.items():
        part.calls[node].append(call)
        source = latest.get(input_of(node))
        if source is not None and next(iter((*call.args, *call.kwargs.values()))) is not source.output:
            raise RuntimeError("its layers are connected in another way on the example")


def _leaf_calls(call: Call, tracer: fx.Tracer) -> Iterator[Call]:
    if tracer.is_leaf_module(call.module, ""):
        yield call
        return
    for one in call.inner:
        yield from _leaf_calls(one, tracer)


def input_of(node: fx.Node) -> Any:
    """The node that gives the first argument of a node; None if there is none."""
    first = next(iter((*node.args, *node.kwargs.values())), None)
    return first if isinstance(first, fx.Node) else None


def map_tensors(value: Any, change: Callable[[Tensor], Any]) -> Any:
    """The value with its tensors changed, in tuples, lists and dictionaries."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):  # subclasses, such as the outputs of transformers, have constructors of their own
        found_items = {key: map_tensors(one, change) for key, one in value.items()}
        return found_items if type(value) is dict else value
    if isinstance(value, list | tuple):
        found = [map_tensors(one, change) for one in value]
        return type(value)(*found) if hasattr(value, "_fields") else type(value)(found)
    return value


def list_tensors(value: Any) -> list[Tensor]:
    found: list[Tensor] = []
    map_tensors(value, found.append)
    return found


def is_inside(name: str, around: str) -> bool:
    return not around or name == around or name.startswith(f"{around}.")
