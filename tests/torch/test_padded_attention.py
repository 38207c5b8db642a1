"""Products over positions, softmax and attention inside `padded`: each sequence as if it were alone.

The padding holds NaN, outputs and all gradients are compared (`tests/support/alone.py`).
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [6, 2, 5]


class Apply(nn.Module):
    """A function of x (b, t, 4) and of two linear layers of it, as a model."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function
        torch.manual_seed(1)
        self.first, self.second = nn.Linear(4, 4).double(), nn.Linear(4, 4).double()

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self.first(x), self.second(x), x)


# Functions of q, k, x (b, t, 4) with an output (b, t, ...).
KEEP_POSITIONS: dict[str, Callable[..., Any]] = {
    "matmul, softmax, matmul": lambda q, k, x: (q @ k.mT).softmax(-1) @ x,
    "bmm": lambda q, k, x: torch.bmm(functional.softmax(torch.bmm(q, k.mT), dim=-1, dtype=torch.float64), x),
    "einsum with dots": lambda q, k, x: torch.einsum("...ij,...jc->...ic", torch.einsum("...ic,...jc", q, k), x),
    "softmax, keywords": lambda q, k, x: functional.softmax(input=q @ k.mT, dim=-1) @ x,
    "baddbmm": lambda q, k, x: torch.baddbmm(x, q, torch.bmm(k.mT, x)),
    "einsum": lambda q, k, x: torch.einsum("bij,bjc->bic", torch.einsum("bic,bjc->bij", q, k).softmax(2), x),
    "linear attention": lambda q, k, x: q @ (k.mT @ x),
    "softmax of the keys over positions": lambda q, k, x: q @ (k.softmax(1).mT @ x),
    "log_softmax over positions": lambda q, k, x: q.log_softmax(1),
    "softmax over channels": lambda q, k, x: q.softmax(-1) * k,
    "log_softmax over channels": lambda q, k, x: functional.log_softmax(q, 2) - k,
    "scaled_dot_product_attention": lambda q, k, x: functional.scaled_dot_product_attention(q, k, x),
    "attention, causal": lambda q, k, x: functional.scaled_dot_product_attention(q, k, x, is_causal=True),
    "attention, keywords": lambda q, k, x: functional.scaled_dot_product_attention(query=q, key=k, value=x, scale=0.3),
    "attention, boolean mask": lambda q, k, x: functional.scaled_dot_product_attention(
        q, k, x, attn_mask=torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril()
    ),
    "attention, additive mask": lambda q, k, x: functional.scaled_dot_product_attention(
        q, k, x, attn_mask=torch.arange(k.shape[1]).double().sin().expand(q.shape[1], k.shape[1])
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", KEEP_POSITIONS)
def test_functions_that_keep_positions(name: str) -> None:
    model = Apply(KEEP_POSITIONS[name])
    assert_as_alone(model, normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1, out=1)


def test_gumbel_softmax() -> None:
    """Over channels each position by itself. Its second argument is not the axis."""
    layer, x = nn.Linear(4, 4), normal(3, 6, 4)
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = layer(x)
        found = functional.gumbel_softmax(y, 1), functional.gumbel_softmax(logits=y, tau=0.5, hard=True)
        assert [tracked.tag(one) for one in found] == [tracked.tag(y)] * 2
        functional.gumbel_softmax(y.mT, 1)
    for one in found:
        torch.testing.assert_close(one.sum(-1), torch.ones(3, 6))
    assert tracked.report.mixed == ("gumbel_softmax (it mixes positions)",)


WITHOUT_POSITIONS: dict[str, Callable[..., Any]] = {
    "a matrix for each sequence": lambda q, k, x: q.mT @ k,
    "einsum": lambda q, k, x: torch.einsum("btc,btd->bcd", q, k),
    "einsum of three": lambda q, k, x: torch.einsum("btc,btd,bte->bcde", q, k, x),
    "a weighted sum": lambda q, k, x: torch.einsum("bt,btc->bc", q.mean(-1).softmax(1), x),
    "learned queries": lambda q, k, x: functional.scaled_dot_product_attention(
        torch.linspace(-1, 1, 8, dtype=torch.float64).reshape(1, 2, 4).expand(len(k), 2, 4), k, x
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_functions_that_sum_positions(name: str) -> None:
    model = Apply(WITHOUT_POSITIONS[name])
    assert_as_alone(model, normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("batch_first", [True, False])
def test_multihead_attention(training: bool, batch_first: bool) -> None:
    """In evaluation torch has a fast path of its own; a mode keeps it from being taken."""

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(4, 4)
            self.attention = nn.MultiheadAttention(4, 2, batch_first=batch_first)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.project(x)
            x = x if batch_first else x.transpose(0, 1)
            y: torch.Tensor = self.attention(x, x, x)[0]
            return y if batch_first else y.transpose(0, 1)

    torch.manual_seed(0)
    model = Model().double().train(training)
    assert_as_alone(model, normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1, out=1)


@pytest.mark.parametrize("dtype", [torch.bool, torch.float64])
def test_multihead_attention_with_masks_of_its_own(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, batch_first=True).double()

    def attend(q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        ignored = torch.arange(k.shape[1]).expand(len(k), -1) == 1
        later = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).triu(1)
        masks = [ignored, later]
        if dtype.is_floating_point:
            masks = [torch.zeros(one.shape, dtype=dtype).masked_fill(one, -1.5) for one in masks]
        return layer(q, k, x, key_padding_mask=masks[0], attn_mask=masks[1], need_weights=False)[0]

    assert_as_alone(Apply(attend), normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1, out=1)


class Decoder(nn.Module):
    """Learned queries, which have no padding, attend to the sequences."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.queries = nn.Linear(4, 4), nn.Parameter(torch.randn(5, 4))
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(4, 2, 8, dropout=0.0, batch_first=True), 2)
        self.behind = nn.Conv1d(4, 2, 3, padding=1)

    def forward(self, x: torch.Tensor) -> Any:
        return self.behind(self.decoder(self.queries.expand(len(x), -1, -1), self.project(x)).mT)


def test_learned_queries() -> None:
    torch.manual_seed(0)
    assert_as_alone(Decoder().double(), normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1)


def test_a_query_whose_positions_are_not_known() -> None:
    attention = nn.MultiheadAttention(4, 2, batch_first=True)
    with tnt.padded(lengths=LENGTHS):
        memory = nn.Linear(4, 4)(normal(3, 6, 4))
        with pytest.raises(ValueError, match="with 8 positions on axis 1, but the model's first input has 6"):
            attention(normal(3, 8, 4), memory, memory)


@pytest.mark.parametrize("option", ["add_bias_kv", "add_zero_attn"])
def test_keys_that_attention_adds(option: str) -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(4, 2, batch_first=True, **{option: True}).double()

    def attend(q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> Any:
        y, weights = layer(q, k, x)
        return y * weights.square().sum(-1, keepdim=True)

    assert_as_alone(Apply(attend), normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1, out=1)


@pytest.mark.filterwarnings("ignore:Implicit dimension choice")
def test_a_softmax_without_an_axis_is_reported() -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        Apply(lambda q, k, x: functional.softmax(q))(normal(3, 6, 4, dtype=torch.float64))
    assert tracked.report.mixed == ("softmax in Apply (without dim)",)


def test_a_transformer_encoder_layer() -> None:
    torch.manual_seed(0)
    model = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True).double()
    tnt.convert(model)
    for training in (True, False):
        model.train(training)
        assert_as_alone(model, normal(3, 6, 4, dtype=torch.float64), LENGTHS, axis=1, out=1, along=1)


class Images(nn.Module):
    """Patches of images with heights and widths, one below the other, as in a ViT."""

    def __init__(self, attend: Callable[..., Any], token: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches, self.head = nn.Conv2d(3, 4, 2, stride=2), nn.Linear(4, 2)
        self.layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
        self.token = nn.Parameter(torch.randn(1, 1, 4))
        self.attend, self.with_token = attend, token

    def forward(self, x: torch.Tensor) -> Any:
        y = self.patches(x).flatten(2).transpose(1, 2)
        y = torch.cat([self.token.expand(len(y), -1, -1), y], 1) if self.with_token else y
        y = self.layer(y) if self.attend is None else self.attend(y)
        return self.head(torch.cat([y[:, 0], y[:, 1:].mean(1)]) if self.with_token else y.mean(1))


@pytest.mark.parametrize("token", [False, True])
@pytest.mark.parametrize(
    "attend",
    [None, lambda y: functional.scaled_dot_product_attention(y, y, y), lambda y: (y @ y.mT).softmax(-1) @ y],
    ids=["layer", "scaled_dot_product_attention", "softmax"],
)
def test_images_with_heights_and_widths(attend: Callable[..., Any], token: bool) -> None:
    model, x = Images(attend, token).double(), normal(2, 3, 12, 8, dtype=torch.float64)
    heights, widths = [12, 8], [4, 8]
    expected = [model(x[i : i + 1, :, :h, :w]) for i, (h, w) in enumerate(zip(heights, widths, strict=True))]
    batch = x.clone()
    for i, (h, w) in enumerate(zip(heights, widths, strict=True)):
        batch[i, :, h:] = batch[i, :, :, w:] = torch.nan
    with tnt.padded(lengths=(heights, widths)) as tracked:
        y = model(batch)
    wanted = torch.stack(expected, 1).flatten(0, 1)
    torch.testing.assert_close(y, wanted, atol=1e-12, rtol=1e-12)
    assert tracked.report.mixed == ()
    gradients = [
        torch.autograd.grad(one.square().sum(), list(model.parameters()), allow_unused=True) for one in (y, wanted)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_a_token_before_positions_with_gaps() -> None:
    valid = torch.tensor([[True, False, True, True], [False, True, True, False]])
    model = Apply(lambda q, k, x: (cat := torch.cat([torch.ones(len(x), 1, 4).double(), q], 1))[:, 0] + cat.mean(1))
    x = normal(2, 4, 4, dtype=torch.float64)
    expected = torch.cat([model(x[i : i + 1, one]) for i, one in enumerate(valid)])
    x[~valid] = torch.nan
    with tnt.padded(valid=valid):
        torch.testing.assert_close(model(x), expected, atol=1e-12, rtol=1e-12)


EMPTY = {
    "softmax": lambda q, k, x: (q @ k.mT).softmax(-1) @ x,
    "scaled_dot_product_attention": lambda q, k, x: functional.scaled_dot_product_attention(q, k, x),
    "multihead": lambda q, k, x: nn.MultiheadAttention(4, 2, bias=False, batch_first=True).double()(q, k, x)[0],
}  # fmt: skip


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_sequence_gets_zeros(name: str) -> None:
    x = normal(3, 6, 4, dtype=torch.float64)
    x[1] = torch.nan
    x.requires_grad_()
    with tnt.padded(lengths=[6, 0, 5]):
        y = Apply(EMPTY[name])(x)
    y[[0, 2]].square().sum().backward()
    assert bool(torch.isfinite(y[[0, 2], :5]).all())
    assert not bool(y[1].any())
    assert bool(torch.isfinite(x.grad).all())
    assert not bool(x.grad[1].any())


def test_sums_over_the_sequences_are_lost() -> None:
    def mixed(q: torch.Tensor, k: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("btc,btd->tcd", q, k)

    with tnt.padded(lengths=LENGTHS) as tracked:
        Apply(mixed)(normal(3, 6, 4, dtype=torch.float64))
    assert tracked.report.mixed == ("einsum in Apply (it sums over the sequences)",)
