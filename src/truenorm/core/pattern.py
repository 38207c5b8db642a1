"""Reads a pattern such as ``b [...] (g [c])``. Knows text, not sizes and not arrays.

    pattern  :=  axis+                       one axis of x each, separated by spaces
    axis     :=  name | "..." | "(" piece+ ")"     "..." is any number of axes, "(g c)" one axis split in two
    brackets :=  "[" ... "]" around axes or pieces: those are averaged over

The parser raises `PatternError`, which shows the pattern with a caret under the offending place.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

ELLIPSIS = "..."
_TOKEN = re.compile(r"\s*(\.\.\.|[\[\]()]|[^\W\d]\w*)")


class PatternError(ValueError):
    """A pattern that cannot be read; `summary` is the message in one line, without the caret."""

    def __init__(self, rule: str, text: str, start: int, stop: int, fix: str, *, what: str = "pattern") -> None:
        self.summary = f"Norm: {rule}, got {what} {text!r}. {fix}"
        super().__init__(f"{self.summary}\n    {text}\n    {' ' * start}{'^' * max(stop - start, 1)}")


@dataclass(frozen=True)
class Piece:
    """A named part of an axis; most axes have exactly one."""

    name: str
    reduced: bool


@dataclass(frozen=True)
class PatternAxis:
    """One axis of x, written from character `start` to `stop`; a composed axis has several pieces."""

    pieces: tuple[Piece, ...]
    start: int
    stop: int

    @property
    def names(self) -> tuple[str, ...]:
        """The names of its pieces."""
        return tuple(piece.name for piece in self.pieces)

    @property
    def hidden(self) -> bool:
        """Whether this is ``...``, which stands for any number of axes."""
        return self.pieces[0].name == ELLIPSIS

    def __str__(self) -> str:
        """The axis written alone, with brackets of its own: `(g [c])`, `[t]`."""
        words = [f"[{piece.name}]" if piece.reduced else piece.name for piece in self.pieces]
        return words[0] if len(words) == 1 else f"({' '.join(words)})"


@dataclass
class _Open:
    """A bracket or parenthesis that is not closed yet."""

    start: int
    pieces: list[Piece]
    in_parenthesis: bool = False


def parse(text: str, *, what: str = "pattern") -> tuple[PatternAxis, ...]:
    """The axes of a pattern, from left to right.

    >>> [str(axis) for axis in parse("b [...] (g [c])")]
    ['b', '[...]', '(g [c])']
    """
    axes: list[PatternAxis] = []
    seen: set[str] = set()
    bracket: _Open | None = None
    parenthesis: _Open | None = None

    def fail(rule: str, start: int, stop: int, fix: str) -> PatternError:
        return PatternError(rule, text, start, stop, fix, what=what)

    for word, start in _tokens(text, what):
        stop = start + len(word)
        if word == "[":
            if bracket is not None:
                raise fail("brackets do not nest", start, stop, "Close the first '[' before this one.")
            bracket = _Open(start, [], in_parenthesis=parenthesis is not None)
        elif word == "]":
            if bracket is None:
                raise fail("']' without a '['", start, stop, "Open it with '[', or leave it out.")
            if bracket.in_parenthesis != (parenthesis is not None):
                raise fail("'[' and '(' cross", start, stop, "Close what was opened last first.")
            if not bracket.pieces:
                raise fail("nothing between '[' and ']'", bracket.start, stop, "Name the axes to average over.")
            bracket = None
        elif word == "(":
            if parenthesis is not None:
                raise fail("parentheses do not nest", start, stop, "Write all pieces in one '(...)'.")
            parenthesis = _Open(start, [])
        elif word == ")":
            if parenthesis is None:
                raise fail("')' without a '('", start, stop, "Open it with '(', or leave it out.")
            if bracket is not None and bracket.in_parenthesis:
                raise fail("'[' and '(' cross", start, stop, "Close what was opened last first.")
            if not parenthesis.pieces:
                raise fail("nothing between '(' and ')'", parenthesis.start, stop, "Name the pieces of the axis.")
            axes.append(PatternAxis(tuple(parenthesis.pieces), parenthesis.start, stop))
            parenthesis = None
        else:
            if word in seen:
                raise fail(f"{word!r} occurs twice", start, stop, "Give every axis a name of its own.")
            seen.add(word)
            piece = Piece(word, reduced=bracket is not None)
            if bracket is not None:
                bracket.pieces.append(piece)
            if parenthesis is None:
                axes.append(PatternAxis((piece,), start, stop))
            elif word == ELLIPSIS:
                raise fail("'...' inside '('", start, stop, "Name the pieces of the axis.")
            else:
                parenthesis.pieces.append(piece)

    for opened, half, other in ((bracket, "[", "]"), (parenthesis, "(", ")")):
        if opened is not None:
            raise fail(f"{half!r} is never closed", opened.start, opened.start + 1, f"Close it with {other!r}.")
    if not axes:
        raise fail("no axis is named", 0, len(text), "Write one name for each axis of x, such as '[b t] c'.")
    return tuple(axes)


def parse_affine(text: str, axes: tuple[PatternAxis, ...], pattern: str) -> tuple[tuple[str, ...], ...]:
    """The names inside each axis of weight and bias: axes or pieces of the pattern, in its order."""
    known, after = [name for axis in axes for name in axis.names], 0
    found = parse(text, what="affine")
    for axis in found:
        for piece in axis.pieces:

            def fail(rule: str, fix: str, axis: PatternAxis = axis) -> PatternError:
                return PatternError(rule, text, axis.start, axis.stop, fix, what="affine")

            if piece.reduced:
                raise fail("affine takes no brackets", "The pattern says what is averaged over: name the axes only.")
            if piece.name not in known or piece.name == ELLIPSIS:
                raise fail(f"unknown axis {piece.name!r}", f"The axes of {pattern!r} are: {', '.join(known)}.")
            if piece.name not in known[after:]:
                raise fail(f"axis {piece.name!r} is out of order", f"Keep to the order of {pattern!r}.")
            after = known.index(piece.name) + 1
    return tuple(axis.names for axis in found)


def _tokens(text: str, what: str) -> list[tuple[str, int]]:
    """The words of a pattern, each with the character that it starts at."""
    found, at = [], 0
    while text[at:].strip():
        match = _TOKEN.match(text, at)
        if match is None:
            at += len(text[at:]) - len(text[at:].lstrip())
            fix = "Axes are names; use [ ] ( ) and '...' beside them."
            raise PatternError(f"{text[at]!r} has no meaning here", text, at, at + 1, fix, what=what)
        found.append((match[1], match.start(1)))
        at = match.end()
    return found
