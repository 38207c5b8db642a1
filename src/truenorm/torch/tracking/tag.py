"""What is known of a tensor inside `padded`: which positions of it are valid. A value that knows no tensor.

Each axis of the tensor is a product of factors, so that views can be followed: (b * heads, t, c) is three axes and four
factors. A factor is one of

    batch     a sequence each; one factor of a tag at most
    ragged    positions, of which the first lengths[i] are valid in sequence i, or those of a mask with gaps (`Gaps`)
    plain     anything else: channels, heads
    open      as many as there are positions, but made of a tensor that had none left, such as a mean that is repeated.
              It takes the role of the axis that it is combined with; a function that has to know it refuses it
    an axis of an input whose roles are not known yet (`FromInput`); only in states of `inputs.py`, never in a tag

and the tag also says what the padding is known to hold, so that it is set to zero once and not before every
convolution. Lengths are Python integers: they are read once when the context is entered. Afterwards all arithmetic on
them is exact and free of device synchronisations, tags can be compared, and masks can be kept by their tag.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import torch
from torch import Tensor

from truenorm.torch.tracking.numbers import of_sequence


class Gaps:
    """Valid positions that are not the first ones: a mask (b, t). Two of them are equal if they are the same object.

    Parts of one are kept, so that the same part of two tensors is the same object: x[:2] + y[:2] has these positions.
    """

    def __init__(self, valid: Tensor) -> None:
        self.valid = valid
        self._whole = self
        self._place = (tuple(range(len(valid))), range(valid.shape[1]))  # which rows and columns of the whole
        self._parts = {self._place: self}

    def rows(self, rows: Sequence[int]) -> Gaps:
        """Those of these sequences."""
        own, columns = self._place
        return self._whole._part(tuple(own[row] for row in rows), columns)

    def columns(self, part: slice) -> Gaps:
        """Those of a slice of the positions."""
        rows, own = self._place
        return self._whole._part(rows, own[part])

    def _part(self, rows: tuple[int, ...], columns: range) -> Gaps:
        found = self._parts.get((rows, columns))
        if found is None:
            with torch.inference_mode(False):  # the part may be used with gradients later
                found = Gaps(self.valid[list(rows)][:, columns.start : columns.stop : columns.step])
            found._whole, found._place = self, (rows, columns)
            self._parts[rows, columns] = found
        return found


class Batch:
    """The role of the batch factor."""

    def __repr__(self) -> str:
        return "BATCH"


class Open:
    """The role of an axis that may be positions."""

    def __repr__(self) -> str:
        return "OPEN"


@dataclass(frozen=True)
class FromInput:
    """The role of a factor that is an axis of an input, or a slice of it, while the roles there are not known."""

    axis: int
    slices: tuple[tuple[int | None, int | None, int | None], ...] = ()

    def sliced(self, part: slice) -> FromInput:
        return FromInput(self.axis, (*self.slices, (part.start, part.stop, part.step)))

    def of(self, positions: range, row: int | None = None) -> range:
        """Which positions are left, in one sequence: a slice may end at another number of positions in each."""
        for one in self.slices:
            positions = positions[slice(*of_sequence(one, row))]
        return positions


BATCH, OPEN = Batch(), Open()
Lengths = tuple[int, ...]


class Cropped(tuple[int, ...]):
    """Lengths after x[..., :stop]. If stop is the size of another tensor, they are those of that tensor."""


Extent = Lengths | Gaps
Role = Batch | Lengths | Gaps | Open | FromInput | None


class Factor(NamedTuple):
    """A part of an axis, or all of it."""

    size: int
    role: Role = None


Axis = tuple[Factor, ...]
NO_SIZES: frozenset[int] = frozenset()


def has_role(axis: Axis) -> bool:
    """Whether an axis is the batch or positions, or has them in it."""
    return any(factor.role is not None for factor in axis)


def has_batch(axis: Axis) -> bool:
    return any(factor.role is BATCH for factor in axis)


def role_of(axis: Axis) -> Role:
    """The role of an axis that is a single factor, else None."""
    return axis[0].role if len(axis) == 1 else None


def size_of(axis: Axis) -> int:
    return math.prod(factor.size for factor in axis)


class Padding(IntEnum):
    """What the padding of a tensor holds, as far as is known. The larger one implies the smaller."""

    ANY = 0  # NaN and inf too
    FINITE = 1
    ZERO = 2


class Tag:
    """The factors of each axis, and what the padding holds. What rules ask of them is found once, in one pass.

    Without positions nothing is padding. FINITE says then that the values are finite, and ZERO is never said: such a
    tensor may be combined with one that has positions, and its values are at the padding then.

        batch        the axis that is the batch alone; None if there is none, or if it is merged with another axis
        batch_size   how many sequences there are
        extents      the valid positions of each axis that is ragged and nothing else
        sizes        how many positions there are, with padding
        is_ragged    whether any position may be padding. A tensor without positions, such as a mean, has a tag too
        has_open     whether an axis may be positions, but is not known to be
        is_merged    whether an axis holds the batch or positions and something else
        has_padding  whether any position is padding
        has_gaps     whether valid positions may lie behind padding
        has_crop     whether the lengths of an axis may become those of another tensor
    """

    __slots__ = (
        "axes", "batch", "batch_size", "extents", "has_crop", "has_gaps", "has_open", "has_padding", "is_merged",
        "is_ragged", "padding", "shape", "sizes",
    )  # fmt: skip

    def __init__(self, axes: tuple[Axis, ...], padding: Padding = Padding.ANY) -> None:
        self.axes = axes
        self.shape: Any = None  # with numbers of positions as sizes (`counts.py`), when a model asks for it
        self.batch: int | None = None
        self.batch_size: int | None = None
        extents: dict[int, Extent] = {}
        sizes: list[int] = []
        self.has_crop = self.has_gaps = self.has_open = self.has_padding = self.is_merged = False
        for i, axis in enumerate(axes):
            for size, role in axis:
                if role is None:
                    continue
                if role is BATCH:
                    if self.batch_size is None:
                        self.batch_size = size
                    if len(axis) == 1 and self.batch is None:
                        self.batch = i
                elif role is OPEN:
                    self.has_open = True
                elif isinstance(role, tuple) or type(role) is Gaps:
                    sizes.append(size)
                    if len(axis) == 1:
                        extents[i] = role
                    if not isinstance(role, tuple):
                        self.has_gaps = self.has_padding = True
                    elif role and min(role) < size:
                        self.has_padding = True
                    if type(role) is Cropped:
                        self.has_crop = True
                if len(axis) > 1:
                    self.is_merged = True
        self.extents, self.sizes = extents, frozenset(sizes) if sizes else NO_SIZES
        self.is_ragged = self.has_open or bool(sizes)
        self.padding = padding if padding is not Padding.ZERO or self.is_ragged else Padding.FINITE

    def __repr__(self) -> str:
        return f"Tag({self.axes}, {self.padding!r})"

    @property
    def lengths(self) -> dict[int, Lengths]:
        """The lengths along each ragged axis, without those that have gaps."""
        return {axis: extent for axis, extent in self.extents.items() if not isinstance(extent, Gaps)}

    def may_be_empty(self, *axes: int) -> bool:
        """Whether a sequence may have no valid position on one of these axes."""
        roles = [factor.role for axis in axes for factor in self.axes[axis]]
        return any(isinstance(role, Gaps) or (isinstance(role, tuple) and 0 in role) for role in roles)

    def having(self, padding: Padding) -> Tag:
        """The same axes with other padding."""
        return self if padding is self.padding else Tag(self.axes, padding)

    def with_axes(self, axes: Sequence[Axis]) -> Tag:
        """Other axes with the same padding."""
        return Tag(tuple(axes), self.padding)

    def with_axis(self, axis: int, size: int, role: Role = None) -> Tag:
        """One axis changed to a single factor."""
        axes = list(self.axes)
        axes[axis] = (Factor(size, role),)
        return Tag(tuple(axes), self.padding)

    def with_lengths(self, lengths: dict[int, Lengths], shape: Sequence[int], padding: Padding) -> Tag:
        """After an operation that changes positions and channels: new sizes, and new lengths of the ragged axes."""
        axes: list[Axis] = [(Factor(size, lengths.get(i)),) for i, size in enumerate(shape)]
        for i, axis in enumerate(self.axes):
            if i == self.batch or (self.is_merged and i not in lengths and has_batch(axis)):
                axes[i] = axis
        return Tag(tuple(axes), padding)


@dataclass(frozen=True)
class Lost:
    """A tensor that comes from a ragged one by a function that is not followed: its positions are not known.

    is_mask       whether it was made of integers only, as the masks that models make of masks: not worth a report
    is_prepared   whether it was made outside of all modules, of an input that no layer has read: a batch may be put
                  together of it
    """

    where: Any  # as text
    is_mask: bool = False
    is_prepared: bool = False


def longest(extent: Extent) -> int:
    """How many positions the longest sequence has."""
    return int(extent.valid.shape[1]) if isinstance(extent, Gaps) else max(extent, default=0)


def make_tag(shape: Sequence[int], batch: int, extents: dict[int, Extent], padding: Padding = Padding.ANY) -> Tag:
    """The tag of a tensor of this shape, one factor an axis."""
    roles: dict[int, Role] = {batch: BATCH, **extents}
    return Tag(tuple((Factor(size, roles.get(axis)),) for axis, size in enumerate(shape)), padding)


def take_rows(axes: tuple[Axis, ...], rows: Sequence[int]) -> tuple[Axis, ...]:
    """The axes when only these sequences are left."""

    def take(factor: Factor) -> Factor:
        if factor.role is BATCH:
            return Factor(len(rows), BATCH)
        if isinstance(factor.role, tuple):
            return Factor(factor.size, tuple(factor.role[row] for row in rows))
        if isinstance(factor.role, Gaps):
            return Factor(factor.size, factor.role.rows(rows))
        return factor

    return tuple(tuple(map(take, axis)) for axis in axes)


def _is_extent(role: Role) -> bool:
    return isinstance(role, (tuple, Gaps))


# ---- shapes ----


def regroup(axes: Iterable[Axis], shape: Sequence[int]) -> tuple[Axis, ...] | None:
    """The factors of a view of this shape, or None if the batch or positions do not survive it.

    >>> t = Factor(5, (5, 3))
    >>> merged = regroup([(Factor(2, BATCH),), (t,), (Factor(6),)], (10, 6))
    >>> merged
    ((Factor(size=2, role=BATCH), Factor(size=5, role=(5, 3))), (Factor(size=6, role=None),))
    >>> regroup(merged, (2, 5, 2, 3)) == ((Factor(2, BATCH),), (t,), (Factor(2),), (Factor(3),))
    True
    >>> regroup([(Factor(2, BATCH),), (t,), (Factor(6),)], (2, 3, 10)) is None
    True
    """
    factors = [factor for axis in axes for factor in axis if factor.size != 1 or factor.role is not None]
    if 0 in shape:
        return None
    new: list[Axis] = []
    for size in shape:
        axis: list[Factor] = []
        left = size
        while left > 1 and factors:
            first = factors.pop(0)
            if left % first.size == 0:
                axis.append(first)
                left //= first.size
            elif first.size % left == 0 and (shorter := _divided(first.role, first.size // left)) is not BATCH:
                axis.append(Factor(left, shorter))
                factors.insert(0, Factor(first.size // left))
                left = 1
            else:
                return None
        if left > 1:
            return None
        if not axis:  # an axis of size 1: a factor with a role takes it
            axis.append(factors.pop(0) if factors and factors[0].size == 1 else Factor(1))
        new.append(_merge_plain(axis))
    if any(factor.size != 1 for factor in factors) or (factors and not new):
        return None
    if factors:  # of size 1, and there was no axis for them
        new[-1] = _merge_plain([*new[-1], *factors])
    return tuple(new)


def _divided(role: Role, count: int) -> Role:
    """The role of an axis whose neighbours, as many as `count`, become one position; BATCH if it has none."""
    if isinstance(role, tuple) and all(n % count == 0 for n in role):
        return tuple(n // count for n in role)
    return None if role is None else BATCH


def _merge_plain(axis: Sequence[Factor]) -> Axis:
    """Neighbours without a role as one factor. So are positions with several values each: as many more positions."""
    found: list[Factor] = []
    for factor in axis:
        last = found[-1].role if found else BATCH
        if factor.role is None and (last is None or isinstance(last, tuple)):
            role = None if last is None else tuple(n * factor.size for n in last)
            found[-1] = Factor(found[-1].size * factor.size, role)
        elif factor.role is not None or factor.size != 1:
            found.append(factor)
    return tuple(found) or (Factor(1),)


def merge_roles(first: Axis, second: Axis) -> Axis | None:
    """Two axes that are one: an axis without a role takes that of the other, and so does an open one."""
    for weak in ((None,), (None, OPEN)):
        if all(factor.role in weak for factor in second):
            return first
        if all(factor.role in weak for factor in first):
            return second
    return common_axis(first, second)


def common_axis(first: Axis, second: Axis) -> Axis | None:
    """What an axis of two tensors is, if it is the same. One that was cropped to the size of the other is as long."""
    if first == second:
        return second
    if len(first) == len(second) == 1 and first[0].size == second[0].size:
        for (_, most), (size, role) in ((first[0], second[0]), (second[0], first[0])):
            if not (isinstance(most, Cropped) and isinstance(role, tuple)):
                continue
            if all(n <= limit for n, limit in zip(role, most, strict=True)):
                return (Factor(size, role),)
    return None


def broadcast(tags: Sequence[Tag], shape: Sequence[int]) -> tuple[Axis, ...] | None:
    """The axes of an elementwise result of this shape; None if the tags contradict each other."""
    axes: list[Axis] = []
    for axis in range(-len(shape), 0):
        found: Axis = (Factor(shape[axis]),)
        for tag in tags:
            if -axis <= len(tag.axes):
                other = tag.axes[axis]
                if not has_role(other):
                    continue
                if size_of(other) != shape[axis]:  # one position for all
                    if size_of(other) == 1 and isinstance(role := role_of(other), tuple) and all(role):
                        continue  # valid in every sequence, as the first one
                    return None
                merged = merge_roles(found, other)
                if merged is None:
                    return None
                found = merged
        axes.append(found)
    if sum(factor.role is BATCH for axis in axes for factor in axis) > 1:
        return None
    return tuple(axes)


def padding_in(tag: Tag, axes: Sequence[Axis], skipped: int | None = None) -> Padding:
    """What a tensor holds at the padding of a result with these axes, all but one, aligned at the end.

    ZERO only if it has the same positions on each of them. Otherwise some of its valid values are at padding of the
    result: it is broadcast along positions, or was cropped to a longer size.
    """
    for i, axis in enumerate(axes):
        own = tag.axes[i - len(axes)] if len(axes) - i <= len(tag.axes) else None
        if i != skipped and own != axis and any(_is_extent(factor.role) for factor in axis):
            return min(tag.padding, Padding.FINITE)
    return tag.padding
