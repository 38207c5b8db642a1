"""`padded` on models: each sequence of a padded batch as if it were alone."""

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed
from alone import assert_as_alone, pad
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


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_distributed_data_parallel(tmp_path: Path) -> None:
    """Hooks work below the wrapper: the same outputs and gradients as without it."""
    model, x = conv_stack(), double(4, 3, 13)
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    try:
        wrapped = nn.parallel.DistributedDataParallel(model)
        found = []
        for one in (model, wrapped):
            model.zero_grad()
            with tnt.padded(lengths=LENGTHS) as tracked:
                y = one(x)
            y.backward(double(*y.shape, seed=3))
            found.append([y, *(parameter.grad.clone() for parameter in model.parameters())])
    finally:
        torch.distributed.destroy_process_group()
    assert_close(found[0], found[1], rtol=0, atol=0)
    assert tracked.report.given == ("module.1", "module.4")


def test_a_training_step_changes_the_parameters_as_the_sequences_alone_do() -> None:
    """Stochastic gradient descent on a loss over valid frames, with group norms, which each sequence has by itself."""
    x, after = double(4, 3, 13), []
    for alone in (False, True):
        model = Checkpointed().double()
        tnt.convert(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            if alone:
                outputs = [model(x[i : i + 1, :, :n])[0] for i, n in enumerate(LENGTHS)]
            else:
                with tnt.padded(lengths=LENGTHS):
                    y = model(pad(x, LENGTHS, more=4))
                outputs = [y[i, :, : (n + 1) // 2] for i, n in enumerate(LENGTHS)]
            sum((one**3).sum() for one in outputs).backward()
            optimizer.step()
        after.append([*model.parameters()])
    assert_close(after[0], after[1], rtol=1e-9, atol=1e-9)


def test_gradients_after_inference_in_the_same_context() -> None:
    """Masks are kept: one that was made in inference mode could not be saved for a backward."""
    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.Conv1d(4, 4, 3, padding=1), tnt.BatchNorm1d(4))
    x = normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]):
        with torch.inference_mode():
            model(x)
        model(x).square().sum().backward()
    assert all(one.grad is not None for one in model.parameters())
