"""Functions of the order of values inside `padded`, `istft` and `unfold`: each sequence is what it is alone.

And the tags that they make: the same steps give the same tag.
"""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt
from truenorm.torch.tracking.tag import Tag

LENGTHS = [19, 8, 13]
WINDOW = torch.hann_window(8, dtype=torch.float64)


class Between(nn.Module):
    """A function behind a convolution, which makes its input ragged, and before another one that reads neighbours."""

    def __init__(self, function: Callable[[Tensor], Tensor], behind: int | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.before = nn.Conv1d(3, 4, 3, padding=1)
        self.function = function
        self.behind = nn.Identity() if behind is None else nn.Conv1d(behind, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.behind(self.function(self.before(x)))


def windows(y: Tensor) -> Tensor:
    """As ConvBERT does: windows of positions, each times its own kernel."""
    b, c, t = y.shape
    found = functional.unfold(y[..., None], kernel_size=(3, 1), padding=(1, 0)).mT.reshape(b, -1, c, 3)
    kernels = y.mT[..., :3].reshape(-1, 3, 1).softmax(1)
    return torch.matmul(found.reshape(-1, c, 3), kernels).reshape(b, t, c).mT


POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "sort": lambda y: y.sort(2).values,
    "sort, downwards": lambda y: torch.sort(y, dim=-1, descending=True, stable=True)[0],
    "argsort": lambda y: y.gather(2, y[:, :1].argsort(2).expand(-1, 4, -1)) + y,
    "argsort of channels": lambda y: y * y.argsort(1),
    "sort of channels": lambda y: y.sort(1).values,
    "less its median": lambda y: y - y.median(2, keepdim=True).values,
    "less a quantile": lambda y: y - torch.quantile(y, 0.3, dim=2, keepdim=True),
    "median of channels": lambda y: y - y.median(1, keepdim=True)[0],
    "the largest half": lambda y: y.topk(y.shape[2] // 2, dim=2).values,
    "windows": windows,
}


@pytest.mark.parametrize("name", POSITIONS)
def test_along_positions(name: str) -> None:
    assert_as_alone(Between(POSITIONS[name], 4).double(), normal(3, 3, 19, dtype=torch.float64), LENGTHS, out=2)


SEQUENCES: dict[str, Callable[[Tensor], Tensor]] = {
    "topk": lambda y: y.topk(5).values,
    "topk, smallest": lambda y: torch.topk(y, 3, 2, largest=False)[0],
    "indices of topk": lambda y: y.gather(2, y.square().topk(3, dim=2).indices),
    "kthvalue": lambda y: y.kthvalue(4, 2).values,
    "median": lambda y: y.median(2).values,
    "nanmedian": lambda y: torch.nanmedian(y, dim=-1)[0],
    "mode": lambda y: y.round().mode(2).values,
    "quantile": lambda y: y.quantile(0.7, 2),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_one_result_for_each_sequence(name: str) -> None:
    assert_as_alone(Between(SEQUENCES[name], None).double(), normal(3, 3, 19, dtype=torch.float64), LENGTHS)


def test_more_values_than_a_sequence_has() -> None:
    message = (
        "padded: Between takes 9 positions of each sequence by topk, got a sequence of 8. Take at most as many as the "
        "shortest one has."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"), tnt.padded(lengths=LENGTHS):
        Between(lambda y: y.topk(9).values, None)(normal(3, 3, 19))


@pytest.mark.parametrize("function", [torch.median, torch.nanmedian, lambda y: torch.quantile(y, 0.2)])
def test_of_all_valid_values(function: Callable[[Tensor], Tensor]) -> None:
    conv, x = nn.Conv1d(3, 4, 1), normal(3, 3, 19)
    with tnt.padded(lengths=LENGTHS) as tracked:
        found = function(conv(x))
    valid = torch.cat([conv(x[i : i + 1, :, :n]).flatten() for i, n in enumerate(LENGTHS)])
    assert tracked.report.mixed == ()
    torch.testing.assert_close(found, function(valid), rtol=1e-6, atol=1e-7)


def test_an_empty_sequence() -> None:
    with tnt.padded(lengths=[5, 0]):
        y = Between(lambda y: y.topk(2).values + y.median(2, keepdim=True).values, None)(normal(2, 3, 5))
    assert y[1].tolist() == [[0.0] * 2] * 4


@pytest.mark.parametrize("options", [{}, {"length": 28}, {"hop_length": 4}], ids=str)
def test_inverse_spectra(options: dict[str, Any]) -> None:
    def back(x: Tensor) -> Tensor:
        spectrum = torch.stft(x, 8, options.get("hop_length"), window=WINDOW, return_complex=True)
        y: Tensor = torch.istft(spectrum * 2, 8, window=WINDOW, **options)
        return y.square()

    class Back(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(1)
            self.conv = nn.Conv1d(1, 2, 5, padding=2)

        def forward(self, x: Tensor) -> Any:
            return self.conv(back(x)[:, None])

    lengths = [61, 30, 44]
    assert_as_alone(Back().double(), normal(3, 61, dtype=torch.float64), lengths, axis=1, out=2)


def test_a_matrix_from_outside_does_not_hide_the_positions() -> None:
    w = normal(4, 4, dtype=torch.float64)
    model = Between(lambda y: (y.mT @ w).mT + torch.einsum("bct,c->bt", y, w[0])[:, None], 4).double()
    assert_as_alone(model, normal(3, 3, 19, dtype=torch.float64), LENGTHS, out=2)


# ---- tags ----


def test_the_same_steps_give_the_same_tag() -> None:
    """So that what follows from a tag is computed once, and not in each layer of a model."""
    linear = nn.Linear(4, 4)
    with tnt.padded(lengths=[9, 4]) as tracked:
        x = tracked.follow(normal(2, 9, 4), along=1)
        layers = [x]
        for _ in range(3):
            layers.append(layers[-1] + linear(layers[-1].mT.mT.relu().view(2, 9, 2, 2).flatten(2)))
        tags = [tracked.states.get(one) for one in layers]
        assert x.type() == "torch.FloatTensor"  # no tensor, although `type` is followed
    assert tags[2] is tags[3]
    assert isinstance(tags[3], Tag)
    assert tags[3].lengths == {1: (9, 4)}
