"""Sums, means, maxima and norms inside `padded`: over valid values only, as of each sequence alone."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import nn
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [6, 2, 5]


class Apply(nn.Module):
    """A function of a linear layer of x (b, t, 4), as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        torch.manual_seed(1)
        self.first = nn.Linear(4, 4).double()

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.first(x) - 2)  # negative: a zero from the padding would be the maximum


OVER_POSITIONS: dict[str, Callable[..., Any]] = {
    "mean": lambda x: x.mean(1),
    "mean, keepdim": lambda x: x.mean(1, keepdim=True),
    "mean, axis": lambda x: x.mean(axis=-2),
    "mean, dtype": lambda x: torch.mean(x, dim=1, dtype=torch.float64),
    "mean of channels too": lambda x: x.mean((1, 2)),
    "mean of channels first": lambda x: x.transpose(1, 2).mean(-1),
    "sum": lambda x: x.sum(1),
    "sum, list": lambda x: torch.sum(x, [1, 2]),
    "prod": lambda x: x.prod(1),
    "max": lambda x: x.max(1).values,
    "max, function": lambda x: torch.max(x, 1, keepdim=True)[0],
    "min": lambda x: (-x).min(dim=1)[0],
    "amax": lambda x: x.amax(1),
    "amin": lambda x: (-x).amin((1, 2)),
    "std": lambda x: x.std(1),
    "std, unbiased": lambda x: x.std(1, False),
    "var": lambda x: torch.var(x, 1, unbiased=True, keepdim=True),
    "var and mean": lambda x: torch.cat(torch.var_mean(x, 1), 1),
    "deviation and mean": lambda x: torch.stack(torch.std_mean(x, dim=(1, 2), correction=0, keepdim=True), 1),
    "var, correction": lambda x: torch.var(x, dim=(1, 2), correction=0),
    "norm": lambda x: x.norm(dim=1),
    "norm, p": lambda x: torch.norm(x, 3, 1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=1),
    "vector_norm -1": lambda x: torch.linalg.vector_norm(x, -1, dim=1),
    "vector_norm, keywords": lambda x: torch.linalg.vector_norm(x=x, ord=-2.5, dim=1, keepdim=True),
    "smallest": lambda x: torch.linalg.vector_norm(x, -torch.inf, dim=1),
    "norm -1": lambda x: torch.norm(x, -1, 1),
    "mean, input": lambda x: torch.mean(input=x, dim=1),
    "normalized over positions": lambda x: nn.functional.normalize(x, dim=1).sum(1),
    "logsumexp": lambda x: x.logsumexp(1),
    "mean and deviation": lambda x: torch.stack([x.mean(1), x.std(1)], -1),
}


@pytest.mark.parametrize("name", OVER_POSITIONS)
def test_over_positions(name: str) -> None:
    assert_as_alone(Apply(OVER_POSITIONS[name]), normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1)


EACH_POSITION: dict[str, Callable[..., Any]] = {
    "mean": lambda x: x.mean(-1),
    "sum, keepdim": lambda x: x.sum(2, keepdim=True),
    "max": lambda x: x.max(-1)[0],
    "std": lambda x: x.std(2),
    "norm": lambda x: x / x.norm(dim=-1, keepdim=True),
    "standardized over positions": lambda x: (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True),
    "larger of two": lambda x: torch.max(x, x.cos()),
}


@pytest.mark.parametrize("name", EACH_POSITION)
def test_each_position_by_itself(name: str) -> None:
    assert_as_alone(Apply(EACH_POSITION[name]), normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1, out=1)


@pytest.mark.parametrize("function", [torch.argmax, torch.argmin])
def test_the_place_of_an_extremum(function: Any) -> None:
    x = normal(3, 6, 4, dtype=torch.float64)
    model = Apply(lambda y: function(y, dim=1))
    expected = torch.cat([model(x[i : i + 1, :n]) for i, n in enumerate(LENGTHS)])
    for value in (-1e9, 1e9, torch.nan):
        for i, n in enumerate(LENGTHS):
            x[i, n:] = value
        with tnt.padded(lengths=LENGTHS):
            assert torch.equal(model(x), expected)


def test_over_the_batch_is_over_all_valid_values() -> None:
    x = normal(3, 6, 4, dtype=torch.float64)
    model = Apply(lambda y: torch.stack([y.mean(), y.sum(), y.std(), y.max(), y.mean((0, 1))[2]]))
    valid = Apply(lambda y: y)(torch.cat([x[i, :n] for i, n in enumerate(LENGTHS)]))
    expected = torch.stack([valid.mean(), valid.sum(), valid.std(), valid.max(), valid.mean(0)[2]])
    for i, n in enumerate(LENGTHS):
        x[i, n:] = torch.nan
    with tnt.padded(lengths=LENGTHS):
        torch.testing.assert_close(model(x), expected, atol=1e-12, rtol=1e-12)


GAPS = torch.tensor([[1, 0, 1, 1], [1, 0, 1, 0], [1, 1, 1, 1]]).bool()


def ones() -> torch.Tensor:
    return torch.ones(3, 2, 4, dtype=torch.float64)


