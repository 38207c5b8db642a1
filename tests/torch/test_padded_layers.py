"""`padded` on layers that need lengths: converted norms, norms as functions, recurrent layers, declared modules."""

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
from truenorm.torch.tracking.registry import MODULE_RULES
from truenorm.torch.tracking.tag import Padding

LENGTHS = [13, 7, 2, 10]


def double(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed, dtype=torch.float64)


def randomize(model: nn.Module) -> Any:
    """Odd weights, biases and statistics; converted, in float64."""
    generator = torch.Generator().manual_seed(5)
    for one in [*model.parameters(), *model.buffers()]:
        if one.is_floating_point():
            one.data = torch.rand(one.shape, generator=generator) + 0.5
    tnt.convert(model)
    return model.double()


class Transposed(nn.Module):
    """A layer of (b, t, c) between layers of (b, c, t)."""

    def __init__(self, layer: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x.transpose(1, 2))
        return (y[0] if isinstance(y, tuple) else y).transpose(1, 2)


NORMS: dict[str, Callable[[], nn.Module]] = {
    "batch": lambda: nn.BatchNorm1d(4).eval(),
    "group": lambda: nn.GroupNorm(2, 4),
    "instance": lambda: nn.InstanceNorm1d(4, affine=True),
    "layer": lambda: Transposed(nn.LayerNorm(4)),
    "rms": lambda: Transposed(nn.RMSNorm(4)),
    "group, function": lambda: Function(lambda x: functional.group_norm(x, 2)),
    "instance, function": lambda: Function(functional.instance_norm),
    "layer, function": lambda: Transposed(lambda x: functional.layer_norm(x, (4,))),
    "rms, function": lambda: Transposed(lambda x: functional.rms_norm(x, (4,))),
    "group, torch": lambda: Function(lambda x: torch.group_norm(x, 4)),
    "layer, not converted": lambda: Transposed(OwnLayerNorm(4)),
}


class Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class OwnLayerNorm(nn.LayerNorm):
    def forward(self, input: Tensor) -> Tensor:
        return 2 * super().forward(input)


@pytest.mark.parametrize("name", NORMS)
def test_norms(name: str) -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 1), NORMS[name](), nn.Conv1d(4, 2, 3, padding=1))
    assert_as_alone(randomize(model).eval(), double(4, 3, 13), LENGTHS, out=2, tolerance=1e-11)


@pytest.mark.parametrize("name", ["batch", "group", "instance", "layer", "rms"])
def test_a_norm_that_reads_the_input(name: str) -> None:
    model = randomize(nn.Sequential(NORMS[name]()))
    if name == "layer" or name == "rms":
        x, axis = double(4, 13, 4), 1
        model = model[0].layer
    else:
        x, axis = double(4, 4, 13), 2
    assert_as_alone(model.eval(), x, LENGTHS, axis=axis, out=axis, tolerance=1e-11)


def test_batch_norm_trains_on_the_valid_positions_of_the_batch() -> None:
    model = randomize(nn.Sequential(nn.Conv1d(3, 4, 3, stride=2, padding=1), nn.BatchNorm1d(4)))
    x, before = double(4, 3, 13), model[1].running_mean.clone()
    with tnt.padded(lengths=LENGTHS):
        y = model(pad(x, LENGTHS, more=5))
    rows = [model[0](x[i : i + 1, :, :n])[0].T for i, n in enumerate(LENGTHS)]
    packed = torch.cat(rows)
    norm = model[1]
    expected = functional.batch_norm(packed, None, None, norm.weight, norm.bias, True, eps=norm.eps)
    found = torch.cat([y[i].T[: len(row)] for i, row in enumerate(rows)])
    assert_close(found, expected, rtol=1e-12, atol=1e-12)
    assert_close(norm.running_mean, 0.9 * before + 0.1 * packed.mean(0))
    assert norm.num_batches_tracked == 1


RECURRENT: dict[str, Callable[[], nn.Module]] = {
    "lstm": lambda: nn.LSTM(4, 4, batch_first=True),
    "both directions, two layers": lambda: nn.LSTM(4, 2, num_layers=2, bidirectional=True, batch_first=True),
    "gru": lambda: nn.GRU(4, 4, batch_first=True),
    "rnn": lambda: nn.RNN(4, 2, bidirectional=True, batch_first=True, nonlinearity="relu"),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_recurrent_layers(name: str) -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 1), Transposed(RECURRENT[name]()), nn.Conv1d(4, 2, 3, padding=1)).double()
    assert_as_alone(model, double(4, 3, 13), [13, 7, 1, 10], out=2)


