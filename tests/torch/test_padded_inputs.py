"""Inputs of a model inside `padded` before a layer has shown which axis has their positions: followed, or refused."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone, pad
from torch import Tensor, nn
from torch.nn import functional
from torch.testing import assert_close
from torch_data import normal

import truenorm.torch as tnt

LENGTHS = [9, 5, 7]


def double(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed, dtype=torch.float64)


class Model(nn.Module):
    """A function of the input, and of a convolution and a linear layer."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.conv, self.linear = nn.Conv1d(4, 4, 3, padding=1).double(), nn.Linear(4, 4).double()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(self, *inputs)


def attention(**options: Any) -> Any:
    torch.manual_seed(2)
    return nn.MultiheadAttention(4, 2, **options).double()


def encoder(**options: Any) -> Any:
    torch.manual_seed(3)
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, **options).double()
    tnt.convert(layer)
    return layer


# Functions of x (b, c, t) that begin with something else than the layer that shows the positions.
CHANNELS_FIRST: dict[str, Callable[..., Any]] = {
    "reflected": lambda m, x: nn.Conv1d(4, 4, 3, padding=1, padding_mode="reflect"),
    "replicated": lambda m, x: nn.Conv1d(4, 4, 3, padding=1, padding_mode="replicate"),
    "circular": lambda m, x: nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular"),
    "zeros first": lambda m, x: nn.Sequential(nn.ZeroPad1d((1, 2)), nn.Conv1d(4, 4, 3)),
    "constants first": lambda m, x: nn.Sequential(nn.ConstantPad1d(2, 1.5), nn.Conv1d(4, 4, 3)),
    "slice": lambda m, x: m.conv(x[:, :, 1:]),
    "step": lambda m, x: m.conv(x[..., ::2]),
    "stop": lambda m, x: m.conv(x[:, :, :-1]),
    "narrow": lambda m, x: m.conv(x.narrow(2, 0, 4)),
    "channels": lambda m, x: m.conv(x.permute(2, 0, 1).permute(1, 2, 0)[:, 0:]),
    "relu and sin": lambda m, x: m.conv(x.relu() + x.sin() * 2),
    "transposed twice": lambda m, x: m.conv(m.linear(x.mT).mT),
    "used before and after": lambda m, x: (lambda a: m.conv(x) * a.mT)(x.mT.exp()),
}


@pytest.mark.parametrize("name", CHANNELS_FIRST)
def test_an_input_is_followed_to_the_layer_that_shows_its_positions(name: str) -> None:
    torch.manual_seed(5)
    function = CHANNELS_FIRST[name]
    made: Any = function(None, None) if name in list(CHANNELS_FIRST)[:5] else None
    model = made.double() if made is not None else Model(function)
    value = 3.0 if "sin" in name or "used" in name else float("nan")  # 0 * cos(NaN) is NaN, in the gradient of NaN
    assert_as_alone(model, double(3, 4, 9), LENGTHS, out=2, value=value)


POSITIONS_FIRST: dict[str, Callable[[], Any]] = {
    "attention": lambda: Model(lambda m, x: attention(batch_first=True)(x, x, x)[0]),
    "encoder layer": lambda: encoder(batch_first=True),
    "encoder layer, norm first": lambda: encoder(batch_first=True, norm_first=True),
    "encoder": lambda: nn.TransformerEncoder(encoder(batch_first=True), 2, enable_nested_tensor=False),
    "encoder with positions": lambda: Model(
        lambda m, x: encoder(batch_first=True)(x + torch.arange(x.shape[1]).double()[:, None].cos())
    ),
    "rows": lambda: Model(lambda m, x: m.linear(x.reshape(-1, 4)).view(*x.shape).cumsum(1)),
    "scaled_dot_product_attention": lambda: Model(lambda m, x: functional.scaled_dot_product_attention(x, x, x)),
}


@pytest.mark.parametrize("name", POSITIONS_FIRST)
def test_attention_and_linear_layers_show_the_positions(name: str) -> None:
    assert_as_alone(POSITIONS_FIRST[name](), double(3, 9, 4), LENGTHS, axis=1, out=1)


