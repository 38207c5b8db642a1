"""How kernels are compared with the reference: on the same, already rounded, numbers."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from patterns import (
    ULP,
    Array,
    Results,
    Shape,
    assert_close,
    assert_same_statistics,
    magnitude,
    odd,
    offset_data,
    rounding,
    run,
)

import truenorm as tn
from truenorm import engine
from truenorm.core.mask import mask_input
from truenorm.core.reference import rstd_of

# What the kernels cut their work into. A round of lanes is 128 bytes: 32 floats.
LANES, BLOCK, TILE, BLOCK_ROWS, CHUNK_ROWS, GROUP = 32, 2048, 512, 64, 512, 16
PIECE_OF_PLANES = 8192
STREAMED = 2**25  # bytes of an output that is written past the caches of every machine if it has more
DTYPES = (np.float16, np.float32, np.float64)


@contextmanager
def on(name: Any) -> Iterator[None]:
    """An engine for a while."""
    before = engine.engine()
    engine.use(name)
    try:
        yield
    finally:
        engine.use(before)


def agree(x: Array, dy: Array, norm: tn.Norm, *, what: str = "", **given: Any) -> Results:
    """All results of the kernels against the reference's on the same numbers."""
    before = x.tobytes(), dy.tobytes()
    mine = run(x, dy, norm, **given)
    assert before == (x.tobytes(), dy.tobytes()), f"{what}: an input was modified"
    with on("reference"):
        expected = run(x.astype(float), dy.astype(float), norm, **given)
    compare(mine, expected, x, dy, norm, what=f"{norm}, {x.dtype}{x.shape}, {list(given)} {what}", **given)
    return mine


def compare(
    mine: Results,
    expected: Results,
    x: Array,
    dy: Array,
    norm: tn.Norm,
    *,
    what: str,
    spacing: Any = None,
    **given: Any,
) -> None:
    """As in `patterns.check`: a rounding of the data's size reaches xhat through rstd.

    The kernels subtract a mean in two parts, so what is rounded is of the size of the deviations, not of the mean.
    spacing: from a number to the next one, where NumPy does not know the dtype of y and dx.
    """
    dtype = x.dtype.type if spacing is None else np.float32
    ragged = {name: given[name] for name in ("valid", "lengths", "sample_weight") if name in given}
    chosen = mask_input(x.astype(float), norm, **ragged)
    elements = chosen.x if chosen.valid is None else chosen.x[np.broadcast_to(chosen.valid, chosen.x.shape)]
    largest, narrow = float(np.abs(expected.moments.mean).max(initial=0.0)), rounding(dtype) > ULP
    size = magnitude(np.append(elements, expected.moments.mean), dtype) + (0.0 if narrow else largest)
    rstd = float(rstd_of(expected.moments, norm).max(initial=0.0))
    condition, weight = 1 + size * rstd, float(np.abs(given.get("weight", np.ones(1))).max(initial=0.0))
    sizes = np.abs(chosen.arrange(dy))
    ulps = 16 * rounding(dtype) * condition
    for name, bound in (("y", ulps * (weight + 2)), ("dx", ulps * weight * rstd * sizes.max(initial=0.0))):
        found, wanted = getattr(mine, name), getattr(expected, name)
        if spacing is not None:
            half = 0.5 * spacing(wanted)
        else:
            assert found.dtype == dtype, f"{what}: {name} is {found.dtype}"
            half = 0.0 if dtype is np.float64 else 0.5 * np.spacing(np.abs(wanted).astype(dtype)).astype(float)
        assert_close(found, wanted, bound + half, f"{what}: {name}")
    total = sizes.sum(chosen.layout.unweighted).reshape(chosen.layout.weight_shape or ())
    for name, factor in (("dweight", condition), ("dbias", 1.0)):
        found, wanted = getattr(mine, name), getattr(expected, name)
        assert (found is None) == (wanted is None), f"{what}: {name}"
        if found is not None:
            assert_close(found, wanted, 16 * rounding(dtype) * factor * total, f"{what}: {name}")
    assert_same_statistics(mine.moments, expected.moments, elements, what, dtype)


def draw(norm: tn.Norm, shape: Shape, dtype: type, seed: int = 1) -> tuple[Array, Array, dict[str, Any]]:
    """x, dy, and weight and bias."""
    rng = np.random.default_rng([seed, *shape])
    weights = norm.view(shape).weight_shape or ()
    parameters = {"weight": odd(rng, weights), "bias": odd(rng, weights)}
    return offset_data(rng, shape).astype(dtype), odd(rng, shape).astype(dtype), parameters


def around(*numbers: int) -> list[int]:
    return [number + step for number in numbers for step in (-1, 0, 1)]


def scattered(rng: np.random.Generator, count: int, of: int) -> Array:
    """So many that are valid, among more."""
    valid = np.zeros(of, bool)
    valid[rng.choice(of, count, replace=False)] = True
    return valid


def along(n: int) -> list[tuple[tn.Norm, Shape]]:
    """n elements of one statistic, in every layout."""
    return [
        (tn.batch(), (n, 3)),
        (tn.layer(), (2, n)),
        (tn.instance("second"), (2, 3, n)),
        (tn.batch("second"), (3, 2, n)),
        (tn.instance(), (2, n, 3)),
        (tn.group(2), (2, n, 4)),
        (tn.group(2, "second"), (2, 4, n)),
    ]
