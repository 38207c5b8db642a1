"""Assignments inside `padded`: as of each sequence alone, or the tensor is lost and a layer that reads it raises."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone, claims_checked
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [9, 5, 7]


class Between(nn.Module):
    """A function of a ragged tensor (b, 4, t), with a convolution before it and one behind it."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.before: nn.Module = nn.Conv1d(3, 4, 3, padding=1)
        self.behind = nn.Conv1d(4, 2, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        return self.behind(self.function(self.before(x)))


def shift_left(y: Tensor) -> Tensor:
    o = torch.zeros_like(y)
    o[:, :, :-1] = y[:, :, 1:]
    return o


def shift_right(y: Tensor) -> Tensor:
    o = y.clone()
    o[:, :, 1:] = y[:, :, :-1]
    return o


def add_neighbours(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, :, :-1] += y[:, :, 1:].clone()
    return y


def numbers_at_the_end(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, :, -2:] *= 0.5
    y[:, 1, -3:-1] = torch.tensor([3.0, 4.0], dtype=y.dtype)
    y[:, :2, -1] = 5.0
    return y


def mean_at_the_end(y: Tensor) -> Tensor:
    o = y.clone()
    o[:, 0, -1] = y.mean(2)[:, 1]
    return o


def through_parts_from_the_end(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, :, -1].zero_()
    y[:, 1:3, -2:].mul_(3)
    y[..., -3:][:, 0].add_(2)
    y.narrow(2, -2, 1).sub_(1)
    return y


def through_a_view_that_ends_early(y: Tensor) -> Tensor:
    y = y.clone()
    view = y[:, :, :-1]
    view.mul_(2)
    view[:, 1].add_(1)
    return y + 1


def with_inplace_at_the_end(y: Tensor) -> Tensor:
    y = y.clone()
    functional.relu(y[:, :, -2:], inplace=True)
    return y + 1


def with_inplace_before_the_end(y: Tensor) -> Tensor:
    y = y.clone()
    nn.LeakyReLU(0.5, inplace=True)(y[:, :, 1:-1])
    return y + 1


def relu_before_the_end(y: Tensor) -> Tensor:
    y = y.clone()
    y[:, :, :-2].relu_()
    return y + 1


def into_channels_of_a_constant(y: Tensor) -> Tensor:
    o = torch.ones(len(y), 4, y.shape[2], dtype=y.dtype)
    o[:, :2] = y[:, 2:]
    o[:, 2] = y[:, 0]
    return o


def into_a_constant(y: Tensor) -> Tensor:
    o = torch.zeros(y.shape, dtype=y.dtype)
    o[:, :, : y.shape[2]] = y
    return o


def scaled_in_place(y: Tensor) -> Tensor:
    z = y / y.abs().sum(1, keepdim=True)  # its padding may hold anything
    z.mul_(nn.Parameter(torch.full((4, 1), 2.0, dtype=y.dtype)))
    return z


FOLLOWED = [
    shift_left, shift_right, add_neighbours, numbers_at_the_end, mean_at_the_end, through_parts_from_the_end,
    through_a_view_that_ends_early, with_inplace_at_the_end, with_inplace_before_the_end, relu_before_the_end,
    into_channels_of_a_constant, into_a_constant, scaled_in_place,
]  # fmt: skip


@pytest.mark.parametrize("function", FOLLOWED)
def test_assignments_that_are_followed(function: Callable[[Tensor], Tensor]) -> None:
    assert_as_alone(Between(function).double(), normal(3, 3, 9, dtype=torch.float64), LENGTHS, out=2)


def into_out(y: Tensor) -> Tensor:
    y = y.clone()
    torch.mul(y[:, :, -1], 3.0, out=y[:, :, -1])
    torch.sub(y[:, :, :-1], 1.0, out=y[:, :, :-1])
    torch.stack([y[:, 0], y[:, 1]], 1, out=y[:, 2:])
    return y


def a_part_of_the_channels(y: Tensor) -> Tensor:
    some, _ = y.chunk(2, 1)
    some.add_(1)
    return y


def a_part_of_the_channels_with_out(y: Tensor) -> Tensor:
    torch.exp(y[:, 2:], out=y[:, :2])
    return y


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("function", [into_out, a_part_of_the_channels, a_part_of_the_channels_with_out])
def test_assignments_without_gradients(function: Callable[[Tensor], Tensor], mode: Any) -> None:
    """Behind a norm the padding is zero, until it changes. In inference mode torch does not count changes."""
    model = Between(function).double()
    model.before = nn.Sequential(model.before, tnt.BatchNorm1d(4)).double().eval()
    x = normal(3, 3, 9, dtype=torch.float64)
    with mode():
        alone = [model(x[i : i + 1, :, :n]) for i, n in enumerate(LENGTHS)]
        with tnt.padded(lengths=LENGTHS), claims_checked():
            y = model(x)
    for i, one in enumerate(alone):
        torch.testing.assert_close(y[i : i + 1, :, : LENGTHS[i]], one, atol=1e-12, rtol=1e-12)


def copied_into_a_view(y: Tensor) -> Tensor:
    o = torch.zeros(y.shape)
    o[:, :, : y.shape[2]].copy_(y)
    return o


def added_to_a_view(y: Tensor) -> Tensor:
    o = torch.zeros(3, 4, 18)
    o[:, :, ::2].add_(y)
    return o


def copied_into_data(y: Tensor) -> Tensor:
    o = torch.zeros(y.shape)
    o.data.copy_(y)
    return o


def assigned_to_a_view(y: Tensor) -> Tensor:
    o = torch.zeros(y.shape)
    some = o[0:2]
    some[:] = y[0:2]
    return o


def assigned_to_a_part_of_a_constant(y: Tensor) -> Tensor:
    o = torch.zeros(3, 4, 12)
    o[:, :, 3:] = y
    return o


def values_of_other_lengths(y: Tensor) -> Tensor:
    o = y.clone()
    o[:, :, :4] = y[:, :, 4:8]
    return o


def stale_copy(y: Tensor) -> Tensor:
    y = y.clone()
    last = y[:, :, -1:]
    y.mul_(2)
    return last


def lost_values(y: Tensor) -> Tensor:
    o = y.clone()
    o[:, :, 1:] = torch.fft.fft(y).real[:, :, 1:]
    return o


THROUGH = "written through another tensor with the same memory"
LOST: dict[Callable[[Tensor], Tensor], str] = {
    copied_into_a_view: f"copy_ in Between ({THROUGH})",
    added_to_a_view: f"add_ in Between ({THROUGH})",
    copied_into_data: f"copy_ in Between ({THROUGH})",
    assigned_to_a_view: f"__setitem__ in Between ({THROUGH})",
    assigned_to_a_part_of_a_constant: "__setitem__ in Between (a part of a tensor gets values of a ragged one)",
    values_of_other_lengths: "__setitem__ in Between (values of other lengths)",
    stale_copy: "mul_ in Between (it changes a tensor of which positions from the end were taken before)",
    lost_values: "__setitem__ in Between (values whose positions are not known)",
}


@pytest.mark.parametrize("function", LOST)
def test_assignments_that_are_lost(function: Callable[[Tensor], Tensor]) -> None:
    with pytest.raises(ValueError, match="has to know") as caught, tnt.padded(lengths=LENGTHS) as tracked:
        Between(function)(normal(3, 3, 9))
    assert f"lost at {LOST[function]}. Declare" in str(caught.value)
    assert LOST[function] in tracked.report.mixed


def test_data_of_another_tensor() -> None:
    conv, x = nn.Conv1d(3, 3, 3, padding=1), normal(3, 3, 9)
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = conv(x)
        z = torch.zeros(2)
        z.data = y
        assert tracked.tag(z) == tracked.tag(y)
