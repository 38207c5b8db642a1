"""The messages for x, valid, lengths, along, sample_weight and combinations, with their full texts."""

from typing import Any

import numpy as np
import pytest
from errors import Call, assert_message, untested_raises

import truenorm
from truenorm.core import arrays, lengths, mask

# Untyped: most of these calls are wrong on purpose.
tn: Any = truenorm
Norm: Any = truenorm.Norm
X = np.arange(24.0).reshape(2, 4, 3)
ROWS = np.zeros((5, 3))

VALUE_ERRORS: list[tuple[Call, str]] = [
    (
        lambda: tn.forward(X, tn.batch(), lengths=[2, 1], valid=X > 0),
        "valid: pass only one of valid, lengths, offsets and segments, got valid and lengths. "
        "Each of them says which elements are valid, and to which sample they belong.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=X > 0, lengths=[2, 1], offsets=[0]),
        "valid: pass only one of valid, lengths, offsets and segments, got valid and lengths and offsets. "
        "Each of them says which elements are valid, and to which sample they belong.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), segments=[0] * 5, offsets=[0, 5]),
        "offsets: pass only one of valid, lengths, offsets and segments, got offsets and segments. "
        "Each of them says which elements are valid, and to which sample they belong.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones((4, 2), bool)),
        "valid must have the shape (2, 4) (x without its channel axis) or (2, 4, 3), or 1 along some axes, got "
        "(4, 2) for x of shape (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones(2, bool)),
        "valid must have the shape (2, 4) (x without its channel axis) or (2, 4, 3), or 1 along some axes, got "
        "(2,) for x of shape (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones((1, 2, 4, 3), bool)),
        "valid must have the shape (2, 4) (x without its channel axis) or (2, 4, 3), or 1 along some axes, got "
        "(1, 2, 4, 3) for x of shape (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones((2, 4, 2), bool)),
        "valid must have the shape (2, 4) (x without its channel axis) or (2, 4, 3), or 1 along some axes, got "
        "(2, 4, 2) for x of shape (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X[0], Norm("b [t]"), valid=np.ones(4, bool)),
        "valid must have the shape (4, 3), or 1 along some axes, got (4,) for x of shape (4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.ones((2, 3))),
        "sample_weight must have the shape (2, 4) (x without its channel axis) or (2, 4, 3), or 1 along some "
        "axes, got (2, 3) for x of shape (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.ones((2, 4, 3))),
        "sample_weight must have one number for each position, (2, 4), got one for each channel too. "
        "Leave the channel axis out, or give it size 1.",
    ),
    (
        lambda: tn.measure(X, tn.group(3), sample_weight=np.ones((1, 1, 3))),
        "sample_weight must have one number for each position, (2, 4), got one for each channel too. "
        "Leave the channel axis out, or give it size 1.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=[[1, 1, 1, -0.5], [1, 1, 1, 1]]),
        "sample_weight must be finite and >= 0, got -0.5. A position of weight 2 counts twice, of weight 0 not at all.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.full((2, 4), np.nan)),
        "sample_weight must be finite and >= 0, got nan. A position of weight 2 counts twice, of weight 0 not at all.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=np.full((2, 4), np.inf)),
        "sample_weight must be finite and >= 0, got inf. A position of weight 2 counts twice, of weight 0 not at all.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[4, 5]),
        "lengths must be from 0 to 4, the size of axis t, got 5 at index 1. "
        "If x was cropped or strided, pass the lengths after that.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[-1, 4]),
        "lengths must be from 0 to 4, the size of axis t, got -1 at index 0. "
        "If x was cropped or strided, pass the lengths after that.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[4, 4, 4]),
        "lengths must have the shape (2,), one for each sample, got (3,).",
    ),
    (
        lambda: tn.measure(X[0], tn.batch(), lengths=[1, 2, 3, 4]),
        "lengths needs a batch axis b and a position axis t, but x of shape (4, 3) has the axes b, c. "
        "Use valid= instead, or name the axes in the pattern.",
    ),
    (
        lambda: tn.measure(X[None], tn.batch(), lengths=[1]),
        "lengths must be one vector for each position axis of x of shape (1, 2, 4, 3) (p1, p2), got one array. "
        "Pass a tuple of vectors, or say with along= which axis it runs along, or use valid=.",
    ),
    (
        lambda: tn.measure(X[None], "[b h w] c", lengths=np.array([[2], [4]])),
        "lengths must be one vector for each position axis of x of shape (1, 2, 4, 3) (h, w), got one array. "
        "Pass a tuple of vectors, or say with along= which axis it runs along, or use valid=.",
    ),
    (
        lambda: tn.measure(X[None], "[b h w] c", lengths=([2],)),
        "lengths must be one vector for each position axis of x of shape (1, 2, 4, 3) (h, w), got 1. "
        "Pass one for each, or one with along=.",
    ),
    (
        lambda: tn.measure(X[None], "[b h w] c", lengths=([2], [5])),
        "lengths must be from 0 to 4, the size of axis w, got 5 at index 0. "
        "If x was cropped or strided, pass the lengths after that.",
    ),
    (
        lambda: tn.measure(X[None], "[b h w] c", lengths=[3], along="h"),
        "lengths must be from 0 to 2, the size of axis h, got 3 at index 0. "
        "If x was cropped or strided, pass the lengths after that.",
    ),
    (
        lambda: tn.measure(X[None], "[b h w] c", lengths=([2], [4]), along="w"),
        "along goes with one vector of lengths, got 2. Leave it out: they are one for each axis.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=X > 0, along=1),
        "along says which axis lengths run along, got no lengths. Pass lengths= with it.",
    ),
    *(
        (
            lambda along=along: tn.measure(X[None], "[b h w] c", lengths=[3], along=along),
            "along must be a position axis of x, by number (1, 2) or by its name in the pattern (h, w), "
            f"got {along!r}.",
        )
        for along in ("q", "b", "c", 0, 3, -1, -5, True, 1.0)
    ),
    (
        lambda: tn.measure(X[None], tn.instance("second"), lengths=[3], along="w"),
        "along must be a position axis of x, by number (2, 3) or by its name in the pattern (it has none), got 'w'.",
    ),
    (
        lambda: tn.measure(X, Norm("n [t] c"), lengths=[1, 2]),
        "lengths needs a batch axis b and a position axis t, but x of shape (2, 4, 3) has the axes n, t, c. "
        "Use valid= instead, or name the axes in the pattern.",
    ),
    (
        lambda: tn.measure(ROWS, tn.instance(), offsets=[0, 2, 5], sample_weight=np.ones(4)),
        "sample_weight must have the shape (5,), one for each packed row, got (4,).",
    ),
    (
        lambda: tn.measure(ROWS[None], tn.instance(), offsets=[0, 2, 5], sample_weight=np.ones(5)),
        "sample_weight must have the shape (1, 5), one for each packed row, got (5,).",
    ),
    (
        lambda: tn.measure(ROWS[None], tn.instance(), offsets=[0, 2, 5], sample_weight=np.ones((0, 5))),
        "sample_weight must have the shape (1, 5), one for each packed row, got (0, 5).",
    ),
    (
        lambda: tn.measure(np.zeros((5, 2, 3)), tn.instance(), segments=[0] * 5, sample_weight=np.ones((5, 2, 1, 1))),
        "sample_weight must have the shape (5, 2), one for each packed row, got (5, 2, 1, 1).",
    ),
    (
        lambda: tn.measure(np.zeros((2, 4, 5, 3)), Norm("b [h w] c"), along="w"),
        "along says which axis lengths run along, got no lengths. Pass lengths= with it.",
    ),
    (
        lambda: tn.measure(np.zeros((5, 2, 3)), tn.instance(), segments=[0] * 5, sample_weight=np.ones((5, 3))),
        "sample_weight must have the shape (5, 2), one for each packed row, got (5, 3).",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), offsets=[0, 2, 5], sample_weight=np.ones(4)),
        "sample_weight must have the shape (5,) (x without its channel axis) or (5, 3), or 1 along some axes, "
        "got (4,) for x of shape (5, 3).",
    ),
    (
        lambda: tn.backward(X[0], tn.forward(X, tn.batch())),
        "dy must have the shape of x, (2, 4, 3), got (4, 3).",
    ),
    (
        lambda: tn.backward(np.zeros((2, 3, 3)), tn.forward(ROWS, tn.instance(), offsets=[0, 2, 5])),
        "dy must have the shape of x, (5, 3), got (2, 3, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=[[1, 1, 2, 2], [1, 3, 3, 0]]),
        "valid must hold booleans or the integers 0 and 1, got 2. "
        "Segment ids are not a mask: pass valid=ids != 0 if 0 marks the padding, or segments=ids for packed rows.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=[[1, 1, 1, 1], [1, 1, 0, -1]]),
        "valid must hold booleans or the integers 0 and 1, got -1. "
        "Segment ids are not a mask: pass valid=ids != 0 if 0 marks the padding, or segments=ids for packed rows.",
    ),
    (
        lambda: tn.measure(ROWS, tn.batch(), valid=np.array([0, 0, 1, 1, 2], np.uint8)),
        "valid must hold booleans or the integers 0 and 1, got 2. "
        "Segment ids are not a mask: pass valid=ids != 0 if 0 marks the padding, or segments=ids for packed rows.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=[4, 2]),
        "valid must have a position axis, got 2 integers for x of shape (2, 4, 3). "
        "The lengths of the samples belong in lengths=.",
    ),
    (
        lambda: tn.measure(X, tn.batch("second"), valid=np.array([1, 0], np.int32)),
        "valid must have a position axis, got 2 integers for x of shape (2, 4, 3). "
        "The lengths of the samples belong in lengths=.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=[1, 0, 1]),
        "valid must have the shape (2, 4) (x without its channel axis) or (2, 4, 3), or 1 along some axes, got "
        "(3,) for x of shape (2, 4, 3).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=4),
        "lengths must have the shape (2,), one for each sample, got ().",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=np.array([[4, 4]])),
        "lengths must have the shape (2,), one for each sample, got (1, 2).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=np.array([[4], [4]])),
        "lengths must have the shape (2,), one for each sample, got (2, 1). Pass lengths.squeeze(1).",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=([4], [4])),
        "lengths must be one vector for each position axis of x of shape (2, 4, 3) (t), got 2. "
        "Pass one for each, or one with along=.",
    ),
    (
        lambda: tn.measure(X[None], "[b h w] c", lengths=[[2], [4]]),
        "lengths must be one vector, or a tuple with one vector for each position axis, got a list of vectors, which "
        "could be one for each axis or for each sample. Pass lengths=(heights, widths), or a flat list for one axis.",
    ),
    (
        lambda: tn.measure(X[None], "[b h w] c", lengths=[np.array([2]), np.array([4])]),
        "lengths must be one vector, or a tuple with one vector for each position axis, got a list of vectors, which "
        "could be one for each axis or for each sample. Pass lengths=(heights, widths), or a flat list for one axis.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[4.0, 4.0]),
        "lengths must hold integers, got dtype float64. Convert it: lengths.astype(int), or lengths.long() in PyTorch.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[0.0, 0.0]),
        "lengths must hold integers, got dtype float64. Convert it: lengths.astype(int), or lengths.long() in PyTorch.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[-0.5, 1.0]),
        "lengths must hold integers, got dtype float64. Convert it: lengths.astype(int), or lengths.long() in PyTorch.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=["4", "2"]),
        "lengths must hold integers, got dtype <U1. Convert it: lengths.astype(int), or lengths.long() in PyTorch.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=np.array([1.0, 0.0], np.float32)),
        "lengths must hold integers, got dtype float32. "
        "If they are relative, from 0 to 1, pass (lengths * 4).round().astype(int), or (lengths * "
        "4).round().long() in PyTorch.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[0.25, 0.5]),
        "lengths must hold integers, got dtype float64. "
        "If they are relative, from 0 to 1, pass (lengths * 4).round().astype(int), or (lengths * "
        "4).round().long() in PyTorch.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=np.ones((2, 4), bool)),
        "lengths must hold integers, got dtype bool. A mask belongs in valid=.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), lengths=[True, False]),
        "lengths must hold integers, got dtype bool. A mask belongs in valid=.",
    ),
]
TYPE_ERRORS: list[tuple[Call, str]] = [
    *(
        (
            lambda kind=kind: tn.measure(kind(np.ma.masked_less(X, 0)), tn.batch()),
            "x must be a plain array, got a masked array. Pass np.ma.getdata(x), valid=~np.ma.getmaskarray(x).",
        )
        for kind in (np.ma.array, list, tuple)
    ),
    (
        lambda: tn.measure(X + 1j, tn.batch()),
        "x must hold real numbers, got dtype complex128. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure([["a"]], tn.batch()),
        "x must hold real numbers, got dtype <U1. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure(np.array([[None]]), tn.batch()),
        "x must hold real numbers, got dtype object. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure(np.zeros((2, 3), "V8"), tn.batch()),
        "x must hold real numbers, got dtype |V8. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.backward(X + 1j, tn.forward(X, tn.batch())),
        "dy must hold real numbers, got dtype complex128. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), sample_weight=["a"]),
        "sample_weight must hold real numbers, got dtype <U1. Convert it to a float dtype first.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=X),
        "valid must hold booleans, got dtype float64. "
        "Convert it: valid.astype(bool), or valid.bool() in PyTorch. Weights belong in sample_weight=.",
    ),
    (
        lambda: tn.measure(X, tn.batch(), valid=np.ones((2, 4), np.float32)),
        "valid must hold booleans, got dtype float32. "
        "Convert it: valid.astype(bool), or valid.bool() in PyTorch. Weights belong in sample_weight=.",
    ),
]


@pytest.mark.parametrize(("call", "text"), VALUE_ERRORS)
def test_wrong_values_of_a_mask_have_a_message(call: Call, text: str) -> None:
    assert_message(call, ValueError, text)


@pytest.mark.parametrize(("call", "text"), TYPE_ERRORS)
def test_wrong_types_of_a_mask_have_a_message(call: Call, text: str) -> None:
    assert_message(call, TypeError, text)


def test_every_error_of_a_mask_is_in_the_tables() -> None:
    assert not untested_raises((arrays, lengths, mask), [call for call, *_ in VALUE_ERRORS + TYPE_ERRORS])


def test_integers_0_and_1_are_a_mask() -> None:
    # One axis for one position axis: (b,) is a mask of (b, c), not lengths.
    for valid in ([1, 0, 1, 1, 0], np.array([1, 0, 1, 1, 0], np.uint8)):
        expected = tn.measure(ROWS, "[b] c", valid=np.array(valid, bool))
        assert repr(tn.measure(ROWS, "[b] c", valid=valid)) == repr(expected)
