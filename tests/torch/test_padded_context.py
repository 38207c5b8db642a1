"""The `padded` context itself: what it leaves behind, whom it affects, what it says."""

import re
import threading
import warnings
from typing import Any

import pytest
import torch
from alone import pad
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.overrides import _get_current_function_mode_stack
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint
from torch_data import normal

import truenorm.torch as tnt
from truenorm.torch.tracking import activation


def small_model() -> Any:
    torch.manual_seed(4)
    model = nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.Conv1d(4, 2, 3, padding=1))
    tnt.convert(model)
    return model


def nothing_is_left() -> bool:
    return not (
        torch_module._global_forward_hooks
        or torch_module._global_forward_pre_hooks
        or _get_current_function_mode_stack()
        or activation.active.trackers
        or activation._is_eager
        or activation._contexts
    )


def test_nothing_is_left_behind() -> None:
    model, x = small_model(), normal(2, 3, 9)
    before = model(x)
    with tnt.padded(lengths=[9, 4]) as tracked:
        model(x)
        assert not nothing_is_left()
        assert len(tracked.states) > 0
    assert nothing_is_left()
    assert len(tracked.states) == 0
    assert torch.equal(model(x), before)


class Broken(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ZeroDivisionError


def test_exceptions_leave_nothing_behind() -> None:
    model, x = small_model(), normal(2, 3, 9)
    broken = nn.Sequential(model, Broken())
    with pytest.raises(ZeroDivisionError), tnt.padded(lengths=[9, 4]):
        broken(x)
    assert nothing_is_left()
    with tnt.padded(lengths=[9, 4]) as tracked:
        with pytest.raises(ZeroDivisionError):
            broken(x)
        with pytest.raises(RuntimeError, match="expected input"):
            model(normal(2, 5, 9))
        assert tracked.modules == []
        assert tracked.paused is None
        y = model(x)
    with tnt.padded(lengths=[9, 4]):
        assert torch.equal(model(x), y)
    with pytest.raises(ValueError, match="reads a batch of 2"), tnt.padded(lengths=[9, 4, 3]):
        model(x)
    assert nothing_is_left()


def test_contexts_can_be_repeated_and_nested() -> None:
    model, x = small_model(), normal(2, 3, 9)
    context, other = tnt.padded(lengths=[9, 4]), tnt.padded(lengths=[5, 9])
    with context:
        first = model(x)
    with other:
        second = model(x)
    assert not torch.allclose(first[1, :, :4], second[1, :, :4])
    with context:
        with other:
            assert torch.equal(model(x), second)
        with context:
            assert torch.equal(model(x), first)
        assert torch.equal(model(x), first)
    assert nothing_is_left()


def test_a_nested_context_is_a_function_without_a_rule_to_the_outer_one() -> None:
    model, x = small_model(), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]):
        y = model[0](x)
        with tnt.padded(lengths=[7, 2]):
            z = torch.relu(y)
        with pytest.raises(ValueError, match="lost at relu"):
            model[2](z)


def test_other_threads_are_not_affected() -> None:
    model, x = small_model(), normal(2, 3, 9)
    expected = model(x)
    with tnt.padded(lengths=[9, 4]):
        inside = model(x)
    found: dict[str, Tensor] = {}
    entered, leave = threading.Event(), threading.Event()

    def work() -> None:
        with tnt.padded(lengths=[3, 9]):
            found["theirs"] = model(x)
            entered.set()
            leave.wait(60)
        found["after"] = model(x)

    thread = threading.Thread(target=work)
    thread.start()
    assert entered.wait(60)
    assert torch.equal(model(x), expected)
    with tnt.padded(lengths=[9, 4]):
        leave.set()
        thread.join(60)
        assert torch.equal(model(x), inside)
    assert not torch.equal(found["theirs"], inside)
    assert torch.equal(found["after"], expected)
    assert nothing_is_left()


def test_the_report() -> None:
    model = nn.Sequential(small_model(), nn.BatchNorm1d(2))
    context = tnt.padded(lengths=[9, 4])
    tracked = context.__enter__()
    y = model(normal(2, 3, 9))
    torch.fft.fft(y)
    with pytest.warns(tnt.PaddingWarning) as caught:
        context.__exit__(None, None, None)
    assert str(caught[0].message) == (
        "padded: not converted, so padding counts in the statistics: '1'. Call convert(model)."
    )
    assert tracked.report == tnt.PaddedReport(("0.1",), (), ("1",), ("fft_fft",))
    assert str(tracked.report) == (
        "1 layer was given lengths\n"
        "  0.1\n"
        "1: not converted, so padding counts in its statistics\n"
        "fft_fft: not followed, so padding may be mixed in"
    )