SEQUENCE_FIRST: dict[str, Callable[[], Any]] = {
    "lstm": lambda: nn.LSTM(4, 4, bidirectional=True).double(),
    "attention": lambda: Model(lambda m, x: attention()(x, x, x)),
    "encoder layer": lambda: encoder(),
    "encoder layer, norm first": lambda: encoder(norm_first=True),
}


@pytest.mark.parametrize("name", SEQUENCE_FIRST)
@pytest.mark.parametrize("lengths", [[9, 5, 7], [3, 1, 2]])
def test_batches_on_the_second_axis(name: str, lengths: list[int]) -> None:
    """Also when there are as many positions as sequences: the layer says which is which, sizes do not."""
    torch.manual_seed(6)
    model = SEQUENCE_FIRST[name]()
    x = double(max(lengths), 3, 4)
    wide = pad(x.transpose(0, 1), lengths, axis=1).transpose(0, 1)
    with tnt.padded(lengths=lengths):
        y = model(wide)
    y = y[0] if isinstance(y, tuple) else y
    for i, n in enumerate(lengths):
        expected = model(x[:n, i : i + 1])
        expected = expected[0] if isinstance(expected, tuple) else expected
        assert_close(y[:n, i : i + 1], expected, rtol=1e-11, atol=1e-11)


REFUSED: dict[str, Callable[..., Any]] = {
    "pad": lambda m, x: m.conv(functional.pad(x, (2, 0))),
    "cat": lambda m, x: m.conv(torch.cat([x[..., :1] * 0, x], 2)),
    "stack": lambda m, x: m.conv(torch.stack([x, x], 1)[:, 0]),
    "flip": lambda m, x: m.conv(x.flip(-1)),
    "roll": lambda m, x: m.conv(x.roll(1, 2)),
    "unfold": lambda m, x: m.conv(x.unfold(2, 2, 1)[..., 0]),
    "reshape": lambda m, x: x.reshape(len(x), -1, 2),
    "softmax": lambda m, x: m.conv(x.softmax(-1)),
    "matmul": lambda m, x: m.conv(x @ x.mT @ x),
    "glu": lambda m, x: functional.glu(x, 1),
    "__getitem__": lambda m, x: m.conv(x[torch.tensor([2, 0, 1])]),
    "unbind": lambda m, x: torch.stack([m.conv(one) for one in x]),
    "mean": lambda m, x: m.conv(x - x.mean(2, keepdim=True)),
    "chunk": lambda m, x: torch.cat(x.chunk(2, 1)[::-1], 1),
    "__setitem__": lambda m, x: torch.zeros(x.shape).double().__setitem__(slice(None), x),
}


