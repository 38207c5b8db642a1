"""The number of threads for matrix products."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from threadpoolctl import threadpool_limits


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Compute matrix products on one thread, so that the bits do not depend on the number of cores.

    The products of the lab are small: with two threads a step of the padded classifier takes three times as long as
    with one, ten times on a busy machine, because the threads wait for each other.
    """
    with threadpool_limits(1, user_api="blas"):
        yield
