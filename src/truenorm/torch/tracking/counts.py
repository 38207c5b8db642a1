"""The number of positions as a Python number: for each sequence it is another one.

    t = x.shape[2]
    y.sum(2) / t              divides by the length of each sequence
    x[:, :, : t // 2]         is the first half of each
    pad(x, (0, -t % 4))       makes the length of each a multiple of 4

Inside `padded`, `x.shape` and `x.size()` hold numbers of this kind for the axes that have lengths. They are ints, equal
to the size with padding, and keep through arithmetic what they would be for each sequence alone. Rules that use a
number take its value for each sequence (`of_sequence`, `per_sequence`).

What has one value for the whole batch, and another one for a sequence alone, is reported:

    if t % 2:                 a condition
    int(t), math.sqrt(t)      a plain number
    arange(t - 1, -1, -1)     a tensor in which the number is a value, and not the size

Python does not show `math.log(t)`, `math.isqrt(t)` and `range(t)`, nor functions of `math` of a quotient such as t / 2:
what is made of these is not noticed.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from truenorm.torch._inputs import values_are_readable
from truenorm.torch.tracking.calls import name_of, tensors_in
from truenorm.torch.tracking.registry import attribute, named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Gaps, Padding, Tag, make_tag, role_of
from truenorm.torch.tracking.tracker import Tracker


class Count(int):
    """A whole number that was made of numbers of positions."""

    each: tuple[Any, ...]  # what it is for each sequence alone
    is_remainder = False
    __hash__ = int.__hash__

    def __reduce__(self) -> Any:  # copies and pickles are plain numbers
        return int, (plain(self),)

    def __int__(self) -> int:
        _report("int", CONVERTED)
        return plain(self)  # type: ignore[no-any-return]

    def __float__(self) -> float:  # also by functions of `math`
        _report("float", CONVERTED)
        return float(plain(self))


class Ratio(float):
    """The same for a number that is not whole."""

    each: tuple[Any, ...]
    is_remainder = False
    __hash__ = float.__hash__

    def __reduce__(self) -> Any:
        return float, (plain(self),)

    def __int__(self) -> int:
        _report("int", CONVERTED)
        return int(plain(self))

    def __float__(self) -> float:
        _report("float", CONVERTED)
        return plain(self)  # type: ignore[no-any-return]


NUMBERS = {Count, Ratio}
PLAIN = {int, float, bool}
DIFFERS = "a number of positions, which is another one for each sequence"
OF_POSITIONS = "of a tensor with as many values as there are positions"
PLACES = "values by the place of a position, but padding comes before valid positions"
CONVERTED = f"{DIFFERS}: compute with it as it is, with t ** 0.5 instead of math.sqrt(t)"
BACKWARDS = f"{DIFFERS}: make it of a tensor with lengths, as torch.ones_like(x).cumsum(2).flip(2) - 1"
CONDITION = "on the number of positions: sequences alone would differ"


def make_number(value: float, each: tuple[Any, ...]) -> Any:
    """The number, with its value for each sequence; a plain one if these are all the same."""
    if all(one == value for one in each):
        return value
    made: Any = Count(value) if isinstance(value, int) else Ratio(value)
    made.each = each
    return made


def plain(number: Any) -> Any:
    """The number for the whole batch."""
    if type(number) is Count:
        return int.__int__(number)
    return float.__float__(number) if type(number) is Ratio else number


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
        if others is None:
            return value
        made = make_number(value, tuple(of_one(*pair) for pair in pairs[1:]))
        if function in REMAINDERS and type(made) in NUMBERS:
            made.is_remainder = True
        return made

    return method


def _of_itself(function: Callable[[Any], Any]) -> Callable[..., Any]:
    def method(self: Any, *digits: Any) -> Any:
        return make_number(function(plain(self), *digits), tuple(function(one, *digits) for one in self.each))

    return method


def _condition(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """A condition has one answer. It is reported if some sequences alone would give another one.

    Not if a size is equal to a plain number: sizes are compared with those of tensors that have no lengths.
    """

    def method(self: Any, other: Any) -> Any:
        if type(other) not in NUMBERS | PLAIN:
            return NotImplemented
        answer = function(plain(self), plain(other))
        is_size = function in EQUALITIES and not self.is_remainder and type(other) in PLAIN
        if not (is_size and plain(self) == plain(other)):
            others = _each(other, len(self.each))
            if others is not None and any(function(a, b) != answer for a, b in zip(self.each, others, strict=True)):
                _report("a condition", CONDITION)
        return answer

    return method


def _report(what: str, why: str) -> None:
    """Note it in the innermost context; outside of all of them such a number is a plain one."""
    from truenorm.torch.tracking.activation import active

    if active.trackers:
        tracker = active.trackers[-1]
        tracker.notes.lost(what, tracker.module, why)


def _is_true(self: Any) -> bool:
    answer = bool(plain(self))
    if any(bool(one) != answer for one in self.each):
        _report("a condition", CONDITION)
    return answer


def _divmod(self: Any, other: Any) -> Any:
    return self // other, self % other


def _reflected_divmod(self: Any, other: Any) -> Any:
    return other // self, other % self


REMAINDERS = {operator.mod, operator.and_}
EQUALITIES = {operator.eq, operator.ne}
OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    name: getattr(operator, name) for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow")
}
OF_BITS = {"and": operator.and_, "or": operator.or_, "xor": operator.xor}
OF_BITS |= {"lshift": operator.lshift, "rshift": operator.rshift}
for _kind, _functions in ((Count, OF_TWO | OF_BITS), (Ratio, OF_TWO)):
    for _name, _function in _functions.items():
        setattr(_kind, f"__{_name}__", _arithmetic(_function, False))
        setattr(_kind, f"__r{_name}__", _arithmetic(_function, True))
    setattr(_kind, "__divmod__", _divmod)  # noqa: B010 - as the others
    setattr(_kind, "__rdivmod__", _reflected_divmod)  # noqa: B010
    for _name, _of_one in (
        ("neg", operator.neg), ("abs", abs), ("ceil", math.ceil), ("floor", math.floor), ("trunc", math.trunc),
        ("round", round),
    ):  # fmt: skip
        setattr(_kind, f"__{_name}__", _of_itself(_of_one))
    for _name in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(_kind, f"__{_name}__", _condition(getattr(operator, _name)))
    setattr(_kind, "__bool__", _is_true)  # noqa: B010


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
    whole = args[0].shape
    sizes = found.step(("shape", whole), lambda: _with_lengths(whole, found))
    if isinstance(result, torch.Size):
        return sizes
    return sizes[args[1] if len(args) > 1 else kwargs["dim"]]


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


def _lengths_of(role: Any) -> tuple[int, ...] | None:
    if isinstance(role, Gaps):
        return tuple(role.valid.sum(1).tolist())
    return role if isinstance(role, tuple) else None


@rule(Tensor.__len__, *named("numel nelement"), reads_inputs=True)
def count(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """len(x) and x.numel(), which Python and torch want as plain numbers."""
    found = tracker.states.get(args[0])
    if isinstance(found, Tag) and found.has_padding and (func is not Tensor.__len__ or 0 in found.extents):
        tracker.notes.lost(name_of(func), tracker.module, DIFFERS)
    return func(*args, **kwargs)


# ---- tensors that are made of them ----


@rule(*named("hann_window hamming_window bartlett_window blackman_window kaiser_window randperm"), reads_inputs=True)
def make_window(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """As long as the positions, and other numbers for each length."""
    if has_count((args, kwargs)):
        tracker.notes.lost(name_of(func), tracker.module, DIFFERS)
    return _made(tracker, func, args, kwargs)


@rule(torch.linspace, torch.logspace, *named("full new_full"), reads_inputs=True)
def make_tensor(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """So many steps between two numbers, or a tensor of one number: for a sequence alone, others."""
    begin = 0 if "space" in func.__name__ else 1 if func is torch.full else 2  # behind the sizes
    if has_count((args[begin:], {name: one for name, one in kwargs.items() if name != "size"})):
        tracker.notes.lost(name_of(func), tracker.module, DIFFERS)
    return _made(tracker, func, args, kwargs)


@rule(torch.tensor, torch.as_tensor, torch.scalar_tensor, Tensor.new_tensor, reads_inputs=True)
def as_tensor(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """tensor(t): one number for the whole batch, with those of each sequence beside it."""
    number: Any = args[1] if func is Tensor.new_tensor and len(args) > 1 else args[0] if args else kwargs.get("data")
    if isinstance(number, Tensor):
        found = tracker.look(number)
        result = func(*args, **kwargs)
        tracker.states[result] = found
    elif type(number) in NUMBERS:
        result = _made(tracker, func, args, kwargs)
        tracker.scalars[result] = tracker.numbers_on(number.each, result.device, result.dtype)
        tracker.has_scalars = True
    else:
        if has_count(number):
            tracker.notes.lost(name_of(func), tracker.module, DIFFERS)
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
    if has_count(step) or (has_count(start) and has_count(start + end)):
        tracker.notes.lost("arange", tracker.module, BACKWARDS)
    return _made(tracker, func, args, kwargs)


def _made(tracker: Tracker, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    result = func(*of_sequence(args, None), **of_sequence(kwargs, None))
    tracker.set(result, MADE)
    return result


# ---- for rules ----


def note_mixing(tracker: Tracker, func: Any, x: Tensor, axes: Iterable[int], arguments: Any = None) -> None:
    """Report a function that mixes values of a tensor that the model has made, of which each position has one.

    Such as the mean of ones(b, t): for a sequence alone there would be fewer. Also if an argument is a number of
    positions, as in interpolate(table, size=t).
    """
    if has_count(arguments):
        tracker.notes.lost(name_of(func), tracker.module, DIFFERS)
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
        values, other = tracker.scalars[one], args[1 - i]
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
    return make_number(int(value), tuple(map(int, tracker.scalars[value].tolist())))