@pytest.mark.parametrize("name", REFUSED)
def test_functions_that_have_to_know_the_positions_are_refused(name: str) -> None:
    model = Model(REFUSED[name])
    message = (
        f"padded: {name} in Model has to know which axis of the input (3, 4, 10) has the positions, and no layer has "
        "shown it before: pass along=2 to padded. If the model has several inputs, declare this one: "
        "tracked.follow(x, along=...), or tracked.follow(x, lengths=None) if it has no padding."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"), tnt.padded(lengths=LENGTHS):
        model(double(3, 4, 10))


@pytest.mark.parametrize("name", ["pad", "cat", "stack", "flip", "roll", "unfold", "matmul", "mean", "chunk"])
def test_they_are_followed_with_along(name: str) -> None:
    model = Model(REFUSED[name])
    assert_as_alone(model, double(3, 4, 9), LENGTHS, out=2, along=2)


def test_outside_of_a_module_such_a_function_loses_track() -> None:
    conv, x = nn.Conv1d(4, 4, 3), normal(3, 4, 9)
    where = r"lost at flip \(an input whose positions are not known: pass along=2 to padded\)"
    with pytest.raises(ValueError, match=where), tnt.padded(lengths=LENGTHS):
        conv(x.flip(2))
    with pytest.raises(ValueError, match="lost at unbind"), tnt.padded(lengths=LENGTHS):
        [conv(one) for one in x]


# ---- tokens ----


class Tokens(nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.weight, self.function = nn.Parameter(torch.randn(6, 4).double()), function
        self.conv, self.bag = nn.Conv1d(4, 4, 3, padding=1).double(), nn.EmbeddingBag(6, 4, mode="mean").double()

    def forward(self, tokens: Tensor) -> Any:
        return self.function(self, tokens)


TOKENS: dict[str, Callable[..., Any]] = {
    "one_hot": lambda m, t: m.conv((functional.one_hot(t, 6).double() @ m.weight).mT),
    "one_hot, linear": lambda m, t: m.conv(functional.linear(functional.one_hot(t, 6).double(), m.weight.T).mT),
    "one_hot, convolution": lambda m, t: m.conv(functional.one_hot(t, 6).double().mT[:, 1:5]),
    "index": lambda m, t: m.conv(m.weight[t].mT),
    "index_select": lambda m, t: m.conv(m.weight.index_select(0, t.flatten()).view(*t.shape, 4).mT),
    "shifted": lambda m, t: m.conv(functional.embedding(t[:, 1:], m.weight).mT),
    "positions": lambda m, t: m.conv(functional.embedding((t > 0).long().cumsum(1) % 6, m.weight).mT),
}


@pytest.mark.parametrize("name", [name for name in TOKENS if name != "one_hot"])
def test_tokens(name: str) -> None:
    model, lengths = Tokens(TOKENS[name]), [9, 5, 7]
    tokens = torch.randint(0, 6, (3, 9), generator=torch.Generator().manual_seed(1))
    with tnt.padded(lengths=lengths):
        y = model(tokens)
    for i, n in enumerate(lengths):
        expected = model(tokens[i : i + 1, :n])
        assert_close(y[i : i + 1, :, : expected.shape[2]], expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_tokens(mode: str) -> None:
    bag, lengths = nn.EmbeddingBag(6, 4, mode=mode).double(), [9, 5, 0]
    tokens = torch.randint(0, 6, (3, 9), generator=torch.Generator().manual_seed(1))
    with tnt.padded(lengths=lengths):
        y = bag(tokens)
    for i, n in enumerate(lengths[:2]):
        assert_close(y[i : i + 1], bag(tokens[i : i + 1, :n]), rtol=1e-12, atol=1e-12)
    assert not y[2].any()


def test_tokens_with_an_axis_that_is_named() -> None:
    model = Tokens(TOKENS["one_hot"])
    tokens = torch.randint(0, 6, (3, 9), generator=torch.Generator().manual_seed(1))
    with pytest.raises(ValueError, match="pass along"), tnt.padded(lengths=LENGTHS):
        model(tokens)
    with tnt.padded(lengths=LENGTHS, along=1):
        y = model(tokens)
    for i, n in enumerate(LENGTHS):
        assert_close(y[i : i + 1, :, :n], model(tokens[i : i + 1, :n]), rtol=1e-12, atol=1e-12)


def test_tokens_that_are_lost_are_refused_by_an_embedding() -> None:
    embedding, tokens = nn.Embedding(6, 4), torch.zeros(3, 9, dtype=torch.long)
    with pytest.raises(ValueError, match=r"Embedding has to know .* lost at flip"), tnt.padded(lengths=LENGTHS):
        embedding(tokens.flip(1))


def test_complex_inputs() -> None:
    def model(m: Model, z: Tensor) -> Any:
        return m.conv(torch.view_as_real(z).flatten(2).mT)

    def loss(z: Tensor) -> Any:
        return Model(model)(z)

    z = torch.complex(double(3, 9, 2), double(3, 9, 2, seed=1))
    with tnt.padded(lengths=LENGTHS):
        y = loss(z)
    for i, n in enumerate(LENGTHS):
        assert_close(y[i : i + 1, :, :n], loss(z[i : i + 1, :n]), rtol=1e-12, atol=1e-12)


# ---- several inputs ----


def test_a_second_input_has_the_positions_of_the_first_or_is_declared() -> None:
    model = Model(lambda m, x, y: m.linear(x).sum(1) + m.linear(y).mean(1))
    x, styles = double(3, 9, 4), double(3, 10, 4, seed=1)
    message = (
        "padded: Linear 'linear' reads an input (3, 10, 4) with 10 positions on axis 1, but the model's first input "
        "has 9. Declare its own lengths: tracked.follow(x, along=1, lengths=...), or tracked.follow(x, lengths=None) "
        "if it has no padding."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"), tnt.padded(lengths=LENGTHS):
        model(x, styles)
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = model(x, tracked.follow(styles, lengths=None))
    with tnt.padded(lengths=LENGTHS) as tracked:
        z = model(x, tracked.follow(styles, along=1, lengths=[10, 3, 4]))
        both = model(x, x.clone())
    for i, n in enumerate(LENGTHS):
        assert_close(y[i : i + 1], model(x[i : i + 1, :n], styles[i : i + 1]), rtol=1e-12, atol=1e-12)
        own = styles[i : i + 1, : [10, 3, 4][i]]
        assert_close(z[i : i + 1], model(x[i : i + 1, :n], own), rtol=1e-12, atol=1e-12)
        assert_close(both[i : i + 1], model(*[x[i : i + 1, :n]] * 2), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("by_name", [False, True])
def test_along_does_not_choose_between_inputs(by_name: bool) -> None:
    class Two(nn.Module):
        def forward(self, speaker: Tensor, x: Tensor) -> Any:
            return speaker.mean(1) + x.mean((1, 2))

    model, x, speaker = Two(), double(3, 9, 4), double(3, 16, seed=1)
    message = (
        "padded: along=1 fits several inputs of the model, one of them (3, 9, 4). Declare all but one of them: "
        "tracked.follow(x, along=...), or tracked.follow(x, lengths=None) for a tensor without padding."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"), tnt.padded(lengths=LENGTHS, along=1):
        model(speaker=speaker, x=x) if by_name else model(speaker, x)
    with tnt.padded(lengths=LENGTHS, along=1) as tracked:
        tracked.follow(speaker, lengths=None)
        y = model(speaker=speaker, x=x) if by_name else model(speaker, x)
        again = model(tracked.follow(speaker, lengths=None), x.clone())
    for i, n in enumerate(LENGTHS):
        assert_close(y[i : i + 1], model(speaker[i : i + 1], x[i : i + 1, :n]), rtol=1e-12, atol=1e-12)
    assert_close(again, y)


def test_features_that_are_too_few_for_positions_need_no_declaration() -> None:
    norm = nn.BatchNorm1d(10).double()
    model = Model(lambda m, x, spk: norm(torch.cat([m.conv(x).mean(2), spk.softmax(1)], 1)))
    tnt.convert(norm.eval())
    x, speaker = double(3, 4, 9), double(3, 6, seed=1)
    for along in (None, 2):
        with tnt.padded(lengths=LENGTHS, along=along):
            y = model(x, speaker)
        for i, n in enumerate(LENGTHS):
            assert_close(y[i : i + 1], model(x[i : i + 1, :, :n], speaker[i : i + 1]), rtol=1e-12, atol=1e-12)


def test_masks_of_the_caller_are_not_inputs_with_positions() -> None:
    """They are cut, summed and flipped before the first layer and behind it, and nothing is reported."""

    def function(m: Model, x: Tensor, mask: Tensor) -> Any:
        lengths = mask.flip([-1]).cumsum(-1).flip([-1])[:, 0] + mask.sum(-1) * 0
        inside = torch.arange(x.shape[1])[None] < lengths[:, None]
        y = m.linear(x * mask[..., None]) * inside[..., None]
        keys = inside[:, None, :] & mask[:, None, :].bool()
        return functional.scaled_dot_product_attention(y, y, y, attn_mask=keys)

    model, x = Model(function), double(3, 9, 4)
    mask = (torch.arange(9) < torch.tensor(LENGTHS)[:, None]).long()
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = model(x, mask)
    assert tracked.report.mixed == ()
    for i, n in enumerate(LENGTHS):
        assert_close(y[i : i + 1, :n], model(x[i : i + 1, :n], mask[i : i + 1, :n]), rtol=1e-12, atol=1e-12)


# ---- as many values as there are positions ----


def decay(t: int) -> Tensor:
    """A matrix whose elements depend on two positions, and not on how many there are."""
    at = torch.arange(t).double()
    return (at[:, None] - 2 * at).cos()


# Functions of y (b, 4, t), which has positions; what they make has as many, and is combined with y again.
COMBINED: dict[str, Callable[[Tensor], Any]] = {
    "expand": lambda y: y - y.mean(2, keepdim=True).expand(-1, -1, y.shape[2]),
    "expand_as": lambda y: y.mean(2, keepdim=True).expand_as(y),
    "repeat": lambda y: torch.cat([y, y.mean(2)[..., None].repeat(1, 1, y.shape[2])], 1)[:, 2:6],
    "repeat first": lambda y: torch.cat([y.mean(2)[..., None].repeat(1, 1, y.shape[2]), y], 1)[:, 2:6],
    "interpolate": lambda y: y * functional.interpolate(y.mean(2, keepdim=True), size=y.shape[2]),
    "product": lambda y: y + y @ decay(y.shape[2]).triu(),
    "product from the left": lambda y: y + (decay(y.shape[2]) @ y.mT).mT,
    "ramp": lambda y: y + y.mean(2, keepdim=True) * torch.arange(y.shape[2]),
    "linear between": lambda y: y + (y @ decay(y.shape[2])).mT.matmul(decay(4)).mT.relu(),
}


@pytest.mark.parametrize("name", COMBINED)
def test_what_is_repeated_for_every_position_takes_the_lengths_that_it_is_combined_with(name: str) -> None:
    model = Model(lambda m, x: m.conv(COMBINED[name](m.conv(x))))
    assert_as_alone(model, double(3, 4, 9), LENGTHS, out=2)


ALONE_OTHERWISE: dict[str, Callable[..., Any]] = {
    "expand": lambda m, y: y.mean(2, keepdim=True).expand(-1, -1, y.shape[2]),
    "repeat": lambda m, y: y.mean(2)[..., None].repeat(1, 1, y.shape[2]),
    "repeat rows": lambda m, y: y.mean(2)[:, None].repeat(1, y.shape[2], 1).mT,
    "interpolate": lambda m, y: functional.interpolate(y.mean(2, keepdim=True), size=y.shape[2]),
    "product": lambda m, y: y @ decay(y.shape[2]),
    "product from the left": lambda m, y: (decay(y.shape[2]) @ y.mT).mT.tanh(),
    "einsum": lambda m, y: torch.einsum("bct,ts->bcs", y, decay(y.shape[2])),
    "ramp": lambda m, y: y.mean(2, keepdim=True) * torch.arange(y.shape[2]),
    "cut": lambda m, y: (y @ decay(y.shape[2]))[..., 1:],
    "reversed": lambda m, y: (y @ decay(y.shape[2])).flip(2),
    "part of a table": lambda m, y: m.linear.weight.repeat(1, 1, 5)[:, :, : y.shape[2]] + 0,
    "noise": lambda m, y: torch.randn(3, 4, y.shape[2]).double(),
    "softmax": lambda m, y: (decay(y.shape[2]).softmax(-1) @ y.mT).mT,
}


@pytest.mark.parametrize("name", ALONE_OTHERWISE)
def test_what_is_repeated_for_every_position_is_not_read_as_if_it_had_no_padding(name: str) -> None:
    model, x = Model(lambda m, x: m.conv(ALONE_OTHERWISE[name](m, m.conv(x)))), double(3, 4, 9)
    with pytest.raises(ValueError, match=r"^padded: Conv1d 'conv' has to know"), tnt.padded(lengths=LENGTHS):
        model(x)


@pytest.mark.parametrize("layer", [nn.MaxPool1d(2), nn.GroupNorm(2, 4).double(), nn.LSTM(9, 4).double()])
def test_layers_that_refuse_an_axis_that_may_be_positions(layer: Any) -> None:
    tnt.convert(layer)
    conv, x = nn.Conv1d(4, 4, 3, padding=1).double(), double(3, 4, 9)
    with pytest.raises(ValueError, match=r"^padded: "), tnt.padded(lengths=LENGTHS):
        layer(conv(x).mean(2, keepdim=True).expand(-1, -1, 9))


def test_sums_over_an_axis_that_may_be_positions_are_reported() -> None:
    model = Model(lambda m, x: (m.conv(x) @ decay(x.shape[2])).mean(2))
    with tnt.padded(lengths=LENGTHS) as tracked:
        model(double(3, 4, 9))
    assert tracked.report.mixed == ("mean in Model (an axis that may be positions)",)


def test_a_constant_number_of_values_needs_no_declaration() -> None:
    model = Model(lambda m, x: m.conv(m.conv(x).mean(2, keepdim=True).expand(-1, -1, 6) * torch.arange(6)))
    assert_as_alone(model, double(3, 4, 9), LENGTHS)
