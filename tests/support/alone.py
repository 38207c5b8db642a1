"""The oracle of `padded`: each sequence of a batch by itself, without any padding."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

NAN = float("nan")


def pad(x: Any, lengths: Sequence[int], *, axis: int = 2, more: int = 0, value: float = NAN) -> Any:
    """x with `value` in the padding of each sequence, and `more` positions of it behind all."""
    import torch

    shape = list(x.shape)
    shape[axis] += more
    padded = torch.full(shape, value, dtype=x.dtype)
    for i, length in enumerate(lengths):
        padded[i].narrow(axis - 1, 0, length).copy_(x[i].narrow(axis - 1, 0, length))
    return padded


def run_alone(model: Callable[[Any], Any], x: Any, lengths: Sequence[int], *, axis: int = 2) -> list[Any]:
    """The output of each sequence, with a batch axis of size 1."""
    return [model(x[i : i + 1].narrow(axis, 0, length)) for i, length in enumerate(lengths)]


@contextmanager
def claims_checked() -> Iterator[None]:
    """After each function: padding that is said to be zero is zero, and padding that is said to be finite is finite.

    A false claim is seldom seen in an output: only by a function that reads padding, and was told that it need not.
    Of a function that was called without its rule, as an earlier one, its rule says the same, and has nothing to do.
    """
    import torch

    from truenorm.torch.tracking.calls import tensors_in
    from truenorm.torch.tracking.registry import REPEATS
    from truenorm.torch.tracking.repeats import key_of
    from truenorm.torch.tracking.tag import Padding, Tag
    from truenorm.torch.tracking.tracker import Tracker

    call = Tracker.call

    def check(tracker: Any, x: Any, func: Any) -> None:
        tag = tracker.states.get(x)
        if not isinstance(tag, Tag) or tag.padding is Padding.ANY or tag.has_open or not tag.has_padding:
            return
        at_padding = x.detach()[tracker.mask(tag, x.device).expand(x.shape)]
        true = not at_padding.any() if tag.padding is Padding.ZERO else torch.isfinite(at_padding).all()
        assert true, f"{func.__name__}: its padding is said to be {tag.padding.name}, got {at_padding}"

    def check_repeated(tracker: Any, func: Any, args: Any, kwargs: Any) -> None:
        key = key_of(tracker, func, args, kwargs) if func in REPEATS and not tracker.recording else None
        kept = None if key is None else tracker.repeats.states.get(key)
        if kept is None:
            return
        before = tracker.acts + tracker.notes.count
        with torch.random.fork_rng(devices=[]):
            found = tracker.states.get(tracker._call_rule(func, args, kwargs))
        assert tracker.acts + tracker.notes.count == before, func.__name__
        if isinstance(kept, Tag):
            assert (found.axes, found.padding) == (kept.axes, kept.padding), func.__name__
        else:
            assert found is kept, func.__name__

    def checked_call(tracker: Any, func: Any, args: Any, kwargs: Any) -> Any:
        with torch._C.DisableTorchFunction():
            check_repeated(tracker, func, args, kwargs)
        result = call(tracker, func, args, kwargs)
        with torch._C.DisableTorchFunction():
            for x in tensors_in((result, args, kwargs)):
                check(tracker, x, func)
        return result

    with patch.object(Tracker, "call", checked_call):
        yield


def assert_as_alone(
    model: Callable[[Any], Any],
    x: Any,
    lengths: Sequence[int],
    *,
    axis: int = 2,
    out: int | None = None,
    tolerance: float = 1e-12,
    parameters: Sequence[Any] = (),
    value: float = NAN,
    more: Sequence[int] = (0, 3, 3),
    along: Any = None,
) -> None:
    """Inside `padded`, valid outputs and all gradients are those of the sequences alone, whatever the padding holds.

    What is said of the padding on the way is checked too.

    axis   of positions in x
    out    of positions in the output; None if it has none
    more   amounts of padding to try, behind the longest sequence; one of them twice, as then calls repeat
    """
    import torch

    from truenorm.torch import padded

    parameters = [*parameters, *(model.parameters() if isinstance(model, torch.nn.Module) else [])]
    source = x.detach().clone().requires_grad_()
    expected = run_alone(model, source, lengths, axis=axis)
    generator = torch.Generator().manual_seed(1)
    weights = [torch.randn(one.shape, generator=generator, dtype=one.dtype) for one in expected]
    loss = sum((one * weight).sum() for one, weight in zip(expected, weights, strict=True))
    wanted = torch.autograd.grad(loss, [source, *parameters], allow_unused=True)
    for extra in more:
        batch = pad(x.detach(), lengths, axis=axis, more=extra, value=value).requires_grad_()
        with padded(lengths=list(lengths), along=along), claims_checked():
            y = model(batch)
        found = [
            y[i : i + 1] if out is None else y[i : i + 1].narrow(out, 0, one.shape[out])
            for i, one in enumerate(expected)
        ]
        for one, other in zip(found, expected, strict=True):
            assert bool(torch.isfinite(one).all()), one
            torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
        loss = sum((one * weight).sum() for one, weight in zip(found, weights, strict=True))
        dx, *gradients = torch.autograd.grad(loss, [batch, *parameters], allow_unused=True)
        dx = torch.zeros_like(batch) if dx is None else dx
        reached = pad(dx, lengths, axis=axis, value=0.0)
        assert bool(torch.equal(reached, dx)), "a gradient at the padding"
        want = torch.zeros_like(source) if wanted[0] is None else wanted[0]
        torch.testing.assert_close(dx.narrow(axis, 0, x.shape[axis]), want, atol=tolerance, rtol=tolerance)
        for one, other in zip(gradients, wanted[1:], strict=True):
            if other is None:
                assert one is None or not bool(one.any())
            else:
                torch.testing.assert_close(one, other, atol=tolerance, rtol=tolerance)
