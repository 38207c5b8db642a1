"""Other paths through a module than that of the example, on which a norm and its layer must stay together as well.

    arguments   each flag and optional argument of the forward is traced as a symbol, on both sides of every condition;
                a tensor that may be left out is also left out
    training    `if self.training`: with the other value
    methods     of the model that call a layer, and that no forward uses. They are read, not run

Not found are attributes other than `training` that are changed later, conditions on the type of an argument
(`isinstance(x, str)`), and code outside of the model.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import textwrap
from collections.abc import Iterator
from types import CodeType, FunctionType
from typing import Any

import torch
from torch import fx, nn
from torch.fx.proxy import TraceError

from truenorm.torch.folding.connections import Call, Part, Trace, Tracer, list_tensors, remove_identities, trace_call

MOST_TRACES = 16  # of one argument, and conditions on one path
REFUSALS = (ValueError, NotImplementedError, AssertionError)  # how code refuses an argument: no path leads through it


def other_traces(part: Part) -> Iterator[tuple[str, Trace | str]]:
    """When another path is taken, and its trace; or why it is not known."""
    for when, call in _other_calls(part.call):
        yield from ((when, trace) for trace in _traces(part, call))
    with _other_mode(part.module):
        yield from (("in the other training mode", trace) for trace in _traces(part, part.call))


def _other_calls(call: Call) -> Iterator[tuple[str, Call]]:
    try:
        signature = inspect.signature(call.module.forward)
        bound = signature.bind(*call.args, **call.kwargs)
    except (TypeError, ValueError):  # a forward that only calls itself right
        return
    bound.apply_defaults()
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    flags = []
    for name, parameter in signature.parameters.items():
        if parameter.kind in variable:
            continue
        if not list_tensors(bound.arguments[name]):
            flags.append(name)
            yield f"for another {name!r}", _changed(call, bound, {name: torch.empty(0)})
        elif parameter.default is not inspect.Parameter.empty:
            yield f"without {name!r}", _changed(call, bound, {name: parameter.default})
    if len(flags) > 1:
        names = ", ".join(map(repr, flags))
        yield f"for other {names}", _changed(call, bound, dict.fromkeys(flags, torch.empty(0)))


def _changed(call: Call, bound: inspect.BoundArguments, values: dict[str, Any]) -> Call:
    """The call with other values of some arguments. Every tensor becomes a symbol."""
    other = inspect.BoundArguments(bound.signature, bound.arguments | values)
    return Call(call.module, other.args, other.kwargs)


@contextlib.contextmanager
def _other_mode(module: nn.Module) -> Iterator[None]:
    tracer = Tracer()
    changed = [one for one in module.modules() if not tracer.is_leaf_module(one, "")]
    for one in changed:
        one.training = not one.training
    try:
        yield
    finally:
        for one in changed:
            one.training = not one.training


# ---- both sides of every condition ----


class _BranchingTracer(Tracer):
    """Answers the conditions on symbols as it is given, and those behind with True."""

    def __init__(self, answers: list[bool]) -> None:
        super().__init__()
        self.answers, self.asked = answers, 0

    def to_bool(self, obj: fx.Proxy) -> bool:
        if self.asked == MOST_TRACES:
            raise TraceError(f"it has more than {MOST_TRACES} conditions")
        if self.asked == len(self.answers):
            self.answers.append(True)
        self.asked += 1
        return self.answers[self.asked - 1]


def _traces(part: Part, call: Call) -> Iterator[Trace | str]:
    answers: list[bool] = []
    for _ in range(MOST_TRACES):
        try:
            trace = trace_call(part.name, call, _BranchingTracer(answers))
            remove_identities(trace)
            yield trace
        except Exception as error:  # anything that the code of the model may raise
            if isinstance(error, TraceError) or not isinstance(error, REFUSALS):
                text = next(iter(str(error).strip().splitlines()), "")
                yield f"{type(call.module).__name__}.forward cannot be traced: {type(error).__name__}: {text}"
                return
        while answers and not answers[-1]:
            answers.pop()
        if not answers:
            return
        answers[-1] = False
    yield f"{type(call.module).__name__}.forward has more than {MOST_TRACES} paths"


# ---- methods ----


def called_by_methods(model: nn.Module) -> dict[nn.Module, str]:
    """Modules that are called by methods which no forward uses, with the name of such a method."""
    functions = {module: dict(_functions(type(module))) for module in model.modules()}
    used, new = set[str](), {"forward"}
    while new:
        used |= new
        names = [
            _names(functions[module][name].__code__) for module in functions for name in new & {*functions[module]}
        ]
        new = set[str]().union(*names) - used
    found: dict[nn.Module, str] = {}
    for module, own in functions.items():
        for name, function in own.items():
            if name not in used and not name.startswith("__") and {*module._modules} & _names(function.__code__):
                for path in _called_paths(function):
                    for one in _follow(module, path):
                        found.setdefault(one, f"{type(module).__name__}.{name}")
    return found


def _functions(cls: type) -> Iterator[tuple[str, FunctionType]]:
    """Methods and properties by name, without those of torch's own classes."""
    for one in reversed(cls.__mro__):
        if not one.__module__.startswith(("torch.", "truenorm.", "builtins")):
            for name, value in vars(one).items():
                function = value.fget if isinstance(value, property) else value
                if isinstance(function, FunctionType):
                    yield name, function


def _names(code: CodeType) -> set[str]:
    """All names of attributes and globals in a function, and in those inside of it."""
    inner = [_names(one) for one in code.co_consts if isinstance(one, CodeType)]
    return {*code.co_names}.union(*inner)


AttributePath = tuple[str | int | None, ...]  # attributes and indices from self on; None: some index


def _called_paths(function: FunctionType) -> list[AttributePath]:
    """What a method calls: self.conv(x), self.body[0](x), and variables that come from self.body."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
    except (OSError, TypeError, SyntaxError):  # there is no source
        return []
    this = function.__code__.co_varnames[:1]
    nodes = list(ast.walk(tree))
    calls = [node.func for node in nodes if isinstance(node, ast.Call)]
    found = [_path(one, this) for one in calls]
    called = {one.id for one in calls if isinstance(one, ast.Name)}
    for node in nodes:
        source: ast.expr | None = None
        targets: list[ast.expr] = []
        step: AttributePath = ()
        if isinstance(node, ast.For | ast.comprehension):
            source, targets, step = node.iter, [node.target], (None,)
        elif isinstance(node, ast.Assign):
            source, targets = node.value, node.targets
        names = {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}
        if source is not None and names & called:
            paths = [_path(one, this) for one in ast.walk(source)]
            found += [(*path, *step) for path in paths if path]
    return [path for path in found if path]


def _path(node: ast.AST, this: tuple[str, ...]) -> AttributePath | None:
    """self.body[0] as ("body", 0); None if it does not begin with self."""
    if isinstance(node, ast.Name):
        return () if node.id in this else None
    if isinstance(node, ast.Attribute | ast.Subscript):
        before = _path(node.value, this)
        if before is None:
            return None
        if isinstance(node, ast.Attribute):
            return (*before, node.attr)
        index = node.slice.value if isinstance(node.slice, ast.Constant) else None
        return (*before, index if isinstance(index, int | str) else None)
    return None


def _follow(module: nn.Module, path: AttributePath) -> list[nn.Module]:
    """The modules at this path: none if it leads to something else."""
    found = [module]
    for step in path:
        children = [{name: child for name, child in one._modules.items() if child is not None} for one in found]
        if step is None:
            found = [child for one in children for child in one.values()]
        else:
            found = [one[str(step)] for one in children if str(step) in one]
    return found if path else []