class LastState(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 2, bidirectional=True)

    def forward(self, x: Tensor) -> Any:
        _, (h, c) = self.layer(x.relu().transpose(0, 1))
        return torch.cat([h, c]).transpose(0, 1)


def test_last_states_of_recurrent_layers() -> None:
    assert_as_alone(LastState().double(), double(4, 13, 3), [13, 7, 1, 10], axis=1, out=None, along=1)


class Packs(nn.Module):
    """Packs the sequences itself, with lengths that it is given."""

    def __init__(self, sort: bool, longer: int = 0) -> None:
        super().__init__()
        self.before, self.behind = nn.Conv1d(3, 4, 3, padding=1), nn.Conv1d(4, 2, 3, padding=1)
        self.layer = nn.LSTM(4, 2, bidirectional=True, batch_first=True)
        self.sort, self.longer = sort, longer

    def forward(self, x: Tensor) -> Any:
        lengths = torch.tensor(LENGTHS) if len(x) > 1 else torch.tensor([x.shape[2]])
        order = torch.argsort(lengths, descending=True)
        y = self.before(x).transpose(1, 2)
        y, lengths = (y[order], lengths[order]) if self.sort else (y, lengths)
        lengths = (lengths + self.longer).clamp(max=x.shape[2])
        packed, (h, _) = self.layer(
            nn.utils.rnn.pack_padded_sequence(y, lengths, batch_first=True, enforce_sorted=self.sort)
        )
        y, _ = nn.utils.rnn.pad_packed_sequence(packed, batch_first=True, total_length=x.shape[2])
        y = self.behind(y.transpose(1, 2)) + h.sum((0, 2))[:, None, None]
        return y[torch.argsort(order)] if self.sort else y


@pytest.mark.parametrize("sort", [False, True])
def test_a_model_that_packs_sequences(sort: bool) -> None:
    assert_as_alone(Packs(sort).double(), double(4, 3, 13), LENGTHS, out=2)


def test_a_model_that_packs_padding() -> None:
    with (
        pytest.raises(ValueError, match=r"lost at _pack_padded_sequence in Packs \(its lengths are longer"),
        tnt.padded(lengths=LENGTHS),
    ):
        Packs(False, 1).double()(double(4, 3, 13))


class ByName(nn.Module):
    """Calls its layers with arguments by name."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.behind = nn.Conv1d(3, 4, 3, stride=2, padding=1), nn.Conv1d(4, 2, 3, padding=1)
        self.norm = nn.GroupNorm(2, 4)

    def forward(self, x: Tensor) -> Any:
        return self.behind(input=self.norm(input=self.before(input=x)))


def test_layers_that_are_called_by_name() -> None:
    model = randomize(ByName())
    assert_as_alone(model, double(4, 3, 13), LENGTHS, out=2, tolerance=1e-11)
    with tnt.padded(lengths=LENGTHS) as tracked:
        model(double(4, 3, 13))
    assert tracked.report == tnt.PaddedReport(("norm",), (), (), ())


def _valid(x: Tensor, lengths: Tensor) -> Tensor:
    return (torch.arange(x.shape[2]) < lengths[:, None])[:, None].expand(x.shape)


# How a model may call a norm: with lengths of its own, or with none.
CALLS: dict[str, Callable[[Any, Tensor, Tensor], Any]] = {
    "lengths": lambda norm, x, lengths: norm(x, lengths=lengths),
    "all by name": lambda norm, x, lengths: norm(input=x, lengths=lengths),
    "by position": lambda norm, x, lengths: norm(x, None, lengths),
    "valid": lambda norm, x, lengths: norm(x, valid=_valid(x, lengths)),
    "None": lambda norm, x, lengths: norm(x, valid=None, lengths=None),
    "None by position": lambda norm, x, lengths: norm(x, None, None),
    "sample_weight": lambda norm, x, lengths: norm(x, sample_weight=torch.ones(len(x), 1)),
    "sample_weight by position": lambda norm, x, lengths: norm(x, None, None, None, None, torch.ones(len(x), 1)),
}


@pytest.mark.parametrize("first", [True, False], ids=["of an input", "behind a layer"])
@pytest.mark.parametrize("name", CALLS)
def test_norms_that_the_model_calls_with_lengths_of_its_own(name: str, first: bool) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before = nn.Identity() if first else nn.Conv1d(4, 4, 1)
            self.norm, self.behind = nn.InstanceNorm1d(4, affine=True), nn.Conv1d(4, 2, 3, padding=1)

        def forward(self, x: Tensor) -> Any:
            lengths = torch.tensor(LENGTHS if len(x) > 1 else [x.shape[2]])
            return self.behind(CALLS[name](self.norm, self.before(x), lengths))

    assert_as_alone(randomize(Model()), double(4, 4, 13), LENGTHS, out=2, tolerance=1e-11)


def test_the_first_argument_of_rms_norm_by_name() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before, self.norm = nn.Linear(3, 4), nn.RMSNorm(4)

        def forward(self, x: Tensor) -> Any:
            return self.norm(x=self.before(x)).sum(1)

    assert_as_alone(randomize(Model()), double(4, 13, 3), LENGTHS, axis=1, tolerance=1e-11)


class Downsample(nn.Module):
    """Means of pairs, by a view that cuts through positions."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : x.shape[2] // 2 * 2].reshape(*x.shape[:2], -1, 2).mean(-1)


