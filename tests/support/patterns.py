"""What the tests share: a table of patterns, and how results are compared. `ways.py` marks valid elements.

The axes of every pattern are worked out by hand, so that nothing here depends on how the library reads it.
"""

import itertools
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np
from numpy.typing import ArrayLike
from oracle import Case, oracle_backward, oracle_forward
from oracle import Moments as OracleMoments

import truenorm as tn
from truenorm import engine

if TYPE_CHECKING:
    from ways import Ragged

Array = np.ndarray[Any, Any]
Shape = tuple[int, ...]
ULP = float(np.finfo(np.float64).eps)
T = TypeVar("T")


@dataclass(frozen=True)
class Pattern:
    """A normalization of one shape, with the axes worked out by hand.

    layout  a word for each axis of x: name:size, then * where it is averaged over and + where weight covers
            it. The pieces of a composed axis are joined by |. Hidden axes have the names that lengths= uses.
    weight  the shape of weight where it is not one axis for each covered axis of x
    """

    norm: tn.Norm
    layout: str
    weight: Shape | None = None

    @cached_property
    def words(self) -> list[list[tuple[str, int, bool, bool]]]:
        """Name, size, reduced and weighted of each piece of each axis."""
        return [[_piece(piece) for piece in word.split("|")] for word in self.layout.split()]

    @cached_property
    def pieces(self) -> list[tuple[str, int, bool, bool]]:
        return [piece for word in self.words for piece in word]

    @cached_property
    def shape(self) -> Shape:
        return tuple(math.prod(size for _, size, _, _ in word) for word in self.words)

    @cached_property
    def split(self) -> Shape:
        return tuple(size for _, size, _, _ in self.pieces)

    @cached_property
    def channel(self) -> int | None:
        return next((i for i, word in enumerate(self.words) if any(piece[0] == "c" for piece in word)), None)

    @cached_property
    def positions(self) -> Shape:
        return tuple(size for i, size in enumerate(self.shape) if i != self.channel)

    @cached_property
    def statistics(self) -> Shape:
        return tuple(size for _, size, reduced, _ in self.pieces if not reduced)

    @cached_property
    def weight_axes(self) -> tuple[int, ...]:
        return tuple(i for i, (_, _, _, weighted) in enumerate(self.pieces) if weighted)

    @cached_property
    def weight_shape(self) -> Shape | None:
        if self.weight is not None or not self.weight_axes:
            return self.weight
        covered = [[size for _, size, _, weighted in word if weighted] for word in self.words]
        return tuple(math.prod(sizes) for sizes in covered if sizes)

    @property
    def position_sizes(self) -> dict[int, int]:
        """Of the axes besides b and the channels, numbered after splitting."""
        sources = [i for i, word in enumerate(self.words) for _ in word]
        pieces = enumerate(zip(self.pieces, sources, strict=True))
        return {i: piece[1] for i, (piece, source) in pieces if source != self.channel and piece[0] != "b"}

    @property
    def has_lengths(self) -> bool:
        return {"b", "t"} <= {name for name, _, _, _ in self.pieces}

    @property
    def has_offsets(self) -> bool:
        """Packed rows have the axes b, t and the channels, and the channels' weight."""
        around = {name for i, word in enumerate(self.words) for name, *_ in word if i != self.channel}
        return around == {"b", "t"} and self.channel is not None and self.norm.affine is None

    def case(self, norm: tn.Norm) -> Case:
        """The same normalization for the oracle."""
        axes = [(name, size, reduced) for name, size, reduced, _ in self.pieces]
        return Case(axes, self.weight_axes, norm.eps, norm.center, norm.ddof, norm.eps_at, norm.activation)

    def spread(self, table: Array) -> Array:
        """The split array with the value table[b, t] at every element of position t of sample b."""
        names, places = [name for name, *_ in self.pieces], np.indices(self.split)
        return table[places[names.index("b")], places[names.index("t")]]

    def mask(self, lengths: Array) -> Array:
        """The first lengths[b] positions t of each sample b, split."""
        extent = next(size for name, size, *_ in self.pieces if name == "t")
        return self.spread(np.arange(extent) < np.asarray(lengths)[:, None])

    def parameters(self, rng: np.random.Generator, names: tuple[str, ...] = ("weight", "bias")) -> dict[str, Array]:
        """Weight and bias, if the pattern can have them."""
        return {} if self.weight_shape is None else {name: odd(rng, self.weight_shape) for name in names}

    def pack(self, array: Array, lengths: Array) -> Array:
        """A split array as packed rows (rows, channels), one sample after the other."""
        rows = pack(array, [name for name, *_ in self.pieces], lengths)
        return rows.reshape(len(rows), -1)

    def pack_statistics(self, array: Array, lengths: Array) -> Array:
        """The statistics of packed rows: one for each row if there is one for each position."""
        names = [name for name, _, reduced, _ in self.pieces if not reduced]
        return pack(array, names, lengths) if {"b", "t"} <= set(names) else array

    def segment_statistics(self, array: Array, lengths: Array, order: Array) -> Array:
        """The same for rows in another order, of which an empty sequence has none, and so no statistic."""
        names = [name for name, _, reduced, _ in self.pieces if not reduced]
        if {"b", "t"} <= set(names):
            return pack(array, names, lengths)[order]
        return array.compress(np.asarray(lengths) > 0, names.index("b")) if "b" in names else array

    def fill(self, positions: Array) -> Array:
        """An array over the positions, or with the rank of x, broadcast to the split shape."""
        if positions.ndim < len(self.shape):
            assert self.channel is not None
            positions = np.expand_dims(positions, self.channel)
        return np.broadcast_to(positions, self.shape).reshape(self.split)


