"""The number of positions as a Python number: for each sequence it is another one.

    t = x.shape[2]
    y.sum(2) / t              divides by the length of each sequence
    x[:, :, : t // 2]         is the first half of each
    pad(x, (0, -t % 4))       makes the length of each a multiple of 4

Inside `padded`, `x.shape` and `x.size()` hold numbers of this kind for the axes that have lengths. They are ints, equal
to the size with padding, and keep through arithmetic what they would be for each sequence alone. Rules that use a
number take its value for each sequence (`of_sequence`, `per_sequence`).

A condition on such a number, as `if t % 2:`, has one answer for the whole batch. If a sequence alone would give
another one, it is reported. `int`, `range`, `len` and most functions of `math` return plain numbers: what is made of
these is not noticed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.calls import name_of, tensors_in
from truenorm.torch.tracking.registry import attribute, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Tag
from truenorm.torch.tracking.tracker import Tracker


class Count(int):
    """A whole number that was made of numbers of positions."""

    each: tuple[Any, ...]  # what it is for each sequence alone
    __hash__ = int.__hash__

    def __reduce__(self) -> Any:  # copies and pickles are plain numbers
        return int, (int(self),)


class Ratio(float):
    """The same for a number that is not whole."""

    each: tuple[Any, ...]
    __hash__ = float.__hash__

    def __reduce__(self) -> Any:
        return float, (float(self),)


NUMBERS = {Count, Ratio}
PLAIN = {int, float, bool}


def make_number(value: float, each: tuple[Any, ...]) -> Any:
    """The number, with its value for each sequence; a plain one if these are all the same."""
    if all(one == value for one in each):
        return value
    made: Any = Count(value) if isinstance(value, int) else Ratio(value)
    made.each = each
    return made


def plain(number: Any) -> Any:
    """The number for the whole batch."""
    return int(number) if type(number) is Count else float(number) if type(number) is Ratio else number


# ---- arithmetic ----


def _each(number: Any, count: int) -> tuple[Any, ...] | None:
    """Its values for so many sequences; None if it is for another number of them, or no number."""
    if type(number) in NUMBERS:
        return number.each if len(number.each) == count else None
    return (number,) * count if type(number) in PLAIN else None


def _arithmetic(function: Callable[[Any, Any], Any], is_reflected: bool) -> Callable[[Any, Any], Any]:
    def of_one(a: Any, b: Any) -> Any:
        try:
            return function(a, b)
        except ZeroDivisionError:  # of a sequence without positions
            return 0

    def method(self: Any, other: Any) -> Any:
        others = _each(other, len(self.each))
        if type(other) not in NUMBERS | PLAIN:
            return NotImplemented
        pairs = [(plain(self), plain(other)), *zip(self.each, others or (), strict=others is not None)]
        if is_reflected:
            pairs = [(b, a) for a, b in pairs]
        value = function(*pairs[0])
        return value if others is None else make_number(value, tuple(of_one(*pair) for pair in pairs[1:]))

    return method


def _of_itself(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: Any, *digits: Any) -> Any:
        return make_number(function(plain(self), *digits), tuple(function(one, *digits) for one in self.each))

    return method


def _comparison(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    def method(self: Any, other: Any) -> Any:
        if type(other) not in NUMBERS | PLAIN:
            return NotImplemented
        answer = function(plain(self), plain(other))
        others = _each(other, len(self.each))
        if others is not None and any(function(a, b) != answer for a, b in zip(self.each, others, strict=True)):
            _report_condition(self)
        return answer

    return method


def _report_condition(number: Any) -> None:
    """A condition has one answer, and some sequences alone would give another one."""
    from truenorm.torch.tracking.activation import active

    if active.trackers:
        tracker = active.trackers[-1]
        tracker.notes.lost("a condition", tracker.module, "on the number of positions: sequences alone would differ")


def _is_true(self: Any) -> bool:
    return bool(_comparison(operator.ne)(self, 0))


for _kind in NUMBERS:
    for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
        setattr(_kind, f"__{_name}__", _arithmetic(getattr(operator, _name), False))
        setattr(_kind, f"__r{_name}__", _arithmetic(getattr(operator, _name), True))
    for _name, _function in (
        ("neg", operator.neg), ("abs", abs), ("ceil", math.ceil), ("floor", math.floor), ("trunc", math.trunc),
        ("round", round),
    ):  # fmt: skip
        setattr(_kind, f"__{_name}__", _of_itself(_function))
    # Not == and !=: shapes are compared with those of tensors that have no lengths.
    for _name in ("lt", "le", "gt", "ge"):
        setattr(_kind, f"__{_name}__", _comparison(getattr(operator, _name)))
    setattr(_kind, "__bool__", _is_true)  # noqa: B010 - as the others


# ---- sizes ----


@rule(attribute("shape"), Tensor.size, reads_inputs=True)
def shape(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """x.shape, x.size() and x.size(axis)"""
    result = func(*args, **kwargs)
    if tracker.states.get(args[0]) is None and (tracker.is_first_look or not tracker.recording):
        return result  # an input that nothing has read yet. Inside a checkpoint it may be known from outside
    found = tracker.look(args[0])
    if not isinstance(found, Tag) or not found.has_padding:
        return result
    if isinstance(result, torch.Size):
        sizes = list(result)
        for axis, lengths in found.lengths.items():
            sizes[axis] = make_number(sizes[axis], tuple(lengths))
        return torch.Size(sizes)
    axis = (args[1] if len(args) > 1 else kwargs["dim"]) % len(found.axes)
    return make_number(result, tuple(found.lengths[axis])) if axis in found.lengths else result


@rule(torch.linspace, torch.logspace, reads_inputs=True)
def steps(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """So many steps between two numbers: for a sequence alone, others."""
    if has_count((args, kwargs)):
        tracker.notes.lost(name_of(func), tracker.module, DIFFERS)
    return tracker.call_unknown(func, of_sequence(args, None), of_sequence(kwargs, None))


# ---- for rules ----

DIFFERS = "a number of positions, which is another one for each sequence"


def counts_in(value: Any) -> Iterator[Any]:
    """The numbers that differ by sequence: the value, or those in a tuple, list, slice or dictionary."""
    if type(value) in NUMBERS:
        yield value
    elif isinstance(value, slice):
        yield from counts_in((value.start, value.stop, value.step))
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from counts_in(one)


def has_count(value: Any) -> bool:
    return next(counts_in(value), None) is not None


def of_sequence(value: Any, row: int | None) -> Any:
    """An argument with its numbers for one sequence; None: for the whole batch."""
    if isinstance(value, (tuple, list)):
        return type(value)(of_sequence(one, row) for one in value)
    if isinstance(value, slice):
        return slice(*(of_sequence(one, row) for one in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {name: of_sequence(one, row) for name, one in value.items()}
    return (plain(value) if row is None else value.each[row]) if type(value) in NUMBERS else value


def per_sequence(tracker: Tracker, number: Any, x: Tensor, tag: Tag, is_divisor: bool) -> Tensor | None:
    """The number as a tensor that broadcasts to x; None if x is not a batch of as many sequences.

    is_divisor   1 instead of 0 for sequences without positions: what they give means nothing, but is not NaN
    """
    if tag.batch is None or len(number.each) != tag.batch_size:
        return None
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
            return tracker.numbers_on(one.each, device)
        return tracker.scalars.get(one, one) if isinstance(one, Tensor) else one

    tracker.scalars[result] = func(*map(each, args), **{name: each(one) for name, one in kwargs.items()})
    tracker.set(result, MADE)
    return result


def as_count(tracker: Tracker, value: Any) -> Any:
    """A number that a tensor holds, with that of each sequence."""
    if isinstance(value, (tuple, list)):
        return type(value)(as_count(tracker, one) for one in value)
    if not isinstance(value, Tensor) or value not in tracker.scalars:
        return value
    return make_number(int(value), tuple(map(int, tracker.scalars[value].tolist())))
