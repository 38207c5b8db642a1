"""Every error, with its full text: who, the rule, what was given, and what to do."""

import ast
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import truenorm as tn
from truenorm import Norm
from truenorm.core import inputs, layout, mask, moments, norm, pattern, reference
from truenorm.core.pattern import PatternError

Call = Callable[[], Any]
X = np.arange(24.0).reshape(2, 4, 3)
ROWS = np.zeros((5, 3))


def sums_of(*parameters: str) -> Any:
    """Backward sums of a forward with these parameters."""
    return tn.backward_sums(X, tn.forward(X, tn.batch(), **{name: np.ones(3) for name in parameters}))


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
        "Norm: 'b' stands twice, got pattern '[b t] b'. Give every axis a name of its own.",
        "[b t] b",
        "      ^",
    ),
    (
        lambda: Norm("... [c] ..."),
        "Norm: '...' stands twice, got pattern '... [c] ...'. Give every axis a name of its own.",
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
        "Norm: of a composed axis only one size may be open, not g and c, got pattern 'b (g [c])'. "
        "Give the others' sizes, such as sizes={'g': 8}.",
        "b (g [c])",
        "  ^^^^^^^",
    ),
    (
        lambda: Norm("b (g h [c])", sizes={"g": 2}),
        "Norm: of a composed axis only one size may be open, not h and c, got pattern 'b (g h [c])'. "
        "Give the others' sizes, such as sizes={'h': 8}.",
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
CONVERT = "Convert it to integers; a mask of what is real goes into valid=."

VALUE_ERRORS: list[tuple[Call, str]] = [
    (lambda: Norm("[c]", eps=True), "Norm: eps is a finite number >= 0, got True. The usual one is 1e-5."),
    (lambda: Norm("[c]", eps=-1e-5), "Norm: eps is a finite number >= 0, got -1e-05. The usual one is 1e-5."),
    (lambda: Norm("[c]", eps=float("nan")), "Norm: eps is a finite number >= 0, got nan. The usual one is 1e-5."),
    (lambda: Norm("[c]", eps="1e-5"), "Norm: eps is a finite number >= 0, got '1e-5'. The usual one is 1e-5."),
    (lambda: Norm("[c]", ddof=2), "Norm: ddof is 0 or 1, got 2."),
    (lambda: Norm("[c]", ddof=True), "Norm: ddof is 0 or 1, got True."),
    (lambda: Norm("[c]", eps_at="rstd"), "Norm: eps_at is 'var' or 'std', got 'rstd'."),
    (
        lambda: Norm("[c]", center=False, ddof=1),
        "Norm: ddof=1 corrects for a mean that was estimated, got center=False. Use ddof=0 with it.",
    ),
    (
        lambda: Norm("[b] c", sizes={"g": 2}),
        "Norm: unknown axis 'g' in sizes, got pattern '[b] c'. Its axes are: b, c.",
    ),
    (
        lambda: Norm("[...] c", sizes={"...": 2}),
        "Norm: unknown axis '...' in sizes, got pattern '[...] c'. Its axes are: c.",
    ),
    (lambda: tn.group(0), "Norm: the size of axis 'g' is a whole number >= 1, got 0."),
    (lambda: tn.group(-2), "Norm: the size of axis 'g' is a whole number >= 1, got -2."),
    (lambda: tn.group(True), "Norm: the size of axis 'g' is a whole number >= 1, got True."),
    (lambda: tn.group(2.0), "Norm: the size of axis 'g' is a whole number >= 1, got 2.0."),
    (lambda: tn.batch("first"), "Norm: channels is 'last' or 'second', got 'first'."),
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
        lambda: tn.forward(X, tn.batch(), lengths=[2, 1], valid=X > 0),
        "valid: at most one of valid, lengths and offsets, got valid and lengths. "
        "Each of them says which elements are real: choose one.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=X > 0, lengths=[2, 1], offsets=[0]),
        "valid: at most one of valid, lengths and offsets, got valid and lengths and offsets. "
        "Each of them says which elements are real: choose one.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones((4, 2), bool)),
        "valid: the shape (2, 4) (x without its channel axis) or (2, 4, 3), each axis equal or 1, got (4, 2) "
        "for x (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones(2, bool)),
        "valid: the shape (2, 4) (x without its channel axis) or (2, 4, 3), each axis equal or 1, got (2,) "
        "for x (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones((1, 2, 4, 3), bool)),
        "valid: the shape (2, 4) (x without its channel axis) or (2, 4, 3), each axis equal or 1, got (1, 2, "
        "4, 3) for x (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones((2, 4, 2), bool)),
        "valid: the shape (2, 4) (x without its channel axis) or (2, 4, 3), each axis equal or 1, got (2, 4, "
        "2) for x (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X[0], Norm("b [t]"), valid=np.ones(4, bool)),
        "valid: the shape (4, 3), each axis equal or 1, got (4,) for x (4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.ones((2, 3))),
        "sample_weight: the shape (2, 4) (x without its channel axis) or (2, 4, 3), each axis equal or 1, "
        "got (2, 3) for x (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.ones((2, 4, 3))),
        "sample_weight: one number for each position (2, 4), got one for each channel too. "
        "Leave the channel axis out, or let it have size 1.",
    ),
    (
        lambda: tn.measure(X, tn.group(3), sample_weight=np.ones((1, 1, 3))),
        "sample_weight: one number for each position (2, 4), got one for each channel too. "
        "Leave the channel axis out, or let it have size 1.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=[[1, 1, 1, -0.5], [1, 1, 1, 1]]),
        "sample_weight: finite and >= 0, got -0.5. A position of weight 2 counts twice.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.full((2, 4), np.nan)),
        "sample_weight: finite and >= 0, got nan. A position of weight 2 counts twice.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.full((2, 4), np.inf)),
        "sample_weight: finite and >= 0, got inf. A position of weight 2 counts twice.",
    ),
    (lambda: tn.measure(X, tn.batch(), lengths=[4, 5]), "lengths: from 0 to the 4 positions of x, got 5 at index 1."),
    (lambda: tn.measure(X, tn.batch(), lengths=[-1, 4]), "lengths: from 0 to the 4 positions of x, got -1 at index 0."),
    (lambda: tn.measure(X, tn.batch(), lengths=[4, 4, 4]), "lengths: one for each of the 2 samples, got 3."),
    (
        lambda: tn.measure(X, tn.batch(), lengths=4),
        "lengths: a row of whole numbers, got shape () and dtype int64. " + CONVERT,
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[[4, 4]]),
        "lengths: a row of whole numbers, got shape (1, 2) and dtype int64. " + CONVERT,
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[4.0, 4.0]),
        "lengths: a row of whole numbers, got shape (2,) and dtype float64. " + CONVERT,
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[True, False]),
        "lengths: a row of whole numbers, got shape (2,) and dtype bool. " + CONVERT,
    ),
    (
        lambda: tn.measure(X[0], tn.batch(), lengths=[1, 2, 3, 4]),
        "lengths: axes b and t to count in, got x (4, 3) with the axes b, c. "
        "Pass valid=, which works for every shape, or name them in the pattern.",
    ),
    (
        lambda: tn.measure(X[None], tn.batch(), lengths=[1]),
        "lengths: axes b and t to count in, got x (1, 2, 4, 3) with the axes b, p1, p2, c. "
        "Pass valid=, which works for every shape, or name them in the pattern.",
    ),
    (
        lambda: tn.measure(X, Norm("n [t] c"), lengths=[1, 2]),
        "lengths: axes b and t to count in, got x (2, 4, 3) with the axes n, t, c. "
        "Pass valid=, which works for every shape, or name them in the pattern.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), offsets=[0, 2]),
        "offsets: x is packed, (rows, c), got shape (2, 4, 3). For padded x pass lengths=.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0, 3]),
        "offsets: rise from 0 to the 5 rows of x, got [0, 3]. They are the cumulative lengths, with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[1, 5]),
        "offsets: rise from 0 to the 5 rows of x, got [1, 5]. They are the cumulative lengths, with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0, 3, 2, 5]),
        "offsets: rise from 0 to the 5 rows of x, got [0, 3, 2, 5]. "
        "They are the cumulative lengths, with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[]),
        "offsets: rise from 0 to the 5 rows of x, got []. They are the cumulative lengths, with a 0 in front.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0.0, 5.0]),
        "offsets: a row of whole numbers, got shape (2,) and dtype float64. " + CONVERT,
    ),
    (
        lambda: tn.measure(ROWS, Norm("[b h] c"), offsets=[0, 5]),
        "offsets: a pattern with the axes b, t and c only, got Norm('[b h] c'). "
        "Packed rows have no other axes: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("[b t h] c"), offsets=[0, 5]),
        "offsets: a pattern with the axes b, t and c only, got Norm('[b t h] c'). "
        "Packed rows have no other axes: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("[t] c"), offsets=[0, 5]),
        "offsets: a pattern with the axes b, t and c only, got Norm('[t] c'). "
        "Packed rows have no other axes: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("b t [c]", affine="c"), offsets=[0, 5]),
        "offsets: a pattern with the axes b, t and c only, got Norm('b t [c]', affine='c'). "
        "Packed rows have no other axes: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("b [t]"), offsets=[0, 5]),
        "offsets: a pattern with the axes b, t and c only, got Norm('b [t]'). "
        "Packed rows have no other axes: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, Norm("b [c]"), offsets=[0, 5]),
        "offsets: a pattern with the axes b, t and c only, got Norm('b [c]'). "
        "Packed rows have no other axes: pad x, and pass lengths= or valid=.",
    ),
    (
        lambda: tn.measure(ROWS, tn.instance(), offsets=[0, 2, 5], sample_weight=np.ones(4)),
        "sample_weight: one for each of the 5 packed rows, got shape (4,).",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0, 2, 5], sample_weight=np.ones(4)),
        "sample_weight: the shape (5,) (x without its channel axis) or (5, 3), each axis equal or 1, got "
        "(4,) for x (5, 3).",
    ),
    (
        lambda: tn.Moments(np.ones(3), np.zeros(2), np.zeros(2)),
        "Moments: one shape for all, got count (3,), mean (2,) and m2 (2,).",
    ),
    (
        lambda: tn.Moments(np.ones((2, 2)), np.zeros(2), np.zeros(2)),
        "Moments: one shape for all, got count (2, 2), mean (2,) and m2 (2,).",
    ),
    (
        lambda: tn.Moments(3, np.zeros(2), np.zeros(1)),
        "Moments: one shape for all, got count (), mean (2,) and m2 (1,).",
    ),
    (lambda: tn.Moments(-1, 0.0, 0.0), "Moments: count and m2 are >= 0, got -1 and 0.0 as the least."),
    (
        lambda: tn.Moments([1, 2], np.zeros(2), np.array([-0.5, 1.0])),
        "Moments: count and m2 are >= 0, got 1 and -0.5 as the least.",
    ),
    (lambda: tn.merge(), "merge: at least one Moments, got none."),
    (
        lambda: tn.merge(tn.measure(X, tn.batch()), tn.measure(X, tn.layer())),
        "merge: Moments of one shape, got (2, 4) and (3,).",
    ),
    (lambda: tn.forward(X, tn.batch(), padding="same"), "padding: 'zero' or 'keep', got 'same'."),
    (
        lambda: tn.forward(X, tn.batch(), moments=tn.measure(X, tn.layer())),
        "moments: the shape (3,) for this x, got (2, 4).",
    ),
    (
        lambda: tn.forward(X, tn.rms(), moments=tn.Moments(3, np.full((2, 4), 0.5), np.ones((2, 4)))),
        "moments: a mean of 0 for a normalization that subtracts none, got 0.5 as the first. "
        "Measure them with the same norm.",
    ),
    (lambda: tn.forward(X, tn.batch(), weight=np.ones(4)), "weight: the shape (3,) for this x, got (4,)."),
    (lambda: tn.forward(X, tn.batch(), bias=1.0), "bias: the shape (3,) for this x, got ()."),
    (
        lambda: tn.forward(X[0], Norm("b [t]"), weight=np.ones(4)),
        "weight: the pattern has no axis c to put it on, got shape (4,). Pass affine=.",
    ),
    (lambda: tn.backward(X[0], tn.forward(X, tn.batch())), "dy: has the shape of x, (2, 4, 3), got (4, 3)."),
    (
        lambda: tn.backward(np.zeros((2, 3, 3)), tn.forward(ROWS, tn.instance(), offsets=[0, 2, 5])),
        "dy: has the shape of x, (5, 3), got (2, 3, 3).",
    ),
    (
        lambda: sums_of("weight") + sums_of(),
        "BackwardSums: all parts have a weight, or none has; the same goes for bias.",
    ),
    (
        lambda: sums_of("weight", "bias") + sums_of("weight"),
        "BackwardSums: all parts have a weight, or none has; the same goes for bias.",
    ),
]
TYPE_ERRORS: list[tuple[Call, str]] = [
    (
        lambda: tn.forward(X, "[b t] c"),
        "norm: a Norm, got '[b t] c'. Make one with tn.Norm('[b t] c') or a recipe such as tn.batch().",
    ),
    (
        lambda: tn.measure(np.ma.masked_less(X, 0), tn.batch()),
        "x: a plain array, got a masked one. Pass its .data, and valid=~x.mask.",
    ),
    (lambda: tn.merge([1, 2]), "merge: Moments, got list. Pass them one by one: merge(one, two)."),
    (lambda: tn.backward(X, X), "backward: dy and what forward returned, got ndarray as the second."),
    (lambda: Norm(3), "Norm: pattern is text, got 3. Write it like '[b t] c'."),
    (lambda: tn.batch(center="no"), "Norm: center is True or False, got 'no'."),
    (lambda: tn.batch(affine=3), "Norm: affine is text, or None, got 3. Write it like 'h w c'."),
    (lambda: tn.batch(sizes=3), "Norm: sizes maps names of axes to sizes, got 3. Write it like {'g': 8}."),
    (
        lambda: tn.measure(X + 1j, tn.batch()),
        "x: real numbers, got dtype complex128. Convert it to a float dtype first.",
    ),
    (lambda: tn.measure([["a"]], tn.batch()), "x: real numbers, got dtype <U1. Convert it to a float dtype first."),
    (
        lambda: tn.measure(np.array([[None]]), tn.batch()),
        "x: real numbers, got dtype object. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure(np.zeros((2, 3), "V8"), tn.batch()),
        "x: real numbers, got dtype |V8. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.backward(X + 1j, tn.forward(X, tn.batch())),
        "dy: real numbers, got dtype complex128. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.forward(X, tn.batch(), weight=["a", "b", "c"]),
        "weight: real numbers, got dtype <U1. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=["a"]),
        "sample_weight: real numbers, got dtype <U1. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=X),
        "valid: booleans or integers, got float64. Weights go into sample_weight.",
    ),
]


