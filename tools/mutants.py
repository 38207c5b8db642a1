"""Mutation testing: drop any one term of the mathematics, and a test must fail.

Run as `python tools/mutants.py [words]`; with words, only mutants whose line contains them all.

A mutant is one small change to one place of a module: one term of a sum, one factor, one condition, one side
of a choice. It is put in place of the module by an import hook, in a forked process that has not imported
the library yet, so it works however the library is installed and never touches a file. The tests run there
until the first failure. A mutant that survives is a term that no test covers: write that test, or explain in
EQUIVALENT why the change has no effect.
"""

import ast
import importlib.abc
import importlib.machinery
import importlib.util
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

# Loaded before forking, so that no child has to. The library itself must not be.
import hypothesis
import numpy as np
import pytest

MODULES = ("moments", "inputs", "reference", "mask", "lengths", "packed", "running", "layout", "activation")
_ERRORS = "errors_mask errors_packed errors_pattern errors_moments"
_NAMES = f"{_ERRORS} along packed layout degenerate edges segments law oracle"
TESTS = _NAMES.split()  # quick ones first
TESTS_OF = {  # of these modules, instead of TESTS
    "running": ("running", "errors_moments"),
    "activation": ("activation", "errors_pattern"),
}
ROOT = Path(__file__).resolve().parents[1]
PROCESSES = 2
TIME_LIMIT = 5  # seconds of CPU time for one test: stops a mutant with an endless loop
MEMORY = 6 << 30  # bytes: stops a mutant that fills the memory

# Mutants that compute the same, and why: (module, function, before, after), or a whole function. They are not run.
_MEANS = "np.where(counts > 0, np.stack([part.mean for part in parts]), 0.0)"
_SIZES = "np.where(weight != 0, np.abs(values), 0.0)"
_SCALES = "np.where(largest > LARGE, SCALE, 1.0)"
_SEVERAL = "mask_of_lengths(layout, counts) if several else None"
_SORTED = "None if (np.diff(order) > 0).all() else order"
_CENTERS = "np.where(rstd == 0, 0.0, moments.mean)"
_FAST = "(updated := batch.ema_update(self.mean, self.var, momentum, ddof)) is not None"
EQUIVALENT: dict[tuple[str, ...], str] = {
    ("moments", "merge", _MEANS, "np.stack([part.mean for part in parts])"): "values of weight 0 are not read",
    ("moments", "merge", _MEANS, _MEANS.replace("0.0)", "1.0)")): "values of weight 0 are not read",
    ("moments", "merge", _MEANS, _MEANS.replace(">", ">=")): "values of weight 0 are not read",
    ("moments", "weighted_moments", _SIZES, _SIZES.replace("0.0)", "1.0)")): "1 is not large",
    ("moments", "weighted_moments", "initial=0.0", "initial=1.0"): "1 is not large",
    ("moments", "weighted_moments", _SCALES, _SCALES.replace(">", ">=")): "at the limit both scales are right",
    ("moments", "total", "np.where(weight != 0, of, 0.0)", "np.where(weight != 0, of, 1.0)"): "the weight is 0 there",
    **{
        ("inputs", "__add__", f"self.{name} is None or other.{name} is None", f"{part}.{name} is None"): (
            "checked above: both are None, or neither"
        )
        for name in ("dweight", "dbias")
        for part in ("self", "other")
    },
    ("reference", "backward_sums", "layout.weight_shape or ()", "layout.weight_shape"): "without weight it is not used",
    ("reference", "_xhat", "np.where(masked.valid, xhat, 0.0)", "np.where(masked.valid, xhat, 1.0)"): (
        "dy is 0 there, so any finite number gives the same"
    ),
    ("reference", "_xhat", _CENTERS, _CENTERS.replace("0.0", "1.0")): "multiplied by rstd, which is 0 there",
    ("mask", "unmasked"): "only the compiled kernels use it",
    **{
        ("mask", "mask_input", before, after): "one vector gives the same mask either way; the kernels read the vector"
        for before, after in (
            ("counts.ndim > 1", "counts.ndim >= 1"),
            ("counts.ndim > 1", "counts.ndim > 0"),
            (_SEVERAL, _SEVERAL.removesuffix(" if several else None")),
            ("None if several else counts", "counts"),
        )
    },
    **{
        ("mask", "_mask_rows", before, after): "rows are put into the order that they have: a copy, and the same rows"
        for before, after in (
            (_SORTED, "order"),
            ("np.diff(order) > 0", "np.diff(order) >= 0"),
            ("np.diff(order) > 0", "np.diff(order) > 1"),
        )
    },
    ("running", "update", f"isinstance(momentum, float) and {_FAST}", _FAST): "only the kernels have it",
    ("activation", "_sigmoid", "np.where(z < 0, e, 1.0)", "np.where(z <= 0, e, 1.0)"): "e is 1 there",
}


