"""The messages of `Norm`, its pattern and its shapes, with their full texts."""

from typing import Any

import numpy as np
import pytest
from errors import Call, assert_message, untested_raises

import truenorm
from truenorm.core import layout, norm, pattern
from truenorm.core.pattern import PatternError
from truenorm.core.running import Running as TypedRunning
from truenorm.core.running import torch_convention

# Untyped: most of these calls are wrong on purpose.
tn: Any = truenorm
Norm: Any = truenorm.Norm
Running: Any = TypedRunning
X = np.arange(24.0).reshape(2, 4, 3)
ROWS = np.zeros((5, 3))

# A pattern that cannot be read is shown with carets under the place: (call, first line, pattern, carets).
PATTERN_ERRORS: list[tuple[Call, str, str, str]] = [
    (
        lambda: Norm("b [t [c]]"),
        "Norm: brackets do not nest, got pattern 'b [t [c]]'. Close the first '[' before this one.",
        "b [t [c]]",
        "     ^",
    ),
    (
        lambda: Norm("b t] c"),
        "Norm: ']' without a '[', got pattern 'b t] c'. Open it with '[', or leave it out.",
        "b t] c",
        "   ^",
    ),
    (
        lambda: Norm("[b (g] c)"),
        "Norm: '[' and '(' cross, got pattern '[b (g] c)'. Close what was opened last first.",
        "[b (g] c)",
        "     ^",
    ),
    (
        lambda: Norm("([g) c]"),
        "Norm: '[' and '(' cross, got pattern '([g) c]'. Close what was opened last first.",
        "([g) c]",
        "   ^",
    ),
    (
        lambda: Norm("b [] c"),
        "Norm: nothing between '[' and ']', got pattern 'b [] c'. Name the axes to average over.",
        "b [] c",
        "  ^^",
    ),
    (
        lambda: Norm("b ((g [c]))"),
        "Norm: parentheses do not nest, got pattern 'b ((g [c]))'. Write all pieces in one '(...)'.",
        "b ((g [c]))",
        "   ^",
    ),
    (
        lambda: Norm("b g [c])"),
        "Norm: ')' without a '(', got pattern 'b g [c])'. Open it with '(', or leave it out.",
        "b g [c])",
        "       ^",
    ),
    (
        lambda: Norm("b () [c]"),
        "Norm: nothing between '(' and ')', got pattern 'b () [c]'. Name the pieces of the axis.",
        "b () [c]",
        "  ^^",
    ),
    (
        lambda: Norm("[b t] b"),
        "Norm: 'b' occurs twice, got pattern '[b t] b'. Give every axis a name of its own.",
        "[b t] b",
        "      ^",
    ),
    (
        lambda: Norm("... [c] ..."),
        "Norm: '...' occurs twice, got pattern '... [c] ...'. Give every axis a name of its own.",
        "... [c] ...",
        "        ^^^",
    ),
    (
        lambda: Norm("b (... [c])"),
        "Norm: '...' inside '(', got pattern 'b (... [c])'. Name the pieces of the axis.",
        "b (... [c])",
        "   ^^^",
    ),
    (lambda: Norm("b [t c"), "Norm: '[' is never closed, got pattern 'b [t c'. Close it with ']'.", "b [t c", "  ^"),
    (
        lambda: Norm("b (g [c]"),
        "Norm: '(' is never closed, got pattern 'b (g [c]'. Close it with ')'.",
        "b (g [c]",
        "  ^",
    ),
    (
        lambda: Norm(""),
        "Norm: no axis is named, got pattern ''. Write one name for each axis of x, such as '[b t] c'.",
        "",
        "^",
    ),
    (
        lambda: Norm("[b], c"),
        "Norm: ',' has no meaning here, got pattern '[b], c'. Axes are names; use [ ] ( ) and '...' beside them.",
        "[b], c",
        "   ^",
    ),
    (
        lambda: Norm("[b] 3c"),
        "Norm: '3' has no meaning here, got pattern '[b] 3c'. Axes are names; use [ ] ( ) and '...' beside them.",
        "[b] 3c",
        "    ^",
    ),
    (
        lambda: Norm("[b] .. c"),
        "Norm: '.' has no meaning here, got pattern '[b] .. c'. Axes are names; use [ ] ( ) and '...' beside them.",
        "[b] .. c",
        "    ^",
    ),
    (
        lambda: Norm("b c"),
        "Norm: nothing is averaged over, got pattern 'b c'. Put brackets around an axis.",
        "b c",
        "^^^",
    ),
    (
        lambda: Norm("[b] c", affine="[c]"),
        "Norm: affine takes no brackets, got affine '[c]'. The pattern says what is averaged over: name the axes only.",
        "[c]",
        " ^",
    ),
    (
        lambda: Norm("[b] c", affine="d"),
        "Norm: unknown axis 'd', got affine 'd'. The axes of '[b] c' are: b, c.",
        "d",
        "^",
    ),
    (
        lambda: Norm("[...] c", affine="..."),
        "Norm: unknown axis '...', got affine '...'. The axes of '[...] c' are: ..., c.",
        "...",
        "^^^",
    ),
    (
        lambda: Norm("b [h w c]", affine="w h"),
        "Norm: axis 'h' is out of order, got affine 'w h'. Keep to the order of 'b [h w c]'.",
        "w h",
        "  ^",
    ),
    (
        lambda: Norm("b [h w c]", affine="h (w"),
        "Norm: '(' is never closed, got affine 'h (w'. Close it with ')'.",
        "h (w",
        "  ^",
    ),
    (
        lambda: Norm("b [h w c]", affine=""),
        "Norm: no axis is named, got affine ''. Write one name for each axis of x, such as '[b t] c'.",
        "",
        "^",
    ),
    (
        lambda: Norm("b (g [c])"),
        "Norm: only one piece of a composed axis may have no size, not g and c, got pattern 'b (g [c])'. "
        "Give the sizes of the others, such as sizes={'g': 8}.",
        "b (g [c])",
        "  ^^^^^^^",
    ),
    (
        lambda: Norm("b (g h [c])", sizes={"g": 2}),
        "Norm: only one piece of a composed axis may have no size, not h and c, got pattern 'b (g h [c])'. "
        "Give the sizes of the others, such as sizes={'h': 8}.",
        "b (g h [c])",
        "  ^^^^^^^^^",
    ),
    (
        lambda: tn.group(4).view((2, 5, 6)),
        "Norm: an axis of size 6 does not fit g=4, got pattern 'b [...] (g [c])'. Change the size, or the shape of x.",
        "b [...] (g [c])",
        "        ^^^^^^^",
    ),
    (
        lambda: Norm("[b t] c", sizes={"c": 4, "t": 2}).view((2, 5, 6)),
        "Norm: an axis of size 5 does not fit t=2, got pattern '[b t] c'. Change the size, or the shape of x.",
        "[b t] c",
        "   ^",
    ),
    (
        lambda: Norm("b [t] c", sizes={"t": 2}).view((2, 6, 4)),
        "Norm: an axis of size 6 does not fit t=2, got pattern 'b [t] c'. Change the size, or the shape of x.",
        "b [t] c",
        "   ^",
    ),
    (
        lambda: Norm("b ([g] c)", sizes={"g": 2, "c": 4}).view((2, 6)),
        "Norm: an axis of size 6 does not fit g=2, c=4, got pattern 'b ([g] c)'. Change the size, or the shape of x.",
        "b ([g] c)",
        "  ^^^^^^^",
    ),
    (
        lambda: tn.measure(ROWS, tn.group(2), offsets=[0, 2, 5]),
        "Norm: an axis of size 3 does not fit g=2, got pattern 'b [t] (g [c])'. Change the size, or the shape of x.",
        "b [t] (g [c])",
        "      ^^^^^^^",
    ),
]

