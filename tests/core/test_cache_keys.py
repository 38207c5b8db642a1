"""Arguments that are equal but not the same, such as 2, 2.0 and True: one of them never changes what another gets.

Layouts, kernels and the normalizations of torch's layers are cached. What is refused must not be remembered under a
key that equals a right one, and what is accepted must be remembered in one form.
"""

from enum import StrEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import truenorm as tn
from truenorm import Norm
from truenorm.core.norm import as_norm

UNTYPED: Any = tn


class Text(str):
    """Equal to its text, and written in another way."""

    def __repr__(self) -> str:
        return "another"

    __str__ = __repr__


class Choice(StrEnum):
    STD = "std"


@pytest.mark.parametrize("shape", [(2.0, 3.0), (True, 3), (-2, 3), (2, "3"), (np.float64(2), 3), (Fraction(2), 3)])
def test_a_wrong_shape_is_refused_before_and_after_the_right_one(shape: Any) -> None:
    norm = tn.batch(eps=0.5 + len(repr(shape)))  # not yet in the cache
    right = tuple(abs(int(size)) for size in shape)
    for _ in range(2):
        with pytest.raises(ValueError, match=r"^Norm: a shape must hold integers >= 0, got "):
            norm.view(shape)
        assert norm.view(right).canonical == (1, right[0], 3, 1, 1)
        assert all(type(size) is int for size in norm.view(right).shape)


WRONG: list[tuple[dict[str, Any], dict[str, Any]]] = [  # what is refused, and what equals it
    ({"ddof": 1.0}, {"ddof": 1}),
    ({"ddof": True}, {"ddof": 1}),
    ({"ddof": False}, {"ddof": 0}),
    ({"ddof": np.True_}, {"ddof": 1}),
    ({"eps": True}, {"eps": 1.0}),
    ({"eps": False}, {"eps": 0.0}),
    ({"center": 1}, {"center": True}),
    ({"center": np.True_}, {"center": True}),
    ({"sizes": {"c": 3.0}}, {"sizes": {"c": 3}}),
    ({"sizes": {"c": True}}, {"sizes": {"c": 1}}),
    ({"pattern": b"[b] c"}, {"pattern": "[b] c"}),
]


@pytest.mark.parametrize(("wrong", "right"), WRONG, ids=[str(wrong) for wrong, _ in WRONG])
def test_a_wrong_argument_is_refused_before_and_after_the_right_one(wrong: Any, right: Any) -> None:
    pattern = {"pattern": "[b] c"}
    x = np.arange(6.0).reshape(2, 3)[:, : right.get("sizes", {}).get("c", 3)]
    for _ in range(2):
        with pytest.raises((TypeError, ValueError), match=r"^Norm: "):
            Norm(**pattern | wrong)
        assert np.isfinite(tn.forward(x, Norm(**pattern | right)).y).all()


def test_equal_arguments_are_kept_in_one_form() -> None:
    plain = Norm("[b] c", eps=0.0, ddof=1, eps_at="std", sizes={"c": 3}, affine="c")
    sizes: Any = {Text("c"): np.int64(3)}
    other = Norm(Text("[b] c"), -0.0, True, UNTYPED.batch(ddof=np.int8(1)).ddof, Choice.STD, sizes, Text("c"))  # type: ignore[arg-type]
    assert other == plain
    assert repr(other) == repr(plain) == "Norm('[b] c', eps=0.0, ddof=1, eps_at='std', sizes={'c': 3}, affine='c')"
    for one in (other.pattern, other.affine, other.eps_at, *other.sizes):
        assert type(one) is str
    for eps in (np.float32(0.5), np.int64(1), 1, Fraction(1, 2)):
        assert type(tn.layer(eps=eps).eps) is float  # type: ignore[arg-type]


def test_a_pattern_of_another_type_is_the_same_pattern() -> None:
    for text in (Text("[b q] c"), np.str_("[b q] c")):
        assert repr(as_norm(text)) == "Norm('[b q] c')"
    assert repr(as_norm("[b q] c")) == "Norm('[b q] c')"


@pytest.mark.parametrize("eps", [10**400, Fraction(10**400), -(10**400)])
def test_an_eps_beyond_floats_is_refused(eps: Any) -> None:
    with pytest.raises(ValueError, match=r"^Norm: eps is a finite number >= 0, got "):
        tn.layer(eps=eps)


def test_errors_do_not_depend_on_earlier_calls() -> None:
    # A layout keeps the shape that it was first asked for, and messages show it.
    class Shape(tuple[int, ...]):
        def __repr__(self) -> str:
            return "another"

    norm = Norm("[b] c t", eps=0.75)
    assert type(norm.view(Shape((2, 3, 4))).shape) is tuple
    assert type(tn.core.layout.layout_of(norm, Shape((2, 3, 5))).shape) is tuple  # as torch.Size comes in
    assert repr(norm.view((2, 3, 5)).shape) == "(2, 3, 5)"
