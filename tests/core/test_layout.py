"""The canonical form that every normalization is computed in, and `Norm` as a value."""

import copy
import itertools
import math
import pickle
from collections.abc import Collection
from dataclasses import FrozenInstanceError, replace
from typing import Any

import numpy as np
import pytest
from patterns import PATTERNS, ULP, Array, assert_close, assert_same_bits, assert_same_moments, odd, offset_data

import truenorm as tn
from truenorm import Norm
from truenorm.core.layout import Layout

N, T, C, G, L = 4, 5, 6, 2, 7

# The table at the top of layout.py, and beyond: pattern, shape -> the sizes of the five axis groups.
CANONICAL: list[tuple[Norm, tuple[int, ...], tuple[int, ...]]] = [
    (tn.batch(), (N, C), (1, N, C, 1, 1)),
    (tn.batch(), (N, T, C), (1, N * T, C, 1, 1)),
    (tn.batch("second"), (N, C, L), (1, N, C, 1, L)),
    (tn.batch("second"), (N, C, L, T), (1, N, C, 1, L * T)),
    (tn.layer(), (C,), (1, 1, 1, C, 1)),
    (tn.layer(), (N, T, C), (N * T, 1, 1, C, 1)),
    (tn.rms(), (N, T, C), (N * T, 1, 1, C, 1)),
    (Norm("b [c] t"), (N, C, T), (N * T, 1, 1, C, 1)),
    (tn.instance(), (N, T, C), (N, T, C, 1, 1)),
    (tn.instance("second"), (N, C, L), (N, 1, C, 1, L)),
    (tn.instance(), (N, C), (N, 1, C, 1, 1)),
    (tn.group(G), (N, T, C), (N, T, G, C // G, 1)),
    (tn.group(G), (N, L, T, C), (N, L * T, G, C // G, 1)),
    (tn.group(G, "second"), (N, C, L), (N, 1, G, C // G, L)),
    (tn.group(G, "second"), (N, C), (N, 1, G, C // G, 1)),
    (Norm("b (g [c]) t", sizes={"g": G}), (N, C, T), (N * T, 1, G, C // G, 1)),
    (Norm("b [h w c]", affine="h w c"), (N, T, L, C), (N, 1, 1, T * L * C, 1)),
    (Norm("b [h w c]"), (N, T, L, C), (N, T * L, 1, C, 1)),
    (Norm("[h] b c", affine="h c"), (T, N, C), (N, 1, C, T, 1)),
    (Norm("b [t]"), (N, T), (N, 1, 1, 1, T)),
    (Norm("[b t c]"), (N, T, C), (1, N * T, 1, C, 1)),
    (Norm("c [h] b [w]"), (C, T, N, L), (N, T * L, C, 1, 1)),
    (Norm("c [h] b [w] d"), (C, T, N, L, 3), (N * 3, T * L, C, 1, 1)),
]
TRANSPOSED = {"b [c] t", "[h] b c", "c [h] b [w]", "b (g [c]) t", "c [h] b [w] d"}  # not in the groups' order


@pytest.mark.parametrize(("norm", "shape", "canonical"), CANONICAL, ids=[str(row[0]) for row in CANONICAL])
def test_every_pattern_has_its_canonical_form(norm: Norm, shape: tuple[int, ...], canonical: tuple[int, ...]) -> None:
    layout = norm.view(shape)
    assert layout.canonical == canonical
    assert sorted(itertools.chain(*layout.axis_groups)) == list(range(len(layout.axes)))
    assert math.prod(canonical) == math.prod(shape)
    assert layout.transposed == (norm.pattern in TRANSPOSED)


def strides_of(layout: Layout, covered: Collection[int]) -> tuple[int, ...] | None:
    """The step, in elements, along each axis group of a contiguous array that covers these axes of x.

    0 where the array is constant; None if one step for each group cannot express it and it must be copied.
    """
    steps, step = {}, 1
    for i in sorted(covered, reverse=True):
        steps[i], step = step, step * layout.axes[i].size
    found = []
    for group in layout.axis_groups:
        inside = [i for i in group if layout.axes[i].size > 1]
        if not any(i in steps for i in inside):
            found.append(0)
            continue
        for i, following in itertools.pairwise(inside):
            if steps.get(i) != steps.get(following, 0) * layout.axes[following].size:
                return None
        found.append(steps[inside[-1]])
    return tuple(found)


def flatten(array: Array, covered: Collection[int], layout: Layout) -> tuple[list[Any], tuple[int, ...]]:
    """The elements of an array that covers some axes, as they lie in memory, and the step along each axis group.

    If one step for each group cannot express it, the array is broadcast and transposed to the order of the groups.
    """
    strides = strides_of(layout, covered)
    if strides is None:
        spread = [axis.size if i in covered else 1 for i, axis in enumerate(layout.axes)]
        array = np.broadcast_to(array.reshape(spread), layout.split).transpose(layout.order)
        sizes = layout.canonical
        strides = tuple(math.prod(sizes[group + 1 :]) for group in range(5))
    return array.ravel().tolist(), strides


def loop(
    layout: Layout, norm: Norm, x: Array, weight: Array | None, valid: Array, covered: Collection[int]
) -> tuple[list[float], list[tuple[int, float, float]]]:
    """y where x lies, and (count, mean, m2) of each (outer, kept): five loops, nothing else."""
    elements, x_steps = flatten(x, range(len(layout.axes)), layout)
    marks, valid_steps = flatten(valid, covered, layout)
    weights: list[float] = [1.0]
    weight_steps: tuple[int, ...] = (0, 0, 0, 0, 0)
    if weight is not None:
        weights, weight_steps = flatten(weight, [i for i, axis in enumerate(layout.axes) if axis.weighted], layout)

    def at(index: tuple[int, ...], steps: tuple[int, ...]) -> int:
        return sum(i * step for i, step in zip(index, steps, strict=True))

    y, moments = [0.0] * len(elements), []
    outer, reduced, kept, channels, positions = (range(size) for size in layout.canonical)
    for o, k in itertools.product(outer, kept):
        inside = [(o, r, k, c, p) for r, c, p in itertools.product(reduced, channels, positions)]
        inside = [index for index in inside if marks[at(index, valid_steps)]]
        values = [elements[at(index, x_steps)] for index in inside]
        mean = math.fsum(values) / len(values) if values and norm.center else 0.0
        m2 = math.fsum((value - mean) ** 2 for value in values)
        moments.append((len(values), mean, m2))
        for index, value in zip(inside, values, strict=True):
            rstd = 1 / math.sqrt(m2 / len(values) + norm.eps)
            y[at(index, x_steps)] = (value - mean) * rstd * weights[at(index, weight_steps)]
    return y, moments


@pytest.mark.parametrize("center", [True, False])
@pytest.mark.parametrize("name", PATTERNS)
def test_five_loops_over_flat_memory_compute_every_normalization(name: str, center: bool) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(1)
    norm = replace(pattern.norm, center=center, eps=0.1)
    layout, x = norm.view(pattern.shape), offset_data(rng, pattern.shape)
    weight = None if pattern.weight_shape is None else odd(rng, pattern.weight_shape)
    everything = range(len(layout.axes))
    by_position = [i for i in everything if layout.axes[i].source != layout.channel]
    by_sample = [0]
    shapes = {"elements": pattern.shape, "positions": pattern.positions}
    cases = [(rng.random(shapes["elements"]) < 0.7, everything), (rng.random(shapes["positions"]) < 0.7, by_position)]
    if len(pattern.words[0]) == 1:
        only_first = [pattern.shape[0], *[1] * (x.ndim - 1)]
        cases.append((np.arange(pattern.shape[0]).reshape(only_first) % 3 != 1, by_sample))
    for valid, covered in cases:
        out = tn.forward(x, norm, weight=weight, valid=valid)
        y, moments = loop(layout, norm, x, weight, valid, covered)
        mine, _ = flatten(out.y, everything, layout)
        bound = 64 * ULP * (1 + np.abs(x).max() / math.sqrt(0.1))
        assert_close(mine, y, 3 * bound, f"{norm}, {covered}: y")
        # The index of a statistic is (outer, kept).
        named = [*layout.axis_groups[0], *layout.axis_groups[2]]
        places = [i for i in everything if not layout.axes[i].reduced]
        for column, expected in zip(("count", "mean", "m2"), zip(*moments, strict=True), strict=True):
            kept = getattr(out.moments, column).transpose([places.index(i) for i in named])
            assert_close(kept.ravel(), expected, 64 * ULP * x.size * 100, f"{norm}, {covered}: {column}")


@pytest.mark.parametrize("name", PATTERNS)
def test_the_layout_is_the_one_worked_out_by_hand(name: str) -> None:
    pattern = PATTERNS[name]
    layout = pattern.norm.view(pattern.shape)
    assert layout.shape == pattern.shape
    assert layout.split == pattern.split
    assert layout.statistics == pattern.statistics
    assert layout.positions == pattern.positions
    assert layout.weight_shape == pattern.weight_shape
    assert layout.channel == pattern.channel
    assert [axis.reduced for axis in layout.axes] == [reduced for _, _, reduced, _ in pattern.pieces]
    assert [axis.weighted for axis in layout.axes] == [weighted for *_, weighted in pattern.pieces]
    assert layout.reduced == tuple(i for i, axis in enumerate(layout.axes) if axis.reduced)
    assert layout.unweighted == tuple(i for i, axis in enumerate(layout.axes) if not axis.weighted)
    covered = [{weighted for *_, weighted in word} for word in pattern.words]
    sizes = tuple(1 if True in one else size for one, size in zip(covered, pattern.shape, strict=True))
    assert layout.mask_shape == (None if {True, False} in covered else sizes)


@pytest.mark.parametrize(
    ("norm", "shape", "axis"),
    [
        (Norm("b h [t] c"), (N, L, T, C), 2),
        (Norm("b [s] c"), (N, T, C), 1),
        (Norm("b c [s]"), (N, C, T), 2),
        (Norm("b h (t [c])", sizes={"t": 2}), (N, T, C), 2),
        (Norm("b [h w] c"), (N, T, L, C), None),
        (Norm("[s] c"), (T, C), None),
        (Norm("[n s] c"), (N, T, C), None),
    ],
    ids=str,
)
def test_lengths_run_along_t_or_the_only_position_axis_of_samples(
    norm: Norm, shape: tuple[int, ...], axis: int | None
) -> None:
    assert norm.view(shape).ragged_axis == axis


@pytest.mark.parametrize(
    ("norm", "shape", "names"),
    [
        (tn.batch(), (N, C), "b c"),
        (tn.batch(), (N, T, C), "b t c"),
        (tn.batch(), (N, L, T, C), "b p1 p2 c"),
        (tn.batch("second"), (N, C), "b c"),
        (tn.batch("second"), (N, C, T), "b c t"),
        (tn.batch("second"), (N, C, L, T), "b c p2 p3"),
        (tn.layer(), (C,), "c"),
        (tn.layer(), (N, C), "b c"),
        (tn.layer(), (N, T, C), "b t c"),
        (tn.instance(), (N, T, C), "b t c"),
        (tn.group(G), (N, T, C), "b t g c"),
        (tn.group(G, "second"), (N, C, T), "b g c t"),
        (Norm("[...]"), (N, T), "b t"),
        (Norm("[...]"), (N,), "b"),
        (Norm("[...] b c"), (T, N, C), "t b c"),
        (Norm("[...] t c"), (N, T, C), "b t c"),
        (Norm("[...] t c"), (N, L, T, C), "b p1 t c"),
        (Norm("[h] ... c"), (N, T, C), "h p1 c"),
        (Norm("(b h) [...] c", sizes={"h": 2}), (N, T, C), "b h t c"),
        (Norm("[c] ..."), (C, N, T), "c p1 p2"),
        (Norm("[b] ... (t c)", sizes={"t": 2}), (N, T, C), "b p1 t c"),
        (Norm("[...]"), (), ""),
    ],
    ids=str,
)
def test_hidden_axes_are_named_b_and_t_if_unambiguous(norm: Norm, shape: tuple[int, ...], names: str) -> None:
    # b is the first axis, t the only other position axis: what lengths= counts in.
    layout = norm.view(shape)
    assert " ".join(axis.name for axis in layout.axes) == names
    for name in names.split():
        assert [axis.name for axis in layout.axes].index(name) == layout.find(name)
    assert layout.find("x") is None


def test_layouts_are_cached() -> None:
    one, two = tn.group(2), tn.group(2)
    assert one.view((N, T, C)) is one.view([N, T, C])
    assert one.view((N, T, C)) is two.view(np.zeros((N, T, C)).shape)
    assert one.view((N, T, C)) is not one.view((N, L, C))
    assert one.view((N, T, C)) is not tn.group(3).view((N, T, C))  # sizes are no part of the hash
    assert one.view((N, T, C)).split != tn.group(3).view((N, T, C)).split


def test_a_shape_is_checked_before_the_cache() -> None:
    # (2.0, 3.0) and (2, 3) are equal and have one hash: a layout of floats in the cache would serve both.
    norm = tn.batch(eps=0.125)
    untyped: Any = norm
    for before in (False, True):
        with pytest.raises(ValueError, match="a shape must hold integers >= 0"):
            untyped.view((2.0, 3.0))
        assert norm.view((2, 3)).canonical == (1, 2, 3, 1, 1), before
    assert all(type(size) is int for size in untyped.view(np.array([2, 3])).shape)
    assert all(type(size) is int for size in untyped.view((np.int64(5), np.uint8(3))).shape)
    assert untyped.view((np.int64(0), 3)) is norm.view((0, 3))


def test_ddof_is_an_integer() -> None:
    untyped: Any = tn.batch
    assert type(untyped(ddof=np.int64(1)).ddof) is int
    assert untyped(ddof=np.int64(1)) == tn.batch(ddof=1)


def test_a_pattern_is_accepted_in_place_of_a_norm() -> None:
    x, norm = offset_data(np.random.default_rng(2), (4, 5, 3)), Norm("b [t] c")
    arguments: dict[str, Any] = {"lengths": [5, 1, 0, 3]}
    untyped: Any = tn
    for given in ({}, arguments):
        found, expected = (untyped.forward(x, one, **given) for one in (norm.pattern, norm))
        assert found.norm == norm
        assert_same_bits(found.y, expected.y, "y")
        assert_same_bits(tn.backward(x, found)[0], tn.backward(x, expected)[0], "dx")
        assert_same_moments(untyped.measure(x, norm.pattern, **given), expected.moments, "measure")
        shown = untyped.explain(x, norm.pattern, **given)
        assert shown.norm == norm
        assert_same_bits(shown["y"], untyped.explain(x, norm, **given)["y"], "explain")
    running = tn.running.Running.start((3,), tn.running.torch_convention())
    assert_same_moments(running.moments("[b t] c"), running.moments(Norm("[b t] c")), "running")


NORMS = [
    tn.batch(),
    tn.batch("second", eps=1e-3, ddof=1, eps_at="std"),
    tn.layer(),
    tn.rms(),
    tn.instance("second"),
    tn.group(8),
    Norm("b [h w c]", affine="h w c"),
    Norm("(b t) ([g] c)", 0.25, True, 1, "std", {"b": 3, "g": 2}, "g c"),
]


@pytest.mark.parametrize("norm", NORMS, ids=str)
def test_a_norm_is_a_value(norm: Norm) -> None:
    for other in (
        eval(repr(norm), {"Norm": Norm}),
        pickle.loads(pickle.dumps(norm)),
        copy.copy(norm),
        copy.deepcopy(norm),
        replace(norm),
    ):
        assert other == norm
        assert hash(other) == hash(norm)
        assert repr(other) == repr(norm)
        assert type(other.sizes) is type(norm.sizes)
    assert [one for one in NORMS if one == norm] == [norm]
    assert {norm: 1}[replace(norm)] == 1
    changed: list[dict[str, Any]] = [
        {"eps": 0.5},
        {"sizes": {**norm.sizes, "c": 24}},
        {"eps_at": "var"},
        {"eps_at": "std"},
    ]
    assert sum(replace(norm, **change) == norm for change in changed) == 1  # one eps_at is its own
    text: Any = norm.pattern
    assert norm != text


@pytest.mark.parametrize(
    ("norm", "text"),
    [
        (tn.batch(), "Norm('[...] c')"),
        (tn.rms(eps=1e-6), "Norm('... [c]', eps=1e-06, center=False)"),
        (tn.group(4, ddof=1), "Norm('b [...] (g [c])', ddof=1, sizes={'g': 4})"),
        (
            Norm("b [h c]", affine="h c", eps_at="std", eps=0),
            "Norm('b [h c]', eps=0.0, eps_at='std', affine='h c')",
        ),
    ],
    ids=str,
)
def test_the_repr_of_a_norm_omits_defaults(norm: Norm, text: str) -> None:
    assert repr(norm) == text


def test_values_are_immutable() -> None:
    sizes = {"g": 2}
    norm: Any = Norm("b [t] (g [c])", sizes=sizes)
    with pytest.raises(FrozenInstanceError):
        norm.eps = 1.0
    with pytest.raises(TypeError):
        norm.sizes["g"] = 3
    sizes["g"] = 3
    assert norm.sizes["g"] == 2
    layout = norm.view((N, T, C))
    with pytest.raises(FrozenInstanceError):
        layout.shape = (1, 2, 3)
    with pytest.raises(FrozenInstanceError):
        layout.axes[0].size = 1
    moments: Any = tn.measure(np.zeros((2, 3)), tn.batch())
    with pytest.raises(FrozenInstanceError):
        moments.count = 3


def test_equal_norms_have_equal_hashes() -> None:
    assert Norm("[c]", eps=1) == Norm("[c]", eps=1.0)
    assert isinstance(Norm("[c]", eps=1).eps, float)
    assert Norm("b (g [c])", sizes={"g": 2}) != Norm("b (g [c])", sizes={"g": 3})
    assert hash(Norm("[b] c", sizes={"b": 2, "c": 3})) == hash(Norm("[b] c", sizes={"c": 3, "b": 2}))
    assert Norm("[b] c", sizes={"b": 2, "c": 3}) == Norm("[b] c", sizes={"c": 3, "b": 2})


def test_space_in_a_pattern_does_not_matter() -> None:
    shape = (N, T, C)
    tight, wide = Norm("b[t](g[c])", sizes={"g": 2}), Norm("  b  [ t ] ( g [ c ] ) ", sizes={"g": 2})
    assert tight.view(shape).axes == wide.view(shape).axes == Norm("b [t] (g [c])", sizes={"g": 2}).view(shape).axes
    assert [str(axis) for axis in wide.axes] == ["b", "[t]", "(g [c])"]
