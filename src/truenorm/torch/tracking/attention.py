"""Rules for products over positions, and for attention.

A product that sums over positions must not sum over padding: both operands are set to 0 there. All products (`matmul`,
`bmm`, `einsum`, ...) are described by a letter for each axis, as in `einsum`, and share one rule. Softmax over
positions gives padding the weight 0. A sequence without any valid position gets zeros.

Padding that survives on other axes only has to be finite: in the backward pass the product sums over it, and the zero
gradient of an output at padding times NaN is NaN.
"""

from __future__ import annotations

import string
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from truenorm.torch.tracking.counts import OF_POSITIONS
from truenorm.torch.tracking.inputs import Fresh
from truenorm.torch.tracking.registry import named, rule
from truenorm.torch.tracking.states import MADE
from truenorm.torch.tracking.tag import (
    BATCH,
    OPEN,
    Axis,
    Factor,
    Gaps,
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


# ---- products ----


@rule(*named("matmul __matmul__ mm bmm mv dot inner"))
def matmul(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    given = {**dict(zip(("input", "other"), args, strict=False)), **kwargs}
    left = given.pop("input", None)
    right = next((given.pop(name) for name in ("other", "mat2", "vec", "tensor") if name in given), None)
    if left is None or right is None:
        return tracker.call_unknown(func, args, kwargs)
    inner = getattr(func, "__name__", "") == "inner"
    labels = _inner_labels(left.dim(), right.dim()) if inner else _matmul_labels(left.dim(), right.dim())
    return _product(tracker, func, [left, right], *labels, lambda operands: func(*operands, **given))


@rule(*named("__rmatmul__"))
def reflected_matmul(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    return matmul(tracker, torch.matmul, (args[1], args[0]), kwargs)


@rule(*named("addmm addbmm baddbmm"))
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


@rule(torch.einsum)
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
        made = tracker.reopen(made, [2 if letter in known else 1 for letter in output])
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


def _has_positions_only(axis: Axis) -> bool:
    """Whether a mask says what of this axis is valid: not if it has the batch, or may be positions."""
    return all(factor.role is None or isinstance(factor.role, (tuple, Gaps)) for factor in axis)


def _least(paddings: list[Padding]) -> Padding:
    return min(paddings, default=Padding.ZERO)


# ---- softmax ----


@rule(*named("softmax log_softmax softmin gumbel_softmax"))
def softmax(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """Over positions: padding gets the weight 0. Over anything else: each position by itself."""
    x, *rest = args
    found = tracker.look(x)
    given_dim = rest[0] if rest else kwargs.get("dim")
    if isinstance(found, Tag) and given_dim is None:
        return tracker.lose(func(x, *rest, **kwargs), func, "without dim")
    if not isinstance(found, Tag):
        result = func(x, *rest, **kwargs)
        open_size = given_dim is not None and x.dim() > 0 and x.shape[given_dim] in tracker.states.sizes
        if found is MADE and open_size and not tracker.is_constant(x):
            return tracker.lose(result, func, OF_POSITIONS)
        tracker.set(result, found)
        return result
    dim = given_dim % x.dim()
    logarithm = func.__name__ == "log_softmax"
    x, tag = tracker.fill_unless_finite(x, found)
    if not has_role(tag.axes[dim]):
        result = func(x, *rest, **kwargs)
        tracker.set(result, tag.having(min(tag.padding, Padding.FINITE)))
        return result
    if not _has_positions_only(tag.axes[dim]) or func.__name__ in ("softmin", "gumbel_softmax"):
        return tracker.lose(func(x, *rest, **kwargs), func, "it mixes positions")
    keys = along_only(tag, dim)
    if not keys.has_padding:
        result = func(x, *rest, **kwargs)
        tracker.set(result, tag.having(min(tag.padding, Padding.FINITE)))
        return result
    padding = tracker.mask(keys, x.device)
    # Not the smallest number: for a sequence without valid positions the weights are set to 0 below.
    result = func(
        x.masked_fill(padding, torch.finfo(x.dtype).min if tag.may_be_empty(dim) else -torch.inf), *rest, **kwargs
    )
    if logarithm or tag.may_be_empty(dim):
        result = result.masked_fill(padding, 0)
    tracker.set(result, tag.having(Padding.FINITE))
    return result


def along_only(tag: Tag, axis: int) -> Tag:
    """The same tag as if only this axis had padding: its mask is smaller, and leaves other padding alone."""
    axes = tuple(
        tuple(factor if factor.role is BATCH else Factor(factor.size) for factor in one) if i != axis else one
        for i, one in enumerate(tag.axes)
    )
    return Tag(axes, tag.padding)


# ---- attention ----


@rule(functional.scaled_dot_product_attention, reads_inputs=True)
def scaled_dot_product_attention(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    names = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal")
    given = {**dict(zip(names, args, strict=False)), **kwargs}
    for one in [given[name] for name in names[:3]]:
        if isinstance(tracker.look(one), Fresh):
            tracker.positions(one, (one.dim() - 2,), func)
    states = [tracker.look(given[name]) for name in names[:3]]
    lost = next((state for state in states if isinstance(state, Lost)), None)
    tags = [state if isinstance(state, Tag) and state.is_ragged else None for state in states]
    if lost is not None or tags == [None, None, None]:
        result = func(**given)
        tracker.set(result, lost or _without_positions(tracker, states, result))
        return result
    for name, tag in zip(names, tags, strict=False):
        if tag is not None:
            given[name], _ = tracker.fill_unless_finite(given[name], tag)
    query, key, value = tags
    own_mask, ndim = given.get("attn_mask"), given["query"].dim()
    reads = _keys(key, value, ndim)
    if reads is None or any(tag is not None and has_role(tag.axes[-1]) for tag in tags):
        return tracker.lose(func(**given), func, "its arguments have different lengths, or channels that are positions")
    if reads.has_padding:
        padding = tracker.mask(reads, given["key"].device)
        if reads.may_be_empty(ndim - 2):
            given["value"] = given["value"].masked_fill(padding, 0)
            padding = _with_one_key(padding, -2)
        given["attn_mask"] = _attention_mask(given, padding.mT)
        given["is_causal"] = False
    result = func(**given)
    rows = query.axes if query is not None else (*reads.axes[:-2], (Factor(given["query"].shape[-2]),), reads.axes[-1])
    # A mask of the caller may leave nothing to a query, whose result is then NaN.
    padding_after = Padding.FINITE if own_mask is None else Padding.ANY
    tracker.set(result, Tag((*rows[:-1], (Factor(result.shape[-1]),)), padding_after))
    return result


def _without_positions(tracker: Tracker, states: list[Any], result: Tensor) -> Any:
    """The state of attention over tensors without padding."""
    tag = next((state for state in states if isinstance(state, Tag)), None)
    if tag is not None:
        return (
            Tag((*tag.axes[:-1], (Factor(result.shape[-1]),)), tag.padding) if len(tag.axes) == result.dim() else MADE
        )
    return MADE


def _keys(key: Tag | None, value: Tag | None, ndim: int) -> Tag | None:
    """The tag of the keys, with the positions that are read; None if keys and values contradict each other."""
    if key is not None and value is not None and key.axes[:-1] != value.axes[:-1]:
        return None
    found = key or value
    if found is None:
        return Tag(tuple((Factor(1),) for _ in range(ndim)))
    if not _has_positions_only(found.axes[ndim - 2]):
        return None
    return along_only(found, ndim - 2)


def _with_one_key(padding: Tensor, axis: int) -> Tensor:
    """The first key is read where there is no valid one: its value is 0, and so is the result."""
    padding = padding.clone()
    padding.select(axis, 0).logical_and_(~padding.all(axis))
    return padding


def _attention_mask(given: Kwargs, padding: Tensor) -> Tensor:
    """The mask of the call, without the keys in the padding. `padding` is (..., 1, keys)."""
    mask: Tensor | None = given.get("attn_mask")
    rows, columns = given["query"].shape[-2], given["key"].shape[-2]
    if given.get("is_causal"):
        mask = torch.ones((rows, columns), dtype=torch.bool, device=padding.device).tril()
    if mask is None:
        return ~padding
    if mask.dtype == torch.bool:
        return mask & ~padding
    return mask.masked_fill(padding, -torch.inf)


@rule(functional.multi_head_attention_forward, reads_inputs=True)
def multi_head_attention_forward(tracker: Tracker, func: Any, args: Args, kwargs: Kwargs) -> Any:
    """query, key and value are (t, b, c), as nn.MultiheadAttention passes them on."""
    given = {**dict(zip(("query", "key", "value"), args, strict=False)), **kwargs}
    rest = args[3:]
    query, key, value = (given.pop(name) for name in ("query", "key", "value"))
    for one in (query, key, value):
        if isinstance(tracker.look(one), Fresh) and one.dim() == 3:
            tracker.positions(one, (0,), func, batch=1)
    states = [tracker.look(one) for one in (query, key, value)]
    if not any(isinstance(state, (Tag, Lost)) for state in states):
        return tracker.call_unknown(func, args, kwargs)
    lost = next((state for state in states if isinstance(state, Lost)), None)
    asked = states[0] if isinstance(states[0], Tag) else None
    read = next((state for state in states[1:] if isinstance(state, Tag)), None)
    layouts = [tag for tag in (asked, read) if tag is not None]
    if lost is None and any(
        query.dim() != 3 or tag.batch != 1 or tag.has_open or has_role(tag.axes[2]) for tag in layouts
    ):
        return tracker.lose(func(*args, **kwargs), func, "its arguments are not (t, b, c)")
    if lost is not None:
        result = func(*args, **kwargs)
        tracker.set(result, lost)
        return result
    changed = [
        tracker.fill_unless_finite(one, state)[0] if isinstance(state, Tag) else one
        for one, state in zip((query, key, value), states, strict=True)
    ]
    own_mask = given.get("attn_mask")
    if read is not None and read.has_padding:
        padding = tracker.mask(read, key.device)[..., 0]  # (t, b)
        if read.may_be_empty(0):
            changed[2] = changed[2].masked_fill(padding[..., None], 0)
            padding = _with_one_key(padding, 0)
        given["key_padding_mask"] = _key_padding_mask(padding.T, given)
    result, weights = func(*changed, *rest, **given)
    batch = layouts[0].axes[1]
    if isinstance(states[0], Fresh):
        return tracker.lose((result, weights), func, "a query whose positions are not known: pass along= to padded")
    # Learned queries have no padding.
    rows: Axis = (Factor(len(query)),) if asked is None else asked.axes[0]
    padding_after = Padding.FINITE if own_mask is None else Padding.ANY  # as above
    tracker.set(result, Tag((rows, batch, (Factor(result.shape[2]),)), padding_after))
    if isinstance(weights, Tensor):  # (b, t, keys), or (b, heads, t, keys)
        axes: list[Axis] = [(Factor(size),) for size in weights.shape]
        axes[0], axes[-2] = batch, rows
        if read is not None:
            axes[-1] = _with_more_keys(tracker, read, weights.shape[-1], key)
        tracker.set(weights, Tag(tuple(axes), Padding.ANY))
    return result, weights


def _with_more_keys(tracker: Tracker, read: Tag, size: int, key: Tensor) -> Axis:
    """The keys of the weights: add_bias_kv and add_zero_attn put valid ones behind the padding."""
    if size == len(key) or not read.is_ragged:
        return read.axes[0] if size == len(key) else (Factor(size),)
    valid = ~tracker.mask(read, key.device)[..., 0].T
    return (Factor(size, Gaps(functional.pad(valid, (0, size - len(key)), value=True))),)


def _key_padding_mask(padding: Tensor, kwargs: Kwargs) -> Tensor:
    """The mask of the call, (b, t) with True at keys that are not read, and ours. torch wants attn_mask's dtype."""
    own: Tensor | None = kwargs.get("key_padding_mask")
    other: Tensor | None = kwargs.get("attn_mask")
    if own is not None and own.dtype == torch.bool:
        padding, own = padding | own, None
    if own is None and (other is None or other.dtype == torch.bool):
        return padding
    if own is None:
        own = torch.zeros(padding.shape, dtype=None if other is None else other.dtype, device=padding.device)
    return own.masked_fill(padding, -torch.inf)
