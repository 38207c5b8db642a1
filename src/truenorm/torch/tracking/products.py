"""Rules for products over positions.

A product that sums over positions must not sum over padding: both operands are set to 0 there. All products (`matmul`,
`bmm`, `einsum`, ...) are described by a letter for each axis, as in `einsum`, and share one rule.

Padding that survives on other axes only has to be finite: in the backward pass the product sums over it, and the zero
gradient of an output at padding times NaN is NaN.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import (
    BATCH,
    OPEN,
    Axis,
    Factor,
    Lost,
    Padding,
    Tag,
    broadcast,
    has_role,
    merge_roles,
    padding_in,
    size_of,
)
from truenorm.torch.tracking.tracker import Tracker

Args = tuple[Any, ...]
Kwargs = dict[str, Any]


@rule(*named("matmul __matmul__ mm bmm mv dot inner"), repeats=True)
def matmul(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    given = {**dict(zip(("input", "other"), args, strict=False)), **kwargs}
    left = given.pop("input", None)
    right = next((given.pop(name) for name in ("other", "mat2", "vec", "tensor") if name in given), None)
    if left is None or right is None:
        return tracker.call_unknown(func, args, kwargs)
    inner = getattr(func, "__name__", "") == "inner"
    labels = _inner_labels(left.dim(), right.dim()) if inner else _matmul_labels(left.dim(), right.dim())
    return _product(tracker, func, [left, right], *labels, lambda operands: func(*operands, **given))


@rule(*named("__rmatmul__"), repeats=True)
def reflected_matmul(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return matmul(tracker, torch.matmul, (args[1], args[0]), kwargs)


@rule(*named("addmm addbmm baddbmm"), repeats=True)
def added_matmul(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """input * beta + alpha * left @ right: the product, then an elementwise sum."""
    names = ("input", "batch1", "batch2") if "bmm" in func.__name__ else ("input", "mat1", "mat2")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    if func.__name__ == "addbmm" or any(name not in given for name in names):  # addbmm sums over the batch
        return tracker.call_unknown(func, args, kwargs)
    added, left, right = (given.pop(name) for name in names)
    labels = _matmul_labels(left.dim(), right.dim())
    result = _product(
        tracker, func, [left, right], *labels, lambda operands: func(added, *operands, **given), added=added
    )
    return result


@rule(torch.einsum, repeats=True)
def einsum(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    equation = args[0] if args else ""
    operands = list(args[1]) if len(args) == 2 and isinstance(args[1], (list, tuple)) else list(args[1:])
    if not isinstance(equation, str):
        return tracker.call_unknown(func, args, kwargs)
    left, arrow, right = equation.replace(" ", "").partition("->")
    if not arrow:
        once = sorted(letter for letter in set(left) - set(",.") if left.count(letter) == 1)
        right = "..." * ("..." in left) + "".join(once)
    labels, output = _without_dots(left.split(","), right, [one.dim() for one in operands])
    return _product(tracker, func, operands, labels, output, lambda changed: func(equation, *changed, **kwargs))


def _without_dots(labels: list[str], output: str, dims: list[int]) -> tuple[list[str], str]:
    """The labels of einsum with a letter for each axis that "..." stands for; these are aligned at their ends."""
    counts = [ndim - len(one.replace("...", "")) for one, ndim in zip(labels, dims, strict=True)]
    letters = [letter for letter in string.ascii_letters if letter not in "".join(labels)][: max(counts, default=0)]
    spelled = [
        one.replace("...", "".join(letters[len(letters) - count :])) for one, count in zip(labels, counts, strict=True)
    ]
    return spelled, output.replace("...", "".join(letters))


def _matmul_labels(left: int, right: int) -> tuple[list[str], str]:
    """The letters of torch.matmul for operands with so many axes; batch axes are aligned at their ends."""
    batch = string.ascii_lowercase[: max(left, right, 2) - 2]
    rows, columns = "M" * (left > 1), "N" * (right > 1)
    first = batch[len(batch) - max(left - 2, 0) :] + rows + "K"
    second = batch[len(batch) - max(right - 2, 0) :] + "K" + columns
    return [first, second], batch + rows + columns


def _inner_labels(left: int, right: int) -> tuple[list[str], str]:
    first, second = string.ascii_lowercase[: left - 1], string.ascii_uppercase[: right - 1]
    return [first + "z", second + "z"], first + second


def _product(
    tracker: Tracker, func: Any, operands: list[Tensor], labels: list[str], output: str, call: Any, added: Any = None
) -> Any:
    """A sum of products, with the axes of the operands and of the result named by letters."""
    states = [tracker.look(one) for one in operands]
    tags = [state if isinstance(state, Tag) else None for state in states]
    if not any(tag is not None for tag in tags):
        lost = next((state for state in states if isinstance(state, Lost)), None)
        result = call(operands)
        tracker.set(result, lost or MADE)
        return result
    axes, why = _joined(tags, labels, [tuple(one.shape) for one in operands])
    summed = set("".join(labels)) - set(output)
    if why is None and any(factor.role is BATCH for letter in summed for factor in axes[letter]):
        why = "it sums over the sequences"
    if why is None and any(factor.role is OPEN for letter in summed for factor in axes[letter]):
        why = "it sums over an axis that may be positions"
    over_positions = any(has_role(axes[letter]) for letter in summed)
    paddings = []
    changed = list(operands)
    for i, (one, tag) in enumerate(zip(operands, tags, strict=True)):
        if tag is None or not tag.is_ragged:
            continue
        if over_positions:
            changed[i] = tracker.fill(one, tag)
            paddings.append(Padding.ZERO)
        else:
            changed[i], tag = tracker.fill_unless_finite(one, tag)
            paddings.append(tag.padding)
    result = call(changed)
    if why is not None:
        return tracker.lose(result, func, why)
    if any(isinstance(state, Lost) for state in states):
        return tracker.lose(result, func, "one of its arguments was lost before")
    kept = tuple(axes[letter] for letter in output)
    made = Tag(kept, _least(paddings))
    if not made.is_ragged and any(tag is not None and tag.is_ragged for tag in tags):
        parameters = "".join(letters for one, letters in zip(operands, labels, strict=True) if tracker.is_constant(one))
        known = parameters + "".join(letters for tag, letters in zip(tags, labels, strict=True) if tag is not None)
        made = tracker.states.reopen(made, [2 if letter in known else 1 for letter in output])
    if isinstance(added, Tensor):
        other = tracker.tag(added)
        joined = broadcast([made, *([] if other is None else [other])], result.shape)
        if joined is None:
            return tracker.lose(result, func, "arguments with different lengths")
        made = Tag(joined, Padding.ANY if other is None else min(padding_in(one, joined) for one in (made, other)))
    tracker.set(result, made)
    return result


def _joined(
    tags: Sequence[Tag | None], labels: Sequence[str], shapes: Sequence[tuple[int, ...]]
) -> tuple[dict[str, Axis], str | None]:
    """What each letter stands for, and why that cannot be said, if it cannot."""
    found: dict[str, Axis] = {}
    for tag, letters, shape in zip(tags, labels, shapes, strict=True):
        for axis, letter in enumerate(letters):
            one = (Factor(shape[axis]),) if tag is None else tag.axes[axis]
            known = found.get(letter)
            if known is None or not has_role(known):
                if known is None or has_role(one) or size_of(known) == 1:
                    found[letter] = one
            elif (merged := merge_roles(known, one)) is None:
                return found, "arguments with different lengths"
            else:
                found[letter] = merged
    if sum(factor.role is BATCH for axis in found.values() for factor in axis) > 1:
        return found, "the sequences are on several axes"
    return found, None


def _least(paddings: list[Padding]) -> Padding:
    return min(paddings, default=Padding.ZERO)
