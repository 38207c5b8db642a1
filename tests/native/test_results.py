"""What the kernels return: moments like any other, exact gradients, numbers beyond a dtype."""

import weakref
from dataclasses import replace

import numpy as np
import pytest
from kernels import (
    DTYPES,
    draw,
    on,
)
from patterns import (
    Shape,
    run,
)

import truenorm as tn
from truenorm.core.mask import mask_input

pytest.importorskip("truenorm._native", reason="the compiled part was not built")


def test_products_of_unusual_sizes_that_are_usual_together() -> None:
    # weight and rstd are multiplied first: dy · weight, or (x - mean) · rstd, would leave float32 on the way.
    rng = np.random.default_rng(7)
    x, dy = rng.standard_normal((9, 16)), rng.standard_normal((9, 16))
    for scale, weight, cotangent, eps in ((1e15, 1e10, 1e30, 1e-5), (1e-15, 1e-18, 1e-28, 0.0)):
        norm, weights = tn.layer(eps=eps), np.full(16, weight)
        scaled, large = (x * scale).astype(np.float32), (dy * cotangent).astype(np.float32)
        mine = run(scaled, large, norm, weight=weights)
        with on("reference"):
            expected = run(scaled.astype(float), large.astype(float), norm, weight=weights)
        np.testing.assert_allclose(mine.dx, expected.dx, rtol=1e-3, atol=1e-5 * np.abs(expected.dx).max())
    fixed = tn.Moments.from_variance(np.zeros(8), np.full(8, 1e-40))
    wide = tn.forward(np.full((8, 16), 1e30, "f"), tn.layer(eps=0), moments=fixed, weight=np.full(16, 1e-25))
    np.testing.assert_allclose(wide.y, 1e25, rtol=1e-6)


def test_numbers_beyond_a_dtype_are_infinite_without_a_warning() -> None:
    x = np.arange(6.0, dtype=np.float32).reshape(3, 2)
    for bias in (np.zeros(2, ">f4"), np.zeros(2, np.float16), np.zeros(2, np.float32)):
        out = tn.forward(x, tn.batch(), bias=bias)
        for dy in (np.full((3, 2), 1e300), np.full((3, 2), 3e38, np.float32)):
            assert np.isinf(tn.backward(dy, out)[2]).all()  # type: ignore[arg-type]
            assert np.isinf(tn.backward(dy, out, sums=tn.backward_sums(dy, out))[2]).all()  # type: ignore[arg-type]


def test_moments_of_a_kernel_are_moments_like_any_other() -> None:
    x = np.array([[1.0], [2.0], [5.0]], np.float32)
    gone = weakref.ref(x)
    moments = tn.measure(x, tn.batch())
    y = tn.forward(x, tn.batch(), moments=moments, bias=moments.mean).y  # a view of what the kernel reads
    assert y.mean() == pytest.approx(8 / 3, rel=1e-6)
    other = replace(moments, mean=moments.mean + 1)
    assert (tn.forward(x, tn.batch(), moments=other).y < tn.forward(x, tn.batch(), moments=moments).y).all()
    del x
    assert gone() is None, "moments keep their x alive"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("norm", "shape"), [(tn.batch(), (1, 7)), (tn.layer(), (7, 1)), (tn.instance("second"), (3, 5, 1))], ids=str
)
def test_the_gradient_of_a_lone_element_is_exactly_0(norm: tn.Norm, shape: Shape, dtype: type) -> None:
    x, dy, options = draw(norm, shape, dtype)
    dx, dweight, _ = tn.backward(dy, tn.forward(x, norm, **options))
    assert not dx.any()
    assert dweight is not None
    assert not dweight.any()


def test_moments_of_another_normalization_are_not_taken_for_this_ones() -> None:
    x, dy, weight = (np.random.default_rng(i).standard_normal((6, 4)) for i in range(3))
    out = replace(tn.forward(x, tn.batch(eps=1e-3), weight=weight[0]), moments=tn.measure(x, tn.batch(eps=10.0)))
    masked = replace(out, masked=mask_input(x, tn.batch(eps=1e-3), valid=np.arange(6) < 4))
    for one in (out, masked):
        found = tn.backward(dy, one)
        with on("reference"):
            for native, reference in zip(found[:2], tn.backward(dy, one)[:2], strict=True):
                np.testing.assert_allclose(native, reference, rtol=1e-12, atol=1e-14)  # type: ignore[arg-type]


def test_moments_of_a_kernel_update_running_statistics_in_the_kernel() -> None:
    moments = tn.measure(np.array([[1.0], [2.0], [6.0]], np.float32), tn.batch())
    updated = moments.ema_update(np.zeros(1), np.ones(1), 0.1, 1)
    assert updated is not None, "NumPy would do it, in several calls"
    np.testing.assert_allclose(updated, [[0.3], [1.6]], rtol=1e-12)


def test_few_wide_rows_are_shared_among_threads() -> None:
    # Parts of 16 rows are summed in float32, and added in double: the sum of all rows in float32 would lose the 1.
    x, dy = np.random.default_rng(9).standard_normal((32, 1024)).astype(np.float32), np.zeros((32, 1024), np.float32)
    dy[0], dy[16] = 2.0**24, 1.0
    dbias = tn.backward(dy, tn.forward(x, tn.layer(), bias=np.zeros(1024)))[2]
    assert dbias is not None
    assert (dbias == 2.0**24 + 1).all()
