"""How a pattern meets a shape: one canonical form for every normalization.

`Layout` splits composed axes, gives every axis its size, and arranges them in five groups:

    outer x reduced x kept x channels x positions
    kept    reduced   kept   reduced    reduced

The axes of a group are all averaged over or all kept. `weight` covers `kept` and `channels` and is constant along the
other groups. A group without axes has size 1. One loop nest serves every normalization:

    batch, channels last      1 x N x C x 1 x 1        group, channels last      N x T x G x C/G x 1
    batch, channels second    1 x N x C x 1 x L        group, channels second    N x 1 x G x C/G x L
    layer, RMS             rows x 1 x 1 x C x 1        instance, channels last   N x T x C x 1   x 1

A statistic has an index (outer, kept) and covers (reduced, channels, positions). A pattern whose axes do not come in
this order has to be transposed once: see `order`. The indexing is written out in `docs/canonical-form.md`.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import count
from numbers import Integral
from typing import TYPE_CHECKING, Any

from truenorm.core.pattern import ELLIPSIS, PatternAxis, PatternError, Piece

if TYPE_CHECKING:
    from truenorm.core.norm import Norm

Shape = tuple[int, ...]
AxisGroups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Axis:
    """One axis after splitting. `source` is the axis of x that it comes from."""

    name: str
    size: int
    reduced: bool
    weighted: bool
    source: int


@dataclass(frozen=True)
class Layout:
    """A normalization of one shape. Axes are numbered after splitting, in the order of x.

    >>> import truenorm as tn
    >>> layout = tn.group(2, "second").view((8, 6, 5))
    >>> layout.split, layout.reduced, layout.statistics, layout.canonical
    ((8, 2, 3, 5), (2, 3), (8, 2), (8, 1, 2, 3, 5))
    """

    shape: Shape
    axes: tuple[Axis, ...]
    channel: int | None
    weight_shape: Shape | None

    @cached_property
    def split(self) -> Shape:
        """The shape of x with composed axes split."""
        return tuple(axis.size for axis in self.axes)

    @cached_property
    def reduced(self) -> tuple[int, ...]:
        """The axes that share one mean and variance."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.reduced)

    @cached_property
    def statistics(self) -> Shape:
        """The shape of mean, m2 and count: the axes that are kept."""
        return tuple(axis.size for axis in self.axes if not axis.reduced)

    @cached_property
    def statistics_split(self) -> Shape:
        """The same with size 1 for the other axes: broadcasts against x."""
        return tuple(1 if axis.reduced else axis.size for axis in self.axes)

    @cached_property
    def weight_split(self) -> Shape:
        """The shape of weight with size 1 for the other axes: broadcasts against x."""
        return tuple(axis.size if axis.weighted else 1 for axis in self.axes)

    @cached_property
    def mask_shape(self) -> Shape | None:
        """The shape of x with size 1 for the axes that weight covers; None if it covers a part of an axis of x."""
        covered = {axis.source for axis in self.axes if axis.weighted}
        if any(axis.source in covered and not axis.weighted for axis in self.axes):
            return None
        return tuple(1 if i in covered else size for i, size in enumerate(self.shape))

    @cached_property
    def unweighted(self) -> tuple[int, ...]:
        """The axes that the gradients of weight and bias are summed over."""
        return tuple(i for i, axis in enumerate(self.axes) if not axis.weighted)

    @property
    def positions(self) -> Shape:
        """The shape of x without its channel axis."""
        return tuple(size for i, size in enumerate(self.shape) if i != self.channel)

    def find(self, name: str) -> int | None:
        """The axis of this name."""
        return next((i for i, axis in enumerate(self.axes) if axis.name == name), None)

    @cached_property
    def position_axes(self) -> tuple[int, ...]:
        """The axes besides the batch axis b and the channel axis."""
        return tuple(i for i, axis in enumerate(self.axes) if axis.source != self.channel and axis.name != "b")

    @cached_property
    def ragged_axis(self) -> int | None:
        """The axis that `lengths` run along: t, or the only position axis besides b. None if that is not clear."""
        t = self.find("t")
        if t is None and self.find("b") is not None and len(self.position_axes) == 1:
            return self.position_axes[0]
        return t

    def spread(self, shape: Shape) -> Shape:
        """The split shape of an array with x's rank whose axes are x's or 1."""
        return tuple(axis.size if shape[axis.source] == self.shape[axis.source] else 1 for axis in self.axes)

    @cached_property
    def axis_groups(self) -> AxisGroups:
        """The axes in each of the five groups."""
        return _neighbours(self.axes) or _sorted(self.axes)

    @cached_property
    def canonical(self) -> Shape:
        """The sizes of the five groups."""
        return tuple(math.prod(self.axes[i].size for i in group) for group in self.axis_groups)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """The axes in the order of the groups: x has to be transposed to it where it is not 0, 1, 2, ..."""
        return tuple(i for group in self.axis_groups for i in group)

    @cached_property
    def transposed(self) -> bool:
        """Whether the axes are not in the order of the groups."""
        return self.order != tuple(range(len(self.axes)))


def check_sizes(norm: Norm) -> None:
    """Raises an error unless the sizes of a normalization fit its pattern."""
    known = [name for axis in norm.axes for name in axis.names]
    for name, size in norm.sizes.items():
        if name not in known or name == ELLIPSIS:
            raise ValueError(
                f"Norm: unknown axis {name!r} in sizes, got pattern {norm.pattern!r}. "
                f"Its axes are: {', '.join(name for name in known if name != ELLIPSIS)}."
            )
        if not isinstance(size, Integral) or isinstance(size, bool) or size < 1:
            raise ValueError(
                f"Norm: the size of axis {name!r} must be an integer >= 1, got {size!r}. "
                f"Write it like sizes={{{name!r}: 8}}."
            )
    for axis in norm.axes:
        unknown = [name for name in axis.names if name not in norm.sizes]
        if len(unknown) > 1:
            fix = f"Give the sizes of the others, such as sizes={{{unknown[0]!r}: 8}}."
            rule = f"only one piece of a composed axis may have no size, not {' and '.join(unknown)}"
            raise PatternError(rule, norm.pattern, axis.start, axis.stop, fix)


