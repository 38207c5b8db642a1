"""Rules for numbers of positions (`numbers.py`): sizes of tensors, tensors that are made of them, what is reported."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from truenorm.torch._inputs import values_are_readable
from truenorm.torch.tracking.calls import name_of, tensors_in
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.numbers import (
    DIFFERS,
    NUMBERS,
    has_count,
    is_known,
    later_number,
    make_number,
    numbers_in,
    of_sequence,
    plain,
)
from truenorm.torch.tracking.registry import attribute, named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import FromInput, Gaps, Padding, Tag, make_tag, role_of
from truenorm.torch.tracking.tracker import Tracker

OF_POSITIONS = "of a tensor with as many values as there are positions"
EARLY = "a number of positions of an input that no layer had read"
PLACES = "values by the place of a position, but padding comes before valid positions"
BACKWARDS = f"{DIFFERS}: make it of a tensor with lengths, as torch.ones_like(x).cumsum(2).flip(2) - 1"


# ---- sizes ----


@rule(attribute("shape"), Tensor.size, reads_inputs=True)
def shape(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x.shape, x.size() and x.size(axis)"""
    x = args[0]
    found = tracker.states.get(x)
    if type(found) is not Tag:
        if found is MADE or (found is None and (tracker.is_first_look or not _may_be_input(tracker, x.shape))):
            return func(*args, **kwargs)
        found = tracker.look(x)
    if isinstance(found, Tag):
        if found.shape is None:
            found.shape = _with_lengths(x.shape, found) if found.has_padding else x.shape
        sizes = found.shape
    elif isinstance(found, Fresh):
        sizes = _with_lengths_later(tracker, x.shape, found)
    else:
        return func(*args, **kwargs)
    axis = args[1] if len(args) > 1 else kwargs.get("dim")
    return sizes if axis is None else sizes[axis]


def _may_be_input(tracker: Tracker, shape: tuple[int, ...]) -> bool:
    """Whether a tensor that was never seen may be an input; outside of all modules a batch is only put together."""
    if tracker.modules or tracker.recording:
        return True
    fits = any(size >= tracker.longest for size in shape[1:]) and tracker.batch_size in shape[:-1][:2]
    return tracker.along is None and fits


def _with_lengths(shape: tuple[int, ...], tag: Tag) -> torch.Size:
    sizes = list(shape)
    for axis, factors in enumerate(tag.axes):
        lengths = [each for factor in factors if (each := _lengths_of(factor.role)) is not None]
        if lengths and all(factor.role is None or isinstance(factor.role, (tuple, Gaps)) for factor in factors):
            others = math.prod(factor.size for factor in factors if factor.role is None)
            sizes[axis] = make_number(
                sizes[axis], tuple(math.prod(each) * others for each in zip(*lengths, strict=True))
            )
    return torch.Size(sizes)


def _with_lengths_later(tracker: Tracker, shape: tuple[int, ...], found: Fresh) -> torch.Size:
    """The sizes of an input of which no layer has shown the positions. Each axis may have them but for the batch."""
    batches = tracker.batch_axes(found)

    def may_have_positions(role: Any) -> bool:
        if not isinstance(role, FromInput) or found.source.shape[role.axis] < tracker.longest:
            return False
        return any(batch != role.axis for batch in batches)

    def each(axis: int) -> tuple[int, ...] | None:
        if found.source.tag is None:
            return None
        tag = found.resolve()
        number: Any = _with_lengths(shape, tag)[axis] if isinstance(tag, Tag) else shape[axis]
        return number.each if type(number) in NUMBERS else (number,) * tracker.batch_size

    return torch.Size(
        [
            later_number(size, partial(each, axis)) if any(may_have_positions(role) for _, role in factors) else size
            for axis, (size, factors) in enumerate(zip(shape, found.axes, strict=True))
        ]
    )


def _lengths_of(role: Any) -> tuple[int, ...] | None:
    if isinstance(role, Gaps):
        return tuple(role.valid.sum(1).tolist())
    return role if isinstance(role, tuple) else None


