"""Every public name is documented: its arguments, and an example that runs as a user would type it."""

from __future__ import annotations

import doctest
import inspect
import re
from typing import Any

import pytest

import truenorm as tn

tnt = pytest.importorskip("truenorm.torch", reason="torch is not installed")

MODULES = {"tn": tn, "tn.running": tn.running, "tnt": tnt, "tnt.functional": tnt.functional}
HIDDEN = ("self", "cls")


def public_names() -> dict[str, Any]:
    """The public classes and functions, by the name that a user writes."""
    found = {}
    for prefix, module in MODULES.items():
        for name in module.__all__:
            if callable(getattr(module, name)):
                found[f"{prefix}.{name}"] = getattr(module, name)
    return found


PUBLIC = public_names()
METHODS = {
    f"{name}.{method}": one
    for name, cls in PUBLIC.items()
    if isinstance(cls, type)
    for method, one in inspect.getmembers(cls, inspect.isroutine)
    if not method.startswith("_") and getattr(one, "__module__", "").startswith("truenorm")
}


def described(text: str) -> set[str]:
    """The arguments that the section `Args:` describes, each with a text of its own."""
    section = re.search(r"^Args:\n((?:    .*\n|\n(?=    ))+)", text + "\n", re.MULTILINE)
    return set() if section is None else set(re.findall(r"^    (\w+): \S", section[1], re.MULTILINE))


def parameters(documented: Any) -> set[str]:
    return set(inspect.signature(documented).parameters).difference(HIDDEN)


def example_in(text: str) -> str:
    """The section `Examples:`, which is the last."""
    return "".join(re.findall(r"^Examples:\n((?:    .*\n|\n(?=    ))+)\Z", text + "\n", re.MULTILINE))


@pytest.mark.parametrize("name", PUBLIC)
def test_arguments_are_described(name: str) -> None:
    if issubclass(PUBLIC[name] if isinstance(PUBLIC[name], type) else object, Warning):
        pytest.skip("a warning is not called by users")
    assert described(inspect.getdoc(PUBLIC[name]) or "") == parameters(PUBLIC[name])


@pytest.mark.parametrize("name", PUBLIC)
def test_the_example_runs_as_it_is_typed(name: str) -> None:
    text = example_in(inspect.getdoc(PUBLIC[name]) or "")
    test = doctest.DocTestParser().get_doctest(text, {}, name, name, 0)
    results = doctest.DocTestRunner().run(test)
    assert results.attempted > 0
    assert results.failed == 0
    used = set(re.findall(r"\w+", text))
    assert {name.split(".")[-1], MADE_BY.get(name)} & used, "the example does not use what it is an example of"


# What users do not make themselves, and what makes it.
MADE_BY = {
    "tnt.ConversionReport": "convert",
    "tnt.FoldingReport": "fold",
    "tnt.ForeignLayer": "to_flax",
    "tnt.PaddedReport": "padded",
    "tn.Moments": "measure",
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_say_what_they_take(name: str) -> None:
    text = inspect.getdoc(METHODS[name]) or ""
    assert text
    if name.endswith(".forward"):
        assert described(text) == parameters(METHODS[name])


def test_what_is_missing_is_noticed() -> None:
    def wrong(a: int, b: int) -> None:
        """One line.

        Args:
            a: the first

        Examples:
            >>> 1 + 1
            2
        """

    text = inspect.getdoc(wrong) or ""
    assert described(text) == {"a"}
    assert parameters(wrong) == {"a", "b"}
    assert described("One line.") == set()
    assert described("Args:\n    a, b: a line that was not filled in") == set()
    assert example_in(text).strip().startswith(">>> 1 + 1")
    assert example_in("No example:\n    >>> 1 + 1") == ""
    assert len(PUBLIC) > 60
    assert {"tn.forward", "tn.running.Convention", "tnt.padded", "tnt.functional.batch_norm"} <= set(PUBLIC)
    assert "tnt.BatchNorm1d.forward" in METHODS


def test_constructors_show_the_arguments_of_torch() -> None:
    from torch import nn

    ours, theirs = inspect.signature(tnt.BatchNorm1d), inspect.signature(nn.BatchNorm1d)
    added = {"padding", "on_single", "half_life", "activation"}
    assert set(ours.parameters) == set(theirs.parameters) | added
    assert ours.bind(8, 1e-3, padding="keep").arguments == {"num_features": 8, "eps": 1e-3, "padding": "keep"}
    for name in ("num_features", "momentum", "affine"):
        assert ours.parameters[name].default == theirs.parameters[name].default


def test_subclasses_have_signatures_of_their_own() -> None:
    base: Any = tnt.BatchNorm1d

    class Fixed(base):
        def __init__(self, channels: int) -> None:
            super().__init__(channels)

    class PassesOn(base):
        def __init__(self, *args: Any, extra: int = 1, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    assert list(inspect.signature(Fixed).parameters) == ["channels"]
    passed = inspect.signature(PassesOn).parameters
    assert {"num_features", "padding", "extra"} <= set(passed)