def test_47_a_converted_layer_that_is_not_given_lengths_is_reported() -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = tnt.GroupNorm(1, 2)

        def forward(self, x: Tensor) -> Any:
            return x + self.norm(torch.ones(2, 2, 9))

    message = "^padded: called without lengths: 'norm'. Declare the input: tracked.follow(x, along=...).$"
    with (
        pytest.warns(tnt.PaddingWarning, match=message.replace("(", r"\(").replace(")", r"\)").replace(".", r"\.")),
        tnt.padded(lengths=[9, 4]) as tracked,
    ):
        Constant()(normal(2, 2, 9))
    assert tracked.report.not_given == ("norm",)


class Fourier(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.rfft(x).abs()


def test_47_a_layer_behind_a_function_that_is_not_followed() -> None:
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.Conv1d(3, 4, 3, padding=1), Fourier(), tnt.GroupNorm(2, 4))})
    message = (
        "padded: GroupNorm '2' has to know the valid positions of its input (2, 4, 5), but they were lost at fft_rfft "
        "in '1'. Declare them: padded.rule(ModuleClass, fn) with fn(module, lengths) -> lengths for the module that "
        "changes them, or tracked.follow(x, along=..., lengths=...)."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"), tnt.padded(lengths=[9, 4]):
        model["encoder"](normal(2, 3, 9))


def test_a_function_without_a_rule_that_reads_the_input() -> None:
    model = nn.Sequential(Fourier(), nn.Conv1d(3, 4, 3))
    with pytest.raises(ValueError, match="were lost at fft_rfft in '0'"), tnt.padded(lengths=[9, 4]):
        model(normal(2, 3, 9))


def test_tensors_with_other_lengths_are_declared() -> None:
    conv = nn.Conv1d(3, 4, 3, padding=1)
    x, other = normal(2, 3, 9), normal(2, 3, 5)
    with (
        pytest.raises(ValueError, match=r"reads 5 positions on axis 2 of \(2, 3, 5\), got a length of 9\."),
        tnt.padded(lengths=[9, 4]),
    ):
        conv(other)
    with tnt.padded(lengths=[9, 4]) as tracked:
        conv(x)
        y = conv(tracked.follow(other, along=2, lengths=[2, 5]))
        z = conv(tracked.follow(x, lengths=None))
    assert_close(y[0, :, :2], conv(other[:1, :, :2])[0])
    assert torch.equal(z, conv(x))


def test_two_position_axes_need_two_lengths_or_an_axis() -> None:
    conv = nn.Conv2d(1, 2, 3, padding=1)
    x = normal(2, 1, 9, 5)
    message = (
        "padded: Conv2d reads (2, 1, 9, 5) with 2 position axes, got 1 vector of lengths. Pass one vector for each, "
        "lengths=(heights, widths), or say which axis of the model's input has positions: along=."
    )
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"), tnt.padded(lengths=[9, 4]):
        conv(x)
    batch = pad(x, [9, 4])
    with tnt.padded(lengths=[9, 4], along=2):
        y = conv(batch)
    assert_close(y[1, :, :4], conv(x[1:, :, :4])[0])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, ValueError, "padded: either lengths or valid, got neither. Pass one."),
        ({"lengths": [1], "valid": [[True]]}, ValueError, "padded: either lengths or valid, got both. Pass one."),
        ({"lengths": torch.tensor([[1, 2]])}, ValueError, "padded: lengths of shape (b,), got (1, 2)."),
        ({"lengths": torch.tensor(3)}, ValueError, "padded: lengths of shape (b,), got ()."),
        ({"lengths": 3}, ValueError, "padded: lengths of shape (b,), got ()."),
        ({"lengths": "ab"}, TypeError, "padded: lengths are a vector of whole numbers, got 'ab'."),
        ({"lengths": [3, None]}, TypeError, "padded: lengths are a vector of whole numbers, got [3, None]."),
        (
            {"lengths": [[6, 5], [2, 3]]},
            ValueError,
            "padded: lengths must be one vector, or a tuple with one vector for each position axis, got a list of "
            "vectors, which could be one for each axis or for each sample. Pass lengths=(heights, widths), or a flat "
            "list for one axis.",
        ),
        ({"lengths": [3, -1]}, ValueError, "padded: lengths >= 0, got -1."),
        (
            {"lengths": [0.5, 1.0]},
            TypeError,
            "padded: lengths are whole numbers, got torch.float32. Multiply relative lengths by the number of "
            "positions, and round them.",
        ),
        (
            {"lengths": [50.0, 20.0]},
            TypeError,
            "padded: lengths are whole numbers, got torch.float32. Pass lengths.long().",
        ),
        (
            {"lengths": torch.tensor([True])},
            TypeError,
            "padded: lengths are whole numbers, got booleans. A mask goes into valid=.",
        ),
        ({"lengths": ([1, 2], [3])}, ValueError, "padded: one length for each sequence, got 2, 1."),
        ({"valid": [True]}, ValueError, "padded: valid of shape (b, t), got (1,)."),
        (
            {"valid": [[2, 1]]},
            TypeError,
            "padded: valid holds booleans, or the integers 0 and 1, got torch.int64. Pass valid.bool().",
        ),
        (
            {"lengths": [1], "along": (1, 2)},
            ValueError,
            "padded: along names one axis for each vector of lengths, 1, got (1, 2).",
        ),
    ],
)
def test_arguments_that_do_not_fit(arguments: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{re.escape(message)}$"):
        tnt.padded(**arguments)


def double_conv(x: Tensor) -> Tensor:
    return nn.functional.conv1d(x, torch.ones(2, 3, 3), padding=1)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("plain", [False, True])
def test_a_checkpoint_without_the_context_is_an_error(reentrant: bool, training: bool, plain: bool) -> None:
    function: Any = double_conv if plain else small_model().train(training)
    name = ("double_conv" if reentrant else "ones") if plain else "Sequential"
    x = normal(2, 3, 9).requires_grad_()
    message = (
        f"padded: {name} is called inside torch.utils.checkpoint, which calls it again in the backward, without "
        "lengths. Pass checkpoint(..., use_reentrant=False, context_fn=padded.recomputation)."
    )
    with pytest.raises(RuntimeError, match=f"^{re.escape(message)}$"), tnt.padded(lengths=[9, 4]):
        checkpoint(function, x, use_reentrant=reentrant)
    assert nothing_is_left()


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_checkpoint_that_is_not_computed_again() -> None:
    model, x = small_model().eval(), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]), torch.no_grad():
        assert torch.equal(checkpoint(model, x, use_reentrant=True), model(x))


