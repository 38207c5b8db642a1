"""Tests of the kernels run on them, also if the environment names another engine."""

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
