"""Numbers of positions as arguments inside `padded`: followed or reported, in each call and for any lengths."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt


class Between(nn.Module):
    """A function between two convolutions."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.before, self.function = nn.Conv1d(3, 4, 3, padding=1), function
        self.behind = nn.Conv1d(4, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.behind(self.function(self.before(x)))
        return y


@pytest.mark.parametrize("lengths", [[19, 8, 13], [19, 19, 19], [19]], ids=str)
def test_interpolate_to_the_size_of_another_tensor(lengths: list[int]) -> None:
    model = Between(lambda y: functional.interpolate(y[..., ::2], size=y.shape[-1])).eval()
    x = normal(len(lengths), 3, 19)
    with tnt.padded(lengths=lengths) as context:
        y = model(x)
    assert context.report.mixed == ()
    for i, length in enumerate(lengths):
        torch.testing.assert_close(y[i : i + 1, :, :length], model(x[i : i + 1, :, :length]))


NORMS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "group_norm": lambda y, eps: functional.group_norm(y, 2, eps=eps),
    "instance_norm": lambda y, eps: functional.instance_norm(y, eps=eps),
    "layer_norm": lambda y, eps: functional.layer_norm(y.mT, (4,), eps=eps).mT,
}


@pytest.mark.parametrize("name", NORMS)
def test_an_eps_of_positions_is_reported_in_each_call(name: str) -> None:
    model = Between(lambda y: NORMS[name](y, 1 / y.shape[-1]))
    for lengths in ([19, 8, 13], [19, 8, 13], [19, 9, 13]):
        with tnt.padded(lengths=lengths) as context:
            model(normal(3, 3, 19))
        assert [one.split(" in ")[0] for one in context.report.mixed] == [name]


ARGUMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "conv1d": lambda y: functional.conv1d(y, torch.ones(4, 4, 3), padding=y.shape[-1] // 4),
    "conv_transpose1d": lambda y: functional.conv_transpose1d(y, torch.ones(4, 4, 3), padding=y.shape[-1] // 8),
    "roll": lambda y: y.roll(y.shape[-1] // 2, -1),
    "scaled_dot_product_attention": lambda y: (
        functional.scaled_dot_product_attention(y.mT, y.mT, y.mT, scale=y.shape[-1] ** -0.5).mT
    ),
    "unfold": lambda y: y.unfold(-1, y.shape[-1] // 3, 2).sum(-1),
}


@pytest.mark.parametrize("lengths", [[19, 8, 13], [19, 19, 19]], ids=str)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_number_of_positions_as_an_argument_is_reported_where_it_differs(name: str, lengths: list[int]) -> None:
    model = Between(ARGUMENTS[name])
    for _ in range(2):
        with tnt.padded(lengths=lengths) as context:
            model(normal(3, 3, 19))
        assert [one.split(" in ")[0] for one in context.report.mixed] == [name] * (lengths[1] == 8)
