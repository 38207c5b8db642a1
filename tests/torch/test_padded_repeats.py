"""Calls that repeat inside `padded` are made without their rule. Everything that their result follows from counts."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch_data import normal
from tracked import count_calls

import truenorm.torch as tnt
from truenorm.torch.tracking import repeats
from truenorm.torch.tracking.numbers import make_number
from truenorm.torch.tracking.registry import REPEATS, RULES, rule
from truenorm.torch.tracking.repeats import key_of
from truenorm.torch.tracking.tag import Padding, Tag
from truenorm.torch.tracking.tracker import Tracker

LENGTHS = [9, 4]


def tagged(tracked: Tracker, *shape: int, **options: Any) -> Tensor:
    return tracked.follow(torch.zeros(*shape, **options), along=1)


def made(tracked: Tracker, x: Tensor) -> Tensor:
    """A tensor that is not ragged, as if the model had made it."""
    assert tracked.look(x) is not None
    return x


def state(tracked: Tracker, x: Tensor) -> Any:
    return tracked.states.get(x)


Pair = Callable[[Tracker], tuple[Any, Any]]
X = (2, 9, 4)


def of(func: Any, *args: Any, **kwargs: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    return func, args, kwargs


def in_another_state(tracked: Tracker) -> tuple[Any, Any]:
    x, y = tagged(tracked, *X), tagged(tracked, *X)
    tracked.set(y, state(tracked, x).having(Padding.FINITE))
    return of(torch.relu, x), of(torch.relu, y)


PAIRS: dict[str, Pair] = {
    "function": lambda t: (lambda x: (of(torch.relu, x), of(torch.sigmoid, x)))(tagged(t, *X)),
    "positions": lambda t: (of(torch.relu, tagged(t, *X)), of(torch.relu, t.follow(torch.zeros(2, 4, 9), along=2))),
    "sizes": lambda t: (of(torch.relu, tagged(t, *X)), of(torch.relu, tagged(t, 2, 9, 5))),
    "padding": in_another_state,
    "dtype": lambda t: (of(torch.relu, tagged(t, *X)), of(torch.relu, tagged(t, *X, dtype=torch.float64))),
    "gradients": lambda t: (of(torch.relu, tagged(t, *X)), of(torch.relu, tagged(t, *X, requires_grad=True))),
    "shape beside": lambda t: (
        lambda x: (of(torch.add, x, made(t, torch.zeros(4))), of(torch.add, x, made(t, torch.zeros(9, 1))))
    )(tagged(t, *X)),
    "gradients beside": lambda t: (
        lambda x: (
            of(torch.mul, x, made(t, torch.zeros(4))),
            of(torch.mul, x, made(t, torch.zeros(4).requires_grad_())),
        )
    )(tagged(t, *X)),
    "a parameter": lambda t: (
        lambda x: (
            of(torch.add, x, made(t, torch.zeros(4).requires_grad_())),
            of(torch.add, x, made(t, nn.Parameter(torch.zeros(4)))),
        )
    )(tagged(t, *X)),
    "shape of a parameter": lambda t: (
        lambda x: (
            of(functional.linear, x, nn.Parameter(torch.zeros(3, 4))),
            of(functional.linear, x, nn.Parameter(torch.zeros(5, 4))),
        )
    )(tagged(t, *X)),
    "number": lambda t: (lambda x: (of(torch.pow, x, 2), of(torch.pow, x, 3)))(tagged(t, *X)),
    "its type": lambda t: (lambda x: (of(torch.pow, x, 1), of(torch.pow, x, True)))(tagged(t, *X)),
    "types in a tuple": lambda t: (
        lambda x: (of(Tensor.__getitem__, x, (slice(None), 1)), of(Tensor.__getitem__, x, (slice(None), True)))
    )(tagged(t, *X)),
    "slice": lambda t: (lambda x: (of(Tensor.__getitem__, x, slice(0, 1)), of(Tensor.__getitem__, x, slice(0, 2))))(
        tagged(t, *X)
    ),
    "a slice is no tuple": lambda t: (
        lambda x: (of(Tensor.__getitem__, x, slice(0, 1)), of(Tensor.__getitem__, x, (0, 1, None)))
    )(tagged(t, *X)),
    "nor in a tuple": lambda t: (
        lambda x: (of(Tensor.__getitem__, x, (slice(0, 1), 0)), of(Tensor.__getitem__, x, ((0, 1, None), 0)))
    )(tagged(t, *X)),
    "number of positions": lambda t: (
        lambda x: (of(Tensor.view, x, make_number(9, (9, 4))), of(Tensor.view, x, make_number(9, (9, 5))))
    )(tagged(t, *X)),
    "a plain number": lambda t: (lambda x: (of(Tensor.view, x, make_number(9, (9, 4))), of(Tensor.view, x, 9)))(
        tagged(t, *X)
    ),
    "name": lambda t: (lambda x: (of(torch.clamp, x, min=1), of(torch.clamp, x, max=1)))(tagged(t, *X)),
}


@pytest.mark.parametrize("name", PAIRS)
def test_what_a_result_follows_from_is_in_the_key(name: str) -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        pair = PAIRS[name](tracked)
        with torch._C.DisableTorchFunction():
            first, second = [key_of(tracked, *call) for call in pair]
    assert first is not None
    assert second is not None
    assert first != second


def test_the_gradient_mode_and_all_sizes_so_far_are_in_the_key() -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        x = tagged(tracked, *X)
        with torch._C.DisableTorchFunction():
            first = key_of(tracked, torch.relu, (x,), {})
            assert key_of(tracked, torch.relu, (x,), {}) == first
            with torch.no_grad():
                assert key_of(tracked, torch.relu, (x,), {}) != first
        tagged(tracked, 2, 12, 4)
        with torch._C.DisableTorchFunction():
            assert key_of(tracked, torch.relu, (x,), {}) != first


def test_whether_a_tensor_is_a_constant_or_a_parameter_of_the_model_is_in_the_key() -> None:
    class Model(nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.zeros(9, 4))
            self.weight = nn.Parameter(torch.zeros(9, 4), requires_grad=False)

        def forward(self, x: Tensor) -> list[Any]:
            used = (self.table, self.table, self.weight, self.table.clone())
            with torch._C.DisableTorchFunction():
                return [key_of(tracked, torch.add, (x, one), {}) for one in used]

    with tnt.padded(lengths=LENGTHS) as tracked:
        model = Model()
        new = model(tagged(tracked, *X) + model.table + model.weight)
        constant, again, parameter, other = model(tagged(tracked, *X))
    assert new[2] == parameter
    assert constant == again
    assert len({constant, parameter, other}) == 3


def test_a_buffer_that_is_not_finite_repeats_no_parameter() -> None:
    class Model(nn.Module):
        table: Tensor

        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.full((4,), torch.inf))
            self.weight = nn.Parameter(torch.zeros(4), requires_grad=False)

        def forward(self, x: Tensor) -> tuple[Tensor, ...]:
            return x, self.weight * 1, x + self.weight, self.table * 1, x + self.table

    with tnt.padded(lengths=LENGTHS) as tracked:
        x = tracked.follow(normal(2, 9, 4), along=1)
        tracked.set(x, state(tracked, x).having(Padding.FINITE))
        _, _, y, _, z = Model()(x)
        assert state(tracked, y).padding is Padding.FINITE
        assert state(tracked, z).padding is Padding.ANY


OUTSIDE = torch.zeros(2, 9, 4)
UNSUITABLE: dict[str, Callable[[Tracker, Tensor], Any]] = {
    "an input": lambda t, x: of(torch.relu, OUTSIDE),
    "a lost tensor": lambda t, x: of(torch.relu, t.lose(torch.zeros(2, 9, 4), torch.relu)),
    "tensors in a list": lambda t, x: of(torch.cat, [x, x]),
    "another object": lambda t, x: of(Tensor.__getitem__, x, [object()]),
    "a number beside": lambda t, x: of(torch.add, x, torch.tensor(x.shape[1])),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_what_a_key_cannot_describe_has_none(name: str) -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        x = tagged(tracked, *X)
        call = UNSUITABLE[name](tracked, x)
        with torch._C.DisableTorchFunction():
            assert key_of(tracked, *call) is None


# ---- behaviour ----


def count_rules(run: Callable[[], Any]) -> int:
    """How many rules are called."""
    return count_calls("_call_rule", run)


def block(x: Tensor, linear: nn.Linear) -> Tensor:
    y = functional.dropout(functional.gelu(functional.linear(x, linear.weight, linear.bias)), 0.1)
    return x + y.view(2, 9, 2, 2).transpose(1, 2).transpose(1, 2).reshape(2, 9, 4)


@pytest.fixture(autouse=True)
def _nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_kept", {})


def test_the_layers_of_a_model_and_contexts_with_the_same_lengths_repeat() -> None:
    layers = [nn.Linear(4, 4) for _ in range(3)]
    found = []
    for lengths in (LENGTHS, LENGTHS, [9, 5]):
        with tnt.padded(lengths=lengths) as tracked:
            x = tracked.follow(normal(2, 9, 4), along=1).clamp(-9, 9)
            tracked.set(x, state(tracked, x).having(Padding.FINITE))  # a linear layer has nothing to fill
            for layer in layers:
                before = x
                found.append(count_rules(lambda: block(before, layer)))  # noqa: B023 - called at once
                x = block(x, layer)
            assert state(tracked, x).lengths == {1: tuple(lengths)}
    assert found[0] == found[6] > 0
    assert found[2:6] == [0] * 4
    assert found[8] == 0


def test_a_rule_that_does_more_is_called_again() -> None:
    """Filling padding, reports and values that are read."""
    with tnt.padded(lengths=LENGTHS) as tracked:
        x = normal(2, 9, 4)
        x[1, 4:] = torch.nan
        tracked.follow(x, along=1)
        for _ in range(2):
            weight = nn.Parameter(torch.ones(4))
            (x * weight)[:, :4].sum().backward()  # NaN in the padding would be in the gradient
            assert weight.grad is not None
            assert not weight.grad.isnan().any()
        index = torch.tensor([1, 0])
        assert tracked.tag(x[index]).lengths == {1: (4, 9)}
        index = torch.tensor([0, 1])
        assert tracked.tag(x[index]).lengths == {1: (9, 4)}
        noted = tracked.notes.count
        for i in range(1, 3):
            x.view(2, 3, 12)
            assert tracked.notes.count == noted + i


def test_writes_are_never_repeated() -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        for _ in range(2):
            x = tracked.follow(normal(2, 9, 4), along=1)
            part = x[:, :-1]
            functional.relu(part, inplace=True)  # the last valid positions are padding of this part, and stay
            assert bool((x[1, 3] < 0).any())
    assert not [one for one in REPEATS if getattr(one, "__name__", "") in ("relu_", "add_", "mul_", "exp_")]


def test_rules_that_are_registered_later_are_called() -> None:
    def of_context() -> Any:
        with tnt.padded(lengths=LENGTHS) as tracked:
            return state(tracked, torch.relu(tagged(tracked, *X)))

    assert isinstance(of_context(), Tag)
    before = RULES[torch.relu]

    def other(tracker: Tracker, func: Any, args: Any, kwargs: Any) -> Any:
        return tracker.lose(func(*args, **kwargs), func)

    try:
        rule(torch.relu, reads_inputs=True, repeats=True)(other)
        assert not isinstance(of_context(), Tag)
    finally:
        rule(torch.relu, reads_inputs=True, repeats=True)(before)
    assert isinstance(of_context(), Tag)


def test_sizes_of_repeated_calls_are_known() -> None:
    """In a second context a convolution repeats, but a mean that is repeated is as many as its positions again."""
    conv = nn.Conv1d(4, 4, 3, stride=2)
    for _ in range(2):
        with tnt.padded(lengths=LENGTHS) as tracked:
            y = conv(tracked.follow(normal(2, 4, 9), along=2))
            table = y.mean(2, keepdim=True).expand(2, 4, y.shape[2])
            assert state(tracked, table).has_open


def test_only_the_last_lengths_are_kept() -> None:
    for n in range(1, 20):
        with tnt.padded(lengths=[n, n]) as tracked:
            tagged(tracked, 2, 20, 4).relu()
    assert len(repeats._kept) == repeats.MOST_KEPT
    assert any(key[0] == ((19, 19),) for key in repeats._kept)


def test_calls_of_one_context_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MOST_CALLS", 10)
    with tnt.padded(lengths=LENGTHS) as tracked:
        for n in range(1, 30):
            assert tracked.tag(tagged(tracked, 2, 9, n).relu()).axes[2][0].size == n
        assert 0 < len(tracked.repeats.states) <= 10


def test_masks_with_gaps_are_not_kept_for_other_contexts() -> None:
    valid = torch.tensor([[False, True, True], [True, True, False]])
    with tnt.padded(valid=valid) as tracked:
        tracked.follow(normal(2, 3, 4), along=1).relu()
    assert not repeats._kept


def test_a_crop_is_no_other_tensor_with_the_same_lengths() -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        tracked.follow(normal(2, 5, 4), along=1, lengths=[5, 4])
        assert tracked.tag(tracked.follow(normal(2, 9, 4), along=1)[:, :5]).has_crop


# ---- attention ----


def attend(tracked: Tracker, mask: Tensor | None, **options: Any) -> Tensor:
    q = tracked.follow(normal(2, 9, 4, seed=1), along=1)
    tracked.set(q, state(tracked, q).having(Padding.FINITE))
    return functional.scaled_dot_product_attention(q, q, q, mask, **options)


def expected(mask: Tensor | None) -> Tensor:
    q = normal(2, 9, 4, seed=1)
    valid = (torch.arange(9) < torch.tensor(LENGTHS)[:, None])[:, None]
    both = valid if mask is None else mask & valid if mask.dtype == torch.bool else mask.masked_fill(~valid, -torch.inf)
    return functional.scaled_dot_product_attention(q, q, q, both.expand(2, 9, 9))


def test_the_mask_of_attention_is_used_again_only_if_it_is_the_same() -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        mask = torch.ones(2, 9, 9, dtype=torch.bool)
        first = attend(tracked, mask)
        kept = tracked.attention
        torch.testing.assert_close(attend(tracked, mask), first)
        assert tracked.attention is kept
        assert state(tracked, first).padding is Padding.FINITE
        other = torch.ones(2, 9, 9, dtype=torch.bool)
        other.tril_()
        third = other.clone().triu_()
        torch.testing.assert_close(attend(tracked, other), expected(other))
        torch.testing.assert_close(attend(tracked, third), expected(third))
        attend(tracked, mask)
        mask[:, :, 0] = False  # changed in place
        torch.testing.assert_close(attend(tracked, mask), expected(mask))
        torch.testing.assert_close(attend(tracked, other), expected(other))
        torch.testing.assert_close(attend(tracked, None), expected(None))
        torch.testing.assert_close(attend(tracked, None, is_causal=True), expected(other))
        torch.testing.assert_close(attend(tracked, None), expected(None))


def test_a_mask_that_leaves_nothing_to_a_query() -> None:
    """Its result is NaN there, at padding too."""
    with tnt.padded(lengths=LENGTHS) as tracked:
        mask = torch.ones(2, 9, 9, dtype=torch.bool)
        mask[1, 8] = False
        for _ in range(2):
            assert state(tracked, attend(tracked, mask)).padding is Padding.ANY
        numbers = torch.zeros(2, 9, 9)
        assert state(tracked, attend(tracked, numbers)).padding is Padding.ANY


def test_a_mask_that_is_trained_is_made_each_time() -> None:
    with tnt.padded(lengths=LENGTHS) as tracked:
        mask = normal(2, 9, 9).requires_grad_()
        with torch.no_grad():
            attend(tracked, mask)
        attend(tracked, mask)[:, :4].sum().backward()
    assert mask.grad is not None
    assert bool(mask.grad.any())


# ---- norms ----


def test_norms_of_the_same_tensor_get_what_each_of_them_takes() -> None:
    """Lengths along axis 1 or 2, or a mask."""
    x = normal(2, 9, 9)
    layers = [tnt.LayerNorm(9), tnt.Normalize("b [t] c", (9,), affine=False), tnt.BatchNorm1d(9), tnt.LayerNorm(9)]
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = tracked.follow(x, along=1)
        found = [layers[0](y), layers[1](y), layers[3](y)]
        assert len(tracked.norms) == 2
    assert all(not one[1, 4:].any() for one in found)
    assert all(bool(one[:, :4].any()) for one in found)
    with tnt.padded(lengths=LENGTHS) as tracked:
        y = tracked.follow(x, along=2)
        z = layers[2](y)
    assert not z[1, :, 4:].any()


class _Interrupted(tnt.LayerNorm):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise KeyboardInterrupt


def test_an_interrupt_inside_a_norm_leaves_other_modes_where_they_are() -> None:
    class Mode(torch.overrides.TorchFunctionMode):
        seen = 0

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Mode.seen += 1
            return func(*args, **(kwargs or {}))

    with Mode():
        with pytest.raises(KeyboardInterrupt), tnt.padded(lengths=LENGTHS) as tracked:
            _Interrupted(4)(tracked.follow(normal(2, 9, 4), along=1))
        before = Mode.seen
        torch.zeros(2)
        assert Mode.seen == before + 1
    torch.zeros(2)
    assert Mode.seen == before + 1
