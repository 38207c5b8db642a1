"""The number of positions as a Python number: for each sequence it is another one.

    t = x.shape[2]
    y.sum(2) / t              divides by the length of each sequence
    x[:, :, : t // 2]         is the first half of each
    pad(x, (0, -t % 4))       makes the length of each a multiple of 4

Inside `padded`, `x.shape` and `x.size()` hold numbers of this kind for the axes that have lengths. They are ints, equal
to the size with padding, and keep through arithmetic what they would be for each sequence alone. Rules that use a
number take its value for each sequence (`of_sequence`, `per_sequence`).

A model mostly takes `x.shape` apart before any layer has shown which axis of its input has the positions. These numbers
know what they are for each sequence as soon as a layer has (`later_number`); until then they are plain ones to rules.

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
from collections.abc import Callable, Iterator
from typing import Any


class _OfSequences:
    """What both kinds of numbers have in common."""

    _each: Any  # a tuple, or a function that returns one, or None as long as it is not known
    is_remainder = False

    @property
    def each(self) -> tuple[Any, ...] | None:
        """What it is for each sequence alone; None if no layer has shown it yet."""
        return self._each if type(self._each) is tuple else self._each()


class Count(_OfSequences, int):
    """A whole number that was made of numbers of positions."""

    __hash__ = int.__hash__

    def __reduce__(self) -> Any:  # copies and pickles are plain numbers
        return int, (plain(self),)

    def __int__(self) -> int:
        _report("int", CONVERTED, [self], lambda: has_count(self))
        return plain(self)  # type: ignore[no-any-return]

    def __float__(self) -> float:  # also by functions of `math`
        _report("float", CONVERTED, [self], lambda: has_count(self))
        return float(plain(self))


class Ratio(_OfSequences, float):
    """The same for a number that is not whole."""

    __hash__ = float.__hash__

    def __reduce__(self) -> Any:
        return float, (plain(self),)

    def __int__(self) -> int:
        _report("int", CONVERTED, [self], lambda: has_count(self))
        return int(plain(self))

    def __float__(self) -> float:
        _report("float", CONVERTED, [self], lambda: has_count(self))
        return plain(self)  # type: ignore[no-any-return]


NUMBERS = {Count, Ratio}
PLAIN = {int, float, bool}
WITHOUT_NUMBERS = {int, float, bool, str, type(None), type(...)}
DIFFERS = "a number of positions, which is another one for each sequence"
CONVERTED = f"{DIFFERS}: compute with it as it is, with t ** 0.5 instead of math.sqrt(t)"
CONDITION = "on the number of positions: sequences alone would differ"


def make_number(value: float, each: tuple[Any, ...]) -> Any:
    """The number, with its value for each sequence; a plain one if these are all the same."""
    return value if all(one == value for one in each) else later_number(value, each)


def later_number(value: float, each: Any) -> Any:
    """The number, with a function that returns its value for each sequence as soon as it is known."""
    made: Any = Count(value) if isinstance(value, int) else Ratio(value)
    made._each = each
    return made


def plain(number: Any) -> Any:
    """The number for the whole batch."""
    if type(number) is Count:
        return int.__int__(number)
    return float.__float__(number) if type(number) is Ratio else number


def numbers_in(value: Any) -> Iterator[Any]:
    """The value, or those in a tuple, list, slice or dictionary, that are numbers of positions or may be."""
    kind = type(value)
    if kind in WITHOUT_NUMBERS:
        return
    if kind in NUMBERS:
        yield value
    elif kind is slice:
        yield from numbers_in((value.start, value.stop, value.step))
    elif isinstance(value, (tuple, list, dict)):
        for one in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(one)


def counts_in(value: Any) -> Iterator[Any]:
    """Those that are known to differ by sequence."""
    for one in numbers_in(value):
        each = one.each
        if type(one._each) is tuple or (each is not None and any(number != plain(one) for number in each)):
            yield one


def has_count(value: Any) -> bool:
    if type(value) in WITHOUT_NUMBERS:
        return False
    return next(counts_in(value), None) is not None


def is_known(number: Any) -> bool:
    return type(number) in NUMBERS and number.each is not None


def of_sequence(value: Any, row: int | None) -> Any:
    """An argument with its numbers for one sequence; None: for the whole batch."""
    if type(value) in WITHOUT_NUMBERS:
        return value
    if isinstance(value, (tuple, list)):
        return type(value)(of_sequence(one, row) for one in value)
    if isinstance(value, slice):
        return slice(*(of_sequence(one, row) for one in (value.start, value.stop, value.step)))
    if isinstance(value, dict):
        return {name: of_sequence(one, row) for name, one in value.items()}
    if type(value) not in NUMBERS:
        return value
    each = None if row is None else value.each
    return plain(value) if row is None or each is None else each[row]


# ---- arithmetic ----


def _each(number: Any, count: int) -> tuple[Any, ...] | None:
    """Its values for so many sequences; None if it is for another number of them, or no number."""
    if is_known(number):
        return number.each if len(number.each) == count else None
    return (plain(number),) * count if type(number) in NUMBERS | PLAIN else None


def _count(*numbers: Any) -> int | None:
    """How many sequences the numbers are for; None if that is not known of any of them."""
    return next((len(one.each) for one in numbers if is_known(one)), None)


def _arithmetic(function: Callable[[Any, Any], Any], is_reflected: bool) -> Callable[[Any, Any], Any]:
    def of_one(a: Any, b: Any) -> Any:
        try:
            return function(b, a) if is_reflected else function(a, b)
        except ZeroDivisionError:  # of a sequence without positions
            return 0

    def method(self: Any, other: Any) -> Any:
        if type(other) not in NUMBERS | PLAIN:
            return NotImplemented
        pair = (plain(other), plain(self)) if is_reflected else (plain(self), plain(other))
        value = function(*pair)

        def each() -> tuple[Any, ...] | None:
            count = _count(self, other)
            if count is None:
                return None
            first, second = _each(self, count), _each(other, count)
            if first is None or second is None:
                return (value,) * count
            return tuple(map(of_one, first, second))

        if is_known(self) and (is_known(other) or type(other) in PLAIN):
            made = make_number(value, each() or ())
        else:
            made = later_number(value, each)
        if function in REMAINDERS and type(made) in NUMBERS:
            made.is_remainder = True
        return made

    return method


def _of_itself(function: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Any, *digits: Any) -> Any:
        def each() -> tuple[Any, ...] | None:
            return None if self.each is None else tuple(function(one, *digits) for one in self.each)

        value = function(plain(self), *digits)
        return later_number(value, each) if self.each is None else make_number(value, each() or ())

    return method


def _condition(function: Callable[[Any, Any], bool]) -> Callable[[Any, Any], Any]:
    """A condition has one answer. It is reported if some sequences alone would give another one.

    Not if a size is equal to a plain number: sizes are compared with those of tensors that have no lengths.
    """

    def method(self: Any, other: Any) -> Any:
        if type(other) not in NUMBERS | PLAIN:
            return NotImplemented
        answer = function(plain(self), plain(other))

        def differs() -> bool:
            is_size = function in EQUALITIES and not self.is_remainder and not (is_known(self) and is_known(other))
            count = _count(self, other)
            if count is None or (is_size and plain(self) == plain(other)):
                return False
            first, second = _each(self, count), _each(other, count)
            if first is None or second is None:
                return False
            return any(function(*one) != answer for one in zip(first, second, strict=True))

        _report("a condition", CONDITION, [self, other], differs)
        return answer

    return method


def _report(what: str, why: str, numbers: list[Any], differs: Callable[[], bool]) -> None:
    """Note it in the innermost context; outside of all of them such a number is a plain one."""
    from truenorm.torch.tracking.activation import active

    if active.trackers:
        tracker = active.trackers[-1]
        tracker.notes.lost_if(differs, numbers, what, tracker.module, why)


def _is_true(self: Any) -> bool:
    answer = bool(plain(self))
    _report("a condition", CONDITION, [self], lambda: any(bool(one) != answer for one in self.each or ()))
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
