"""What all explanations share: `Step`, one line of a computation, and `StepByStep`, which prints a list of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Part = Literal["forward", "backward", "update"]


@dataclass(frozen=True)
class FiniteDifferences:
    """A gradient beside what it approximates: how the loss changes when single elements change."""

    difference: float  # the largest, over the elements that were tried
    tried: int
    elements: int

    def __str__(self) -> str:
        some = "" if self.tried == self.elements else f" (at {self.tried} of {self.elements} elements)"
        return f"finite differences differ by {self.difference:.0e} at most{some}"


@dataclass(frozen=True, eq=False)
class Step:
    """One line of the computation."""

    part: Part
    name: str
    formula: str
    values: NDArray[Any]
    axes: tuple[str, ...]  # a name for each axis of values
    invalid: NDArray[np.bool_] | None = None  # where the values belong to elements that are not valid
    check: FiniteDifferences | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain data, with None for values that are not valid or not finite."""
        shown = np.isfinite(self.values)
        if self.invalid is not None:
            shown &= ~self.invalid
        values = self.values.astype(object)
        values[~shown] = None
        found = {
            "part": self.part,
            "name": self.name,
            "formula": self.formula,
            "axes": list(self.axes),
            "shape": list(self.values.shape),
            "values": values.tolist(),
        }
        if self.check is not None:
            found["finite_differences"] = {
                "largest_difference": self.check.difference,
                "elements_tried": self.check.tried,
            }
        return found


class StepByStep(ABC):
    """Steps that print as aligned tables, show as HTML in notebooks, and are found by name: `explanation["mean"]`."""

    steps: tuple[Step, ...]
    labels: Mapping[str, Sequence[str]]  # by axis, or by several axes such as "b t"

    @property
    @abstractmethod
    def headline(self) -> str:
        """What is computed, in one line."""

    @property
    @abstractmethod
    def summary(self) -> str:
        """What to know about the input, in one line."""

    def written(self, step: Step) -> tuple[str, str]:
        """Name and formula of a step, as people read them."""
        return step.name, step.formula

    def __getitem__(self, name: str) -> NDArray[Any]:
        for step in self.steps:
            if step.name == name:
                return step.values
        raise KeyError(f"explain: no step {name!r}, only {', '.join(step.name for step in self.steps)}.")

    def __str__(self) -> str:
        from truenorm.explanation.text import as_text  # imported here, as rich is slow to load

        return as_text(self)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from truenorm.explanation.html import as_html

        return as_html(self)