@pytest.fixture
def declared() -> Any:
    before = dict(MODULE_RULES)
    yield
    MODULE_RULES.clear()
    MODULE_RULES.update(before)


@pytest.mark.usefixtures("declared")
def test_a_declared_module() -> None:
    @tnt.padded.rule(Downsample)
    def halve(module: Downsample, lengths: Tensor) -> Tensor:
        return lengths // 2

    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), Downsample(), nn.Conv1d(4, 2, 3, padding=1)).double()
    assert_as_alone(model, double(4, 3, 13), [13, 7, 2, 10], out=2)


@pytest.mark.usefixtures("declared")
def test_a_declaration_that_is_wrong() -> None:
    model = nn.Sequential(nn.Conv1d(3, 4, 1), Downsample())
    tnt.padded.rule(Downsample, lambda module, lengths: lengths)
    with (
        pytest.raises(ValueError, match=r"padded\.rule: Downsample '1' gives the lengths \[9, 5\] on axis 2, "),
        tnt.padded(lengths=[9, 5]),
    ):
        model(normal(2, 3, 9))
    tnt.padded.rule(Downsample, lambda module, lengths: lengths / 2)
    with pytest.raises(ValueError, match="fn for Downsample returns 2 whole numbers"), tnt.padded(lengths=[9, 5]):
        model(normal(2, 3, 9))
    with pytest.raises(TypeError, match=r"^padded\.rule: a class of modules, got 3\.$"):
        tnt.padded.rule(3, lambda module, lengths: lengths)  # type: ignore[arg-type]


def test_images_with_heights_and_widths() -> None:
    """Each image alone, without padding on either axis."""
    torch.manual_seed(3)
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, stride=(2, 1), padding=1), nn.GroupNorm(2, 4), nn.GELU(), nn.MaxPool2d(2, stride=1),
        nn.ConvTranspose2d(4, 2, 3, padding=1), nn.BatchNorm2d(2).eval(), nn.Upsample(scale_factor=2, mode="bilinear"),
        nn.Conv2d(2, 3, 3, padding="same"),
    )  # fmt: skip
    model = randomize(model).eval()
    heights, widths = [9, 4, 6], [5, 7, 3]
    x = double(3, 2, 9, 7)
    padded = torch.full((3, 2, 11, 8), float("nan"), dtype=torch.float64)
    for i, (h, w) in enumerate(zip(heights, widths, strict=True)):
        padded[i, :, :h, :w] = x[i, :, :h, :w]
    with tnt.padded(lengths=(torch.tensor(heights), torch.tensor(widths))):
        y = model(padded)
    for i, (h, w) in enumerate(zip(heights, widths, strict=True)):
        expected = model(x[i : i + 1, :, :h, :w])[0]
        assert_close(y[i, :, : expected.shape[1], : expected.shape[2]], expected, rtol=1e-11, atol=1e-11)


def test_embeddings_and_linear_layers() -> None:
    """Indices (b, t) and features (b, t, c) have their positions on axis 1."""
    embedding, linear, norm = nn.Embedding(11, 4), nn.Linear(4, 6), nn.BatchNorm1d(6).eval()
    model = randomize(nn.ModuleList([embedding, linear, norm]))
    indices = torch.randint(0, 11, (3, 9), generator=torch.Generator().manual_seed(1))
    with tnt.padded(lengths=[9, 4, 6]):
        y = norm(functional.gelu(linear(embedding(indices))).transpose(1, 2))
    for i, n in enumerate([9, 4, 6]):
        expected = norm(functional.gelu(linear(embedding(indices[i : i + 1, :n]))).transpose(1, 2))
        assert_close(y[i : i + 1, :, :n], expected, rtol=1e-12, atol=1e-12)
        assert not y[i, :, n:].any()
    assert_as_alone(model[1], double(3, 9, 4), [9, 4, 6], axis=1, out=1)


