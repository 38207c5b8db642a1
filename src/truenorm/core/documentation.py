"""Descriptions of arguments that many functions share, written once.

Under `Args:` a docstring names several arguments in one line, which is what an editor shows:

        valid, lengths, offsets, segments, sample_weight, along: which elements are valid

`described_by(table)` makes a line for each of them, with its description from the table. `help`, and the reference
that is built from it, show those.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

T = TypeVar("T", bound=Callable[..., Any])
SEVERAL = re.compile(r"^( *)(\w+(?:, \w+)+): .*$", re.MULTILINE)
WIDTH = 110

RAGGED = {
    "valid": "booleans, or 0 and 1: True where x is valid. The shape of x without its channel axis, or the rank of x",
    "lengths": "(b,): the first lengths[i] positions of sample i are valid. A tuple with one vector for each position "
    "axis, if there are several",
    "offsets": "x is packed, (rows, c): sample i is the rows offsets[i] to offsets[i + 1]",
    "segments": "(rows,): x is packed, and rows with the same id are one sample, in any order",
    "sample_weight": "how often each position counts in the statistics. 0: it does not count, but is normalized",
    "along": "the axis that lengths run along: its number, or its name in the pattern. Needed if there are several "
    "position axes",
}


def described_by(table: Mapping[str, str]) -> Callable[[T], T]:
    """A decorator for functions and classes: see the top of this file. It returns the same object.

    >>> @described_by({"a": "the first", "b": "the second"})
    ... def f(a, b):
    ...     '''One line.
    ...
    ...     Args:
    ...         a, b: two numbers
    ...     '''
    >>> print(f.__doc__)
    One line.
    <BLANKLINE>
        Args:
            a: the first
            b: the second
    <BLANKLINE>
    """

    def lines_of(found: re.Match[str]) -> str:
        indent, names = found[1], found[2].split(", ")
        if not all(name in table for name in names):
            return found[0]
        lines = (textwrap.fill(f"{name}: {table[name]}", WIDTH - len(indent)) for name in names)
        return "\n".join(textwrap.indent(line, f"{indent}    ").replace(f"{indent}    ", indent, 1) for line in lines)

    def describe(documented: T) -> T:
        if documented.__doc__ is not None:  # python -OO
            documented.__doc__ = SEVERAL.sub(lines_of, documented.__doc__)
        return documented

    return describe
