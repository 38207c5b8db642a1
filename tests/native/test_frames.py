"""For small arrays most of the time is call overhead: a warm call passes few Python frames of this package."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from patterns import Array

import truenorm as tn
from truenorm import engine
from truenorm.core.running import Running, torch_convention

pytest.importorskip("truenorm._native", reason="the compiled part was not built")

PACKAGE = str(Path(tn.__file__).parent)
MOST = 8


def frames(call: Callable[[], Any]) -> list[str]:
    """The functions of this package that a warm call enters."""
    entered: list[str] = []

    def note(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(PACKAGE):
            entered.append(frame.f_code.co_qualname)

    call()
    before = sys.getprofile()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(before)
    return entered


CASES = {
    "columns": (tn.batch(), (4, 7, 5)),
    "rows": (tn.layer(), (4, 7, 5)),
    "planes": (tn.batch("second"), (4, 5, 7)),
    "groups": (tn.group(2, "second"), (4, 6, 7)),
    "a sample's own": (tn.instance(), (4, 7, 5)),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_forward_passes_few_frames(name: str, dtype: type) -> None:
    norm, shape = CASES[name]
    x: Array = np.random.default_rng(1).normal(size=shape).astype(dtype)
    weight = np.ones(norm.view(shape).weight_shape or ())
    ways: list[dict[str, Any]] = [{}, {"lengths": np.array([7, 0, 3, 5])}, {"lengths": [7, 0, 3, 5]}]
    for options in (*ways, {"lengths": np.array([7, 1, 2, 3], np.int32), "padding": "keep", "weight": weight}):
        entered = frames(lambda options=options: tn.forward(x, norm, **options))  # type: ignore[misc]
        assert 1 <= len(entered) <= MOST, entered
        assert "mask_input" not in entered  # the general way, which takes many more


def test_the_general_way_passes_more_frames() -> None:
    # A guard on the count: it sees the frames of the way that the direct one leaves out.
    x, valid = np.ones((4, 7, 5), np.float32), np.ones((4, 7), bool)
    entered = frames(lambda: tn.forward(x, tn.batch(), valid=valid))
    assert "mask_input" in entered
    assert len(entered) > MOST


def test_lengths_are_copied() -> None:
    # `backward` reads them again: what the caller does with the array must not matter.
    x, dy = np.random.default_rng(2).normal(size=(2, 2, 6, 3)).astype(np.float32)
    lengths = np.array([6, 2])
    out = tn.forward(x, tn.batch(), lengths=lengths)
    expected = tn.backward(dy, out)[0]
    lengths[:] = 1
    assert tn.backward(dy, out)[0].tobytes() == expected.tobytes()


@pytest.mark.parametrize(
    "lengths", [[1, 8, 0, 0], [-1, 2, 3, 4], [1, 2, 3], [1.0, 2.0, 3.0, 4.0], [[1, 2, 3, 4]] * 2, [True] * 4]
)
def test_wrong_lengths_get_the_message_of_the_general_way(lengths: list[Any]) -> None:
    x = np.ones((4, 7, 5), np.float32)
    with pytest.raises(ValueError, match=r"^lengths must ") as native:
        tn.forward(x, tn.batch(), lengths=lengths)
    engine.use("reference")
    with pytest.raises(ValueError, match=r"^lengths must ") as reference:
        tn.forward(x, tn.batch(), lengths=lengths)
    assert str(native.value) == str(reference.value)


def test_a_pattern_is_taken_where_a_norm_is() -> None:
    x = np.random.default_rng(3).normal(size=(4, 7, 5)).astype(np.float32)
    for name in engine.available():
        engine.use(name)
        for options in ({}, {"lengths": [7, 3, 0, 2]}, {"valid": np.arange(28).reshape(4, 7) % 3 > 0}):
            mine, expected = (tn.forward(x, norm, **options) for norm in ("[b t] c", tn.Norm("[b t] c")))
            assert mine.y.tobytes() == expected.y.tobytes()
            mean = tn.measure(x, "[b t] c", **options).mean
            assert mean.tobytes() == expected.moments.mean.tobytes()


def test_cached_kernels_hold_nothing_that_grows_with_the_data() -> None:
    from truenorm.engine.kernel import whole_kernel

    norm, shape = tn.layer(), (300, 5)
    out = tn.forward(np.ones(shape, np.float32), norm)
    assert (out.moments.count == 5).all()
    assert out.moments.count.dtype == np.int64
    kernel = whole_kernel(norm, shape, "f")
    held = [value for value in vars(kernel).values() if isinstance(value, np.ndarray)]
    assert all(
        array.base is not None and array.base.nbytes == 8 for array in held
    )  # one number, in the shape of the statistics


def test_a_training_step_of_batch_norm_passes_few_frames() -> None:
    """Its running statistics need the counts, which are known if all of x is valid, and not read from a table."""
    norm, running = tn.batch(), Running.start((5,), torch_convention())
    x: Array = np.random.default_rng(1).normal(size=(32, 5)).astype(np.float32)
    entered = frames(lambda: running.update(tn.forward(x, norm).moments))
    assert "KernelMoments.__getattr__" not in entered
    assert len(entered) <= 11, entered


def test_known_counts_are_those_of_the_table() -> None:
    for norm, shape in CASES.values():
        x: Array = np.random.default_rng(1).normal(size=shape)
        moments = tn.forward(x, norm).moments
        measured = tn.measure(x, norm).count
        assert moments.count.dtype == measured.dtype
        np.testing.assert_array_equal(moments.count, measured)
        with pytest.raises(ValueError, match="read-only"):  # other calls have the same
            moments.count[...] = 0
