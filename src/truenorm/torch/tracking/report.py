"""What `padded` reports at its end: which layers were given lengths, which were not, and where positions may mix."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch import nn


class PaddingWarning(UserWarning):
    """Some normalization below `padded` read padding.

    Examples:
        >>> import warnings
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> model = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 1), torch.nn.BatchNorm1d(2))  # not converted
        >>> with warnings.catch_warnings(record=True) as caught:
        ...     warnings.simplefilter("always")
        ...     with tnt.padded(lengths=[9, 5]):
        ...         y = model(torch.randn(2, 1, 9))
        >>> caught[0].category is tnt.PaddingWarning
        True
    """


@dataclass(frozen=True)
class PaddedReport:
    """What happened inside a `padded` context. `print(report)` shows a line for each layer and function.

    Args:
        given: converted layers that were given lengths
        not_given: converted layers that were called with tensors of unknown positions
        not_converted: normalizations of torch.nn that average over positions
        mixed: functions that may mix valid positions and padding

    Examples:
        >>> import torch
        >>> import truenorm.torch as tnt
        >>> model = torch.nn.Sequential(torch.nn.Conv1d(1, 2, 1), tnt.BatchNorm1d(2))
        >>> with tnt.padded(lengths=[9, 5]) as tracked:
        ...     y = model(torch.randn(2, 1, 9))
        >>> print(tracked.report)
        1 layer was given lengths
          1
    """

    given: tuple[str, ...]
    not_given: tuple[str, ...]
    not_converted: tuple[str, ...]
    mixed: tuple[str, ...]

    def __str__(self) -> str:
        layers = "layer was" if len(self.given) == 1 else "layers were"
        lines = [f"{len(self.given)} {layers} given lengths", *(f"  {name}" for name in self.given)]
        for title, names in (
            ("without lengths, because its input does not come from the model's input", self.not_given),
            ("not converted, so padding counts in its statistics", self.not_converted),
            ("not followed, so padding may be mixed in", self.mixed),
        ):
            lines += [f"{name}: {title}" for name in names]
        return "\n".join(lines)


class Place:
    """Where something happened, as text when it is asked for: the names of modules are not known without a search."""

    __slots__ = ("_describe",)

    def __init__(self, describe: Callable[[], str]) -> None:
        self._describe = describe

    def __str__(self) -> str:
        return self._describe()


class Notes:
    """What a tracker writes down while a model runs."""

    def __init__(self) -> None:
        self.models: list[nn.Module] = []
        self.given: dict[nn.Module, None] = {}
        self.not_given: dict[nn.Module, None] = {}
        self.not_converted: dict[nn.Module, None] = {}
        self.mixed: dict[tuple[str, nn.Module | None, str], None] = {}
        self.open: list[tuple[Callable[[], bool], tuple[str, nn.Module | None, str]]] = []  # true or not later
        self.count = 0  # how often something was noted
        self._names: dict[nn.Module, str] | None = None

    def place(self, function: str, module: nn.Module | None, why: str) -> Place:
        return Place(partial(self.describe, function, module, why))

    def lost(self, function: str, module: nn.Module | None, why: str) -> Place:
        """Note that a function lost track; returns where."""
        self.count += 1
        self.mixed[function, module, why] = None
        return self.place(function, module, why)

    def lost_if(
        self, differs: Callable[[], bool], numbers: list[Any], function: str, module: nn.Module | None, why: str
    ) -> None:
        """Note a use of numbers of positions, if sequences alone would differ: now, or when the numbers are known."""
        if any(getattr(one, "each", ()) is None for one in numbers):
            self.count += 1
            self.open.append((differs, (function, module, why)))
        elif differs():
            self.lost(function, module, why)

    def report(self) -> PaddedReport:
        def names(modules: Any) -> tuple[str, ...]:
            return tuple(self.name(module) for module in modules)

        found = dict.fromkeys([*self.mixed, *(key for differs, key in self.open if differs())])
        mixed = tuple(self.describe(*one) for one in found)
        return PaddedReport(names(self.given), names(self.not_given), names(self.not_converted), mixed)

    def describe(self, function: str, module: nn.Module | None, why: str) -> str:
        """A function, and the module that called it."""
        place = "" if module is None else f" in {self.quoted(module)}"
        return f"{function}{place}{f' ({why})' if why else ''}"

    def quoted(self, module: nn.Module) -> str:
        """The same for messages: a name in quotes, a class as it is."""
        name, kind = self.name(module), type(module).__name__
        return kind if name == kind else repr(name)

    def name(self, module: nn.Module) -> str:
        """The name of a module in its model, or its class if it is the model."""
        if self._names is None or module not in self._names:
            self._names = {}
            for model in self.models:
                _name_modules(model, "", self._names)
        return self._names.get(module) or type(module).__name__


def _name_modules(module: nn.Module, name: str, names: dict[nn.Module, str]) -> None:
    """The names of `named_modules`, which takes longer: it is also called when nothing is wrong."""
    if module not in names:
        names[module] = name
        for key, one in module._modules.items():
            if one is not None:
                _name_modules(one, f"{name}.{key}" if name else key, names)
