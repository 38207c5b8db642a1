"""Rules for losses: their means and sums are over valid positions, as those of `mean` and `sum` are.

    F.mse_loss(y, target)      is (y - target).square().mean(), and inside `padded` that mean leaves padding out
    F.cross_entropy(y, target) the targets at padding are set to ignore_index, whatever they hold
    F.ctc_loss(...)            takes lengths of its own

So a loss over a batch is that over the valid values of its sequences. Targets need no lengths: the input has them.
Targets at padding are set to 0: the gradient of the input there is 0 times their distance, and NaN for NaN.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.calls import tensors_in
from truenorm.torch.tracking.registry import rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import Lost, Padding, Tag, broadcast, has_role
from truenorm.torch.tracking.tracker import Tracker

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@cache
def _signature(func: Any) -> inspect.Signature:
    return inspect.signature(func)


def _given(func: Any, args: Args, kwargs: Kwargs) -> Kwargs | None:
    """The arguments by name; None if they say in the old way how to reduce."""
    given = dict(_signature(func).bind(*args, **kwargs).arguments)
    old = [given.pop(name, None) for name in ("size_average", "reduce")]
    return given if old == [None, None] else None


@rule(
    functional.mse_loss,
    functional.l1_loss,
    functional.smooth_l1_loss,
    functional.huber_loss,
    functional.binary_cross_entropy,
    functional.binary_cross_entropy_with_logits,
    functional.soft_margin_loss,
    functional.poisson_nll_loss,
    functional.gaussian_nll_loss,
    functional.kl_div,
    reads_inputs=True,
)
def loss_of_each_element(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """A loss for each element, then a mean or sum over the valid ones."""
    given = _given(func, args, kwargs)
    states = [tracker.look(one) for one in tensors_in((args, kwargs))]
    tags = [one for one in states if isinstance(one, Tag)]
    weighted = func not in WITH_PLAIN_MEANS and given is not None and given.get("weight") is not None
    if given is None or weighted or not any(tag.is_ragged for tag in tags):
        return tracker.call_unknown(func, args, kwargs)
    reduction = given.pop("reduction", "mean")
    shape = torch.broadcast_shapes(given["input"].shape, given["target"].shape)  # type: ignore[no-untyped-call]
    axes = broadcast(tags, shape)
    if axes is None or any(isinstance(one, Lost) for one in states):
        return tracker.lose(func(*args, **kwargs), func, "arguments with different lengths")
    result = Tag(axes)
    for name, one in given.items():
        if (tag := tracker.tag(one)) is not None and tag.is_ragged:
            given[name] = tracker.fill_unless_finite(one, tag)[0]
        elif isinstance(one, Tensor) and one.shape == shape:
            given[name] = tracker.fill_unless_finite(one, result)[0]
    each = func(**given, reduction="none")
    tracker.set(each, result)
    if reduction == "none":
        return each
    if reduction == "batchmean":
        return tracker.call(torch.sum, (each,), {}) / len(each)
    return tracker.call(torch.mean if reduction == "mean" else torch.sum, (each,), {})


# Their weights do not count in the divisor of the mean.
WITH_PLAIN_MEANS = (functional.binary_cross_entropy, functional.binary_cross_entropy_with_logits)


@rule(functional.cross_entropy, functional.nll_loss, reads_inputs=True)
def loss_of_classes(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """(b, classes, ...): targets at padding are ignored."""
    given = _given(func, args, kwargs)
    found = tracker.look(args[0])
    if given is None or not isinstance(found, Tag) or not found.is_ragged:
        return tracker.call_unknown(func, args, kwargs)
    x, target, reduction = given["input"], given["target"], given.get("reduction", "mean")
    classes = 1 if x.dim() > 1 else 0
    if has_role(found.axes[classes]):
        return tracker.lose(func(*args, **kwargs), func, "classes that are positions")
    if found.has_open:
        return tracker.lose(func(*args, **kwargs), func, "an axis that may be positions")
    each = Tag((*found.axes[:classes], *found.axes[classes + 1 :]))
    given["input"] = tracker.fill_unless_finite(x, found)[0]
    if target.is_floating_point():  # probabilities
        given["target"] = tracker.fill_unless_finite(target, found.having(Padding.ANY))[0]
        result = func(**{**given, "reduction": "none"})
        tracker.set(result, each)
        if reduction == "none":
            return result
        return tracker.call(torch.mean if reduction == "mean" else torch.sum, (result,), {})
    given["target"] = target.masked_fill(tracker.mask(each, target.device), given.get("ignore_index", -100))
    result = func(**given)
    tracker.set(result, each.having(Padding.ZERO) if reduction == "none" else MADE)
    return result


@rule(functional.ctc_loss, reads_inputs=True)
def ctc_loss(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """(t, b, classes), with lengths that the caller passes."""
    given = dict(_signature(func).bind(*args, **kwargs).arguments)
    x, lengths = given["log_probs"], given["input_lengths"]
    found = tracker.look(x)
    if not isinstance(found, Tag) or not found.is_ragged:
        return tracker.call_unknown(func, args, kwargs)
    given["log_probs"] = tracker.fill_unless_finite(x, found)[0]
    result = func(**given)
    valid = found.lengths.get(0)
    on_cpu = not isinstance(lengths, Tensor) or lengths.device.type == "cpu"
    if found.batch != 1 or valid is None:
        return tracker.lose(result, func, "its input is not (t, b, classes)")
    if on_cpu and any(int(one) > n for one, n in zip(lengths, valid, strict=True)):
        return tracker.lose(result, func, "its lengths are longer than the sequences")
    tracker.set(result, MADE)
    return result
