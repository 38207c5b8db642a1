"""The definition in torch operations computes what the reference does, where no kernel does: found by fuzzing."""

from typing import Any

import numpy as np
import pytest
from patterns import Array, assert_close

torch = pytest.importorskip("torch", reason="torch is not installed")

import truenorm as tn  # noqa: E402
import truenorm.torch as tnt  # noqa: E402
from truenorm import engine  # noqa: E402
from truenorm.core.reference import rstd_of  # noqa: E402


@pytest.fixture(params=engine.available())
def on_engine(request: pytest.FixtureRequest) -> Any:
    before = engine.engine()
    engine.use(request.param)
    yield
    engine.use(before)


def check(x: Array, norm: tn.Norm | str, dy: Array, **ragged: Any) -> None:
    """y and dx of the layer against the reference."""
    before = engine.engine()
    layer = tnt.Normalize(norm, 1, affine=False)
    given = torch.tensor(x, requires_grad=True)
    y = layer(given, **{name: torch.tensor(value) for name, value in ragged.items()})
    y.backward(torch.tensor(dy))
    engine.use("reference")
    out = tn.forward(x, norm, **ragged)
    dx = tn.backward(dy, out)[0]
    engine.use(before)
    assert_close(y.detach().numpy(), out.y, 1e-14 * (1 + np.abs(out.y).max()), f"{norm}: y")
    bound = 1e-14 * rstd_of(out.moments, out.norm).max() * np.abs(dy).max()  # dx is a difference of terms of this size
    assert_close(given.grad.numpy(), dx, bound, f"{norm}: dx")


@pytest.mark.usefixtures("on_engine")
@pytest.mark.parametrize("norm", ["[b] t c", "[b] t [c]", "b [t] c", "[b t] c", "b t [c]"])
def test_packed_rows_have_the_statistics_of_the_pattern(norm: str) -> None:
    # "[b] t c" used to compute the statistics of "b [t] c".
    rng = np.random.default_rng(1)
    x, dy = rng.normal(3.0, 1.0, (9, 3)), rng.normal(size=(9, 3))
    for offsets in ([0, 3, 5, 9], [0, 0, 5, 9], [0, 9]):
        check(x, norm, dy, offsets=np.array(offsets))
        check(x, norm, dy, offsets=np.array(offsets), sample_weight=rng.uniform(0.5, 2.0, 9))


@pytest.mark.usefixtures("on_engine")
@pytest.mark.parametrize(
    "norm", [tn.Norm("b [c] t", ddof=1), tn.Norm("[b] c [t]", ddof=1), tn.Norm("b c [t]")], ids=str
)
def test_too_few_elements_give_the_bias(norm: tn.Norm) -> None:
    rng = np.random.default_rng(2)
    x, dy = rng.normal(3.0, 1.0, (2, 3, 4)), rng.normal(size=(2, 3, 4))
    for weights in ([[0.0] * 4, [1.0] * 4], [[0.1, 0.0, 0.2, 0.0], [1.0, 0.0, 0.5, 2.0]]):
        check(x, norm, dy, sample_weight=np.array(weights))
    check(x, norm, dy, valid=np.array([[True, False, False, False], [False] * 4]))


@pytest.mark.usefixtures("on_engine")
@pytest.mark.parametrize("options", [{}, {"eps_at": "std"}, {"eps": 0.0}, {"eps": 0.0, "eps_at": "std"}], ids=str)
@pytest.mark.parametrize("size", [1e-140, 1e-110, 1e110, 1e140])
def test_derivatives_of_small_and_large_deviations(size: float, options: dict[str, Any]) -> None:
    # rstd³, which autograd's derivative of rsqrt holds, leaves float64.
    rng = np.random.default_rng(3)
    x, dy = size * rng.normal(3.0, 1.0, (5, 3)), rng.normal(size=(5, 3))
    check(x, tn.Norm("[b] c", **options), dy)
    check(x, tn.Norm("[b] c", **options), dy, sample_weight=np.array([0.0, 1.0, 2.0, 0.5, 1.0]))


@pytest.mark.usefixtures("on_engine")
def test_squared_deviations_that_overflow_give_the_bias_and_no_gradient() -> None:
    x = np.array([[1.7e308, 1e200, 1e308], [-1.7e308, -1e200, 1.1e308], [-1.7e308, 1.0, 1.5e308]])
    for norm in (tn.batch(), tn.batch(eps_at="std"), tn.layer(), tn.rms()):
        check(x, norm, np.ones((3, 3)))
    check(x, tn.instance(), np.ones((3, 3)), offsets=np.array([0, 3]))


@pytest.mark.parametrize("shape", [(4, 3), (2, 3, 5)])
def test_fixed_statistics_have_finite_derivatives_at_any_x(shape: tuple[int, ...]) -> None:
    for wrong in (np.inf, -np.inf, np.nan):
        x = torch.ones(shape)
        x[0] = wrong
        found = []
        for kit in (torch.nn, tnt):
            given = x.clone().requires_grad_()
            layer = kit.BatchNorm1d(3).eval()
            layer(given).backward(torch.full(shape, 2.0))
            found.append(given.grad)
        torch.testing.assert_close(found[1], found[0])


def test_elements_of_weight_0_have_derivatives_of_their_own() -> None:
    # They are not in the statistics, so sums that are not finite do not reach them.
    x = np.array([[1.0], [2.0], [np.nan], [4.0]])
    weights = np.array([1.0, 1.0, 0.0, 0.0])
    for name in engine.available():
        before = engine.engine()
        engine.use(name)
        for norm, shape in ((tn.batch(), (4, 1)), (tn.instance("second"), (1, 1, 4))):
            given = weights.reshape(norm.view(shape).positions)
            out = tn.forward(x.reshape(shape), norm, sample_weight=given)
            dx = tn.backward(np.ones(shape), out)[0].ravel()
            assert_close(dx[2:], np.full(2, 1 / np.sqrt(0.25 + 1e-5)), 1e-14, f"{name}, {norm}")
        engine.use(before)
