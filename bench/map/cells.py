"""Which cells the speed map has: a sample of the cross of all axes, by a rule and from a fixed seed.

A cell is one value of each axis: layer, rank, rows, width, plane, groups, dtype, memory order, padding, mode. The size
of x, from 2 kB to 64 MB in five steps, follows from these. The whole cross has 176,000 cells that are possible.
`sample` takes them one by one, from each step of the size in turn:

1. Of the pairs of values of two axes (say, GroupNorm and bfloat16) that occur together in a possible cell of this size,
   draw one that the cells so far cover least often. (Not of the groups: GroupNorm would be a third of the map.)
2. Draw `CANDIDATES` such cells with this pair, and take the one whose pairs were covered least often.

So every pair is covered, about equally often, and each beginning of the list is as balanced as it can be: a part of the
map is measured by taking the first cells. No cell is chosen by hand, and none is left out for its result.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

COUNT, SEED = 384, 18
CANDIDATES = 64
BYTES = (2 * 2**10, 64 * 2**20)  # the smallest and the largest x
SIZES = tuple(BYTES[0] * 8**power for power in range(5))  # where the steps of the axis begin
# With fewer samples the shares of padding could not be kept.
LEAST_PADDED_ROWS = 8

AXES: dict[str, tuple[Any, ...]] = {
    "layer": ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm"),
    "rank": (2, 3, 4, 5),
    "rows": (2, 8, 32, 128, 1024, 8192, 65536),
    "width": (16, 40, 100, 256, 640, 1024, 3000, 8192),
    "plane": (1, 7, 20, 49, 196, 500, 1500, 4000),
    "groups": (0, 1, 4, 32),
    "dtype": ("float32", "bfloat16", "float16"),
    "order": ("contiguous", "transposed", "channels_last"),
    "padding": (0, 30, 50, 90),
    "mode": ("training", "evaluation"),
}
RANKS = {"BatchNorm1d": (2, 3), "BatchNorm2d": (4,), "BatchNorm3d": (5,), "InstanceNorm": (3, 4, 5)}  # others: all
BY_POSITION = ("LayerNorm", "RMSNorm")  # channels come last, and each position has statistics of its own
ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
LEVELS = {axis: len(values) for axis, values in AXES.items()} | {"size": len(SIZES)}
COVERED = [number for number, axis in enumerate(LEVELS) if axis != "groups"]  # the axes whose pairs are covered
Indices = NDArray[np.int64]  # one column for each axis of LEVELS


@dataclass(frozen=True)
class Cell:
    """One shape, layer and setting.

    rows     samples, the first axis
    width    channels: the second axis, or the last for layer and RMS norm, which normalize over it
    plane    positions in a sample: one axis in rank 3, two in rank 4, three in rank 5; 1 in rank 2
    groups   of GroupNorm, else 0
    order    of x in memory. transposed: channels first where the layer has them last, and the other way round, as
             `pad_sequence(...).transpose(1, 2)` gives; in rank 2 the transpose of a matrix.
             channels_last: torch's memory format of ranks 4 and 5
    padding  the share of the positions, in percent
    """

    layer: str
    rank: int
    rows: int
    width: int
    plane: int
    groups: int
    dtype: str
    order: str
    padding: int
    mode: str

    @property
    def positions(self) -> tuple[int, ...]:
        """The sizes of the position axes."""
        return equal_factors(self.plane, self.rank - 2)

    @property
    def shape(self) -> tuple[int, ...]:
        if self.layer in BY_POSITION:
            return (self.rows, *self.positions, self.width)
        return (self.rows, self.width, *self.positions)

    @property
    def bytes(self) -> int:
        """Of x."""
        return self.rows * self.width * self.plane * ITEM_BYTES[self.dtype]

    @property
    def size(self) -> int:
        """The largest of SIZES that x reaches."""
        return max(size for size in SIZES if size <= self.bytes)

    @property
    def name(self) -> str:
        """For people, and the key of its result. All axes can be read from it."""
        groups = f"({self.groups})" if self.groups else ""
        shape = "x".join(map(str, self.shape))
        return f"{self.layer}{groups} {shape} {self.dtype} {self.order} {self.padding}% {self.mode}"

    def matches(self, wanted: dict[str, set[str]]) -> bool:
        """Whether each of these axes has one of these values."""
        values = asdict(self)
        return all(str(values[axis]) in allowed for axis, allowed in wanted.items())


def equal_factors(size: int, count: int) -> tuple[int, ...]:
    """`count` factors of `size`, about equal."""
    if count == 0:
        return ()
    if count == 1:
        return (size,)
    first = next(one for one in range(math.ceil(size ** (1 / count) - 1e-9), size + 1) if size % one == 0)
    return (first, *equal_factors(size // first, count - 1))


@lru_cache
def sample(count: int = COUNT, seed: int = SEED) -> tuple[Cell, ...]:
    """The first `count` cells of the map."""
    rng = np.random.default_rng(seed)
    cells = possible_cells()
    covered = Coverage(cells)
    of_size = [cells[cells[:, -1] == step] for step in range(len(SIZES))]
    possible = [covered.all_pairs(some) for some in of_size]
    taken: dict[Cell, None] = {}
    while len(taken) < count:
        step = len(taken) % len(SIZES)
        first, second, one, other = covered.least(possible[step], rng)
        some = of_size[step]
        matching = some[(some[:, first] == one) & (some[:, second] == other)]
        candidates = matching[rng.integers(len(matching), size=CANDIDATES)]
        best = candidates[np.argmax(covered.novelty(candidates))]
        covered.add(best)  # a second time if it was taken before, so that another pair comes next
        taken[cell_at(best)] = None
    return tuple(taken)


class Coverage:
    """How often each pair of values of two axes is covered. A pair has a number."""

    def __init__(self, cells: Indices) -> None:
        sizes = list(LEVELS.values())
        self.axes = list(combinations(COVERED, 2))
        many = [sizes[first] * sizes[second] for first, second in self.axes]
        self.starts = np.cumsum([0, *many])
        self.sizes = np.array([sizes[second] for _, second in self.axes])
        self.counts = np.zeros(self.starts[-1], np.int64)
        self.possible = self.all_pairs(cells)

    def all_pairs(self, cells: Indices) -> Indices:
        """The numbers of the pairs that occur in these cells, each once."""
        found = []
        for number, (first, second) in enumerate(self.axes):
            pairs = cells[:, first] * self.sizes[number] + cells[:, second]
            found.append(self.starts[number] + np.flatnonzero(np.bincount(pairs)))
        return np.concatenate(found)

    def pairs(self, cells: Indices) -> Indices:
        """The numbers of all pairs of these cells."""
        first, second = np.array(self.axes).T
        found: Indices = self.starts[:-1] + cells[..., first] * self.sizes + cells[..., second]
        return found

    def add(self, cell: Indices) -> None:
        self.counts[self.pairs(cell)] += 1

    def novelty(self, cells: Indices) -> NDArray[np.float64]:
        """Larger if a cell's pairs were covered less often; a pair that is new counts most."""
        found: NDArray[np.float64] = (0.125 ** self.counts[self.pairs(cells)]).sum(-1)
        return found

    def least(self, pairs: Indices, rng: np.random.Generator) -> tuple[int, int, int, int]:
        """One of these pairs that was covered least often: two axes and their values."""
        counts = self.counts[pairs]
        pair = int(rng.choice(pairs[counts == counts.min()]))
        number = int(np.searchsorted(self.starts, pair, side="right")) - 1
        value, other = divmod(pair - int(self.starts[number]), int(self.sizes[number]))
        return *self.axes[number], value, other

    def missing(self) -> int:
        """How many possible pairs are not covered."""
        return int((self.counts[self.possible] == 0).sum())