@dataclass(frozen=True)
class Mutant:
    """The `choice`-th change to the `node`-th node of a module's tree."""

    module: str
    node: int
    choice: int
    function: str
    line: int
    before: str
    after: str

    @property
    def reason(self) -> str | None:
        """Why it is equivalent, if it is."""
        place = (self.module, self.function)
        return EQUIVALENT.get((*place, self.before, self.after)) or EQUIVALENT.get(place)

    def __str__(self) -> str:
        return f"{self.module}.py:{self.line}: {self.function}: {self.before}  ->  {self.after}"


def source_of(module: str) -> Path:
    """The file of a module, found without importing the package."""
    package = importlib.util.find_spec("truenorm")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).parent / "core" / f"{module}.py"


def changes(node: ast.AST) -> list[ast.expr]:
    """What may replace a node: each drops or changes one thing."""
    match node:
        case ast.BinOp(left, ast.Add() | ast.Sub() | ast.Mult() | ast.BitAnd() | ast.BitOr(), right):
            return [left, right]
        case ast.BinOp(left, ast.Div() | ast.Pow()):
            return [left]
        case ast.BoolOp(op, values):
            rest = [[value for value in values if value is not dropped] for dropped in values]
            return [kept[0] if len(kept) == 1 else ast.BoolOp(op, kept) for kept in rest]
        case ast.Compare(left, [operator], [right]):
            return [ast.Compare(left, [OPPOSITE[type(operator)]()], [right])]
        case ast.UnaryOp(ast.Not() | ast.Invert() | ast.USub(), operand):
            return [operand]
        case ast.IfExp(_, body, orelse):
            return [body, orelse]
        case ast.Call(ast.Attribute(ast.Name("np"), "where"), [_, one, other]):
            return [one, other]
        case ast.Call(function, arguments, keywords) if any(word.arg == "where" for word in keywords):
            return [ast.Call(function, arguments, [word for word in keywords if word.arg != "where"])]
        # A copy only costs time, and `strict` guards against what cannot happen.
        case ast.keyword(arg, ast.Constant(bool(value))) if arg not in ("copy", "strict"):
            return [ast.Constant(not value)]
        case ast.Constant(value) if type(value) in (int, float):
            number = 1 if value in (0, 2) else 0
            return [ast.Constant(float(number) if isinstance(value, float) else number)]
    return []


OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}


def code_of(node: ast.AST) -> Iterator[ast.AST]:
    """A node and those below it, without annotations, decorators and the texts of errors."""
    yield node
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list") or isinstance(node, ast.Raise | ast.JoinedStr):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from code_of(child)


def mutants_of(module: str) -> Iterator[Mutant]:
    """All mutants of a module, from top to bottom."""
    tree = parse(module)
    numbers = {node: number for number, node in enumerate(ast.walk(tree))}
    parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    for node in code_of(tree):
        for choice, _ in enumerate(changes(node)):
            # A number or a condition alone means little: show its parent.
            within_call = isinstance(node, ast.Compare) and isinstance(parents[node], ast.Call)
            shown = parents[node] if within_call or isinstance(node, ast.Constant | ast.keyword) else node
            assert isinstance(node, ast.expr | ast.keyword)
            line = node.lineno
            inside = [one.name for one in functions if one.lineno <= line <= (one.end_lineno or 0)]
            changed = list(ast.walk(mutated(module, numbers[node], choice)))[numbers[shown]]
            if inside:
                texts = ast.unparse(shown), ast.unparse(changed)
                yield Mutant(module, numbers[node], choice, inside[-1], line, *texts)