@pytest.mark.parametrize(("call", "summary", "text", "carets"), PATTERN_ERRORS)
def test_errors_of_a_pattern_show_the_place(call: Call, summary: str, text: str, carets: str) -> None:
    with pytest.raises(PatternError) as caught:
        call()
    assert str(caught.value) == f"{summary}\n    {text}\n    {carets}"
    assert caught.value.summary == summary
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("kind", "call", "text"),
    [(ValueError, *row) for row in VALUE_ERRORS] + [(TypeError, *row) for row in TYPE_ERRORS],
)
def test_errors_say_who_what_and_what_to_do(kind: type[Exception], call: Call, text: str) -> None:
    with pytest.raises(kind) as caught:
        call()
    assert str(caught.value) == text
    assert type(caught.value) is kind


def raised_at(call: Call) -> tuple[str, int]:
    """The file and line that the call's exception comes from."""
    try:
        call()
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        return Path(frame.filename).name, frame.lineno or 0
    raise AssertionError("raises nothing")


def test_every_raise_has_its_text_in_the_table() -> None:
    reached = {raised_at(call) for call, *_ in PATTERN_ERRORS + VALUE_ERRORS + TYPE_ERRORS}
    missing = []
    for module in (pattern, norm, layout, mask, moments, inputs, reference):
        path = Path(module.__file__ or "")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise):
                lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
                if not any((path.name, line) in reached for line in lines):
                    missing.append(f"{path.name}:{node.lineno}: {ast.unparse(node)}")
    assert not missing