def test_compiled_models_run_as_they_are_written() -> None:
    model, x = small_model(), normal(2, 3, 9)
    with tnt.padded(lengths=[9, 4]):
        expected = model(x)
    compiled = torch.compile(model, backend="eager")
    without = compiled(x)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Using `torch.compile")
        with tnt.padded(lengths=[9, 4]) as tracked:
            assert torch.equal(compiled(x), expected)
    assert tracked.report.given == ("_orig_mod.1",)
    assert torch.equal(compiled(x), without)


def test_keyword_arguments_and_constants_of_the_model() -> None:
    """An input is recognised however it is passed; buffers and attributes are none."""

    class Positions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.norm = nn.Linear(3, 4), tnt.BatchNorm1d(4)
            self.position = nn.Linear(3, 4)
            self.table: Tensor
            self.register_buffer("table", normal(1, 20, 3))
            self.plain = normal(1, 20, 3)

        def forward(self, *, x: Tensor, mask: Tensor) -> Any:
            self.at = self.position(self.table) + self.position(self.plain)
            y = (self.linear(x) + self.at[:, : x.shape[1]]) * mask[..., None].float()
            return self.norm(y.transpose(1, 2))

    model = Positions().eval()
    x = normal(1, 9, 3)
    mask = torch.arange(9) < 4
    with tnt.padded(lengths=[4]) as tracked:
        y = model(x=x, mask=mask[None])
        assert tracked.tag(y).lengths == {2: (4,)}
        assert tracked.tag(model.at) is None
    assert_close(y[..., :4], model(x=x[:, :4], mask=mask[None, :4]))


def test_batches_made_inside_the_context() -> None:
    model, parts = small_model(), [normal(3, n, seed=n) for n in (9, 4)]
    with tnt.padded(lengths=[9, 4]):
        x = torch.nn.utils.rnn.pad_sequence([one.T for one in parts], batch_first=True).transpose(1, 2)
        y = model(x)
    assert_close(y[1, :, :4], model(parts[1][None])[0])