@lru_cache
def possible_cells() -> Indices:
    """All cells that make sense and have an allowed size, as indices into AXES."""
    grids = np.meshgrid(*(np.arange(len(values)) for values in AXES.values()), indexing="ij", sparse=True)
    at = dict(zip(AXES, grids, strict=True))
    value = {axis: np.array(AXES[axis])[at[axis]] for axis in ("rank", "rows", "width", "plane", "groups", "padding")}
    item = np.array([ITEM_BYTES[dtype] for dtype in AXES["dtype"]])[at["dtype"]]

    def is_(axis: str, *names: str) -> NDArray[np.bool_]:
        return np.isin(at[axis], [AXES[axis].index(name) for name in names])

    size = value["rows"] * value["width"] * value["plane"] * item
    ranks = np.array([[rank in RANKS.get(layer, AXES["rank"]) for rank in AXES["rank"]] for layer in AXES["layer"]])
    by_position = is_("layer", *BY_POSITION)
    possible = (
        ranks[at["layer"], at["rank"]]
        & ((value["plane"] == 1) == (value["rank"] == 2))
        & ((value["groups"] > 0) == is_("layer", "GroupNorm"))
        & (value["width"] % np.maximum(value["groups"], 1) == 0)
        # In ranks 4 and 5, channels_last is what moving the channels would give; layer norm has them last anyway.
        & (~is_("order", "transposed") | by_position | (value["rank"] <= 3))
        & (~is_("order", "channels_last") | (~by_position & (value["rank"] >= 4)))
        & ((value["padding"] == 0) | (value["rows"] >= LEAST_PADDED_ROWS))
        & (size >= BYTES[0])
        & (size <= BYTES[1])
    )
    found = np.argwhere(np.broadcast_to(possible, [len(values) for values in AXES.values()]))
    steps = np.searchsorted(SIZES, np.broadcast_to(size, possible.shape)[(*found[:, :-1].T, 0)], "right") - 1
    return np.column_stack([found, steps])


def cell_at(indices: Indices) -> Cell:
    return Cell(**{axis: values[int(index)] for (axis, values), index in zip(AXES.items(), indices[:-1], strict=True)})


def indices_of(cell: Cell) -> Indices:
    """The opposite of `cell_at`."""
    found = [AXES[axis].index(value) for axis, value in asdict(cell).items()]
    return np.array([*found, SIZES.index(cell.size)])
