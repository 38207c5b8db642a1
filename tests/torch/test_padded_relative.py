"""Relative attention inside `padded`: scores of distances become scores of keys by a shift or by `gather`."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [11, 4, 8]


def shift_by_cat(p: Tensor) -> Tensor:
    """As in Transformer-XL and the Conformers of transformers."""
    padded = torch.cat([torch.zeros((*p.shape[:3], 1), dtype=p.dtype), p], -1)
    padded = padded.view(*p.shape[:2], p.shape[3] + 1, p.shape[2])
    shifted = padded[:, :, 1:].view_as(p)
    return shifted[:, :, :, : shifted.size(-1) // 2 + 1]


def shift_by_pad(p: Tensor) -> Tensor:
    b, h, rows, columns = p.shape
    padded = functional.pad(p, (1, 0)).reshape(b, h, columns + 1, rows).narrow(2, 1, columns)
    return padded.reshape(b, h, rows, columns)[..., :rows]


def gathered(p: Tensor) -> Tensor:
    """As in DeBERTa."""
    t = p.shape[2]
    distances = torch.arange(t)[None] - torch.arange(t)[:, None] + t - 1
    return p.gather(-1, distances.expand(*p.shape[:2], t, t))


class Attention(nn.Module):
    """x (b, t, 6), two heads, and a vector for each distance."""

    def __init__(self, shift: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.projections = nn.Linear(6, 18)
        self.distances = nn.Parameter(torch.randn(41, 3))
        self.shift = shift

    def forward(self, x: Tensor) -> Any:
        b, t, _ = x.shape
        q, k, v = (one.view(b, t, 2, 3).transpose(1, 2) for one in self.projections(x).chunk(3, -1))
        positions = q @ self.distances[20 - t + 1 : 20 + t].T
        return ((q @ k.mT + self.shift(positions)).softmax(-1) @ v).transpose(1, 2).reshape(b, t, 6)


@pytest.mark.parametrize("shift", [shift_by_cat, shift_by_pad, gathered])
def test_relative_attention(shift: Callable[[Tensor], Tensor]) -> None:
    model, x = Attention(shift).double(), normal(3, 11, 6, dtype=torch.float64)
    assert_as_alone(model, x, LENGTHS, axis=1, out=1)
    with tnt.padded(lengths=LENGTHS) as tracked:
        model(x)
    assert tracked.report.mixed == ()


def test_columns_of_the_next_row_are_reported() -> None:
    """Of row i the shift has t + i columns; the others come from the row below, which may be padding."""

    def all_columns(p: Tensor) -> Tensor:
        return functional.pad(p, (1, 0)).reshape(*p.shape[:2], -1, p.shape[2])[:, :, 1:].reshape(p.shape)

    with tnt.padded(lengths=LENGTHS) as tracked:
        Attention(lambda p: all_columns(p)[..., 1 : p.shape[2] + 1])(normal(3, 11, 6))
    assert "reshape in Attention (from (3, 2, 21, 11) to (3, 2, 11, 21))" in tracked.report.mixed


POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "the last": lambda y: y.gather(1, torch.tensor(LENGTHS)[-len(y) :, None, None].expand(-1, 1, 6) * 0 + 3),
    "channels": lambda y: y.gather(2, torch.tensor([4, 1]).expand(*y.shape[:2], 2)).mean(1),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_gather(name: str) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(6, 6)

        def forward(self, x: Tensor) -> Any:
            return POSITIONS[name](self.first(x)).flatten(1)

    model, x = Model().double(), normal(3, 11, 6, dtype=torch.float64)
    assert_as_alone(model, x, LENGTHS, axis=1)


def test_gather_of_positions_that_are_padding_is_reported() -> None:
    first = nn.Linear(6, 6)
    with tnt.padded(lengths=LENGTHS) as tracked:
        first(normal(3, 11, 6)).gather(1, torch.full((3, 1, 6), 5))
    assert tracked.report.mixed == ("gather (positions that some sequences do not have)",)
