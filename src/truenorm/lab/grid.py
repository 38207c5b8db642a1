"""Grids: which trials a comparison has. A grid is planned and checked before anything runs.

    Grid("train", {"norm": ("none", "batch"), "lr": (0.1, 0.3), "seed": (0, 1, 2)})

Every option of `Config` can be an axis; an option with one value is the same in all trials. The trials are the cells
of the product, in the order of `Config`; the seed varies fastest.

Some options have a meaning only beside certain values of another one: `norm_at` beside a norm. In a cell without such a
value the option is left out, so that "none" beside before and after is one cell and not two. A cell that is impossible,
such as batch norm with batches of one, is an error that names the cell.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from truenorm.lab.config import Config, applies, make_config, parse_option
from truenorm.lab.measures import MEASURES
from truenorm.lab.networks import make_norm
from truenorm.lab.training import prepare
from truenorm.lab.trial import Trial

MAX_CELLS = 1_000_000

# Options that change neither the shapes of arrays nor the data: cells that differ only in these are checked once.
SAME_SHAPES = {"seed", "lr", "schedule", "steps", "optimizer", "momentum", "init_scale", "activation", "dropout"}
SAME_SHAPES |= {"norm_at", "statistics_over", "ddof"}


@dataclass(frozen=True)
class Grid:
    """A measure, and the values of each option."""

    measure: str
    axes: Mapping[str, tuple[Any, ...]]

    def __len__(self) -> int:
        return sum(1 for _ in self._cells())

    def trials(self) -> Iterator[Trial]:
        """The trials in order, one at a time."""
        for cell in self._cells():
            yield Trial(self.measure, make_config(cell))

    def varied(self) -> list[str]:
        """The options with more than one value, without the seed."""
        return [name for name, values in self.axes.items() if len(values) > 1 and name != "seed"]

    def _cells(self) -> Iterator[dict[str, Any]]:
        first = {name: values[0] for name, values in self.axes.items()}
        for values in itertools.product(*self.axes.values()):
            cell = dict(zip(self.axes, values, strict=True))
            without = [name for name in cell if not applies(name, cell)]
            if all(cell[name] == first[name] for name in without):  # the same cell comes once
                yield {name: value for name, value in cell.items() if name not in without}

    def command_line(self, out: str) -> list[str] | None:
        """The command that makes this grid; None if there is none, as its seeds are not 0, 1, 2 and so on.

        >>> print(*Grid("train", {"norm": ("none", "batch"), "lr": (0.1, 1.0), "seed": (0, 1)}).command_line("out"))
        truenorm compare --norm none,batch --lr 0.1,1.0 --seeds 2 --out out
        """
        seeds = self.axes.get("seed", ())
        if self.measure != "train" or seeds != tuple(range(len(seeds))) or not seeds:
            return None
        words = ["truenorm", "compare"]
        for name, values in self.axes.items():
            if name != "seed":
                words += ["--" + name.replace("_", "-"), ",".join(map(str, values))]
        return [*words, "--seeds", str(len(seeds)), "--out", out]

    def as_dict(self) -> dict[str, Any]:
        return {"measure": self.measure, "axes": {name: list(values) for name, values in self.axes.items()}}

    @classmethod
    def from_dict(cls, content: Any) -> Grid:
        """A grid from `as_dict`; ValueError, TypeError or LookupError if it is something else."""
        axes = {name: tuple(parse_option(name, value) for value in values) for name, values in content["axes"].items()}
        axes = in_order(axes)
        if content["measure"] not in MEASURES:
            raise ValueError(f"measure: one of {', '.join(MEASURES)}, got {content['measure']!r}.")
        grid = cls(content["measure"], axes)
        grid.check_size()
        return grid

    def check_size(self) -> None:
        if not all(self.axes.values()):
            raise ValueError("grid: at least one value of each option, got none.")
        if (size := math.prod(map(len, self.axes.values()))) > MAX_CELLS:
            raise ValueError(f"grid: at most {MAX_CELLS:,} trials, got {size:,}. Leave out values, or split the grid.")


def in_order(axes: Mapping[str, tuple[Any, ...]]) -> dict[str, tuple[Any, ...]]:
    """The axes in the order of `Config`, then the seed: trials and shards do not depend on the order of options."""
    names = [name for name in Config.model_fields if name in axes and name != "seed"]
    return {name: axes[name] for name in [*names, *(["seed"] if "seed" in axes else [])]}


def parse_axis(name: str, text: str) -> tuple[Any, ...]:
    """The values of an option, separated by commas.

    >>> parse_axis("lr", "0.1, 1,3e-2")
    (0.1, 1.0, 0.03)
    """
    values = tuple(parse_option(name, part.strip()) for part in text.split(","))
    for number, value in enumerate(values):
        if value in values[:number]:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option}: different values, got {value} twice. Leave one out.")
    return values


def make_grid(measure: str, axes: Mapping[str, Sequence[Any]]) -> Grid:
    """A grid that was checked: every cell is possible, its data can be read, and its network fits into memory."""
    grid = Grid(measure, in_order({name: tuple(values) for name, values in axes.items()}))
    grid.check_size()
    used: set[str] = set()
    shapes = set()
    for cell in grid._cells():
        used |= cell.keys()
        try:
            config = make_config(cell)
            key = tuple(value for name, value in config.model_dump().items() if name not in SAME_SHAPES)
            if key not in shapes:
                shapes.add(key)
                make_norm(config.for_network(), config.hidden)
                prepare(config)
        except ValueError as error:
            where = " ".join(f"{name}={cell[name]}" for name in grid.varied() if name in cell)
            raise ValueError(f"{f'impossible cell {where}: ' if where else ''}{error}") from None
    for name in grid.axes:
        if name not in used:
            make_config({one: values[0] for one, values in grid.axes.items()})  # says what the option needs
    return grid
