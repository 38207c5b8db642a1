"""Products and quotients inside `padded`: NaN in the padding reaches no gradient, one position meets all others."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [13, 1, 7]


class Model(nn.Module):
    """A function of the input, which holds NaN in its padding, and a convolution behind it."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.function = function
        self.channels = nn.Linear(3, 3)
        self.scale = nn.Parameter(torch.rand(3, 1) + 1)
        self.neighbours = nn.Conv1d(3, 3, 3, padding=1)
        self.layer = nn.Conv1d(3, 4, 3, padding=1)

    def gate(self, x: Tensor) -> Tensor:
        """A number for each channel of a sequence, of its mean."""
        return self.channels(x.mean(2)).sigmoid()[:, :, None] + 0.1

    def forward(self, x: Tensor) -> Any:
        return self.layer(self.function(self, x))


GATED: dict[str, Callable[..., Any]] = {
    "times": lambda m, x: x * m.gate(x),
    "times, the other way round": lambda m, x: m.gate(x) * x,
    "in place": lambda m, x: x.clone().mul_(m.gate(x)),
    "divided": lambda m, x: x / m.gate(x),
    "divided in place": lambda m, x: x.clone().div_(m.gate(x)),
    "divided by a parameter": lambda m, x: x / m.scale,
    "standardized": lambda m, x: (x - x.mean(2, keepdim=True)) / (x.var(2, correction=0, keepdim=True) + 1).sqrt(),
    "a power": lambda m, x: m.gate(x) ** x,
    "addcmul": lambda m, x: torch.addcmul(x, x, m.gate(x)),
    "addcdiv": lambda m, x: torch.addcdiv(x, x, m.gate(x)),
    "lerp": lambda m, x: torch.lerp(x, torch.zeros_like(x), m.gate(x)),
    "atan2": lambda m, x: torch.atan2(x, m.gate(x)),
    "hypot": lambda m, x: torch.hypot(x, m.gate(x)),
    "of each position": lambda m, x: x * m.neighbours(x).sigmoid(),
    "divided by each position": lambda m, x: x / (m.neighbours(x).square() + 1),
}


@pytest.mark.parametrize("name", GATED)
def test_nan_in_the_padding_reaches_no_gradient(name: str) -> None:
    model = Model(GATED[name]).double()
    assert_as_alone(model, normal(3, 3, 13, dtype=torch.float64), LENGTHS, out=2, along=2)


def test_an_input_with_nan_that_meets_a_parameter_before_its_positions_are_known_is_an_error() -> None:
    model, x = Model(lambda m, x: x * m.scale), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]):
        y = model(x)
    torch.testing.assert_close(y[1:, :, :4], model(x[1:, :, :4]))
    x[1, :, 4:] = torch.nan
    with (
        pytest.raises(ValueError, match=r"mul in Model \(it holds NaN or inf\) has to know"),
        tnt.padded(lengths=[9, 4]),
    ):
        model(x)
    with torch.no_grad(), tnt.padded(lengths=[9, 4]):
        y = model(x)
    torch.testing.assert_close(y[1:, :, :4], model(x[1:, :, :4]))


ONE_POSITION: dict[str, Callable[..., Any]] = {
    "less the first": lambda m, x: x - x[:, :, :1],
    "less the last": lambda m, x: x - x[:, :, -1:],
    "times the first": lambda m, x: x[:, :, :1] * x,
    "the first for all": lambda m, x: torch.where(x > 0, x[:, :, :1], x),
    "less a maximum": lambda m, x: x - functional.adaptive_max_pool1d(x, 1),
}


@pytest.mark.parametrize("name", ONE_POSITION)
def test_one_position_that_every_sequence_has_meets_all_others(name: str) -> None:
    model = Model(lambda m, x: ONE_POSITION[name](m, m.neighbours(x))).double()
    assert_as_alone(model, normal(3, 3, 13, dtype=torch.float64), LENGTHS, out=2)


def test_one_position_that_some_sequences_do_not_have_is_not_followed() -> None:
    model = Model(lambda m, x: x - m.neighbours(x)[:, :, 3:4])
    with pytest.raises(ValueError, match="arguments with different lengths"), tnt.padded(lengths=[9, 2], along=2):
        model(normal(2, 3, 9))
