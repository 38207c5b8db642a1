"""`padded` on models: each sequence of a padded batch as if it were alone."""

from typing import Any

import torch
from alone import assert_as_alone
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
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


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(4, 4, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.conv(x)).relu()


class Checkpointed(nn.Module):
    def __init__(self, **options: Any) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.first = nn.Conv1d(3, 4, 3, stride=2, padding=1)
        self.blocks = nn.ModuleList([Block(), Block()])
        self.options = options

    def forward(self, x: torch.Tensor) -> Any:
        x = self.first(x)
        for block in self.blocks:
            x = checkpoint(block, x, **self.options) if self.options else block(x)
        return x


def test_checkpoints_recompute_with_the_lengths_of_the_forward() -> None:
    model = Checkpointed().double()
    tnt.convert(model)
    x = double(4, 3, 13)
    gradients = []
    for options in ({}, {"use_reentrant": False, "context_fn": tnt.padded.recomputation}):
        model.options = options
        with tnt.padded(lengths=LENGTHS):
            y = model(x)
        gradients.append(torch.autograd.grad(y, [*model.parameters()], double(*y.shape, seed=3)))
    assert_close(gradients[0], gradients[1], rtol=0, atol=0)
    with tnt.padded(lengths=LENGTHS):
        y = model(x)
        inside = torch.autograd.grad(y, [*model.parameters()], double(*y.shape, seed=3))
    assert_close(gradients[0], inside, rtol=0, atol=0)