def pack(array: Array, names: list[str], lengths: Array) -> Array:
    """An array with these axes, b and t merged into one at the front, without the padding."""
    padded = np.moveaxis(array, [names.index("b"), names.index("t")], [0, 1])
    return np.concatenate([sample[:length] for sample, length in zip(padded, lengths, strict=True)])


def _piece(word: str) -> tuple[str, int, bool, bool]:
    name, size = word.split(":")
    return name, int(size.rstrip("*+")), "*" in size, "+" in size


def _norm(pattern: str, **options: Any) -> tn.Norm:
    return tn.Norm(pattern, **options)


# Sizes are pairwise distinct, so that no two axes can be confused.
RECIPES = {
    "batch (b c)": Pattern(tn.batch(), "b:7* c:3+"),
    "batch (b t c)": Pattern(tn.batch(), "b:4* t:5* c:3+"),
    "batch (b h w c)": Pattern(tn.batch(), "b:3* h:2* w:5* c:4+"),
    "batch second (b c t)": Pattern(tn.batch("second"), "b:4* c:3+ t:5*"),
    "batch second (b c h w)": Pattern(tn.batch("second"), "b:3* c:4+ h:2* w:5*"),
    "layer (c)": Pattern(tn.layer(), "c:7*+"),
    "layer (b c)": Pattern(tn.layer(), "b:3 c:7*+"),
    "layer (b t c)": Pattern(tn.layer(), "b:4 t:5 c:3*+"),
    "layer (b h w c)": Pattern(tn.layer(), "b:3 h:2 w:4 c:5*+"),
    "rms (b c)": Pattern(tn.rms(), "b:3 c:7*+"),
    "rms (b t c)": Pattern(tn.rms(), "b:4 t:5 c:3*+"),
    "instance (b c)": Pattern(tn.instance(), "b:4 c:3+"),
    "instance (b t c)": Pattern(tn.instance(), "b:4 t:5* c:3+"),
    "instance (b h w c)": Pattern(tn.instance(), "b:3 h:2* w:5* c:4+"),
    "instance second (b c t)": Pattern(tn.instance("second"), "b:4 c:3+ t:5*"),
    "group (b t c)": Pattern(tn.group(2), "b:4 t:5* g:2+|c:3*+"),
    "group (b h w c)": Pattern(tn.group(2), "b:1 h:4* w:5* g:2+|c:3*+"),
    "group second (b c t)": Pattern(tn.group(2, "second"), "b:4 g:2+|c:3*+ t:5*"),
    "group second (b c)": Pattern(tn.group(2, "second"), "b:5 g:2+|c:4*+"),
}
OTHERS = {
    "[b t] c": Pattern(_norm("[b t] c"), "b:4* t:5* c:3+"),
    "b [c] t": Pattern(_norm("b [c] t"), "b:4 c:3*+ t:5"),
    "b [t c]": Pattern(_norm("b [t c]"), "b:4 t:5* c:3*+"),
    "b [t]": Pattern(_norm("b [t]"), "b:4 t:5*"),
    "[b] t c": Pattern(_norm("[b] t c"), "b:4* t:5 c:3+"),
    "t [b] c": Pattern(_norm("t [b] c"), "t:5 b:4* c:3+"),
    "[b t c]": Pattern(_norm("[b t c]"), "b:4* t:5* c:3*+"),
    "(b t) [c]": Pattern(_norm("(b t) [c]", sizes={"b": 4}), "b:4|t:5 c:3*+"),
    "b (g [c]) t": Pattern(_norm("b (g [c]) t", sizes={"c": 3}), "b:4 g:2+|c:3*+ t:5"),
    "b ([g] c) [t]": Pattern(_norm("b ([g] c) [t]", sizes={"g": 2}), "b:4 g:2*+|c:3+ t:5*"),
    "[b] (t c)": Pattern(_norm("[b] (t c)", sizes={"t": 5}), "b:4* t:5+|c:3+"),
    "b [h w c], affine h w c": Pattern(_norm("b [h w c]", affine="h w c"), "b:3 h:2*+ w:4*+ c:5*+"),
    "b [h w c], affine c": Pattern(_norm("b [h w c]"), "b:3 h:2* w:4* c:5*+"),
    "[h] b c, affine h c": Pattern(_norm("[h] b c", affine="h c"), "h:5*+ b:4 c:3+"),
    "b [t] c, affine b": Pattern(_norm("b [t] c", affine="b"), "b:4+ t:5* c:3"),
    "b [t] (g [c]), affine g": Pattern(_norm("b [t] (g [c])", sizes={"g": 2}, affine="g"), "b:4 t:5* g:2+|c:3*"),
    "b [t] (g [c]), affine g c": Pattern(
        _norm("b [t] (g [c])", sizes={"g": 2}, affine="g c"), "b:4 t:5* g:2+|c:3*+", weight=(2, 3)
    ),
    "c [h] b [w]": Pattern(_norm("c [h] b [w]"), "c:2+ h:3* b:4 w:5*"),
    "c [h] b [w] d": Pattern(_norm("c [h] b [w] d"), "c:2+ h:3* b:5 w:4* d:6"),
    "[h] (g [c]) e [d]": Pattern(
        _norm("[h] (g [c]) e [d]", sizes={"g": 2}, affine="(g c) d"), "h:4* g:2+|c:3*+ e:1 d:5*+"
    ),
}
PATTERNS = RECIPES | OTHERS
# One ragged axis t within b, with padding at the end: equal bits are promised for these.
SEQUENCES = {name: one for name, one in PATTERNS.items() if one.has_lengths}

