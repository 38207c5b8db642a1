"""Properties that are computed once. Those of functools take a lock before Python 3.12, and twice the time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class cached_property(Generic[T]):  # noqa: N801 - like the one of functools
    """The value is kept in the dictionary of the instance, which comes before this."""

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self.compute, self.__doc__ = compute, compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type | None = None) -> T:
        value = vars(instance)[self.name] = self.compute(instance)
        return value
