"""`padded` on models: each sequence of a padded batch as if it were alone."""

import torch
from alone import assert_as_alone
from torch import nn
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [13, 7, 1, 10]


def double(*shape: int, seed: int = 0) -> torch.Tensor:
    return normal(*shape, seed=seed, dtype=torch.float64)


def conv_stack() -> nn.Module:
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv1d(3, 6, 3, stride=2, padding=1),
        nn.GroupNorm(2, 6),
        nn.GELU(),
        nn.Conv1d(6, 4, 3, padding="same", dilation=2),
        nn.BatchNorm1d(4),
        nn.Tanh(),
    ).double()
    tnt.convert(model)
    return model.eval()


def test_a_stack_of_convolutions_and_norms() -> None:
    assert_as_alone(conv_stack(), double(4, 3, 13), LENGTHS, out=2)
