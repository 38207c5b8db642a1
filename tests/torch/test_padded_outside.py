"""What `padded` does with code that it cannot see into: modules of torch.jit, NumPy, functions of autograd."""

from typing import Any

import numpy
import pytest
import torch
from torch import Tensor, nn
from torch.testing import assert_close
from torch_data import normal

import truenorm.torch as tnt


class OutsideOfTorch(nn.Module):
    def forward(self, x: Tensor) -> Any:
        return torch.from_numpy(x.detach().numpy()[..., ::2].copy())


def test_a_function_that_no_mode_sees_is_lost() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 1), OutsideOfTorch(), nn.Conv1d(4, 2, 3))
    with (
        pytest.raises(ValueError, match=r"lost at OutsideOfTorch in '1' \(not a function of torch\)"),
        tnt.padded(lengths=[5, 4]),
    ):
        model(normal(2, 3, 9))


class MeanOverTime(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(2, keepdim=True)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_of_jit_is_lost() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 1), torch.jit.script(MeanOverTime()), nn.Conv1d(4, 2, 1))
    with (
        pytest.raises(ValueError, match=r"lost at MeanOverTime in '1' \(not a function of torch\)"),
        tnt.padded(lengths=[9, 4]),
    ):
        model(normal(2, 3, 9))


def test_values_that_leave_torch_are_reported() -> None:
    conv, x = nn.Conv1d(3, 4, 1), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]) as tracked:
        y = conv(x).detach()
        y.mean(2).numpy()
        assert tracked.report.mixed == ()
        y.numpy(), y.tolist(), numpy.asarray(y), y.__dlpack__()
    assert tracked.report.mixed == tuple(
        f"{name} (values leave torch, with padding)" for name in ("numpy", "tolist", "__array__", "__dlpack__")
    )


class SumOverTime(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.size = x.shape[2]
        return x.sum(2)

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Any:
        return dy[0][..., None].expand(-1, -1, ctx.size)


def test_a_function_of_autograd_that_mixes_positions_is_reported() -> None:
    conv, x = nn.Conv1d(3, 4, 1), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]) as tracked:
        y: Any = SumOverTime.apply(conv(x))
    assert_close(y[1], conv(x)[1, :, :4].sum(1))
    assert tracked.report.mixed == ("SumOverTime (an autograd.Function that mixes positions: its backward is its own)",)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x[..., ::2]

    @staticmethod
    def backward(ctx: Any, *dy: Tensor) -> Any:
        raise NotImplementedError


def test_functions_of_autograd_are_followed_inside() -> None:
    conv, x = nn.Conv1d(3, 4, 1), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]) as tracked:
        y: Any = Halved.apply(conv(x))
        assert tracked.tag(y).lengths == {2: (5, 2)}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_module_of_jit_that_reads_the_input_is_not_a_new_input() -> None:
    model = nn.Sequential(torch.jit.script(MeanOverTime()), nn.Conv1d(4, 2, 1))
    x = normal(2, 4, 9)
    with tnt.padded(lengths=[9, 4]), pytest.raises(ValueError, match=r"no layer has shown it before: pass along=2"):
        model(x)
    with tnt.padded(lengths=[9, 4], along=2), pytest.raises(ValueError, match=r"lost at MeanOverTime in '0' \(not a"):
        model(x)