VALUE_ERRORS: list[tuple[Call, str]] = [
    (
        lambda: Norm("[c]", activation="elu"),  # type: ignore[arg-type]
        "Norm: activation is 'relu', 'gelu', 'silu', 'tanh' or None, got 'elu'.",
    ),
    (
        lambda: Norm("[c]", activation=np.array("relu")),  # type: ignore[arg-type]
        "Norm: activation is 'relu', 'gelu', 'silu', 'tanh' or None, got array('relu', dtype='<U4').",
    ),
    (
        lambda: Norm("[c]", eps=True),
        "Norm: eps is a finite number >= 0, got True. The usual one is 1e-5.",
    ),
    (
        lambda: Norm("[c]", eps=-1e-5),
        "Norm: eps is a finite number >= 0, got -1e-05. The usual one is 1e-5.",
    ),
    (
        lambda: Norm("[c]", eps=float("nan")),
        "Norm: eps is a finite number >= 0, got nan. The usual one is 1e-5.",
    ),
    (
        lambda: Norm("[c]", eps="1e-5"),
        "Norm: eps is a finite number >= 0, got '1e-5'. The usual one is 1e-5.",
    ),
    (
        lambda: Norm("[c]", ddof=2),
        "Norm: ddof is 0 or 1, got 2.",
    ),
    (
        lambda: Norm("[c]", ddof=True),
        "Norm: ddof is 0 or 1, got True.",
    ),
    (
        lambda: Norm("[c]", eps_at="rstd"),
        "Norm: eps_at is 'var' or 'std', got 'rstd'.",
    ),
    (
        lambda: Norm("[c]", center=False, ddof=1),
        "Norm: ddof=1 corrects for an estimated mean, got center=False. Use ddof=0 with it.",
    ),
    (
        lambda: Norm("[b] c", sizes={"g": 2}),
        "Norm: unknown axis 'g' in sizes, got pattern '[b] c'. Its axes are: b, c.",
    ),
    (
        lambda: Norm("[...] c", sizes={"...": 2}),
        "Norm: unknown axis '...' in sizes, got pattern '[...] c'. Its axes are: c.",
    ),
    (
        lambda: tn.group(0),
        "Norm: the size of axis 'g' must be an integer >= 1, got 0. Write it like sizes={'g': 8}.",
    ),
    (
        lambda: tn.group(-2),
        "Norm: the size of axis 'g' must be an integer >= 1, got -2. Write it like sizes={'g': 8}.",
    ),
    (
        lambda: tn.group(True),
        "Norm: the size of axis 'g' must be an integer >= 1, got True. Write it like sizes={'g': 8}.",
    ),
    (
        lambda: tn.group(2.0),
        "Norm: the size of axis 'g' must be an integer >= 1, got 2.0. Write it like sizes={'g': 8}.",
    ),
    (
        lambda: tn.batch("first"),
        "Norm: channels is 'last' or 'second', got 'first'.",
    ),
    (
        lambda: Norm("[b t] c").view((2, 3)),
        "Norm: '[b t] c' names 3 axes, got shape (2, 3) with 2. "
        "Name every axis of x once; '...' stands for any number.",
    ),
    (
        lambda: tn.instance().view((2,)),
        "Norm: 'b [...] c' names at least 2 axes, got shape (2,) with 1. "
        "Name every axis of x once; '...' stands for any number.",
    ),
    (
        lambda: Norm("[c]", ddof=1.0),
        "Norm: ddof is 0 or 1, got 1.0.",
    ),
    (
        lambda: Norm("[c]", ddof=[1]),
        "Norm: ddof is 0 or 1, got [1].",
    ),
    (
        lambda: tn.batch().view((2.0, 3.0)),
        "Norm: a shape must hold integers >= 0, got (2.0, 3.0). Pass x.shape.",
    ),
    (
        lambda: tn.batch().view((-2, 3)),
        "Norm: a shape must hold integers >= 0, got (-2, 3). Pass x.shape.",
    ),
    (
        lambda: tn.batch().view((np.int64(-2), 3)),
        "Norm: a shape must hold integers >= 0, got (np.int64(-2), 3). Pass x.shape.",
    ),
    (
        lambda: tn.batch().view((True, 3)),
        "Norm: a shape must hold integers >= 0, got (True, 3). Pass x.shape.",
    ),
    (
        lambda: tn.batch().view(("2", 3)),
        "Norm: a shape must hold integers >= 0, got ('2', 3). Pass x.shape.",
    ),
]
TYPE_ERRORS: list[tuple[Call, str]] = [
    (
        lambda: Norm(3),
        "Norm: pattern is text, got 3. Write it like '[b t] c'.",
    ),
    (
        lambda: tn.batch(center="no"),
        "Norm: center is True or False, got 'no'.",
    ),
    (
        lambda: tn.batch(affine=3),
        "Norm: affine is text, or None, got 3. Write it like 'h w c'.",
    ),
    (
        lambda: tn.batch(sizes=3),
        "Norm: sizes maps names of axes to sizes, got 3. Write it like {'g': 8}.",
    ),
    (
        lambda: tn.forward(X, 3),
        "norm must be a Norm or a pattern, got 3. Write '[b t] c', or use a recipe such as tn.batch().",
    ),
    (
        lambda: tn.measure(X, None),
        "norm must be a Norm or a pattern, got None. Write '[b t] c', or use a recipe such as tn.batch().",
    ),
    (
        lambda: tn.explain(X, b""),
        "norm must be a Norm or a pattern, got b''. Write '[b t] c', or use a recipe such as tn.batch().",
    ),
    (
        lambda: Running.start((3,), torch_convention()).moments(3),
        "norm must be a Norm or a pattern, got 3. Write '[b t] c', or use a recipe such as tn.batch().",
    ),
]


@pytest.mark.parametrize(("call", "summary", "text", "carets"), PATTERN_ERRORS)
def test_errors_of_a_pattern_show_the_place(call: Call, summary: str, text: str, carets: str) -> None:
    with pytest.raises(PatternError) as caught:
        call()
    assert str(caught.value) == f"{summary}\n    {text}\n    {carets}"
    assert caught.value.summary == summary
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(("call", "text"), VALUE_ERRORS)
def test_wrong_values_of_a_norm_have_a_message(call: Call, text: str) -> None:
    assert_message(call, ValueError, text)


@pytest.mark.parametrize(("call", "text"), TYPE_ERRORS)
def test_wrong_types_of_a_norm_have_a_message(call: Call, text: str) -> None:
    assert_message(call, TypeError, text)


def test_every_error_of_a_norm_is_in_the_tables() -> None:
    assert not untested_raises(
        (pattern, norm, layout), [call for call, *_ in PATTERN_ERRORS + VALUE_ERRORS + TYPE_ERRORS]
    )
