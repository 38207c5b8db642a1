"""float16 and bfloat16, which NumPy does not have: every number is read and written to the nearest."""

import numpy as np
import pytest
from kernels import (
    BLOCK,
    compare,
    draw,
    on,
)
from patterns import (
    Array,
    Results,
    Shape,
    assert_same_bits,
    run,
)

import truenorm as tn

pytest.importorskip("truenorm._native", reason="the compiled part was not built")
from tools.native_calls import Sizes, arguments, columns, from_bfloat16, planes, rows, stored


def bfloat16_spacing(values: Array) -> Array:
    """From one bfloat16 to the next."""
    return np.exp2(np.floor(np.log2(np.maximum(np.abs(values), 2.0**-126))) - 7)


BFLOAT16: dict[str, tuple[Sizes, tn.Norm, Shape]] = {
    "columns": (columns(1, 1, 1025, 130), tn.batch(), (1025, 130)),
    "columns, groups": (columns(3, 1, 70, 2, 65), tn.group(2), (3, 70, 130)),
    "rows": (rows(1, 67, BLOCK + 1), tn.layer(), (67, BLOCK + 1)),
    "rows, few": (rows(1, 3, 35), tn.rms(), (3, 35)),
    "planes": (planes(3, 1, 5, 1, BLOCK + 1), tn.instance("second"), (3, 5, BLOCK + 1)),
    "planes, reduced": (planes(1, 7, 5, 1, 33), tn.batch("second"), (7, 5, 33)),
}


@pytest.mark.parametrize("name", BFLOAT16)
def test_bfloat16_is_summed_in_float32_and_rounded_once(name: str) -> None:
    sizes, norm, shape = BFLOAT16[name]
    x, dy, parameters = draw(norm, shape, np.float32)
    bits = {"x": stored(x.reshape(-1), "bfloat16"), "dy": stored(dy.reshape(-1), "bfloat16")}
    x, dy = (from_bfloat16(one).reshape(shape) for one in bits.values())
    plan = sizes.plan("bfloat16", center=norm.center)
    there = arguments("forward", sizes, "bfloat16") | parameters | {"x": bits["x"]}
    plan.forward(**there)
    back = (
        arguments("backward", sizes, "bfloat16") | bits | {"moments": there["moments"], "weight": parameters["weight"]}
    )
    plan.backward(**back)
    statistics = norm.view(shape).statistics
    count, mean, m2 = there["moments"].reshape(-1, 3).T.reshape(3, *statistics)
    y, dx = (from_bfloat16(one).reshape(shape) for one in (there["y"], back["dx"]))
    mine = Results(y, dx, back["dweight"], back["dbias"], tn.Moments(count, mean, m2))
    with on("reference"):
        expected = run(x.astype(float), dy.astype(float), norm, **parameters)
    compare(mine, expected, x, dy, norm, what=name, spacing=bfloat16_spacing, **parameters)
    alone = arguments("measure", sizes, "bfloat16") | {"x": bits["x"]}
    plan.measure(**alone)
    assert_same_bits(alone["moments"], there["moments"], f"{name}: measured alone")


def scaled(dtype: str, weight: float) -> tuple[Array, Array]:
    """Every number that a 16-bit dtype can store, and what a kernel makes of its product with the weight.

    In whole vectors and in parts of one, with each instruction set: all give the same bits, NaN included.
    """
    from truenorm import _native as native

    bits = np.arange(2**16, dtype=np.uint16)
    x = bits if dtype == "bfloat16" else bits.view(np.float16)
    found = []
    try:
        for loops in ("baseline", "avx2", "avx512"):
            for width in (1, 2, 64) if native.select_loops(loops) else ():
                sizes = columns(1, 1, len(x) // width, width)
                moments, weights = np.tile([1.0, 0.0, 1.0], width), np.full(width, weight)
                fixed = {"x": x, "moments": moments, "weight": weights, "bias": None, "given": True}
                taken = arguments("forward", sizes, dtype) | fixed
                sizes.plan(dtype, eps=0.0).forward(**taken)
                found.append(taken["y"])
                assert_same_bits(found[-1].view(np.uint16), found[0].view(np.uint16), f"{loops}, {width} columns")
    finally:
        native.select_loops("")
    return x, found[0]


# Powers of two send normal numbers to ties between subnormal ones; 1e6 and 1e38 beyond the range.
@pytest.mark.parametrize("weight", [1.0, 1 / 3, 2.0**-1, 2.0**-12, 2.0**-25, 1e-5, 1e6])
def test_every_half_is_read_and_written_as_numpy_does(weight: float) -> None:
    x, y = scaled("float16", weight)
    with np.errstate(all="ignore"):
        expected = (x.astype(np.float32) * np.float32(weight) + np.float32(0)).astype(np.float16)
    assert_same_bits(np.isnan(y), np.isnan(expected), "NaN")
    assert_same_bits(y[~np.isnan(y)], expected[~np.isnan(y)], f"times {weight}")


@pytest.mark.parametrize("weight", [1.0, 1 / 3, 257 / 256, 1 + 2.0**-9, 2.0**-30, 3e38])
def test_every_bfloat16_is_read_and_written_to_the_nearest(weight: float) -> None:
    bits, y = scaled("bfloat16", weight)
    # A power of two below what float32 holds with all digits is computed in double: exact before it is rounded.
    with np.errstate(all="ignore"):
        exact = (from_bfloat16(bits).astype(float) * float(np.float32(weight))).astype(np.float32)
    down = (exact.view(np.uint32) >> 16).astype(np.uint16)
    rest = exact.view(np.uint32) & 0xFFFF
    up = (rest > 0x8000) | ((rest == 0x8000) & (down % 2 == 1))
    numbers = ~np.isnan(exact)
    expected = np.where(exact == 0, 0, down + up).astype(np.uint16)  # -0 + 0 is 0
    assert np.isnan(from_bfloat16(y)[~numbers]).all()
    assert_same_bits(y[numbers], expected[numbers], f"times {weight}")
