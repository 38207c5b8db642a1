"""What a function did to the layers of a model: a line for each that was changed, and for each that was left, and why.

`convert`, `freeze`, `sync` and their opposites return a `ConversionReport`, `fold` one of its own with the same lines.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from truenorm.torch._layer_bases import _RaggedLayer


@dataclass(frozen=True)
class Change:
    """A layer of a model: its name, its class, and what was done to it, or why it was left."""

    name: str
    layer: str
    outcome: str


@dataclass(frozen=True)
class ConversionReport:
    """What `convert`, `freeze`, `sync` or one of their opposites did. `print(report)` shows a line for each layer.

    Args:
        verb: what was done: "converted"
        changed: the layers that were changed, each with its name, its class and the outcome
        left: those that were left, each with the reason as outcome

    Examples:
        >>> from torch import nn
        >>> import truenorm.torch as tnt
        >>> report = tnt.convert(nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8)))
        >>> [(change.name, change.outcome) for change in report.changed]
        [('1', 'truenorm.BatchNorm1d')]
    """

    verb: str
    changed: tuple[Change, ...]
    left: tuple[Change, ...]

    def __str__(self) -> str:
        lines = [f"{len(self.changed)} normalization {plural('layer', len(self.changed))} {self.verb}"]
        return "\n".join([*lines, *lines_of(self.changed), *lines_of_left(self.left)])


def check_model(who: str, model: object) -> None:
    if not isinstance(model, nn.Module):
        raise TypeError(f"{who}: model must be a torch.nn.Module, got {type(model).__name__}.")


def name_of(layer: nn.Module) -> str:
    name = getattr(layer, "original_name", type(layer).__name__)
    return f"truenorm.{name}" if isinstance(layer, _RaggedLayer) else str(name)


def plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def lines_of(changes: tuple[Change, ...]) -> Iterator[str]:
    names = [change.name or "(the model)" for change in changes]
    widths = [max(map(len, column), default=0) for column in (names, [change.layer for change in changes])]
    for name, change in zip(names, changes, strict=True):
        yield f"  {name:<{widths[0]}}  {change.layer:<{widths[1]}}  {change.outcome}"


def lines_of_left(left: tuple[Change, ...]) -> Iterator[str]:
    """With a heading; nothing if nothing was left."""
    if left:
        yield f"{len(left)} left as {'it is' if len(left) == 1 else 'they are'}"
        yield from lines_of(left)
