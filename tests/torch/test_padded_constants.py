"""Tensors that a model makes with as many values as there are positions, inside `padded`: windows, ones, tables.

A sequence alone has fewer of these values. Where a function mixes them, the report says so; it is never silent.
"""

from collections.abc import Callable

import pytest
import torch
from alone import assert_as_alone, pad, run_alone
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [13, 7, 2, 10]


class Model(nn.Module):
    """A convolution, and a function of its output and of a table (t, c) that it has."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.convolution = nn.Conv1d(3, 4, 3, padding=1)
        self.table = nn.Parameter(torch.randn(40, 4))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.convolution(x), self.table)


def steps(y: Tensor) -> Tensor:
    return torch.arange(1.0, y.shape[2] + 1, dtype=y.dtype)


MIXED: dict[str, tuple[str, Callable[[Tensor, Tensor], Tensor]]] = {
    "a mask of ones": ("sum", lambda y, _: y.sum(2) / torch.ones(len(y), y.shape[2]).sum(1, keepdim=True)),
    "new ones": ("sum", lambda y, _: y.sum(2) / y.new_ones(y.shape).sum(2)),
    "a uniform mean": ("sum", lambda y, _: _uniform(y) @ y.mT),
    "weights of mean 0": ("mean", lambda y, _: y * (steps(y) - steps(y).mean())),
    "weights of length 1": ("norm", lambda y, _: y * functional.normalize(steps(y), dim=0)),
    "by the largest": ("max", lambda y, _: y * steps(y) / steps(y).max()),
    "by the last": ("__getitem__", lambda y, _: y * steps(y) / steps(y)[-1]),
    "by the last, a slice": ("__getitem__", lambda y, _: y * steps(y) / steps(y)[-1:]),
    "whether all are": ("all", lambda y, _: y * (steps(y) < 12).all()),
    "whether any is": ("any", lambda y, _: y * (steps(y) > 12).any()),
    "backwards": ("flip", lambda y, _: y * steps(y).flip(0)),
    "rolled": ("roll", lambda y, _: y * steps(y).roll(1)),
    "sorted": ("sort", lambda y, _: y * steps(y).sort(descending=True)[0]),
    "a window": ("hann_window", lambda y, _: y * torch.hann_window(y.shape[2], dtype=y.dtype)),
    "the last rows of a table": ("__getitem__", lambda y, table: y + table[-y.shape[2] :].T),
    "rows that end a table": ("__getitem__", lambda y, table: y + table[len(table) - y.shape[2] :].T),
    "one row of a table": ("__getitem__", lambda y, table: y + table[y.shape[2] - 1, :, None]),
    "the mean of rows": ("mean", lambda y, table: y + table[: y.shape[2]].mean(0)[:, None]),
    "a table that is stretched": (
        "interpolate",
        lambda y, table: y + functional.interpolate(table.T[None], size=y.shape[2], mode="linear"),
    ),
    "a table that is pooled": (
        "adaptive_avg_pool1d",
        lambda y, table: y + functional.adaptive_avg_pool1d(table.T[None], y.shape[2]),
    ),
}


def _uniform(y: Tensor) -> Tensor:
    ones = torch.ones(y.shape[2], y.shape[2], dtype=y.dtype)
    return ones / ones.sum(1, keepdim=True)


@pytest.mark.parametrize("name", MIXED)
def test_mixing_one_value_for_each_position_is_reported(name: str) -> None:
    what, function = MIXED[name]
    model, x = Model(function).double(), normal(4, 3, 13, dtype=torch.float64)
    batch = pad(x, LENGTHS, value=0.0)
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = model(batch)
    found = [y[(slice(i, i + 1), *map(slice, one.shape[1:]))] for i, one in enumerate(run_alone(model, x, LENGTHS))]
    assert not all(map(torch.allclose, found, run_alone(model, x, LENGTHS)))  # or there is nothing to report
    assert any(one.startswith(f"{what} in Model (") for one in tracked.report.mixed), tracked.report.mixed


EXACT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "rows of a table": lambda y, table: y + table[: y.shape[2]].T,
    "steps": lambda y, _: y * steps(y),
    "a triangle": lambda y, _: (y.mT @ y).masked_fill(torch.ones(y.shape[2], y.shape[2]).triu(1) > 0, -1e9).softmax(2),
    "ones like it": lambda y, _: y.sum(2) / torch.ones_like(y).sum(2),
    "channels of a constant": lambda y, _: y * torch.ones(4, 3, dtype=y.dtype).sum(1)[:, None],
    "a mask of ones": lambda y, _: y * torch.ones(y.shape[2], dtype=torch.bool).all() + (steps(y) < 0).any(),
    "by a flattened size": lambda y, _: y.sum(2) / y.flatten(1).shape[1],
    "by a flattened size, in between": lambda y, _: y.flatten(1)[:, None].sum(2) / y.flatten(1)[:, None].shape[-1],
}


@pytest.mark.parametrize("name", EXACT)
def test_other_constants_are_exact_and_not_reported(name: str) -> None:
    model, x = Model(EXACT[name]).double(), normal(4, 3, 13, dtype=torch.float64)
    batch = pad(x, LENGTHS, value=0.0, more=2)
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = model(batch)
    for i, one in enumerate(run_alone(model, x, LENGTHS)):
        part = y[(slice(i, i + 1), *map(slice, one.shape[1:]))]
        torch.testing.assert_close(part, one, atol=1e-12, rtol=1e-12)
    assert not tracked.report.mixed


# ---- positions that were lost without a word ----


@pytest.mark.parametrize(
    "function",
    [
        lambda y: torch.cat([y, y], 2),  # the same tensor: its positions are known by the same object
        lambda y: torch.cat([y, y.relu(), y], 2),
        lambda y: y.gather(2, y.argsort(2, descending=True)),
        lambda y: y.gather(2, torch.zeros_like(y).long()),
    ],
    ids=["cat of itself", "cat of three", "gather sorted", "gather the first"],
)
def test_a_convolution_behind_knows_the_positions(function: Callable[[Tensor], Tensor]) -> None:
    torch.manual_seed(1)
    first, last = nn.Conv1d(3, 4, 3, padding=1).double(), nn.Conv1d(4, 2, 3, padding=1).double()
    x = normal(4, 3, 13, dtype=torch.float64)
    parameters = [*first.parameters(), *last.parameters()]
    assert_as_alone(lambda x: last(function(first(x))), x, LENGTHS, out=2, parameters=parameters)


def test_gather_with_an_index_of_as_many_positions_is_no_tensor_without_positions() -> None:
    index = torch.zeros(4, 4, 13, dtype=torch.int64)
    model = nn.Conv1d(3, 4, 3, padding=1)
    with tnt.padded(lengths=LENGTHS), pytest.raises(ValueError, match="as many positions as a padded tensor has"):
        nn.Sequential(model, Gather(index), nn.Conv1d(4, 2, 3, padding=1))(normal(4, 3, 13))


class Gather(nn.Module):
    index: Tensor

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.register_buffer("index", index)

    def forward(self, y: Tensor) -> Tensor:
        return y.gather(2, self.index)


@pytest.mark.parametrize("more", [0, 3])
def test_a_fixed_size_of_interpolation_is_never_taken_for_the_number_of_positions(more: int) -> None:
    model, x = Model(lambda y, _: functional.interpolate(y, size=16)), normal(4, 3, 13)
    batch = pad(x, LENGTHS, more=more, value=0.0)
    with tnt.padded(lengths=LENGTHS) as tracked:
        model(batch)
    assert tracked.report.mixed == (
        "interpolate in Model (size= does not say how the lengths change: use scale_factor=)",
    )


# ---- padding in front ----


IN_FRONT: dict[str, tuple[bool, Callable[[Tensor, Tensor], Tensor]]] = {
    "rows of a table": (True, lambda y, table: y + table[: y.shape[1]]),
    "rows by number": (True, lambda y, table: y + functional.embedding(torch.arange(y.shape[1]), table)),
    "a channel of steps": (True, lambda y, _: torch.cat([y, steps(y.mT)[:, None].expand(len(y), -1, 1)], 2)),
    "by the number of positions": (False, lambda y, _: y.sum(1) / y.shape[1]),
    "of pairs": (False, lambda y, _: (y @ y.mT).add(torch.ones(y.shape[1], y.shape[1]).triu(1) * -1e9).softmax(2) @ y),
    "of channels": (False, lambda y, table: y * table[0]),
}


@pytest.mark.parametrize("name", IN_FRONT)
def test_padding_in_front_moves_positions(name: str) -> None:
    is_reported, function = IN_FRONT[name]
    linear, table = nn.Linear(3, 4).double(), normal(40, 4, dtype=torch.float64)
    x, valid = normal(4, 13, 3, dtype=torch.float64), torch.arange(13) >= 13 - torch.tensor(LENGTHS)[:, None]
    with tnt.padded(valid=valid) as tracked:
        y = function(linear(x), table)
    right = True
    for i, row in enumerate(valid):
        alone = function(linear(x[i : i + 1, row]), table)
        right &= torch.allclose(y[i : i + 1, row] if y.dim() == 3 else y[i : i + 1], alone)
    assert right is not is_reported
    assert (["values by the place of a position" in one for one in tracked.report.mixed] == [True]) is is_reported


# ---- parameters that no function made ----


class Tokens(nn.Module):
    """Returns a parameter, whatever it is called with: made by no function, and not lost."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Parameter(normal(1, 4, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.tokens


class WithTokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.tokens, self.second = nn.Conv1d(3, 4, 1), Tokens(), nn.Conv1d(4, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x)
        return y * self.second(self.tokens(y)).mean(2, keepdim=True)


def test_a_module_may_return_its_parameter() -> None:
    model, x = WithTokens(), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]) as tracked:
        y = model(x)
    torch.testing.assert_close(y[1:, :, :4], model(x[1:, :, :4]))
    assert not tracked.report.mixed
