"""Tests of the kernels run on them, also if the environment names another engine."""

import sys
from collections.abc import Iterator

import pytest

from truenorm import engine

pytest.register_assert_rewrite("kernels")


@pytest.fixture(autouse=True)
def on_native() -> Iterator[None]:
    before = engine.engine()
    if "native" in engine.available():
        engine.use("native")
    yield
    engine.use(before)


@pytest.fixture
def on_pool(on_native: None) -> Iterator[None]:
    """The kernels' own pool of threads instead of OpenMP's; threads and instruction set are restored afterwards."""
    from truenorm import _native

    _native.use_openmp(False)
    yield
    engine.set_threads(None)
    _native.use_openmp("truenorm.torch" in sys.modules)
    _native.select_loops("")
