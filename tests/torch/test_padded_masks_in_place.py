"""A mask of attention that changes between two calls inside `padded`: what was found for the first call is not used."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [5, 3]
attention = functional.scaled_dot_product_attention


def normalized(x: Tensor) -> Tensor:
    """So that attention has no padding to fill, and its mask is kept for the next call."""
    return functional.layer_norm(x, (4,))


def replace_data(mask: Tensor, new: Tensor) -> None:
    mask.data = new


def write_data(mask: Tensor, new: Tensor) -> None:
    mask.data[...] = new


CHANGES: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "data =": replace_data,
    "data[...] =": write_data,
    "data.copy_": lambda mask, new: mask.data.copy_(new),
    "copy_": lambda mask, new: mask.copy_(new),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_mask_that_is_written_to(change: str) -> None:
    mask, x = torch.ones(5, 5, dtype=torch.bool), normal(2, 5, 4)
    new = mask.clone()
    new[..., 1] = False
    with torch.no_grad(), tnt.padded(lengths=LENGTHS, along=1) as tracked:
        h = normalized(tracked.follow(x.clone(), along=1))
        attention(h, h, h, attn_mask=mask)
        CHANGES[change](mask, new)
        y = attention(h, h, h, attn_mask=mask)
    for i, length in enumerate(LENGTHS):
        alone = normalized(x[i : i + 1, :length])
        expected = attention(alone, alone, alone, attn_mask=new[:length, :length])
        torch.testing.assert_close(y[i : i + 1, :length], expected)


def test_a_mask_that_is_trained_from_now_on() -> None:
    mask, x = torch.zeros(5, 5), normal(2, 5, 4)
    with tnt.padded(lengths=LENGTHS, along=1) as tracked:
        h = normalized(tracked.follow(x.clone(), along=1))
        attention(h, h, h, attn_mask=mask)
        attention(h, h, h, attn_mask=mask.requires_grad_())[0].square().sum().backward()
    assert mask.grad is not None


def test_a_query_of_another_rank_is_lost_and_nothing_is_kept_of_it() -> None:
    x = normal(2, 5, 4)
    with torch.no_grad(), tnt.padded(lengths=LENGTHS, along=1) as tracked:
        h = tracked.follow(x.clone(), along=1) * 2
        y = attention(h, h[None, None], h[None, None])
        torch.where(y > 0, y, y * 2)
    assert "differ in length or rank" in tracked.report.mixed[0]
