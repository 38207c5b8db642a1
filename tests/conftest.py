"""Set-up of the tests: shared modules, and how many examples are drawn."""

import os
import sys
from collections.abc import Iterator
from typing import Literal

import pytest
from hypothesis import settings

from truenorm import engine

# pyproject.toml puts tests/support on the path. Failed assertions there show their values, as in the tests.
pytest.register_assert_rewrite("patterns", "errors")

from browser import address, browser, chromium, first_page, open_page  # noqa: E402, F401 - fixtures

# No deadline: a busy machine is not a failure. Derandomized: the same code gives the same result everywhere.
settings.register_profile("all", deadline=None, derandomize=True, database=None, max_examples=60)
settings.register_profile("few", settings.get_profile("all"), max_examples=12)
settings.load_profile("all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thin", type=int, default=1, help="take only every n-th combination of the large crosses")


@pytest.fixture
def thin(request: pytest.FixtureRequest) -> int:
    """Large crosses take every thin-th combination: 1 in the tests, more for the mutants."""
    return int(request.config.getoption("--thin"))


@pytest.fixture(autouse=True)
def same_numbers_everywhere() -> None:
    """Layers and tests that draw from torch's global generator get the same numbers in every run and any order."""
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


# All available engines, or the one that the environment names.
ENGINES = [os.environ["TRUENORM_ENGINE"]] if "TRUENORM_ENGINE" in os.environ else list(engine.available())
ON_BOTH = (
    "core.test_along",
    "core.test_oracle",
    "core.test_law",
    "core.test_edges",
    "core.test_degenerate",
    "core.test_packed",
    "core.test_running",
    "lab.test_layers",
)
# Where the nodes of torch's autograd graph are built, with them and with the functions in Python that do the same.
WITH_AND_WITHOUT_NODES = (
    "torch.test_autograd",
    "torch.test_frames",
    "torch.test_hostile_inputs",
    "torch.test_nodes",
    "torch.test_unusual_calls",
)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """The tests of the core run on every available engine, and some of torch's with each kind of autograd."""
    if metafunc.module.__name__.endswith(WITH_AND_WITHOUT_NODES):
        from truenorm.torch import _kernel

        kinds = ["nodes", "without nodes"]
        if "built" in metafunc.fixturenames:  # it is about nodes
            kinds = kinds[:1]
        elif _kernel.nodes is None:
            kinds = kinds[1:]
        metafunc.parametrize("nodes", kinds, indirect=True)
    if metafunc.module.__name__.endswith(ON_BOTH):
        mutated = metafunc.config.getoption("--thin") > 1  # the mutants change the reference
        metafunc.parametrize("on_engine", ["reference"] if mutated else ENGINES, indirect=True)


@pytest.fixture(autouse=True)
def nodes(on_engine: str | None, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether kernels are nodes of torch's autograd graph, or functions in Python.

    It comes after on_engine, so that what a test patches is undone before the engine is.
    """
    if getattr(request, "param", None) == "without nodes":
        monkeypatch.setattr("truenorm.torch._kernel.nodes", None)


# Autouse: pytest ignores a fixture that is only requested while tests are generated.
@pytest.fixture(autouse=True)
def on_engine(request: pytest.FixtureRequest) -> Iterator[str | None]:
    """The engine for one test; None for tests that run on one engine only."""
    name: Literal["native", "reference"] | None = getattr(request, "param", None)
    before = engine.engine()
    if name is not None:
        engine.use(name)
    yield name
    engine.use(before)