@pytest.mark.parametrize(
    ("part", "valid"),
    [
        (lambda y, z: y[:2] + z[:2], GAPS[:2]),
        (lambda y, z: y[:, 1:] * z[:, 1:], GAPS[:, 1:]),
        (lambda y, z: y[1:, 1:] + z[1:, 1:] * y[:, 1:][1:], GAPS[1:, 1:]),
        (lambda y, z: torch.cat([y[1:], z[:1]]), GAPS[[1, 2, 0]]),
        (lambda y, z: torch.cat([y[1:], z[:1]]) + torch.cat([z[1:], y[:1]]), GAPS[[1, 2, 0]]),
        (lambda y, z: torch.cat([y, z], 1) * torch.cat([z, y], 1), GAPS.repeat(1, 2)),
        (
            lambda y, z: torch.cat([y, ones()], 1) * torch.cat([z, ones()], 1),
            nn.functional.pad(GAPS, (0, 2), value=True),
        ),
    ],
)
def test_parts_of_a_batch_with_gaps(part: Callable[..., Any], valid: torch.Tensor) -> None:
    """The same part of two tensors has the same positions."""
    x = normal(3, 4, 4, dtype=torch.float64)
    model = Apply(lambda y: part(y, y.cos()))
    values = model(x)
    expected = torch.stack([one[known].mean(0) for one, known in zip(values, valid, strict=True)])
    x[~GAPS] = torch.nan
    with tnt.padded(valid=GAPS) as tracked:
        found = model(x).mean(1)
    torch.testing.assert_close(found, expected, atol=1e-12, rtol=1e-12)
    assert tracked.report.mixed == ()


def test_with_a_mask_that_has_gaps() -> None:
    valid = torch.tensor([[True, False, True, True], [False, False, True, False]])
    x = normal(2, 4, 4, dtype=torch.float64)
    model = Apply(lambda y: torch.stack([y.mean(1), y.amax(1), y.var(1, correction=0)]))
    expected = torch.cat([model(x[i : i + 1, one]) for i, one in enumerate(valid)], 1)
    x[~valid] = torch.nan
    with tnt.padded(valid=valid):
        torch.testing.assert_close(model(x), expected, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    class Model(nn.Module):
        def forward(self, x: torch.Tensor) -> list[torch.Tensor]:
            return [x.mean(1), x.std(1), x.sum(1)]

    with tnt.padded(lengths=LENGTHS, along=1):
        assert [one.dtype for one in Model()(torch.randn(3, 6, 4, dtype=dtype))] == 3 * [dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_means_are_accumulated_in_float32(dtype: torch.dtype) -> None:
    """The sum is larger than the largest float16, and 1 more than 256 is lost in bfloat16."""
    x = torch.full((2, 3, 5000), 20.0, dtype=dtype)
    x[:, :, ::2] = 40
    with tnt.padded(lengths=[5000, 3000], along=2):
        y = nn.Identity()(x) * 1
        found = [y.mean(2), y.var(2, correction=0), y.std(2, False), nn.functional.adaptive_avg_pool1d(y, 1)]
    for one, value in zip(found, (30.0, 100.0, 10.0, 30.0), strict=True):
        assert one.dtype == dtype
        assert one.unique().tolist() == [value]


def test_a_deviation_of_one_value_has_no_gradient() -> None:
    model = Apply(lambda x: x.std(1, unbiased=False))
    assert_as_alone(model, normal(3, 6, 4, dtype=torch.float64), [6, 1, 5], axis=1)


WITHOUT_VALUES: dict[str, Callable[..., Any]] = {
    "amax": lambda x: x.amax(1),
    "max": lambda x: x.max(1, keepdim=True).values[:, 0],
    "min": lambda x: x.min(1)[0],
    "std": lambda x: x.std(1),
    "var": lambda x: x.var(1, False),
    "logsumexp": lambda x: x.logsumexp(1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, -1, dim=1),
}


@pytest.mark.parametrize("name", WITHOUT_VALUES)
@pytest.mark.parametrize("gaps", [False, True])
def test_an_empty_sequence_gets_zeros(name: str, gaps: bool) -> None:
    x = normal(3, 6, 4, dtype=torch.float64)
    x[1] = torch.nan
    model, head = Apply(WITHOUT_VALUES[name]), nn.Linear(4, 2).double()
    valid = torch.tensor([[True] * 5 + [False], [False] * 6, [not gaps] + [True] * 4 + [False]])
    with tnt.padded(valid=valid):
        found = model(x)
        y = head(found)
    assert not bool(found[1].any())
    y[[0, 2]].square().sum().backward()
    expected = [head(model(x[i : i + 1, valid[i]])) for i in (0, 2)]
    torch.testing.assert_close(y[[0, 2]], torch.cat(expected), atol=1e-12, rtol=1e-12)
    for one in [*model.parameters(), *head.parameters()]:
        assert bool(torch.isfinite(one.grad).all())


def test_an_empty_sequence_has_the_mean_zero() -> None:
    x = torch.full((2, 3, 4), torch.nan, dtype=torch.float64)
    x[0] = 1.0
    with tnt.padded(lengths=[3, 0]):
        y = Apply(lambda y: y.mean(1))(x)
    assert bool(torch.isfinite(y).all())
    assert not bool(y[1].any())


def test_a_mean_of_an_input_whose_positions_are_not_known_is_an_error() -> None:
    """Which axis has the positions is known only when a layer reads it."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convolution = nn.Conv1d(1, 1, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = self.convolution(x - x.mean(2, keepdim=True))
            return y

    x = torch.randn(2, 1, 8)
    with pytest.raises(ValueError, match=r"^padded: mean in Model has to know which axis"), tnt.padded(lengths=[8, 4]):
        Model()(x)
    assert_as_alone(Model(), x, [8, 4], out=2, along=2, tolerance=1e-6)
