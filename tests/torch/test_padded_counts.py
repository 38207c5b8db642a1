"""Numbers of positions inside `padded`: x.shape[2] is the length of each sequence where a rule uses it."""

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from alone import assert_as_alone
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch_data import normal

import truenorm.torch as tnt
from truenorm.torch.tracking.numbers import Count, Ratio, make_number, of_sequence

LENGTHS = [19, 8, 13]


class Between(nn.Module):
    """A function between two convolutions, the first of which makes its input ragged."""

    def __init__(self, function: Callable[..., Any], behind: int | None) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.before = nn.Conv1d(3, 4, 3, padding=1)
        self.function = function
        self.behind = nn.Identity() if behind is None else nn.Conv1d(behind, 2, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        return self.behind(self.function(self.before(x)))


def fill_to(y: Tensor, other: Tensor) -> Tensor:
    """y in the middle of zeros, as long as other."""
    missing = other.size(2) - y.size(2)
    return functional.pad(y, (missing // 2, missing - missing // 2))


def fill_frames(y: Tensor, kernel: Tensor, stride: Tensor) -> Tensor:
    """To whole frames, as EnCodec does, whose kernel sizes and strides are buffers."""
    frames = torch.ceil((y.shape[-1] - kernel) / stride + 1).to(torch.int64) - 1
    return functional.pad(y, (0, frames * stride + kernel - y.shape[-1]))  # type: ignore[arg-type]


def middle(y: Tensor, size: int) -> Tensor:
    begin = (y.shape[2] - size) // 2
    return y[:, :, begin : begin + size]


def change(y: Tensor, function: Callable[[Tensor], Any]) -> Tensor:
    y = y.clone()
    function(y)
    return y


def assign(y: Tensor, part: slice, value: float) -> None:
    y[:, :, part] = value


POSITIONS: dict[str, Callable[..., Any]] = {
    "less its mean": lambda y: y - y.sum(2, keepdim=True) / y.shape[2],
    "times a root": lambda y: y * y.shape[-1] ** -0.5,
    "a number first": lambda y: y.size(2) - 2 * y.size(2) * y,
    "the last three of the first half": lambda y: y[:, :, : y.shape[2] // 2][:, :, -3:],
    "from the end to a half": lambda y: y[:, :, -6 : y.shape[2] - 1],
    "into the first half": lambda y: change(y, lambda z: z[:, :, : z.shape[2] // 2].mul_(2)),
    "assigned to the second half": lambda y: change(y, lambda z: assign(z, slice(z.shape[2] // 2, None), 3.0)),
    "assigned to the first third": lambda y: change(y, lambda z: assign(z, slice(z.shape[2] // 3), 3.0)),
    "in place": lambda y: y.clone().div_(y.size(dim=2)),
    "times a number in a tensor": lambda y: torch.tensor(y.shape[2]).sqrt() * y - y.new_tensor(y.shape[2]),
    "the second half, selected": lambda y: y - y.select(2, y.shape[2] // 2)[:, :, None],
    "half of them, by a shift": lambda y: y[:, :, : y.shape[2] >> 1],
    "to a multiple, by divmod": lambda y: functional.pad(y, (0, 3 - divmod(y.shape[2], 3)[1])),
    "positions backwards": lambda y: y * (torch.ones_like(y).cumsum(2).flip(2) - 1),
    "divided by positions": lambda y: y.shape[2] / (y.square() + 1),
    "the first half": lambda y: y[:, :, : y.shape[2] // 2],
    "all but a third": lambda y: y[..., : -(y.shape[2] // 3)],
    "the second half": lambda y: y[:, :, y.shape[2] // 2 :],
    "the middle": lambda y: middle(y, 5),
    "the middle half": lambda y: middle(y, y.shape[2] // 2),
    "every second": lambda y: y[:, :, : y.shape[2] // 2 * 2 : 2],
    "a third, rounded up": lambda y: y[:, :, : math.ceil(y.shape[2] / 3)],
    "narrow": lambda y: y.narrow(2, 1, y.shape[2] - 3),
    "narrow from the middle": lambda y: y.narrow(2, y.shape[2] // 2, 3),
    "to a multiple": lambda y: functional.pad(y, (0, -y.shape[2] % 5)),
    "to a multiple, windows": lambda y: functional.pad(y, (0, -y.shape[2] % 5)).unflatten(2, (-1, 5)).mean(3),
    "to a multiple and back": lambda y: functional.pad(y, (0, -y.shape[2] % 5)).exp()[:, :, : y.shape[2]],
    "not to a multiple": lambda y: functional.pad(y, (0, y.shape[2] % 5)),
    "reflected": lambda y: functional.pad(y, (y.shape[2] // 4, y.shape[2] // 5), mode="reflect"),
    "to whole frames": lambda y: fill_frames(y, torch.tensor(3), torch.tensor(4)),
    "as long as another": lambda y: y + fill_to(y[:, :, 1::2], y),
    "interpolated": lambda y: functional.interpolate(y[:, :, ::2], size=y.shape[2]) + y,
    "interpolated linearly": lambda y: functional.interpolate(y[:, :, ::3], size=y.shape[-1], mode="linear"),
    "adaptive": lambda y: functional.adaptive_avg_pool1d(y, y.shape[2] // 2),
    "a mean, repeated": lambda y: functional.avg_pool1d(y, y.shape[2]).expand_as(y) * y,
    "windows of a quarter": lambda y: functional.max_pool1d(y, y.shape[2] // 4, stride=1),
}


@pytest.mark.parametrize("name", POSITIONS)
def test_numbers_of_positions(name: str) -> None:
    assert_as_alone(Between(POSITIONS[name], 4).double(), normal(3, 3, 19, dtype=torch.float64), LENGTHS, out=2)


SEQUENCES: dict[str, Callable[..., Any]] = {
    "mean": lambda y: y.sum(2) / y.shape[2],
    "mean of two": lambda y: y.sum((1, 2)) / (y.shape[1] * y.shape[2]),
    "mean by multiplication": lambda y: (1 / y.shape[2]) * y.sum(2),
    "covariance": lambda y: (y @ y.mT / (y.shape[2] - 1)).flatten(1),
    "maximum": lambda y: functional.max_pool1d(y, kernel_size=y.size(2)).squeeze(2),
    "mean by pooling": lambda y: functional.avg_pool1d(y, y.shape[-1]).view(len(y), -1),
    "a window of all": lambda y: functional.avg_pool1d(y, y.shape[-1])[:, :, 0],
    "middle": lambda y: y[:, :, y.shape[2] // 2],
    "last": lambda y: y[:, :, y.shape[2] - 1],
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_results_without_positions(name: str) -> None:
    assert_as_alone(Between(SEQUENCES[name], None).double(), normal(3, 3, 19, dtype=torch.float64), LENGTHS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_the_dtype_stays(dtype: torch.dtype) -> None:
    model = Between(lambda y: y.mean(2) / y.shape[2], None).to(dtype)
    x = normal(2, 3, 300).to(dtype)
    with tnt.padded(lengths=[300, 203]):
        y = model(x)
    assert y.dtype == dtype
    torch.testing.assert_close(y[1:], model(x[1:, :, :203]), rtol=2e-2, atol=1e-4)


def test_an_empty_sequence_has_no_gradient() -> None:
    model = Between(lambda y: y.sum(2) / y.shape[2], None)
    with tnt.padded(lengths=[5, 0]):
        y = model(normal(2, 3, 5))
    y.sum().backward()
    assert y[1].tolist() == [0.0] * 4
    assert model.before.weight.grad is not None
    assert model.before.weight.grad.isfinite().all()


def test_checkpoints_compute_again_with_the_same_numbers() -> None:
    def divide(y: Tensor) -> Tensor:
        t = y.shape[2]
        return y.exp() / t

    def model(y: Tensor) -> Tensor:
        y = checkpoint(divide, y, use_reentrant=False, context_fn=tnt.padded.recomputation)
        return y.sum(2)

    x = normal(2, 3, 9, dtype=torch.float64)
    assert_as_alone(Between(model, None).double(), x, [9, 4])


CONDITIONS: dict[str, Callable[[Tensor], Any]] = {
    "odd": lambda y: y[:, :, 1:] if y.shape[2] % 2 else y,
    "no remainder": lambda y: y if not y.shape[2] % 2 else y[:, :, 1:],
    "long": lambda y: y[:, :, 1:] if y.shape[2] > 10 else y,
    "short": lambda y: y[:, :, 1:] if 9 <= y.size(2) else y,  # noqa: SIM300 - the number second
    "a fraction": lambda y: y[:, :, 1:] if y.shape[2] / 3 > 4.5 else y,
    "a remainder of 1": lambda y: y[:, :, 1:] if y.shape[2] % 2 == 1 else y,
    "no remainder of 0": lambda y: y[:, :, 1:] if y.shape[2] % 2 != 0 else y,
    "the last bit": lambda y: y[:, :, 1:] if y.shape[2] & 1 == 1 else y,
    "a size that only one has": lambda y: y if y.shape[2] == 8 else y[:, :, 1:],
    "the size of another": lambda y: y if y.shape[2] == y[:, :, 1:].shape[2] + y.shape[2] % 2 else y[:, :, 1:],
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_conditions_that_sequences_alone_would_answer_otherwise_are_reported(name: str) -> None:
    model = Between(CONDITIONS[name], None)
    for lengths, mixed in (
        ([19, 8], ("a condition in Between (on the number of positions: sequences alone would differ)",)),
        ([19, 19], ()),
    ):
        with tnt.padded(lengths=lengths) as tracked:
            model(normal(2, 3, 19))
        assert tracked.report.mixed == mixed


MADE: dict[str, Callable[[Tensor, int], Any]] = {
    "true_divide": lambda y, t: torch.arange(t) / t,
    "linspace": lambda y, t: torch.linspace(0, 1, t),
    "full": lambda y, t: torch.full((t,), t),
    "new_full": lambda y, t: y.new_full((t,), fill_value=t),
    "tensor": lambda y, t: torch.tensor([t] * 9),
    "rsub": lambda y, t: t - 1 - torch.arange(t),
    "lt": lambda y, t: torch.arange(t) < t // 2,
    "numel": lambda y, t: y.sum() / y.numel(),
    "__len__": lambda y, t: y.sum() / len(y.permute(2, 0, 1)),
}


@pytest.mark.parametrize("name", MADE)
def test_tensors_that_are_others_for_each_sequence_are_reported(name: str) -> None:
    model = Between(lambda y: y * MADE[name](y, y.shape[2]), None)
    with tnt.padded(lengths=[9, 4]) as tracked:
        model(normal(2, 3, 9))
    (found,) = tracked.report.mixed
    assert found.endswith("in Between (a number of positions, which is another one for each sequence)")
    with tnt.padded(lengths=[9, 9]) as tracked:
        model(normal(2, 3, 9))
    assert tracked.report.mixed == ()


PLAIN: dict[str, tuple[str, Callable[[int], Any]]] = {
    "int": ("int", lambda t: int(t)),
    "int of a quotient": ("int", lambda t: int(t / 2)),
    "float": ("float", lambda t: float(t)),
    "float of a quotient": ("float", lambda t: float(t / 2)),
    "root": ("float", lambda t: math.sqrt(t)),
    "exponential": ("float", lambda t: math.exp(t)),
}


@pytest.mark.parametrize("name", PLAIN)
def test_numbers_that_become_plain_ones_are_reported(name: str) -> None:
    what, function = PLAIN[name]
    with tnt.padded(lengths=[9, 4]) as tracked:
        Between(lambda y: y / function(y.shape[2]), None)(normal(2, 3, 9))
    assert tracked.report.mixed == (
        f"{what} in Between (a number of positions, which is another one for each sequence: compute with it as it is, "
        "with t ** 0.5 instead of math.sqrt(t))",
    )
    assert function(make_number(9, (9, 4))) == function(9)  # outside


STEPS: dict[str, tuple[Callable[[int], Tensor], bool]] = {
    "backwards": (lambda t: torch.arange(t - 1, -1, -1), True),
    "by name": (lambda t: torch.arange(start=t, end=0, step=-1), True),
    "steps of a part": (lambda t: torch.arange(0, 1, 1 / t), True),
    "up to": (lambda t: torch.arange(t), False),
    "from 1": (lambda t: torch.arange(1, t + 1, dtype=torch.float64), False),
    "relative": (lambda t: torch.arange(t - 1, -t, -1)[:t], False),
    "relative, upwards": (lambda t: torch.arange(1 - t, t)[-t:], False),
}


@pytest.mark.parametrize("name", STEPS)
def test_ranges_that_begin_at_a_number_of_positions_are_reported(name: str) -> None:
    make, is_reported = STEPS[name]
    with tnt.padded(lengths=[9, 4]) as tracked:
        Between(lambda y: y * make(y.shape[2]), None)(normal(2, 3, 9))
    message = (
        "arange in Between (a number of positions, which is another one for each sequence: make it of a tensor with "
        "lengths, as torch.ones_like(x).cumsum(2).flip(2) - 1)"
    )
    assert tracked.report.mixed == ((message,) if is_reported else ())


def test_comparisons_of_shapes_and_other_uses_are_not_reported() -> None:
    def function(y: Tensor) -> Tensor:
        mask = torch.ones(y.shape[2], y.shape[2])
        assert tuple(y.shape) == (2, 4, mask.shape[0])
        assert y.shape[2] != 7
        assert {y.shape[2]: 1}[9] == 1
        return y.view(y.shape[0], 2, 2, y.shape[2]).reshape(y.size()) + torch.zeros(y.shape[2])

    with tnt.padded(lengths=[9, 4]) as tracked:
        Between(function, 4)(normal(2, 3, 9))
    assert tracked.report.mixed == ()


def test_a_number_keeps_its_values_through_arithmetic() -> None:
    t = make_number(9, (9, 4, 0))
    assert (type(t), t, t.each) == (Count, 9, (9, 4, 0))
    for function, value, each in (
        (lambda t: 2 * t + 1, 19, (19, 9, 1)),
        (lambda t: -t % 4, 3, (3, 0, 0)),
        (lambda t: 10 - t // 2, 6, (6, 8, 10)),
        (lambda t: t * t - t, 72, (72, 12, 0)),
        (lambda t: math.floor(t / 2), 4, (4, 2, 0)),
        (lambda t: round(t / 4), 2, (2, 1, 0)),
        (lambda t: 36 / t, 4.0, (4.0, 9.0, 0)),
        (lambda t: abs(3 - t), 6, (6, 1, 3)),
        (lambda t: t >> 1, 4, (4, 2, 0)),
        (lambda t: 1 << t, 512, (512, 16, 1)),
        (lambda t: t & 6 | 1, 1, (1, 5, 1)),
        (lambda t: divmod(t, 2)[0], 4, (4, 2, 0)),
    ):
        found = function(t)
        assert (type(found), found, found.each) == (Count if isinstance(value, int) else Ratio, value, each)
    assert type(t * 0) is int  # the same for all
    assert type(t + make_number(5, (5, 3))) is int  # of another batch
    assert of_sequence({"size": (t, [t / 2, 3])}, 1) == {"size": (4, [2.0, 3])}


@pytest.mark.parametrize("number", [make_number(9, (9, 4)), make_number(4.5, (4.5, 2.0))])
def test_copies_and_pickles_are_plain_numbers(number: Any) -> None:
    for one in (copy.deepcopy(number), pickle.loads(pickle.dumps(number))):
        assert type(one) in (int, float)
        assert one == number


# ---- before a layer has shown the positions ----


FIRST: dict[str, Callable[..., Any]] = {
    "mean": lambda m, x, t: m(x).sum(2, keepdim=True) / t,
    "times a root": lambda m, x, t: m(x) * t**-0.5,
    "the first half": lambda m, x, t: m(x)[:, :, : t // 2],
    "the first half of the input": lambda m, x, t: m(x[:, :, : t // 2]),
    "to a multiple": lambda m, x, t: m(functional.pad(m(x), (0, -t % 4))[:, :3]),
    "interpolated": lambda m, x, t: functional.interpolate(functional.max_pool1d(m(x), 2), size=t),
    "rows": lambda m, x, t: m(x).mT.reshape(x.shape[0] * t, 4).view(x.shape[0], t, 4).mT,
    "of sizes": lambda m, x, t: m(x).sum((1, 2), keepdim=True) / (x.size(1) * t - 1),
    "of a part": lambda m, x, t: m(x).sum(2, keepdim=True) / (x[:, :, 1:].shape[2] + 1),
}


class First(nn.Module):
    """Takes the number of positions of its input, before a layer shows which axis has them."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.layer = nn.Conv1d(3, 4, 3, padding=1)
        self.function = function

    def forward(self, x: Tensor) -> Any:
        _, _, t = x.shape
        return self.function(self.layer, x, t)


@pytest.mark.parametrize("along", [None, 2])
@pytest.mark.parametrize("name", FIRST)
def test_numbers_that_are_taken_before_a_layer_shows_the_positions(name: str, along: int | None) -> None:
    model = First(FIRST[name]).double()
    x = normal(3, 3, 19, dtype=torch.float64)
    assert_as_alone(model, x, LENGTHS, out=2, along=along)
    with tnt.padded(lengths=LENGTHS, along=along) as tracked:
        model(x=x)
    assert tracked.report.mixed == ()


@pytest.mark.parametrize("name", [*MADE, "a condition", "int", "float", "arange"])
def test_what_is_made_of_these_numbers_is_reported(name: str) -> None:
    others: dict[str, Callable[[Tensor, Any], Any]] = {
        "a condition": lambda x, t: 2 if t % 2 else 1,
        "int": lambda x, t: int(t),
        "float": lambda x, t: math.sqrt(t),
        "arange": lambda x, t: torch.arange(t - 1, -1, -1),
    }
    model = First(lambda m, x, t: (others | MADE)[name](torch.ones(len(x), 3, t), t) * m(x))
    if name in ("numel", "__len__"):
        model = First(lambda m, x, t: m(x) / (x.numel() if name == "numel" else len(x.permute(2, 0, 1))))
    for lengths, count in (([9, 4], 1), ([9, 9], 0)):
        with tnt.padded(lengths=lengths) as tracked:
            model(normal(2, 3, 9))
        assert len(tracked.report.mixed) == count


def test_sizes_of_other_axes_are_plain_numbers_once_they_are_known() -> None:
    """Until then any axis but the batch may have the positions: the channels are more than these here."""

    class Wide(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(30, 4, 3, padding=1)

        def forward(self, x: Tensor) -> Tensor:
            b, c, t = x.shape
            assert c != 7
            steps = torch.arange(c - 1, -1, -1) / int(c)
            return self.layer(x * steps[:, None]) / (c * b) + torch.zeros(b, 1, t)

    with tnt.padded(lengths=[9, 4]) as tracked:
        Wide()(normal(2, 30, 9))
    assert tracked.report.mixed == ()


def test_a_slice_of_the_input_that_begins_at_such_a_number_is_an_error() -> None:
    model = First(lambda m, x, t: m(x[:, :, t // 2 :]))
    with pytest.raises(ValueError, match="has to know which axis"), tnt.padded(lengths=[9, 4]):
        model(normal(2, 3, 9))
    with pytest.raises(ValueError, match="lost at a slice of more positions"), tnt.padded(lengths=[9, 4]):
        First(lambda m, x, t: m(m(x[:, :, : 12 - t])[:, :3]))(normal(2, 3, 9))


def test_a_number_of_an_input_outside_of_all_modules() -> None:
    layer, x = nn.Conv1d(3, 4, 3, padding=1).double(), normal(3, 3, 19, dtype=torch.float64)

    def model(x: Tensor) -> Tensor:
        t = x.shape[2]
        return layer(x).sum(2) / t

    assert_as_alone(model, x, LENGTHS, parameters=[*layer.parameters()])


EARLY: dict[str, Callable[[Tensor, Any], Tensor]] = {
    "div": lambda y, t: y / t,
    "avg_pool1d": lambda y, t: functional.avg_pool1d(y, t),
    "max_pool1d": lambda y, t: functional.max_pool1d(y, t // 2),
    "topk": lambda y, t: y.topk(t // 2, 2).values.mean(2),
    "__getitem__": lambda y, t: y[:, :, : t // 2],
    "pad": lambda y, t: functional.pad(y, (0, t % 4)),
}


@pytest.mark.parametrize("reads_it", [False, True])
@pytest.mark.parametrize("name", EARLY)
def test_numbers_of_an_input_that_no_layer_has_read_yet_are_reported(name: str, reads_it: bool) -> None:
    """Such as a mask that is never read, or a second input that is read later."""

    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv1d(3, 4, 3, padding=1)

        def forward(self, x: Tensor, other: Tensor) -> Tensor:
            y = EARLY[name](self.layer(x), other.shape[2])
            if reads_it:
                self.layer(other)
            return y

    x, other = normal(2, 3, 9), normal(2, 3, 9, seed=1)
    for lengths, is_lost in (([9, 4], True), ([9, 9], not reads_it)):
        with tnt.padded(lengths=lengths) as tracked:
            Two()(x, other)
        expected = f"{name} in Two (a number of positions of an input that no layer had read)"
        assert (expected in tracked.report.mixed) == is_lost