def check_shape(shape: tuple[Any, ...]) -> Shape:
    """The shape with plain integers; raises an error for other sizes."""
    if any(not isinstance(size, Integral) or isinstance(size, bool) or size < 0 for size in shape):
        raise ValueError(f"Norm: a shape must hold integers >= 0, got {shape}. Pass x.shape.")
    return tuple(int(size) for size in shape)


@lru_cache(maxsize=512)
def layout_of(norm: Norm, shape: Shape) -> Layout:
    """`Norm.view`: gives each named axis its size."""
    shape = tuple(shape)  # a torch.Size is equal to it, and would be found and shown in its place
    hidden = len(shape) - sum(not axis.hidden for axis in norm.axes)
    written = [axis for axis in norm.axes for _ in range(hidden if axis.hidden else 1)]
    if len(written) != len(shape):
        least = "at least " if any(axis.hidden for axis in norm.axes) else ""
        needed = sum(not axis.hidden for axis in norm.axes)
        raise ValueError(
            f"Norm: {norm.pattern!r} names {least}{needed} axes, got shape {shape} with {len(shape)}. "
            "Name every axis of x once; '...' stands for any number."
        )
    channel = next((i for i, axis in enumerate(written) if axis is norm.channel), None)
    weighted = {name for names in norm.affine_axes for name in names}
    axes: list[Axis] = []
    for source, (axis, name) in enumerate(zip(written, _names_of_hidden(norm, written, channel), strict=True)):
        sizes = _piece_sizes(norm, axis, shape[source])
        for piece, size in zip(axis.pieces, sizes, strict=True):
            axes.append(Axis(name or piece.name, size, piece.reduced, piece.name in weighted, source))
    size_of = {axis.name: axis.size for axis in axes}
    weight_shape = tuple(math.prod(size_of[name] for name in names) for names in norm.affine_axes)
    return Layout(shape, tuple(axes), channel, weight_shape or None)


def write_out(norm: Norm, rank: int) -> tuple[PatternAxis, ...]:
    """The axes of a pattern for x of this rank, with names for those that '...' stands for."""
    hidden = rank - sum(not axis.hidden for axis in norm.axes)
    written = [axis for axis in norm.axes for _ in range(hidden if axis.hidden else 1)]
    channel = next((i for i, axis in enumerate(written) if axis is norm.channel), None)
    return tuple(
        replace(axis, pieces=(Piece(name, axis.pieces[0].reduced),)) if name else axis
        for axis, name in zip(written, _names_of_hidden(norm, written, channel), strict=True)
    )


def _names_of_hidden(norm: Norm, written: list[PatternAxis], channel: int | None) -> list[str]:
    """Names for the axes of '...': b is the first axis, t the only other position axis."""
    taken = {piece.name: axis for axis in norm.axes for piece in axis.pieces}
    spare = [next(name for name in _spare_names(i) if name not in taken) for i in range(len(written))]
    names = [spare[i] if axis.hidden else "" for i, axis in enumerate(written)]
    if names and names[0] and "b" not in taken:
        names[0] = "b"
    others = [i for i, axis in enumerate(written) if i != channel and axis is not taken.get("b") and names[i] != "b"]
    if len(others) == 1 and names[others[0]] and "t" not in taken:
        names[others[0]] = "t"
    return names


def _spare_names(i: int) -> Iterator[str]:
    """p1, p_1, p__1, ... for axis 1."""
    return (f"p{'_' * extra}{i}" for extra in count())


def _piece_sizes(norm: Norm, axis: PatternAxis, size: int) -> list[int]:
    """The sizes of the pieces of an axis. At most one of them is not in `norm.sizes`."""
    given = [norm.sizes.get(piece.name) for piece in axis.pieces]
    known = math.prod(one for one in given if one is not None)
    fits = size % known == 0 if None in given else size == known
    if not fits:
        wanted = ", ".join(f"{name}={norm.sizes[name]}" for name in (p.name for p in axis.pieces) if name in norm.sizes)
        rule = f"an axis of size {size} does not fit {wanted}"
        raise PatternError(rule, norm.pattern, axis.start, axis.stop, "Change the size, or the shape of x.")
    return [size // known if one is None else one for one in given]


# For each group: whether it is averaged over, and whether weight covers it.
_KINDS = ((False, False), (True, False), (False, True), (True, True), (True, False))


def _neighbours(axes: tuple[Axis, ...]) -> AxisGroups | None:
    """The five groups if each consists of neighbouring axes: filled from the right, as far right as they go."""
    groups: list[list[int]] = [[], [], [], [], []]
    last = 4
    for i in reversed(range(len(axes))):
        kind = (axes[i].reduced, axes[i].weighted)
        fitting = [slot for slot in range(last + 1) if _KINDS[slot] == kind]
        if not fitting:
            return None
        last = fitting[-1]
        groups[last].insert(0, i)
    return tuple(tuple(group) for group in groups)


def _sorted(axes: tuple[Axis, ...]) -> AxisGroups:
    """The five groups of any pattern, by kind: x has to be transposed to that order."""
    groups = [tuple(i for i, axis in enumerate(axes) if (axis.reduced, axis.weighted) == kind) for kind in _KINDS[:4]]
    return (*groups, ())
