"""Every result of the library against the oracle, which is plain loops, for combinations of all features."""

import itertools
from collections.abc import Callable
from dataclasses import replace
from functools import reduce
from operator import add
from typing import Any, Literal

import numpy as np
import pytest
from oracle import finite_difference
from patterns import (
    PATTERNS,
    RECIPES,
    ULP,
    Array,
    Pattern,
    Results,
    assert_close,
    assert_close_results,
    assert_same_results,
    check,
    every,
    odd,
    offset_data,
    run,
)
from ways import ragged, ways

import truenorm as tn
from truenorm import engine
from truenorm.core.activation import ACTIVATIONS

# A large eps, so that it matters, with both values of eps_at.
CONVENTIONS: list[dict[str, Any]] = [
    {"eps": 0.3, "center": center, "ddof": ddof, "eps_at": eps_at}
    for center, ddof, eps_at in itertools.product((True, False), (0, 1), ("var", "std"))
    if center or not ddof
]
AFFINE = [("weight", "bias"), ("weight",), ("bias",), ()]


def check_cross(name: str, step: int) -> None:
    """Every way to mark valid elements x conventions x parameters x given moments x padding x activations."""
    pattern, rng = PATTERNS[name], np.random.default_rng(7)
    x, dy = offset_data(rng, pattern.split), odd(rng, pattern.split)
    crossed = enumerate(itertools.product(ways(pattern, rng), CONVENTIONS, AFFINE, (False, True)))
    start = list(PATTERNS).index(name)  # each pattern takes another part; together they cover all
    for number, ((kind, way), conventions, affine, given) in every(crossed, step, start):
        activation = (None, *ACTIVATIONS)[number // 7 % 5]  # the same of 7
        norm = replace(pattern.norm, **conventions, activation=activation)
        padding: Literal["zero", "keep"] = "keep" if number // 3 % 2 else "zero"  # 3 divides no other factor: meets all
        what = f"{norm}, {kind}, {affine}, padding={padding}" + ", given moments" * given
        check(pattern, norm, way, x, dy, pattern.parameters(rng, affine), what=what, padding=padding, given=given)


@pytest.mark.parametrize("name", PATTERNS)
def test_all_results_match_the_oracle(name: str, thin: int) -> None:
    check_cross(name, 5 * thin)


@pytest.mark.slow
@pytest.mark.parametrize("name", PATTERNS)
def test_all_results_of_the_full_cross_match_the_oracle(name: str) -> None:
    check_cross(name, 1)


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_narrow_dtypes_are_rounded_once_at_the_end(dtype: type, thin: int) -> None:
    rng = np.random.default_rng(8)
    for pattern in every(RECIPES.values(), thin):
        x, dy = (draw(rng, pattern.split).astype(dtype).astype(float) for draw in (offset_data, odd))
        parameters = pattern.parameters(rng)
        for kind, way in ways(pattern, rng):
            what = f"{pattern.norm}, {kind}, {dtype.__name__}"
            check(pattern, replace(pattern.norm, eps=0.3), way, x, dy, parameters, what=what, dtype=dtype)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("averaged over padding", lambda out: replace(out, y=out.y + 0.01)),
        ("rounded like float32", lambda out: replace(out, y=out.y.astype(np.float32).astype(float))),
        ("dx of fixed statistics", lambda out: replace(out, given=True)),
        ("y not finite", lambda out: replace(out, y=out.y * np.nan)),
    ],
)
def test_the_check_can_fail(name: str, wrong: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> None:
    pattern, rng = PATTERNS["batch (b t c)"], np.random.default_rng(9)
    way = ragged(pattern, "lengths", rng)
    assert way is not None
    x, dy = offset_data(rng, pattern.split), odd(rng, pattern.split)
    check(pattern, pattern.norm, way, x, dy, {}, what=name)
    forward = tn.forward
    monkeypatch.setattr(tn, "forward", lambda *args, **options: wrong(forward(*args, **options)))
    with pytest.raises(AssertionError, match=f"{name}: (y|dx): (off by|not finite)"):
        check(pattern, pattern.norm, way, x, dy, {}, what=name)


def split_axes(pattern: Pattern) -> list[int]:
    """The axes along which x can be cut into parts that share their statistics and all of the weight."""
    alone = [word[0] if len(word) == 1 else ("", 0, False, False) for word in pattern.words]
    return [i for i, (_, size, reduced, weighted) in enumerate(alone) if reduced and not weighted and size > 1]


@pytest.mark.parametrize("name", [name for name, pattern in PATTERNS.items() if split_axes(pattern)])
def test_parts_that_share_statistics_have_the_gradients_of_the_whole(name: str, thin: int) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(10)
    x, dy = (draw(rng, pattern.shape) for draw in (offset_data, odd))
    parameters: dict[str, Any] = pattern.parameters(rng)
    valid = rng.random(pattern.shape) < 0.6
    by_position = [1 if i == pattern.channel else size for i, size in enumerate(pattern.shape)]
    sample_weight = rng.choice([0.0, 0.5, 2.0], by_position)
    chosen = [{}, {"valid": valid}, {"valid": valid, "sample_weight": sample_weight}]
    crossed = itertools.product(split_axes(pattern), chosen, CONVENTIONS)
    for axis, arguments, conventions in every(crossed, thin):
        norm = replace(pattern.norm, **conventions)
        what = f"{norm} along axis {axis} with {list(arguments)}"
        whole = run(x, dy, norm, **arguments, **parameters, padding="keep")
        # Cut at 1 and twice at 2: parts of different sizes, one of them empty.
        cuts = [slice(0, 1), slice(1, 2), slice(2, 2), slice(2, None)]
        places = [(*[slice(None)] * axis, cut) for cut in cuts]
        parts: list[Any] = [{name: value[place] for name, value in arguments.items()} for place in places]
        moments = tn.merge(*(tn.measure(x[place], norm, **part) for place, part in zip(places, parts, strict=True)))
        outs = [
            tn.forward(x[place], norm, **part, **parameters, padding="keep", moments=moments)
            for place, part in zip(places, parts, strict=True)
        ]
        sums = reduce(add, [tn.backward_sums(dy[place], out) for place, out in zip(places, outs, strict=True)])
        for place, out in zip(places, outs, strict=True):
            part = Results(out.y, *tn.backward(dy[place], out, sums=sums), out.moments)
            expected = replace(whole, y=whole.y[place], dx=whole.dx[place])
            assert_close_results(part, expected, 2**8 * ULP, what)


def test_a_parameter_gets_a_gradient_only_if_both_part_and_sums_have_it() -> None:
    rng = np.random.default_rng(16)
    x, dy, weight = offset_data(rng, (5, 3)), odd(rng, (5, 3)), odd(rng, (3,))
    plain, scaled = tn.forward(x, tn.batch()), tn.forward(x, tn.batch(), weight=weight, bias=weight)
    assert tn.backward(dy, plain, sums=tn.backward_sums(dy, scaled))[1:] == (None, None)
    assert tn.backward(dy, scaled, sums=tn.backward_sums(dy, plain))[1:] == (None, None)


@pytest.mark.parametrize("name", RECIPES)
def test_gradients_match_finite_differences(name: str, thin: int) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(11)
    x, dy = offset_data(rng, pattern.shape), odd(rng, pattern.shape)
    parameters = pattern.parameters(rng)
    arguments: dict[str, Any] = {
        "valid": rng.random(pattern.shape) < 0.8,
        "sample_weight": rng.choice([0.0, 0.5, 2.0], pattern.positions),
    }
    for conventions in every(CONVENTIONS, thin * (1 if x.size < 100 else 5)):
        norm = replace(pattern.norm, **conventions)
        mine = run(x, dy, norm, **arguments, **parameters)

        def y_of(name: str, norm: tn.Norm = norm) -> Callable[[Array], Array]:
            def f(value: Array) -> Array:
                inputs: dict[str, Any] = {"x": x, **parameters, name: value}
                return tn.forward(inputs.pop("x"), norm, **arguments, **inputs).y

            return f

        for name, gradient in (("x", mine.dx), ("weight", mine.dweight), ("bias", mine.dbias)):
            assert gradient is not None
            expected = finite_difference(y_of(name), {"x": x, **parameters}[name], dy, h=1e-5)
            # h² times a third derivative, and the rounding of y over h: both around 1e-9.
            assert_close(gradient, expected, 1e-7, f"{norm}: d{name}")


def strided(array: Array) -> dict[str, Array]:
    """The same numbers with other memory layouts."""
    step = np.full([2 * size for size in array.shape], np.nan)
    step[tuple(slice(None, None, 2) for _ in array.shape)] = array
    backwards = np.ascontiguousarray(array[(slice(None, None, -1),) * array.ndim])
    unaligned = np.frombuffer(b"?" + array.tobytes(), np.uint8)[1:].view(array.dtype).reshape(array.shape)
    return {
        "transposed": np.asfortranarray(array),
        "every second element": step[tuple(slice(None, None, 2) for _ in array.shape)],
        "negative strides": backwards[(slice(None, None, -1),) * array.ndim],
        "unaligned": unaligned,
        "other byte order": array.astype(array.dtype.newbyteorder()),
    }


@pytest.mark.parametrize("name", PATTERNS)
def test_strides_change_no_bit(name: str) -> None:
    pattern, rng = PATTERNS[name], np.random.default_rng(12)
    x, dy = offset_data(rng, pattern.shape), odd(rng, pattern.shape)
    arguments = {"valid": rng.random(pattern.shape) < 0.8, **pattern.parameters(rng)}
    expected = run(x, dy, pattern.norm, **arguments)
    for how, other in strided(x).items():
        native = run(other, strided(dy)[how], pattern.norm, **arguments)
        found = replace(native, y=native.y.astype(x.dtype), dx=native.dx.astype(x.dtype))
        assert_same_results(found, expected, f"{pattern.norm}, {how}")


@pytest.mark.parametrize("name", PATTERNS)
def test_broadcast_arrays_are_read_correctly(name: str) -> None:
    # The gradient of a sum has stride 0, and so has a repeated sample.
    pattern, rng = PATTERNS[name], np.random.default_rng(13)
    parameters = pattern.parameters(rng)
    for axis in range(len(pattern.shape)):
        thin_shape = tuple(1 if i == axis else size for i, size in enumerate(pattern.shape))
        x, dy = (np.broadcast_to(draw(rng, thin_shape), pattern.shape) for draw in (offset_data, odd))
        assert 0 in x.strides or x.shape[axis] == 1
        expected = run(x.copy(), dy.copy(), pattern.norm, **parameters)
        assert_same_results(run(x, dy, pattern.norm, **parameters), expected, f"{pattern.norm}, axis {axis}")


def test_each_test_runs_on_the_engine_in_its_name(on_engine: str) -> None:
    assert on_engine == engine.engine()


def test_recipes_pass_on_their_options() -> None:
    options: dict[str, Any] = {"eps": 0.25, "ddof": 1, "eps_at": "std"}
    assert tn.batch(**options) == tn.Norm("[...] c", **options)
    assert tn.batch("second", **options) == tn.Norm("[b] c [...]", **options)
    assert tn.layer(**options) == tn.Norm("... [c]", **options)
    assert tn.instance(**options) == tn.Norm("b [...] c", **options)
    assert tn.instance("second", **options) == tn.Norm("b c [...]", **options)
    assert tn.group(4, **options) == tn.Norm("b [...] (g [c])", sizes={"g": 4}, **options)
    assert tn.group(4, "second", **options) == tn.Norm("b (g [c]) [...]", sizes={"g": 4}, **options)
    assert tn.rms(eps=0.25, eps_at="std") == tn.Norm("... [c]", center=False, eps=0.25, eps_at="std")
