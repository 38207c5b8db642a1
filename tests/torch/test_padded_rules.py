"""Each rule of `padded` against each sequence alone: values at valid positions, and all gradients."""

import re
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal

import truenorm.torch as tnt
from truenorm.torch.tracking.elementwise import KEEPS, KEEPS_ONLY_ZERO
from truenorm.torch.tracking.tag import Padding

LENGTHS = [13, 7, 1, 10]
LONG = [19, 13, 9, 11]  # for functions that need some positions


def double(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed, dtype=torch.float64)


class After(nn.Module):
    """A convolution before the function, which makes the input ragged, and one behind it, which reads neighbours.

    zeros   with a norm as well before the function: its padding is known to be zero, and is not set to zero again
    """

    def __init__(self, function: Callable[[Tensor], Tensor], zeros: bool, behind: int | None = 4) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.before = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1))
        if zeros:
            norm = tnt.BatchNorm1d(4).eval()
            nn.init.normal_(norm.bias)
            self.before.append(norm)
        self.function = function
        self.behind = nn.Identity() if behind is None else nn.Conv1d(behind, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.behind(self.function(self.before(x)))


CONVOLUTIONS: dict[str, nn.Module] = {
    "kernel 1": nn.Conv1d(3, 4, 1),
    "stride": nn.Conv1d(3, 4, 3, stride=2),
    "stride over the kernel": nn.Conv1d(3, 4, 2, stride=3),
    "padding": nn.Conv1d(3, 4, 5, padding=2),
    "more padding than needed": nn.Conv1d(3, 4, 3, padding=4),
    "dilation": nn.Conv1d(3, 4, 3, dilation=3, padding=3),
    "same": nn.Conv1d(3, 4, 4, padding="same", dilation=2),
    "valid": nn.Conv1d(3, 4, 2, padding="valid"),
    "groups, no bias": nn.Conv1d(3, 6, 3, groups=3, bias=False, padding=1),
    "circular": nn.Conv1d(3, 4, 3, padding=1, padding_mode="circular"),
    "replicate": nn.Conv1d(3, 4, 5, padding=2, padding_mode="replicate"),
    "transposed": nn.ConvTranspose1d(3, 4, 3, stride=2, padding=1, output_padding=1),
    "transposed, dilated": nn.ConvTranspose1d(3, 4, 3, dilation=2, padding=1),
    "transposed, gaps": nn.ConvTranspose1d(3, 4, 2, stride=4),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions(name: str) -> None:
    lengths = [19, 13, 5, 8] if name != "padding" else [13, 7, 1, 10]
    layer = CONVOLUTIONS[name].double()
    if name == "circular" or name == "replicate":
        layer = nn.Sequential(nn.Conv1d(3, 3, 1), layer).double()  # `pad` is not of a known kind
    assert_as_alone(layer, double(4, 3, max(lengths)), lengths, out=2)


def test_a_reflected_border() -> None:
    layer = nn.Sequential(nn.Conv1d(3, 3, 1), nn.Conv1d(3, 4, 5, padding=2, padding_mode="reflect")).double()
    assert_as_alone(layer, double(4, 3, 19), LONG, out=2)


@pytest.mark.parametrize("dimensions", [2, 3])
def test_convolutions_of_images_along_one_axis(dimensions: int) -> None:
    kind = nn.Conv2d if dimensions == 2 else nn.Conv3d
    layers = nn.Sequential(kind(2, 3, 3, stride=2, padding=1), nn.ReLU(), kind(3, 2, 3, padding=1)).double()
    shape = (3, 2, 9, 5) if dimensions == 2 else (3, 2, 3, 9, 4)
    axis = dimensions
    assert_as_alone(layers, double(*shape), [9, 4, 2], axis=axis, out=axis, along=axis)


POOLING: dict[str, Callable[[Tensor], Tensor]] = {
    "max": nn.MaxPool1d(2),
    "max, overlapping": nn.MaxPool1d(3, stride=2, padding=1),
    "max, dilated": nn.MaxPool1d(3, stride=1, dilation=2),
    "max, ceil": nn.MaxPool1d(3, stride=2, ceil_mode=True),
    "max, ceil, padding": nn.MaxPool1d(4, stride=3, padding=2, ceil_mode=True),
    "max, indices": lambda x: functional.max_pool1d(x, 2, return_indices=True)[0],
    "mean": nn.AvgPool1d(3),
    "mean, padding": nn.AvgPool1d(3, stride=2, padding=1),
    "mean, borders do not count": nn.AvgPool1d(3, stride=2, padding=1, count_include_pad=False),
    "mean, ceil": nn.AvgPool1d(3, stride=2, ceil_mode=True),
    "mean, ceil, padding": nn.AvgPool1d(4, stride=3, padding=2, ceil_mode=True),
    "norm": lambda x: functional.lp_pool1d(x.exp(), 2.0, 3, 2),
    "norm, ceil": lambda x: functional.lp_pool1d(x.exp(), 3.0, 3, 2, ceil_mode=True),
    "adaptive mean": nn.AdaptiveAvgPool1d(3),
    "adaptive max": nn.AdaptiveMaxPool1d(4),
    "adaptive max, method": lambda x: functional.adaptive_max_pool1d(x, 5),
    "mean of all": nn.AdaptiveAvgPool1d(1),
    "max of all": nn.AdaptiveMaxPool1d(1),
    "nearest": nn.Upsample(scale_factor=2),
    "nearest, not whole": nn.Upsample(scale_factor=1.7),
    "nearest, down": nn.Upsample(scale_factor=0.5),
    "nearest-exact": nn.Upsample(scale_factor=1.5, mode="nearest-exact"),
    "linear": nn.Upsample(scale_factor=2, mode="linear"),
    "linear, corners": nn.Upsample(scale_factor=1.5, mode="linear", align_corners=True),
    "recomputed scale": lambda x: functional.interpolate(x, scale_factor=1.7, recompute_scale_factor=True),
}


@pytest.mark.parametrize("zeros", [False, True], ids=["convolution", "norm"])
@pytest.mark.parametrize("name", POOLING)
def test_pooling_and_interpolation(name: str, zeros: bool) -> None:
    model = After(POOLING[name], zeros).double()
    assert_as_alone(model, double(4, 3, 19), LONG, out=2, more=(3,) if zeros else (0, 3))


IMAGES: dict[str, Callable[[Tensor], Tensor]] = {
    "max": nn.MaxPool2d(2, stride=1, padding=1),
    "mean": nn.AvgPool2d((3, 1), stride=2),
    "mean, one divisor": nn.AvgPool2d(3, stride=2, ceil_mode=True, divisor_override=5),
    "mean, borders do not count": nn.AvgPool2d(3, padding=1, count_include_pad=False),
    "norm": lambda x: functional.lp_pool2d(x.exp(), 2.0, 2),
    "adaptive": nn.AdaptiveAvgPool2d((None, 2)),
    "mean of all": nn.AdaptiveAvgPool2d(1),
    "bilinear": nn.Upsample(scale_factor=2, mode="bilinear"),
    "transposed": nn.ConvTranspose2d(2, 2, 3, stride=(2, 1)).double(),
    "size of the other axis": lambda x: functional.interpolate(x, size=(x.shape[2], 7), mode="bilinear"),
}


@pytest.mark.parametrize("name", IMAGES)
def test_pooling_of_images_along_one_axis(name: str) -> None:
    model = nn.Sequential(nn.Conv2d(2, 2, 3, padding=1).double())
    layers = [model, IMAGES[name], nn.Conv2d(2, 2, 1).double()]
    assert_as_alone(_chain(layers), double(3, 2, 9, 5), [9, 4, 6], axis=2, out=2, along=2)


def _chain(functions: list[Any]) -> Callable[[Tensor], Tensor]:
    def run(x: Tensor) -> Tensor:
        for function in functions:
            x = function(x)
        return x

    return run


def _gated(x: Tensor) -> Tensor:
    return x * torch.sigmoid(functional.adaptive_avg_pool1d(x, 1))


SHAPES: dict[str, Callable[[Tensor], Tensor]] = {
    "transpose": lambda x: x.transpose(1, 2).mT.permute(0, 2, 1).swapaxes(-1, 1),
    "permute": lambda x: torch.permute(x, (2, 0, 1)).movedim(0, -1).permute(dims=(2, 1, 0)).permute([2, 1, 0]),
    "movedim": lambda x: x.movedim((0, 1), (1, 0)).moveaxis(0, 1),
    "view": lambda x: x.view(len(x), 2, 2, -1).flatten(1, 2),
    "rows": lambda x: functional.relu(x.mT.reshape(-1, 4)).view(len(x), -1, 4).mT,
    "batch and heads": lambda x: x.reshape(len(x) * 2, 2, -1).tanh().reshape(len(x), 4, -1),
    "unflatten": lambda x: x.unflatten(1, (2, 2)).flatten(1, 2),
    "new axes": lambda x: (
        x.unsqueeze(1)
        .squeeze(1)
        .unsqueeze(-1)
        .squeeze(-1)[:, None, ..., None]
        .flatten(2)
        .squeeze(1)
        .reshape(len(x), 4, -1)
    ),
    "expand": lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1)[:, 2],
    "repeat": lambda x: x.repeat(1, 2, 1)[:, 2:6],
    "chunk": lambda x: torch.cat([*x.chunk(2, 1)][::-1], 1),
    "split": lambda x: torch.cat(x.split([3, 1], 1), dim=-2),
    "unbind": lambda x: torch.stack(x.unbind(1), 1),
    "glu": lambda x: functional.glu(torch.cat([x, x.sin()], 1), 1),
    "batch": lambda x: torch.cat([*torch.chunk(x, 2, 0)], 0),
    "batch slice": lambda x: torch.cat([x[:1], x[1:]]) if len(x) > 1 else x,
    "index_select": lambda x: x.index_select(1, torch.tensor([0, 2, 1, 1])),
    "order of the batch": lambda x: x[torch.arange(len(x)).flip(0)].index_select(0, torch.arange(len(x)).flip(0)),
    "rows in a list": lambda x: x[list(range(len(x)))],
    "channels in a list": lambda x: x[:, [0, 2, 1, 1]],
    "each position twice": lambda x: x.repeat_interleave(2, 2),
    "each channel twice": lambda x: torch.repeat_interleave(input=x, repeats=2, dim=1)[:, 1:5],
    "each sequence twice": lambda x: x.repeat_interleave(2, 0)[::2],
    "pixel shuffle": lambda x: x.view(len(x), 2, 2, -1).permute(0, 2, 3, 1).reshape(len(x), 2, -1).repeat(1, 2, 1),
    "pairs": lambda x: x.repeat_interleave(2, 2).reshape(len(x), 4, -1, 2).amax(3),
    "hsplit": lambda x: torch.cat(torch.hsplit(x, 2)[::-1], 1),
    "normalize": lambda x: functional.normalize(x, 1.0, 1),
    "cropped skip": lambda x: _skip(x, 4),
    "cropped skip, sum": lambda x: _skip(x, 0),
    "keywords": lambda x: torch.cat(tensors=[torch.transpose(input=x.mT, dim0=1, dim1=2)[:, 2:], x[:, :2]], dim=1),
    "keywords of where": lambda x: torch.where(condition=x > 0, input=x, other=-2 * x),
    "keywords of linear": lambda x: functional.linear(input=x.mT, weight=torch.ones(4, 4, dtype=x.dtype)).mT,
    "slice": lambda x: x[..., 2:],
    "step": lambda x: x[:, :, 1::3],
    "stop": lambda x: x[:, :, :5],
    "stop before the end": lambda x: x[:, :, :-2],
    "narrow": lambda x: x.narrow(2, 1, 5),
    "from the end": lambda x: x[:, :, -3:],
    "from the end, and channels": lambda x: torch.cat([x[:, :2, -3:]] * 2, 1),
    "pad": lambda x: functional.pad(x, (2, 3)),
    "pad with a value": lambda x: functional.pad(x, (0, 2), value=1.5),
    "pad left": lambda x: functional.pad(x, (2, 0), mode="replicate"),
    "crop": lambda x: functional.pad(x, (-1, -2)),
    "reflect": lambda x: functional.pad(x, (2, 3), mode="reflect"),
    "pad channels": lambda x: functional.pad(x, (0, 0, 1, 0), value=2.0)[:, :4],
    "token first": lambda x: torch.cat([torch.ones(len(x), 4, 2, dtype=x.dtype), x], 2),
    "token last": lambda x: torch.cat([x, torch.ones(len(x), 4, 2, dtype=x.dtype)], 2),
    "two sequences": lambda x: torch.cat([x, x[..., 1::2]], 2),
    "cumsum": lambda x: x.cumsum(2),
    "cummax": lambda x: x.cummax(2).values,
    "diff": lambda x: x.diff(),
    "diff, dim": lambda x: torch.diff(x, dim=2),
    "flip": lambda x: x.flip(2),
    "roll": lambda x: torch.roll(x, 1, 2),
    "windows": lambda x: x.unfold(2, 3, 2)[..., 1],
    "gate": _gated,
    "residual": lambda x: x + functional.gelu(x) * 0.5 - 1 / (1 + x * x),
    "in place": lambda x: x.clone().mul_(2).add_(1).relu_(),
    "zeros and a number": lambda x: functional.pad(x, (0, 1)) + 1.5,
    "zeros and a constant": lambda x: functional.pad(x, (0, 1)) - torch.ones(4, 1, dtype=x.dtype),
    "sigmoid of zeros": lambda x: torch.sigmoid(functional.pad(x, (0, 1))),
    "zeros times a parameter": lambda x: functional.pad(x, (0, 1)) * nn.Parameter(torch.ones(4, 1, dtype=x.dtype) * 3),
    "clamped zeros": lambda x: functional.pad(x, (0, 1)).clamp(min=0.25),
    "in place, through a view": lambda x: _changed_by_a_view(x, 0),
    "in place, seen by a view": lambda x: _changed_by_a_view(x, 1),
    "less the mean without the last": lambda x: x - x[:, :, :-1].mean(2, keepdim=True),
    "less the first": lambda x: x - x[:, :, 0].unsqueeze(2),
    "times the first": lambda x: x.sigmoid() * x[:, :, 0].unsqueeze(2),
    "less the largest": lambda x: x - functional.adaptive_max_pool1d(x, 1),
    "the largest for each": lambda x: functional.adaptive_max_pool1d(x, 1).expand_as(x),
    "cropped skip of zeros": lambda x: _halved(x) + x[:, :, : x.shape[2] // 2 * 2],
    "cropped skip of zeros, stacked": lambda x: torch.stack([_halved(x), x[:, :, : x.shape[2] // 2 * 2]], 1).sum(1),
    "cropped skip of zeros, cat": lambda x: torch.cat([_halved(x), x[:, :, : x.shape[2] // 2 * 2]], 1)[:, 2:6],
    "sums of pairs": lambda x: (x.unsqueeze(2) + x.unsqueeze(3)).amax(3),
    "pad with -inf": lambda x: functional.pad(x, (0, 1), value=-torch.inf).exp(),
    "windows of all": lambda x: x + x.unfold(2, 3, 1).sum((2, 3)).unsqueeze(2),
    "masked_fill": lambda x: x.masked_fill(x > 1, 0.5).where(x > -1, x.detach()),
    "setitem": lambda x: _with_zeros(x),
    "log": lambda x: torch.log(functional.relu(x) + 0.0).clamp(min=-3.0),
    "dtype": lambda x: x.float().to(torch.float64).contiguous(),
}


def _skip(x: Tensor, channels: int) -> Tensor:
    """As in a U-Net: half as long, then twice, and as much of x as is left."""
    up = functional.interpolate(functional.max_pool1d(x, 2), scale_factor=2)
    part = x[..., : up.shape[-1]]
    return torch.cat([part, up], 1)[:, 2:6] if channels else up + part


def _halved(x: Tensor) -> Tensor:
    """Each second position, twice: zeros in the padding stay, and it is shorter if the length is odd."""
    return functional.interpolate(x[:, :, 1::2], scale_factor=2)


def _changed_by_a_view(x: Tensor, which: int) -> Tensor:
    """Its padding holds zeros, as far as is known before."""
    padded = functional.pad(x, (0, 1))
    pair = padded, padded[:, :]
    pair[1 - which].add_(1.5)
    return pair[which]


def _with_zeros(x: Tensor) -> Tensor:
    y = x.clone()
    y[:, 0] = 0.25
    y[:, :, 1] = 0.5
    return y


@pytest.mark.parametrize("zeros", [False, True], ids=["convolution", "norm"])
@pytest.mark.parametrize("name", SHAPES)
def test_shapes_and_positions(name: str, zeros: bool) -> None:
    model = After(SHAPES[name], zeros).double()
    tolerance = 1e-12 if name != "dtype" else 1e-5
    assert_as_alone(model, double(4, 3, 19), LONG, out=2, tolerance=tolerance, more=(3,) if zeros else (0, 3))


@pytest.mark.parametrize(
    "reorder",
    [
        lambda y: y.flip(0),
        lambda y: torch.flip(y, (0, 2)),
        lambda y: y.flipud(),
        lambda y: y.roll(1, 0),
        lambda y: torch.roll(y, shifts=(1, 1), dims=(-1, -3)),
        lambda y: y.roll(1),
    ],
)
def test_another_order_of_the_batch_is_not_followed(reorder: Any) -> None:
    conv, x = nn.Conv1d(3, 3, 3, padding=1), double(4, 3, 19).float()
    with tnt.padded(lengths=LONG):
        y = conv(x)
        z = reorder(y)
        torch.testing.assert_close(z, reorder(y.detach().clone()))
        with pytest.raises(ValueError, match="another order of the batch"):
            conv(z)


def test_positions_that_are_taken_alone_are_not_followed() -> None:
    """A convolution of one sequence at a time has no lengths."""
    conv = nn.Conv1d(3, 3, 3, padding=1)
    with tnt.padded(lengths=LONG):
        first, *_ = conv(double(4, 3, 19).float())
        with pytest.raises(ValueError, match="lost at unbind"):
            conv(first)


def test_masks_that_choose_positions() -> None:
    conv, x = nn.Conv1d(3, 4, 3, padding=1), double(4, 3, 19).float()
    norm = tnt.BatchNorm1d(4)
    valid = torch.arange(19) < torch.tensor(LONG)[:, None]
    with tnt.padded(lengths=LONG):
        y = conv(x).mT
        found = norm(y[valid])
        with pytest.raises(ValueError, match="a mask that is True at padding"):
            norm(y[valid | ~valid].unsqueeze(-1))
    packed = torch.cat([conv(x[i : i + 1, :, :n])[0].T for i, n in enumerate(LONG)])
    torch.testing.assert_close(found, nn.functional.batch_norm(packed, None, None, training=True), atol=1e-5, rtol=1e-5)


def call_with(func: Any, x: Tensor) -> Any:
    """An elementwise function of one tensor, or None if it takes other arguments."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = func(x)
    except (TypeError, RuntimeError, NotImplementedError):
        return None
    return y if isinstance(y, Tensor) else None


def test_what_is_said_of_the_padding_is_true() -> None:
    """Zeros stay zeros, and finite numbers finite, for every function that is listed so."""
    checked = 0
    numbers = torch.tensor([-50.0, -1.0, -0.5, 0.0, 0.5, 1.0, 50.0], dtype=torch.float64)
    for func, keeps in KEEPS.items():
        if keeps is Padding.ANY or func is Tensor.cuda:
            continue
        if keeps is Padding.ZERO and (y := call_with(func, torch.zeros(3, 4))) is not None:
            assert not y.any(), func
            checked += 1
        if func not in KEEPS_ONLY_ZERO and (y := call_with(func, numbers.clone())) is not None:
            assert torch.isfinite(y.double()).all(), func
    assert checked > 80


def _last(x: Tensor) -> Tensor:
    return torch.tensor(LENGTHS) - 1 if len(x) > 1 else torch.tensor([x.shape[2] - 1])


WITHOUT_POSITIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "first": lambda x: x[:, :, 0],
    "last": lambda x: x[:, :, -1],
    "last, selected": lambda x: x.select(2, -1),
    "last, by rows": lambda x: x[torch.arange(len(x)), :, _last(x)],
    "last, by rows, adjacent": lambda x: x.mT[torch.arange(len(x)), _last(x)],
    "mean": lambda x: functional.adaptive_avg_pool1d(x, 1).squeeze(-1),
    "flattened": lambda x: functional.adaptive_avg_pool1d(x, 3).flatten(1)[:, :4],
}


@pytest.mark.parametrize("zeros", [False, True], ids=["convolution", "norm"])
@pytest.mark.parametrize("name", WITHOUT_POSITIONS)
def test_results_without_positions(name: str, zeros: bool) -> None:
    norm = tnt.BatchNorm1d(4).eval()
    model = nn.Sequential(After(WITHOUT_POSITIONS[name], zeros, behind=None), norm, nn.Linear(4, 2)).double()
    assert_as_alone(model, double(4, 3, 13), LENGTHS, out=None, more=(3,) if zeros else (0, 3))


@pytest.mark.parametrize("layer", [nn.Conv1d(2, 2, 3, stride=2, padding=1), nn.ConvTranspose1d(2, 2, 4, stride=2)])
def test_a_convolution_of_parts_of_each_sequence(layer: nn.Module) -> None:
    """(b * parts, c, t), as for several microphones or sources."""
    layer = layer.double()
    model = After(lambda y: layer(y.reshape(-1, 2, y.shape[2])).reshape(len(y), 4, -1), False).double()
    assert_as_alone(model, double(4, 3, 19), LONG, out=2, parameters=list(layer.parameters()))


def test_a_convolution_of_each_frame() -> None:
    """(b * t, c, h, w), as in a CNN before a recurrent layer."""
    frames = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), tnt.BatchNorm2d(3).eval(), nn.Conv2d(3, 2, 2)).double()
    behind = nn.LSTM(2, 2, batch_first=True).double()
    parameters = [*frames.parameters(), *behind.parameters()]

    def model(x: Tensor) -> Tensor:
        each = frames(x.reshape(-1, 2, 4, 5)).mean((2, 3))
        return behind(each.reshape(*x.shape[:2], 2))[0]  # type: ignore[no-any-return]

    x = double(3, 9, 2, 4, 5)
    assert_as_alone(model, x, [9, 4, 7], axis=1, out=1, along=1, parameters=parameters)


def test_pooling_of_positions_that_share_an_axis() -> None:
    message = (
        "padded: MaxPool1d reads (b, c, ...) with the batch on axis 0 and positions behind the channels, got "
        "(8, 2, 19) with the batch or positions and something else together on axis 0. Undo this view before."
    )
    before, behind = nn.Conv1d(3, 4, 3), nn.MaxPool1d(2)
    with tnt.padded(lengths=LONG):
        y = before(double(4, 3, 21).float()).reshape(8, 2, 19)
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            behind(y)


POLES: dict[str, Callable[[Tensor], Tensor]] = {
    "sqrt": lambda y: y.square().sqrt(),
    "a magnitude": lambda y: (y[:, :2].square() + y[:, 2:].square()).sqrt().repeat(1, 2, 1),
    "log": lambda y: y.square().log(),
    "log10": lambda y: torch.log10(y.abs()),
    "rsqrt": lambda y: y.square().rsqrt(),
    "reciprocal": lambda y: 1 / y.exp().sub(1),
    "division": lambda y: y / y.abs(),
    "power": lambda y: y.abs() ** 0.3,
    "negative power": lambda y: y.pow(-1),
    "power of itself": lambda y: y.abs().pow(y),
    "arcsine": lambda y: y.tanh().asin(),
    "in place": lambda y: y.square().sqrt_(),
}


@pytest.mark.parametrize("name", POLES)
def test_an_infinite_slope_at_the_padding(name: str) -> None:
    """Padding of zeros has the gradient 0, times inf that would be NaN in the gradient of the convolution before."""
    model = After(POLES[name], False).double()
    model.before[0].bias = None
    assert_as_alone(model, double(4, 3, 13), LENGTHS, out=2, value=0.0, more=(3,))


@pytest.mark.parametrize("cast", [lambda y, other: y.type_as(other), lambda y, other: y.to(other)])
def test_a_tensor_that_only_gives_its_dtype(cast: Any) -> None:
    model = After(lambda y: y + cast(torch.arange(4.0)[:, None], y[:, :, 1:3]) + cast(y, y.mean(2)), False).double()
    assert_as_alone(model, double(4, 3, 13), [13, 7, 3, 10], out=2)