def parse(module: str) -> ast.Module:
    return ast.parse(source_of(module).read_text())


def mutated(module: str, number: int, choice: int) -> ast.Module:
    """The tree of the module with one change to one node. Nodes above it keep their numbers."""
    tree = parse(module)
    target = list(ast.walk(tree))[number]
    change = changes(target)[choice]
    if isinstance(target, ast.keyword):
        target.value = change
        return ast.fix_missing_locations(tree)
    for parent in list(ast.walk(tree)):
        for name, value in ast.iter_fields(parent):
            if value is target:
                setattr(parent, name, change)
            elif isinstance(value, list):
                value[:] = [change if one is target else one for one in value]
    return ast.fix_missing_locations(tree)


class TimeLimit:
    """A plugin: a test that takes too long ends its process. It counts CPU time, so a busy machine does not matter."""

    def pytest_runtest_setup(self) -> None:
        signal.setitimer(signal.ITIMER_VIRTUAL, TIME_LIMIT)


class Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the mutant in place of its module, and no compiled kernels, which would be used instead of it."""

    def __init__(self, mutant: Mutant | None) -> None:
        self.mutant = mutant

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name == "truenorm._native":
            raise ImportError(name)
        if self.mutant is None or name != f"truenorm.core.{self.mutant.module}":
            return None
        file = str(source_of(self.mutant.module))
        return importlib.util.spec_from_file_location(name, file, loader=self)

    def exec_module(self, module: ModuleType) -> None:
        assert self.mutant is not None
        mutant = self.mutant
        tree = mutated(mutant.module, mutant.node, mutant.choice)
        exec(compile(tree, module.__file__ or "", "exec"), module.__dict__)


def start(mutant: Mutant | None) -> int:
    """Runs the tests with a mutant in a new process; returns its id."""
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        if mutant is not None:
            for stream in (1, 2):
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        sys.meta_path.insert(0, Hook(mutant))
        options = ["-x", "-q", "--no-header", "-p", "no:cacheprovider", "-p", "no:xdist"]
        options += ["-W", "ignore:Module already imported"]  # on purpose, above
        options += ["--rootdir", str(ROOT), "--hypothesis-profile=few", "--thin=17"]
        names = TESTS if mutant is None else TESTS_OF.get(mutant.module, TESTS)
        files = [str(ROOT / f"tests/core/test_{name}.py") for name in names]
        status = pytest.main([*options, *files], plugins=[TimeLimit()])
    finally:
        sys.stdout.flush()
        os._exit(int(status))


def finish(running: dict[int, Mutant | None]) -> tuple[Mutant | None, bool]:
    """Waits for one of the processes: its mutant, and whether a test failed."""
    child, status = os.wait()
    return running.pop(child), status != 0


def main(words: Sequence[str]) -> int:
    assert "truenorm" not in sys.modules, "the library is loaded already, so no mutant can replace it"
    _ = hypothesis, np
    _, failed = finish({start(None): None})
    if failed:
        print("The tests fail without any mutant: make them pass first.")
        return 1
    mutants = [mutant for module in MODULES for mutant in mutants_of(module)]
    mutants = [mutant for mutant in mutants if all(word in str(mutant) for word in words)]
    explained = [mutant for mutant in mutants if mutant.reason]
    for mutant in explained:
        print(f"explained: {mutant}  ({mutant.reason})")
    waiting = [mutant for mutant in mutants if not mutant.reason][::-1]
    running: dict[int, Mutant | None] = {}
    survivors = []
    began, total = time.monotonic(), len(waiting)
    for number in range(1, total + 1):
        while waiting and len(running) < PROCESSES:
            mutant = waiting.pop()
            running[start(mutant)] = mutant
        finished, killed = finish(running)
        if not killed:
            survivors.append(finished)
            print(f"survived: {finished}", flush=True)
        if sys.stderr.isatty() or number % 50 == 0:
            progress = f"{number} of {total} mutants, {time.monotonic() - began:.0f} s"
            print(progress, end="\r" if sys.stderr.isatty() else "\n", file=sys.stderr, flush=True)
    alive = len(survivors) + len(explained)
    print(
        f"{len(mutants)} mutants: {len(mutants) - alive} killed, {alive} survived, {len(explained)} of them explained"
    )
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