LENGTHS = np.array([3, 0, 5, 1])  # for b:4 and t:5: a part, nothing, everything, a single position


def every(crossed: Iterable[T], step: int, start: int = 0) -> Iterator[T]:
    """Every step-th combination of a cross. Factors have 2, 3 or 4 values: a multiple of these would skip some."""
    assert math.gcd(step, 6) == 1, f"a step of {step} would skip some values altogether"
    return itertools.islice(crossed, start % step, None, step)


def odd(rng: np.random.Generator, shape: Shape) -> Array:
    """Weights, biases and cotangents that hide no error: never 0 or 1, both signs, pairwise distinct."""
    return rng.uniform(0.4, 2.3, shape) * rng.choice([-1.0, 1.0], shape)


def offset_data(rng: np.random.Generator, shape: Shape) -> Array:
    """Data with a mean far from 0, so that an error in the mean is visible."""
    return rng.normal(3.0, 1.5, shape)


def assert_close(actual: ArrayLike, expected: ArrayLike, bound: float | Array, what: str) -> None:
    """Finite (a comparison with NaN is always False), and within the bound."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"{what}: shape {actual.shape}, not {expected.shape}"
    assert np.isfinite(actual).all(), f"{what}: not finite:\n{actual}"
    error = np.abs(actual - expected)
    assert (error <= bound).all(), f"{what}: off by {error.max():.3g}, allowed {np.max(bound):.3g}"


def assert_same_bits(actual: Array, expected: Array, what: str) -> None:
    """The same dtype, shape and bits: 0.0 is not -0.0, and every NaN is itself."""
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert (actual.dtype, actual.shape) == (expected.dtype, expected.shape), (
        f"{what}: {actual.dtype}{actual.shape}, not {expected.dtype}{expected.shape}"
    )
    assert actual.tobytes() == expected.tobytes(), f"{what}: other bits:\n{actual}\n{expected}"


def assert_same_moments(actual: tn.Moments, expected: tn.Moments, what: str) -> None:
    """The bits of count, mean and m2."""
    for name in ("count", "mean", "m2"):
        assert_same_bits(getattr(actual, name), getattr(expected, name), f"{what}, {name}")


@dataclass(frozen=True)
class Results:
    """All results of one forward and backward."""

    y: Array
    dx: Array
    dweight: Any  # an array, or None without a weight
    dbias: Any  # an array, or None without a bias
    moments: tn.Moments


def run(x: ArrayLike, dy: ArrayLike, norm: tn.Norm, **arguments: Any) -> Results:
    """Forward and backward."""
    out = tn.forward(x, norm, **arguments)
    return Results(out.y, *tn.backward(dy, out), out.moments)


def assert_same_results(actual: Results, expected: Results, what: str) -> None:
    """The bits of all results."""
    for name in ("y", "dx", "dweight", "dbias"):
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None), f"{what}, {name}"
        if one is not None:
            assert_same_bits(one, other, f"{what}, {name}")
    assert_same_moments(actual.moments, expected.moments, what)


def assert_close_results(actual: Results, expected: Results, bound: float, what: str) -> None:
    """Within the bound, which is larger for sums over many elements."""
    for name, allowed in (("y", bound), ("dx", bound), ("dweight", 32 * bound), ("dbias", 32 * bound)):
        one, other = getattr(actual, name), getattr(expected, name)
        assert (one is None) == (other is None), f"{what}, {name}"
        if one is not None:
            assert_close(one, other, allowed, f"{what}: {name}")


def rounding(dtype: type) -> float:
    """The rounding of one operation: the reference computes in float64, the kernels in float32 for narrow dtypes."""
    return ULP if engine.engine() == "reference" or dtype is np.float64 else float(np.finfo(np.float32).eps)


def magnitude(x: Array, dtype: type) -> float:
    """The size of the numbers that are rounded: kernels that sum in float32 first subtract an offset."""
    if x.size == 0:
        return 0.0
    return float(np.abs(x).max() if rounding(dtype) == ULP else np.ptp(x))


def assert_same_statistics(
    actual: tn.Moments, expected: tn.Moments, x: Array, what: str, dtype: type = np.float64
) -> None:
    """Equal up to the rounding of the data, x.

    A mean is off by a rounding of x, δ; then each deviation is off by δ, too, so m2 = Σ d² by 2 Σ |d| δ + n δ², of
    which the first is at most 2 δ sqrt(n m2). The squares and their sum are rounded, too.
    """
    delta = 4 * rounding(dtype) * magnitude(x, dtype)
    count, m2 = expected.count, expected.m2
    assert_close(actual.count, count, 64 * ULP * np.abs(count).max(initial=0.0), f"{what}: count")
    assert_close(actual.mean, expected.mean, delta, f"{what}: mean")
    bound = 64 * rounding(dtype) * m2 + 2 * delta * np.sqrt(count * m2) + count * delta**2
    assert_close(actual.m2, m2, bound, f"{what}: m2")


def moments_of(found: OracleMoments, pattern: Pattern, way: "Ragged") -> tn.Moments:
    """The oracle's moments as the library's."""
    columns = np.array(list(found.values())).reshape(*pattern.statistics, 3)
    return tn.Moments(*(way.statistics(columns[..., i]) for i in range(3)))


def other_moments(pattern: Pattern, norm: tn.Norm) -> OracleMoments:
    """Moments that are not those of x: counts are not integers, and the first is too small for ddof=1."""
    keys = np.ndindex(pattern.statistics)
    return {key: (0.75 + 1.5 * i, (2.5 - i) * norm.center, 0.5 + 3 * i) for i, key in enumerate(keys)}


def check(
    pattern: Pattern,
    norm: tn.Norm,
    way: "Ragged",
    x: Array,
    dy: Array,
    parameters: dict[str, Array],
    *,
    what: str,
    padding: Literal["zero", "keep"] = "zero",
    given: bool = False,
    dtype: type = np.float64,
) -> None:
    """Compares all results with those of the oracle for the same, already rounded, numbers."""
    case = pattern.case(norm)
    options: dict[str, Any] = {"valid": way.valid, "sample_weight": way.sample_weight, "padding": padding}
    split = tuple(pattern.split[axis] for axis in pattern.weight_axes)
    options |= {name: parameter.reshape(split) for name, parameter in parameters.items()}
    y, found = oracle_forward(x, case, moments=other_moments(pattern, norm) if given else None, **options)
    dx, dweight, dbias = oracle_backward(dy, x, case, moments=found, constant=given, **options)
    moments = moments_of(found, pattern, way)

    arguments: dict[str, Any] = way.arguments | parameters
    inputs = {"x": way.form(x).astype(dtype), "dy": way.form(dy).astype(dtype)} | arguments
    before = {name: np.asarray(value).tobytes() for name, value in inputs.items()}
    out = tn.forward(inputs["x"], norm, padding=padding, moments=moments if given else None, **arguments)
    mine = Results(out.y, *tn.backward(inputs["dy"], out), out.moments)
    after = {name: np.asarray(value).tobytes() for name, value in inputs.items()}
    assert before == after, f"{what}: an input was modified"

    # The rounding of x and of its mean is multiplied by rstd in xhat: this is the condition number.
    selected = x if way.valid is None else x[way.valid]
    size = magnitude(np.append(selected, moments.mean if rounding(dtype) > ULP else []), dtype)
    rstd = max((case.rstd(count, m2) for count, _, m2 in found.values()), default=0.0)
    condition = 1 + (size + (np.abs(moments.mean).max(initial=0.0) if rounding(dtype) == ULP else 0.0)) * rstd
    weight = np.abs(parameters.get("weight", np.ones(1))).max(initial=0.0)
    ulps = 16 * rounding(dtype) * condition
    bend = 1.0 if norm.activation is None else weight + 3  # its derivative is of a z that is off by as much as y

    def assert_rounded(actual: Array, expected: Array, bound: float, name: str) -> None:
        """At most half a unit in the last place of a narrower dtype, in addition to the bound for float64."""
        assert actual.dtype == dtype, f"{what}: {name} is {actual.dtype}"
        half = 0.0 if dtype is np.float64 else 0.5 * np.spacing(np.abs(expected).astype(dtype)).astype(float)
        assert_close(actual, expected, bound + half, f"{what}: {name}")

    assert_rounded(mine.y, way.form(y), ulps * (weight + 2), "y")
    assert_rounded(mine.dx, way.form(dx), bend * ulps * weight * rstd * np.abs(dy).max(initial=0.0), "dx")
    for name, gradient, expected, factor in (
        ("weight", mine.dweight, dweight, bend * condition),
        ("bias", mine.dbias, dbias, 1 if norm.activation is None else bend * condition),
    ):
        assert (gradient is None) == (name not in parameters), f"{what}: d{name} is {gradient}"
        if gradient is not None:
            bound = 16 * rounding(dtype) * factor * np.abs(dy).sum()
            assert_close(gradient, expected.reshape(pattern.weight_shape), bound, f"{what}: d{name}")
    assert mine.moments.count.dtype == (float if given or way.sample_weight is not None else int), what
    assert_same_statistics(mine.moments, moments, selected, what, dtype)