@rule(Tensor.__len__, *named("numel nelement"), reads_inputs=True)
def count(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """len(x) and x.numel(), which Python and torch want as plain numbers."""
    result = func(*args, **kwargs)
    if not tracker.is_first_look:
        sizes: Any = shape(tracker, attribute("shape"), args, {})
        note_counts(tracker, name_of(func), sizes[:1] if func is Tensor.__len__ else sizes)
    return result


# ---- tensors that are made of them ----


@rule(*named("hann_window hamming_window bartlett_window blackman_window kaiser_window randperm"), reads_inputs=True)
def make_window(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As long as the positions, and other numbers for each length."""
    note_counts(tracker, name_of(func), (args, kwargs))
    return _made(tracker, func, args, kwargs)


@rule(torch.linspace, torch.logspace, *named("full new_full"), reads_inputs=True)
def make_tensor(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """So many steps between two numbers, or a tensor of one number: for a sequence alone, others."""
    begin = 0 if "space" in func.__name__ else 1 if func is torch.full else 2  # behind the sizes
    values = {name: one for name, one in kwargs.items() if name != "size"}
    note_counts(tracker, name_of(func), (args[begin:], values))
    return _made(tracker, func, args, kwargs)


@rule(torch.tensor, torch.as_tensor, torch.scalar_tensor, Tensor.new_tensor, reads_inputs=True)
def as_tensor(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """tensor(t): one number for the whole batch, with those of each sequence beside it."""
    number: Any = args[1] if func is Tensor.new_tensor and len(args) > 1 else args[0] if args else kwargs.get("data")
    if isinstance(number, Tensor):
        found = tracker.look(number)
        result = func(*args, **kwargs)
        tracker.states[result] = found
    elif is_known(number):
        result = _made(tracker, func, args, kwargs)
        tracker.put_beside(tracker.scalars, result, tracker.numbers_on(number.each, result.device, result.dtype))
        tracker.has_scalars = True
    else:
        note_counts(tracker, name_of(func), number)
        result = tracker.call_unknown(func, of_sequence(args, None), kwargs)
    return result


@rule(torch.arange, reads_inputs=True)
def arange(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Numbers of positions at the end: a sequence alone has the first ones. At the beginning: it has others.

    From a distance to its negative are the relative positions of all pairs, of which each pair takes its own.
    """
    start, end, step = (
        kwargs.get(name, args[place] if len(args) > max(place, 1) else default)
        for name, place, default in (("start", 0, 0), ("end", 1, args[0] if args else 0), ("step", 2, 1))
    )
    used = list(numbers_in((start, end, step)))
    if used:
        tracker.notes.lost_if(
            lambda: has_count(step) or (has_count(start) and has_count(start + end)),
            used, "arange", tracker.module, BACKWARDS,
        )  # fmt: skip
    return _made(tracker, func, args, kwargs)


def _made(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*of_sequence(args, None), **of_sequence(kwargs, None))
    tracker.set(result, MADE)
    return result


# ---- for rules ----


def note_counts(tracker: Tracker, what: str, values: Any, why: str = DIFFERS) -> None:
    """Report a function if a number among the values is another one for each sequence."""
    numbers = list(numbers_in(values))
    if numbers:
        tracker.notes.lost_if(lambda: has_count(numbers), numbers, what, tracker.module, why)


def take_counts(tracker: Tracker, func: Any, values: Any) -> bool:
    """Whether a function of a tensor with lengths has a number among its arguments that differs by sequence.

    One that is not known yet is used as a plain one. That is reported, unless it turns out to be the same for all.
    """
    early = [one for one in numbers_in(values) if one.each is None]
    if early:
        tracker.notes.lost_if(
            lambda: any(one.each is None or has_count(one) for one in early),
            early, name_of(func), tracker.module, EARLY,
        )  # fmt: skip
    return has_count(values)


def note_mixing(tracker: Tracker, func: Any, x: Tensor, axes: Iterable[int], arguments: Any = None) -> None:
    """Report a function that mixes values of a tensor that the model has made, of which each position has one.

    Such as the mean of ones(b, t): for a sequence alone there would be fewer. Also if an argument is a number of
    positions, as in interpolate(table, size=t).
    """
    note_counts(tracker, name_of(func), arguments)
    if has_count(arguments):
        return
    sizes = tracker.states.sizes
    of_positions = any(x.shape[axis] > 1 and x.shape[axis] in sizes for axis in axes)
    if of_positions and tracker.look(x) is MADE and not tracker.is_constant(x) and not _is_of_any_part(func, x):
        tracker.notes.lost(name_of(func), tracker.module, OF_POSITIONS)


def _is_of_any_part(func: Any, x: Tensor) -> bool:
    """Whether `all` is true, or `any` is false, and so for each part of x: a mask of ones that a model makes."""
    name = func.__name__
    return name in ("all", "any") and values_are_readable(x) and bool(x.all() if name == "all" else ~x.any())


def note_places(tracker: Tracker, func: Any, axes: Sequence[Any], others: Iterable[Tensor]) -> None:
    """Report a tensor without lengths that gives each position its own value, if valid positions are not the first.

    A sequence alone would get the values from the first one on. One for each pair of positions, as a causal mask, may
    depend on their distance only.
    """
    gaps = [axis - len(axes) for axis, one in enumerate(axes) if isinstance(role_of(one), Gaps)]
    if gaps and any(sum(-axis <= one.dim() and one.shape[axis] > 1 for axis in gaps) == 1 for one in others):
        tracker.notes.lost(name_of(func), tracker.module, PLACES)


def per_sequence(tracker: Tracker, number: Any, x: Tensor, tag: Tag, is_divisor: bool) -> Tensor | None:
    """The number as a tensor that broadcasts to x; None if x is not a batch of as many sequences.

    is_divisor   1 instead of 0 for sequences without positions: what they give means nothing, but is not NaN
    """
    if tag.batch is None or number.each is None or len(number.each) != tag.batch_size:
        return None
    tracker.acts += 1
    each = tuple(one or 1 for one in number.each) if is_divisor else number.each
    dtype = x.dtype if x.is_floating_point() or x.is_complex() else None
    made = tracker.numbers_on(each, x.device, dtype)
    return made.reshape([-1 if axis == tag.batch else 1 for axis in range(x.dim())])


def of_scalars(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Tensor | None:
    """A function of numbers of positions and of tensors without axes, such as a buffer that holds a stride.

    The result is one for the whole batch; those of each sequence are kept beside it. None for other arguments.
    """
    tensors = list(tensors_in((args, kwargs)))
    counted = has_count((args, kwargs)) or any(one in tracker.scalars for one in tensors)
    if not counted or kwargs.get("out") is not None or any(one.dim() for one in tensors):
        return None
    result: Tensor = func(*of_sequence(args, None), **of_sequence(kwargs, None))
    device = result.device

    def each(one: Any) -> Any:
        if type(one) in NUMBERS:
            return plain(one) if one.each is None else tracker.numbers_on(one.each, device)
        return tracker.scalars.get(one) if isinstance(one, Tensor) and one in tracker.scalars else one

    values = func(*map(each, args), **{name: each(one) for name, one in kwargs.items()})
    tracker.put_beside(tracker.scalars, result, values)
    tracker.has_scalars = True
    tracker.set(result, MADE)
    return result


def with_scalars(tracker: Tracker, args: tuple[Any, ...]) -> tuple[Any, ...]:
    """The arguments of y * s, with a value for each sequence of y instead of one number of positions s."""
    tags = [tracker.tag(one) for one in args[:2]]
    new = list(args)
    for i, (one, tag) in enumerate(zip(args[:2], reversed(tags), strict=False)):
        if tag is None or tag.batch is None or not isinstance(one, Tensor) or one not in tracker.scalars:
            continue
        values, other = tracker.scalars.get(one), args[1 - i]
        if len(values) == tag.batch_size:
            if other.is_floating_point() or not one.is_floating_point():  # as torch: one number changes no dtype
                values = values.to(other.dtype)
            new[i] = values.reshape([-1 if axis == tag.batch else 1 for axis in range(other.dim())])
            tracker.states[new[i]] = make_tag(new[i].shape, tag.batch, {}, Padding.FINITE)
    return tuple(new)


def as_count(tracker: Tracker, value: Any) -> Any:
    """A number that a tensor holds, with that of each sequence."""
    if isinstance(value, (tuple, list)):
        return type(value)(as_count(tracker, one) for one in value)
    if not isinstance(value, Tensor) or value not in tracker.scalars:
        return value
    return make_number(int(value), tuple(map(int, tracker.scalars.get(value).tolist())))
