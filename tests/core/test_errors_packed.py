"""The messages for offsets and segments, with their full texts."""

from typing import Any

import numpy as np
import pytest
from errors import Call, assert_message, untested_raises

import truenorm
from truenorm.core import packed

# Untyped: most of these calls are wrong on purpose.
tn: Any = truenorm
Norm: Any = truenorm.Norm
X = np.arange(24.0).reshape(2, 4, 3)
ROWS = np.zeros((5, 3))

ERRORS: list[tuple[Call, str]] = [
    (
        lambda: tn.measure(X, Norm("[b t] c"), offsets=[0, 2]),
        "offsets needs packed x of shape (rows, c) or (1, rows, c), got shape (2, 4, 3). For padded x pass lengths=.",
    ),
    (
        lambda: tn.measure(np.zeros((1, 5, 2, 3)), Norm("b [t] c"), offsets=[0, 5]),
        "offsets needs packed x of shape (rows, c) or (1, rows, c), got shape (1, 5, 2, 3). "
        "For padded x pass lengths=.",
    ),
    (
        lambda: tn.measure(ROWS[0], tn.group(3), offsets=[0, 3]),
        "offsets needs packed x of shape (rows, ..., c) or (1, rows, ..., c), got shape (3,). "
        "For padded x pass lengths=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("b [t] h c"), segments=[0] * 5),
        "segments needs packed x of shape (rows, h, c) or (1, rows, h, c), got shape (5, 3). "
        "For padded x pass lengths=.",
    ),
    (
        lambda: tn.measure(ROWS[0], tn.instance(), segments=[0] * 3),
        "segments needs packed x of shape (rows, ..., c) or (1, rows, ..., c), got shape (3,). "
        "For padded x pass lengths=.",
    ),
    *(
        (
            lambda norm=norm: tn.measure(ROWS, norm, segments=[0, 1]),
            "segments must have the shape (5,), one id for each row of x of shape (5, 3), got (2,).",
        )
        for norm in (tn.batch(), tn.instance(), tn.layer())
    ),
    (
        lambda: tn.measure(ROWS[None], tn.instance(), segments=[[0] * 5]),
        "segments must have the shape (5,), one id for each row of x of shape (1, 5, 3), got (1, 5).",
    ),
    (
        lambda: tn.measure(ROWS, tn.instance(), segments=[[0]] * 5),
        "segments must have the shape (5,), one id for each row of x of shape (5, 3), got (5, 1).",
    ),
    (
        lambda: tn.measure(ROWS, tn.instance(), segments=[0.0] * 5),
        "segments must hold integers, got dtype float64. A mask belongs in valid=.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), segments=[True] * 5),
        "segments must hold integers, got dtype bool. A mask belongs in valid=.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0, 3]),
        "offsets must rise from 0 to 5, the number of rows of x, got [0, 3]. "
        "Pass the cumulative lengths with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[1, 5]),
        "offsets must rise from 0 to 5, the number of rows of x, got [1, 5]. "
        "Pass the cumulative lengths with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0, 3, 2, 5]),
        "offsets must rise from 0 to 5, the number of rows of x, got [0, 3, 2, 5]. "
        "Pass the cumulative lengths with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[]),
        "offsets must rise from 0 to 5, the number of rows of x, got []. "
        "Pass the cumulative lengths with a 0 in front.",
    ),
    *(
        (
            lambda x=x, norm=norm, last=last: tn.measure(x, norm, offsets=[0, last]),
            f"offsets must rise from 0 to {rows}, the number of rows of x, got [0, {last}]. "
            "Pass the cumulative lengths with a 0 in front.",
        )
        for x, norm, rows, last in (
            (ROWS[:1], "[b t] c", 1, 3),
            (ROWS[None], "b [t] c", 5, 1),
            (np.zeros((5, 2, 3)), "b [t] h c", 5, 2),
            (np.zeros((1, 2, 3)), "[b t] h c", 2, 3),
        )
    ),
    *(
        (
            lambda norm=norm: tn.measure(np.zeros((5, 6)), norm, offsets=[0, 5]),
            f"offsets needs a pattern with axes b and t and channels c of their own, got {norm!r}. "
            "Packed rows merge b and t: pad x, and pass lengths= or valid=.",
        )
        for norm in (Norm("b (t [h]) c", sizes={"h": 2}), Norm("b [h] (t c)", sizes={"t": 2}))
    ),
    (
        lambda: tn.measure(ROWS, Norm("b [h w] c"), offsets=[0, 5]),
        "offsets needs a pattern with axes b and t and channels c of their own, got Norm('b [h w] c'). "
        "Packed rows merge b and t: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("[b] (t c)", sizes={"t": 1}), offsets=[0, 5]),
        "offsets needs a pattern with axes b and t and channels c of their own, got Norm('[b] (t c)', "
        "sizes={'t': 1}). Packed rows merge b and t: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("[t] c"), offsets=[0, 5]),
        "offsets needs a pattern with axes b and t and channels c of their own, got Norm('[t] c'). "
        "Packed rows merge b and t: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("b [t] c", affine="b c"), offsets=[0, 5]),
        "offsets needs a pattern with axes b and t and channels c of their own, got Norm('b [t] c', affine='b c'). "
        "Packed rows merge b and t: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("b [t]"), offsets=[0, 5]),
        "offsets needs a pattern with axes b and t and channels c of their own, got Norm('b [t]'). "
        "Packed rows merge b and t: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("b [c]"), offsets=[0, 5]),
        "offsets needs a pattern with axes b and t and channels c of their own, got Norm('b [c]'). "
        "Packed rows merge b and t: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0.0, 5.0]),
        "offsets must be a vector of integers, got shape (2,) and dtype float64. "
        "Pass the cumulative lengths with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[[0, 5]]),
        "offsets must be a vector of integers, got shape (1, 2) and dtype int64. "
        "Pass the cumulative lengths with a 0 in front.",
    ),
]


@pytest.mark.parametrize(("call", "text"), ERRORS)
def test_wrong_offsets_and_segments_have_a_message(call: Call, text: str) -> None:
    assert_message(call, ValueError, text)


def test_every_error_of_packed_rows_is_in_the_table() -> None:
    assert not untested_raises((packed,), [call for call, _ in ERRORS])
