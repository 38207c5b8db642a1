"""`lengths` for each axis, and `along`: every way to name an axis gives the numbers of the mask that it stands for."""

from typing import Any

import numpy as np
import pytest
from patterns import assert_same_bits

import truenorm as tn

RNG = np.random.default_rng(13)
ROWS, COLUMNS = np.array([3, 0, 4]), np.array([5, 2, 1])


def outputs(x: Any, norm: tn.Norm, **ragged: Any) -> list[Any]:
    """y and dx, for a gradient that varies."""
    out = tn.forward(x, norm, weight=np.array([0.5, 2.0]), **ragged)
    return [out.y, tn.backward(np.sin(x), out)[0]]


def assert_same(found: list[Any], expected: list[Any]) -> None:
    for one, two, name in zip(found, expected, ("y", "dx"), strict=True):
        assert_same_bits(one, two, name)


@pytest.mark.parametrize("pattern", ["[b h w] c", "b [h w] c", "[b ...] c"])
def test_an_axis_has_a_number_from_both_ends(pattern: str) -> None:
    x, norm = RNG.normal(size=(3, 4, 5, 2)), tn.Norm(pattern)
    for axis, counts in ((1, ROWS), (2, COLUMNS)):
        steps = np.arange(x.shape[axis]).reshape([-1 if i == axis else 1 for i in range(3)])
        expected = outputs(x, norm, valid=np.broadcast_to(steps < counts[:, None, None], x.shape[:3]))
        names: list[Any] = [axis, axis - 4, np.int64(axis), np.int32(axis - 4)]
        names += [] if "..." in pattern else ["hw"[axis - 1]]
        for along in names:
            assert_same(outputs(x, norm, lengths=counts, along=along), expected)


@pytest.mark.parametrize(("pattern", "shape"), [("b [...] c", (3, 4, 2)), ("b c [...]", (3, 2, 4))])
def test_the_only_hidden_position_axis_has_the_name_t(pattern: str, shape: tuple[int, ...]) -> None:
    x, norm = RNG.normal(size=shape), tn.Norm(pattern)
    expected = outputs(x, norm, valid=np.arange(4) < ROWS[:, None])
    assert_same(outputs(x, norm, lengths=ROWS, along="t"), expected)


@pytest.mark.parametrize("kind", [tuple, list, np.array])
def test_one_vector_for_each_axis_is_a_tuple_of_any_vectors(kind: Any) -> None:
    x, norm = RNG.normal(size=(3, 4, 5, 2)), tn.Norm("b [h w] c")
    valid = (np.arange(4)[:, None] < ROWS[:, None, None]) & (np.arange(5) < COLUMNS[:, None, None])
    expected = outputs(x, norm, valid=valid)
    assert_same(outputs(x, norm, lengths=(kind(ROWS.tolist()), kind(COLUMNS.tolist()))), expected)


def test_t_may_be_a_part_of_the_channel_axis() -> None:
    norm = tn.Norm("[b] (t c)", sizes={"t": 5})
    x = RNG.normal(size=(3, 10))
    valid = np.repeat(np.arange(5) < COLUMNS[:, None], 2, axis=1)
    expected = tn.forward(x, norm, valid=valid).y
    assert_same_bits(tn.forward(x, norm, lengths=COLUMNS, along="t").y, expected, "y")


def test_a_composed_axis_has_names_and_no_number() -> None:
    norm = tn.Norm("b (h w) [d] c", sizes={"h": 2})
    x = RNG.normal(size=(3, 4, 5, 2))
    steps = (np.arange(4) // 2)[:, None] < np.array([1, 2, 0])[:, None, None]
    expected = outputs(x, norm, valid=np.broadcast_to(steps, x.shape[:3]))
    assert_same(outputs(x, norm, lengths=[1, 2, 0], along="h"), expected)
    with pytest.raises(ValueError, match=r"by number \(2\) or by its name in the pattern \(h, w, d\), got 1\."):
        tn.forward(x, norm, lengths=[1, 2, 0], along=1)


def test_the_first_axis_may_be_one_of_positions() -> None:
    norm, x = tn.Norm("h [b] w c"), RNG.normal(size=(4, 3, 5, 2))
    valid = np.broadcast_to(np.arange(4)[:, None, None] < ROWS[:, None], x.shape[:3])
    assert_same(outputs(x, norm, lengths=ROWS, along=0), outputs(x, norm, valid=valid))
    with pytest.raises(ValueError, match=r"by number \(0, 2\) or by its name in the pattern \(h, w\), got 1\."):
        tn.forward(x, norm, lengths=ROWS, along=1)


def test_another_axis_may_be_named_t() -> None:
    """Along h, whose name becomes t; the axis that had that name gets a spare one."""
    norm, x = tn.Norm("b [h t] c"), RNG.normal(size=(3, 4, 5, 2))
    valid = np.broadcast_to(np.arange(4)[:, None] < ROWS[:, None, None], x.shape[:3])
    assert_same(outputs(x, norm, lengths=ROWS, along="h"), outputs(x, norm, valid=valid))
    spares = tn.Norm("b [h t p0 p1] c"), RNG.normal(size=(3, 4, 5, 2, 3, 2))
    valid = np.broadcast_to((np.arange(4) < ROWS[:, None])[:, :, None, None, None], spares[1].shape[:5])
    assert_same(outputs(spares[1], spares[0], lengths=ROWS, along="h"), outputs(spares[1], spares[0], valid=valid))


def test_a_pattern_may_have_no_channels() -> None:
    x = RNG.normal(size=(3, 4, 5))
    valid = np.broadcast_to(np.arange(4)[:, None] < ROWS[:, None, None], x.shape)
    expected = tn.forward(x, "b [h] w", valid=valid).y
    assert_same_bits(tn.forward(x, "b [h] w", lengths=ROWS, along="h").y, expected, "y")


@pytest.mark.parametrize(("pattern", "affine"), [("b h [w] c", "h c"), ("b h [w] (g [c])", "h (g c)")])
def test_affine_axes_and_sizes_keep_their_names(pattern: str, affine: str) -> None:
    x, weight = RNG.normal(size=(3, 4, 5, 2)), RNG.normal(size=(4, 2))
    norm = tn.Norm(pattern, affine=affine, sizes={"g": 1} if "g" in pattern else {})
    valid = np.broadcast_to(np.arange(4)[:, None] < ROWS[:, None, None], x.shape[:3])
    expected = tn.forward(x, norm, weight=weight, valid=valid).y
    assert_same_bits(tn.forward(x, norm, weight=weight, lengths=ROWS, along="h").y, expected, "y")


def test_lengths_beyond_an_axis_are_refused_also_where_a_position_is_many_rows() -> None:
    for wrong in ([3, -1, 4], [3, 5, 4], [3, 2**62, 4], [3, -(2**63), 4]):  # times 4 rows some of these would be 0
        with pytest.raises(ValueError, match="lengths must be from 0 to 4"):
            tn.forward(RNG.normal(size=(3, 4, 4, 2)), "[b t w] c", lengths=wrong)
