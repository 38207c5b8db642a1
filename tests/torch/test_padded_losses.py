"""Losses inside `padded`: over the valid values of all sequences, with their gradients."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [6, 2, 5]

# Functions of y (n, 4) and of a target of the same shape; the positions of all sequences are in n.
ELEMENTWISE: dict[str, Callable[..., Tensor]] = {
    "mse": functional.mse_loss,
    "mse, sum": lambda y, target: functional.mse_loss(y, target, reduction="sum"),
    "mse, module": lambda y, target: nn.MSELoss()(y, target),
    "l1": lambda y, target: functional.l1_loss(input=y, target=target),
    "smooth l1": lambda y, target: functional.smooth_l1_loss(y, target, beta=0.5),
    "huber": functional.huber_loss,
    "binary": lambda y, target: functional.binary_cross_entropy(y.sigmoid(), target.sigmoid()),
    "binary, logits": lambda y, target: functional.binary_cross_entropy_with_logits(
        y, target.sigmoid(), pos_weight=torch.tensor([1.0, 2.0, 3.0, 4.0], dtype=y.dtype)
    ),
    "poisson": functional.poisson_nll_loss,
    "gaussian": lambda y, target: functional.gaussian_nll_loss(y, target, target.square() + 0.5),
    "weight of each element": lambda y, target: functional.binary_cross_entropy_with_logits(
        y, target.sigmoid(), weight=target.exp()
    ),
    "kl": lambda y, target: functional.kl_div(y.log_softmax(-1), target.sigmoid()),
    "each element": lambda y, target: functional.mse_loss(y, target, reduction="none").mean(),
}  # fmt: skip


def compare(loss: Callable[..., Tensor], target: Tensor, view: Callable[[Tensor], Tensor] = lambda y: y) -> None:
    """The loss of a padded batch (b, t, 4), and that of the valid rows (n, 4).

    NaN in the padding of the input, and of targets that are no classes.
    """
    layer = nn.Linear(3, 4).double()
    x = normal(3, 6, 3, dtype=torch.float64)
    valid = torch.arange(6) < torch.tensor(LENGTHS)[:, None]
    expected = loss(layer(x[valid]), target[valid])
    wanted = torch.autograd.grad(expected, list(layer.parameters()))
    x[~valid] = torch.nan
    if target.is_floating_point():
        target[~valid] = torch.nan
    with tnt.padded(lengths=LENGTHS) as tracked:
        found = loss(view(layer(x)), view(target))
    assert_close(found, expected, atol=1e-12, rtol=1e-12)
    assert tracked.report.mixed == ()
    for one, other in zip(torch.autograd.grad(found, list(layer.parameters())), wanted, strict=True):
        assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.filterwarnings("ignore:reduction. 'mean' divides")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_losses_of_each_element(name: str) -> None:
    compare(ELEMENTWISE[name], normal(3, 6, 4, seed=1, dtype=torch.float64))


WEIGHT = torch.tensor([1.0, 2.0, 0.5, 3.0], dtype=torch.float64)
CLASSES: dict[str, Callable[..., Tensor]] = {
    "cross entropy": functional.cross_entropy,
    "weight, smoothing": lambda y, target: functional.cross_entropy(y, target, WEIGHT, label_smoothing=0.1),
    "an ignored class": lambda y, target: functional.cross_entropy(y, target, ignore_index=2),
    "likelihood": lambda y, target: functional.nll_loss(y.log_softmax(-1), target, WEIGHT, reduction="sum"),
    "module": lambda y, target: nn.CrossEntropyLoss()(y, target),
    "each position": lambda y, target: functional.cross_entropy(y, target, reduction="none").mean(),
}


@pytest.mark.parametrize("name", CLASSES)
def test_losses_of_classes(name: str) -> None:
    """The targets at padding may hold anything, also what is no class."""
    target = torch.arange(18).reshape(3, 6) * 7 % 4
    for i, n in enumerate(LENGTHS):
        target[i, n:] = -1
    compare(CLASSES[name], target, lambda y: y.flatten(0, 1))


def test_cross_entropy_of_probabilities_and_channels_second() -> None:
    target = normal(3, 6, 4, seed=1, dtype=torch.float64).softmax(-1)
    compare(lambda y, t: functional.cross_entropy(y.movedim(-1, 1), t.movedim(-1, 1)), target)


def test_a_loss_of_classes_that_are_positions_is_reported() -> None:
    layer, x = nn.Linear(3, 4), normal(3, 6, 3)
    with tnt.padded(lengths=LENGTHS) as tracked:
        functional.cross_entropy(layer(x), torch.zeros(3, 4, dtype=torch.int64))
    assert tracked.report.mixed == ("cross_entropy (classes that are positions)",)


def test_losses_of_an_axis_that_may_be_positions_are_reported() -> None:
    """A mean that is repeated for each position: the positions of a sequence alone would be fewer."""
    layer, x = nn.Linear(3, 4), normal(3, 6, 3)
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = layer(x).mean(1, keepdim=True).repeat(1, 6, 1)
        functional.cross_entropy(y.mT, torch.zeros(3, 6, dtype=torch.int64))
        functional.mse_loss(y, torch.zeros(3, 6, 4))
    assert tracked.report.mixed == (
        "cross_entropy (an axis that may be positions)",
        "mean (an axis that may be positions)",
    )


def test_losses_that_are_reported() -> None:
    layer, x = nn.Linear(3, 4), normal(3, 6, 3)
    weighted: Any = functional.mse_loss
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = layer(x)
        functional.cosine_similarity(y, y)
        weighted(y, torch.zeros(3, 6, 4), weight=torch.ones(3, 6, 4))
    assert tracked.report.mixed == ("cosine_similarity", "mse_loss")


def ctc(y: Tensor, lengths: list[int]) -> Tensor:
    targets, sizes = torch.tensor([[1, 2], [1, 3], [2, 3]]), torch.tensor([2, 2, 1])
    return functional.ctc_loss(y.log_softmax(-1).transpose(0, 1), targets, torch.tensor(lengths), sizes)


def test_ctc_loss() -> None:
    layer, x = nn.Linear(3, 4).double(), normal(3, 6, 3, dtype=torch.float64)
    expected = ctc(layer(x), LENGTHS)
    wanted = torch.autograd.grad(expected, list(layer.parameters()))
    for i, n in enumerate(LENGTHS):
        x[i, n:] = torch.nan
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = layer(x)
        found = ctc(y, LENGTHS)
        assert tracked.report.mixed == ()
        ctc(y, [6, 6, 6])
    assert_close(found, expected)
    for one, other in zip(torch.autograd.grad(found, list(layer.parameters())), wanted, strict=True):
        assert_close(one, other)
    assert tracked.report.mixed == ("ctc_loss (its lengths are longer than the sequences)",)