def test_rows_of_batch_and_positions() -> None:
    """(b * t, c) into batch norm: the rows of padding do not count."""
    model = randomize(nn.Sequential(nn.Linear(3, 4), nn.Flatten(0, 1), nn.BatchNorm1d(4)))
    x = double(3, 9, 3)
    with tnt.padded(lengths=[9, 4, 6]):
        y = model(pad(x, [9, 4, 6], axis=1, value=1e6)).view(3, 9, 4)
    rows = torch.cat([model[0](x[i, :n]) for i, n in enumerate([9, 4, 6])])
    expected = functional.batch_norm(rows, None, None, model[2].weight, model[2].bias, True, eps=model[2].eps)
    assert_close(torch.cat([y[i, :n] for i, n in enumerate([9, 4, 6])]), expected, rtol=1e-12, atol=1e-12)


def test_masks_with_gaps() -> None:
    """Left padding and gaps: for everything that computes each position by itself, and for norms."""
    valid = torch.tensor([[0, 0, 1, 1, 1], [1, 0, 1, 0, 1], [1, 1, 1, 1, 1]]).bool()
    model = randomize(nn.Sequential(nn.Linear(3, 4), nn.GELU(), Transposed(nn.GroupNorm(2, 4)), nn.Linear(4, 2)))
    x = double(3, 5, 3)
    with tnt.padded(valid=valid):
        y = model(x.masked_fill(~valid[..., None], float("nan")))
    for i in range(3):
        assert_close(y[i][valid[i]], model(x[i][valid[i]][None])[0], rtol=1e-12, atol=1e-12)
    conv = nn.Conv1d(3, 4, 3)
    with (
        pytest.raises(
            ValueError,
            match=r"^padded: Conv1d mixes neighbours, so valid positions must come first, got a mask with padding "
            r"before or between them\. Pad behind the sequences\.$",
        ),
        tnt.padded(valid=valid),
    ):
        conv(x.float().mT)


def test_a_mask_of_first_positions_is_the_same_as_lengths() -> None:
    layer = nn.Conv1d(3, 4, 3, padding=1).double()
    x = double(2, 3, 5)
    with tnt.padded(valid=torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])):
        y = layer(x)
    with tnt.padded(lengths=[3, 5]):
        assert torch.equal(layer(x), y)


def test_sequences_without_positions_stay_empty() -> None:
    model = randomize(nn.Sequential(nn.Conv1d(3, 4, 3, padding=2), nn.GroupNorm(2, 4), nn.MaxPool1d(2)))
    with tnt.padded(lengths=[6, 0, 3]) as tracked:
        y = model(pad(double(3, 3, 6), [6, 0, 3]))
        assert tracked.tag(y).lengths == {2: (4, 0, 2)}
    assert_close(y[:1], model(double(3, 3, 6)[:1]), rtol=1e-12, atol=1e-12)


def test_the_zeros_behind_a_norm_are_known() -> None:
    """So the next convolution need not write them again."""
    model = randomize(nn.Sequential(nn.Conv1d(3, 4, 1), nn.GroupNorm(2, 4), nn.ReLU()))
    with tnt.padded(lengths=[6, 3]) as tracked:
        y = model(double(2, 3, 6))
        assert tracked.tag(y).padding is Padding.ZERO
        assert tracked.fill(y, tracked.tag(y)) is y
        assert tracked.tag(y + 1).padding is Padding.FINITE
        assert tracked.tag(y.detach().sqrt()).padding is Padding.ZERO
        assert tracked.tag(y.sqrt()).padding is Padding.ANY  # not 0, where its slope is infinite
        assert tracked.tag((y + 1).sqrt()).padding is Padding.ANY
    assert not y[1, :, 3:].any()


def test_norms_of_tensors_without_positions_are_not_reported() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.features = nn.Conv1d(3, 4, 1), nn.BatchNorm1d(5)
            self.norm, self.positions = nn.LayerNorm(4), nn.Parameter(normal(1, 20, 4))

        def forward(self, x: Tensor, features: Tensor) -> Any:
            return self.conv(x).mT + self.norm(self.positions)[:, : x.shape[2]], self.features(features)

    model = Two()
    tnt.convert(model)
    with tnt.padded(lengths=[6, 3]) as tracked:  # a warning would be an error
        model(normal(2, 3, 6), normal(2, 5))
    assert tracked.report.not_given == ()
