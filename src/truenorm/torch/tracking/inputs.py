"""Inputs of the model whose positions are not known yet.

Which axis of an input has the positions follows from the first layer of known kind that reads it: the last one for
Conv1d, axis 1 for Embedding. Until then each axis keeps its number in the input, through functions that move axes or
compute each element by itself, and through slices. When a layer reads one of these tensors, the roles of the input's
axes are known, and so are those of every tensor that came from it, also of those that were made before.

Every other function, such as `flip` or a mean, has to know the positions: it refuses such a tensor (`Tracker.refuse`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from truenorm.torch.tracking.tag import BATCH, Axis, Factor, FromInput, Gaps, Lost, Role, Tag, size_of, take_rows


class Input:
    """A tensor that was there before the context, or that a model is called with."""

    def __init__(self, x: Tensor) -> None:
        self.shape = tuple(x.shape)
        self.has_values = x.is_floating_point() or x.is_complex()  # else numbers of tokens, or a mask
        self.tag: Tag | None = None  # one factor an axis, when a layer has read it

    def fresh(self) -> Fresh:
        """The state of the input itself."""
        return Fresh(self, tuple((Factor(size, FromInput(axis)),) for axis, size in enumerate(self.shape)))


@dataclass(frozen=True)
class Fresh:
    """A tensor that comes from one input, and where each axis comes from."""

    source: Input
    axes: tuple[Axis, ...]

    def with_axes(self, axes: Sequence[Axis]) -> Fresh:
        """The same input with other axes. One of size 1 that was merged into another is left out."""
        return Fresh(self.source, tuple(_without_ones(axis) if len(axis) > 1 else axis for axis in axes))

    def origin(self, axis: int) -> FromInput | None:
        """Where an axis comes from; None if it is new, or has several parts."""
        factors = self.axes[axis]
        role = factors[0].role
        return role if len(factors) == 1 and isinstance(role, FromInput) else None

    def origins(self, axes: Sequence[Axis]) -> list[int]:
        """The axes of the input that these axes come from, in their order."""
        return [factor.role.axis for axis in axes for factor in axis if isinstance(factor.role, FromInput)]

    def resolve(self) -> Tag | Lost:
        """The tag, when the axes of the input are known."""
        assert self.source.tag is not None
        rows: range | None = None
        axes: list[Axis] = []
        for axis in self.axes:
            factors: list[Factor] = []
            for factor in axis:
                origin = factor.role
                if not isinstance(origin, FromInput):
                    factors.append(factor)
                    continue
                size, role = self.source.tag.axes[origin.axis][0]
                if role is BATCH:
                    rows = origin.of(range(size))
                    factors.append(Factor(size, BATCH))
                elif isinstance(role, Gaps) and origin.slices:
                    return Lost("a slice of positions with gaps")
                else:
                    left = _sliced(role, origin)
                    if isinstance(left, tuple) and max(left, default=0) > factor.size:
                        return Lost("a slice of more positions than the padded batch has")
                    factors.append(Factor(factor.size, left))
            axes.append(tuple(factors))
        if rows is None:
            if self.source.tag.batch is not None and self.source.tag.is_ragged:
                return Lost("a sequence out of the batch")
            return Tag(tuple(axes))
        return Tag(take_rows(tuple(axes), rows) if rows != range(self.source.tag.batch_size or 0) else tuple(axes))


def _sliced(role: Role, origin: FromInput) -> Role:
    if not isinstance(role, tuple) or not origin.slices:
        return role
    return tuple(len(origin.of(range(n), row)) for row, n in enumerate(role))


def _without_ones(axis: Axis) -> Axis:
    left = tuple(factor for factor in axis if factor.size != 1)
    return left or axis[:1]


def join_inputs(states: Sequence[Fresh], shape: Sequence[int]) -> Fresh | None:
    """The state of an elementwise result of this shape: of the input that has all axes. None if there is none."""
    for one in sorted(states, key=lambda state: not state.source.has_values):
        axes: list[Axis] = [(Factor(size),) for size in shape]
        for axis in range(-len(one.axes), 0):
            if _has_origin(one.axes[axis]):
                axes[axis] = one.axes[axis]
        fits = all(size_of(axis) == size for axis, size in zip(axes, shape, strict=True))
        if fits and not any(_adds_axes(other, axes) for other in states):
            return one.with_axes(axes)
    return None


def _adds_axes(other: Fresh, axes: Sequence[Axis]) -> bool:
    """Whether another input has an axis where this one has none."""
    return any(
        _has_origin(other.axes[axis]) and not _has_origin(axes[axis]) and size_of(other.axes[axis]) > 1
        for axis in range(-len(other.axes), 0)
    )


def _has_origin(axis: Axis) -> bool:
    return any(isinstance(factor.role, FromInput) for factor in axis)
