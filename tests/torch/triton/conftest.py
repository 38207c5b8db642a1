"""Tests of the kernels in Triton. They run in a process of their own, which has chosen a device:

    TRUENORM_TRITON=interpreted TRITON_INTERPRET=1    the CPU, in Triton's interpreter: tests/torch/test_triton.py
    TRUENORM_TRITON=cuda                              a GPU, CUDA or HIP: python -m tools.gpu_check

Otherwise they are not collected: the interpreter has to be chosen before Triton is imported.
"""

import os
from collections.abc import Iterator

import pytest

from truenorm import engine

CHOSEN = os.environ.get("TRUENORM_TRITON")
collect_ignore_glob = [] if CHOSEN in ("interpreted", "cuda") else ["test_*.py"]


@pytest.fixture
def device() -> str:
    return "cpu" if CHOSEN == "interpreted" else "cuda"


@pytest.fixture(autouse=True)
def without_compiled_kernels() -> Iterator[None]:
    """On the CPU the kernels in C++ would do the work."""
    before = engine.engine()
    engine.use("reference")
    yield
    engine.use(before)
